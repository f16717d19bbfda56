// Package probe asks a joiner of this machine how it is, over HTTP, as a kubelet
// does: for containers whose image holds no other program that could.
//
// It must never judge: what ready and alive mean is the service's to say.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// The paths that are asked.
const (
	Ready = "/readyz"
	Live  = "/livez"
)

// largest is how much of an answer is read, in bytes: reasons of a pod with
// hundreds of partitions fit.
const largest = 1 << 20

// ErrAddress says that nobody can be asked at such an address.
var ErrAddress = errors.New("no address to ask")

// Address is where a process that listens on listen (host:port or :port) is
// reached from its own machine. A port of 0 is ErrAddress: which one it became
// only that process knows.
func Address(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrAddress, err)
	}
	if port == "0" {
		return "", fmt.Errorf("%w: %s is any free port", ErrAddress, listen)
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port), nil
}

// Ask asks the process at address and returns what it says. An error where it
// does not answer 200, which ends with what was said, if anything was.
func Ask(ctx context.Context, address, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", fmt.Errorf("asking %s: %w", address, err)
	}
	// A client of its own: no proxy of the environment stands between a process
	// and itself, and no connection is left behind.
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err // it names the method and the URL
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, largest))
	said := strings.TrimSpace(string(body))
	if err != nil {
		return "", fmt.Errorf("reading what %s%s says: %w", address, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s%s: %s: %s", address, path, response.Status, said)
	}
	return said, nil
}
