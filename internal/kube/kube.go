// Package kube asks Kubernetes one thing: whether the pod that is being stopped
// will be started again, or is going for good, since its StatefulSet is scaled
// down or taken away.
//
// It is one GET of apps/v1 StatefulSets, by way of the service account that is
// mounted into the pod, and no client library: nothing is watched, cached or
// kept. It needs the right to `get` that one object.
//
// It must never change anything, follow a redirect, keep or log the token, read
// the token before it is needed, or hold a shutdown up: a context bounds it, and
// whoever gets an error assumes that the pod comes back.
package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ServiceAccountDir is where Kubernetes mounts a pod's service account: the
// files token, ca.crt and namespace.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Options say where the API server is and who asks.
type Options struct {
	// Host and Port are the API server's, as KUBERNETES_SERVICE_HOST and
	// KUBERNETES_SERVICE_PORT have them. An empty Host means that the process
	// does not run in Kubernetes.
	Host, Port string
	// Dir holds the service account's token, ca.crt and namespace.
	Dir string
}

// FromEnvironment reads what Kubernetes tells every pod. getenv is os.Getenv but
// in tests.
func FromEnvironment(getenv func(string) string) Options {
	return Options{
		Host: getenv("KUBERNETES_SERVICE_HOST"), Port: getenv("KUBERNETES_SERVICE_PORT"),
		Dir: ServiceAccountDir,
	}
}

// Inside reports whether the process runs in Kubernetes.
func (o Options) Inside() bool { return o.Host != "" }

// Errors of Fate that are about the pod and no fault of anything.
var (
	// ErrOutside reports a process that does not run in Kubernetes.
	ErrOutside = errors.New("not in Kubernetes")
	// ErrNoOrdinal reports a name that is not one that a StatefulSet gives.
	ErrNoOrdinal = errors.New("not a name that a StatefulSet gives its pods (NAME-0, NAME-1, …)")
)

// Fate is what becomes of a pod that stops.
type Fate struct {
	// Gone is set where no pod of that name will be started again.
	Gone bool
	// Why is for people.
	Why string
}

// Fate asks the API server what becomes of a pod of a StatefulSet, by the pod's
// name. ctx bounds it. The error says why that is not known, with the HTTP
// status where there was one; it never holds the token.
func (o Options) Fate(ctx context.Context, pod string) (Fate, error) {
	if !o.Inside() {
		return Fate{}, ErrOutside
	}
	set, ordinal, err := Ordinal(pod)
	if err != nil {
		return Fate{}, err
	}
	namespace, err := o.read("namespace", maxNamespace)
	if err != nil {
		return Fate{}, err
	}
	found, err := o.get(ctx, strings.TrimSpace(string(namespace)), set)
	switch {
	case errors.Is(err, errNotFound):
		return Fate{Gone: true, Why: fmt.Sprintf("StatefulSet %s is gone", set)}, nil
	case err != nil:
		return Fate{}, fmt.Errorf("StatefulSet %s: %w", set, err)
	}
	return found.fate(set, ordinal), nil
}

// Ordinal splits a pod's name into that of its StatefulSet and its number.
func Ordinal(pod string) (set string, ordinal int32, err error) {
	cut := strings.LastIndexByte(pod, '-')
	if cut < 1 {
		return "", 0, fmt.Errorf("%q: %w", pod, ErrNoOrdinal)
	}
	number := pod[cut+1:]
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != number || !isName(pod[:cut]) {
		return "", 0, fmt.Errorf("%q: %w", pod, ErrNoOrdinal)
	}
	return pod[:cut], int32(n), nil
}

// maxName is the longest name of an object (a DNS subdomain, RFC 1123).
const maxName = 253

// isName tells whether Kubernetes takes s for the name of an object.
func isName(s string) bool {
	if s == "" || len(s) > maxName || strings.Trim(s, "-.") != s {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// The sizes in bytes that the mounted files and the answer may have. An object
// in etcd has 1.5 MiB at most.
const (
	maxNamespace = 1 << 10
	maxToken     = 64 << 10
	maxCA        = 1 << 20
	maxAnswer    = 4 << 20
)

// read returns one of the service account's files, of max bytes at most.
func (o Options) read(name string, limit int64) ([]byte, error) {
	file, err := os.Open(filepath.Join(o.Dir, name))
	if err != nil {
		return nil, fmt.Errorf("service account: %w", err)
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("service account: %w", err)
	case int64(len(b)) > limit:
		return nil, fmt.Errorf("service account: %s has more than %d bytes", name, limit)
	case len(strings.TrimSpace(string(b))) == 0:
		return nil, fmt.Errorf("service account: %s is empty", name)
	}
	return b, nil
}

var errNotFound = errors.New("not found")

// get fetches a StatefulSet.
func (o Options) get(ctx context.Context, namespace, set string) (statefulSet, error) {
	if !isName(namespace) {
		return statefulSet{}, errors.New("service account: namespace is no name of a namespace")
	}
	token, err := o.read("token", maxToken)
	if err != nil {
		return statefulSet{}, err
	}
	client, err := o.client()
	if err != nil {
		return statefulSet{}, err
	}
	defer client.CloseIdleConnections()
	address := url.URL{
		Scheme: "https", Host: net.JoinHostPort(o.Host, o.port()),
		Path: "/apis/apps/v1/namespaces/" + namespace + "/statefulsets/" + set,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return statefulSet{}, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return statefulSet{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return answer(resp, set)
}

func (o Options) port() string {
	if o.Port == "" {
		return "443"
	}
	return o.Port
}

// client trusts the cluster's authority alone, and uses no proxy and no
// connection of others.
func (o Options) client() (*http.Client, error) {
	pem, err := o.read("ca.crt", maxCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("service account: ca.crt holds no certificate")
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true, ForceAttemptHTTP2: true,
		},
		// The token is for the API server and nobody else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// answer reads the API server's.
func answer(resp *http.Response, set string) (statefulSet, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return statefulSet{}, fmt.Errorf("reading the answer: %w", err)
	case len(body) > maxAnswer:
		return statefulSet{}, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	case resp.StatusCode == http.StatusNotFound && saysGone(body, set):
		return statefulSet{}, errNotFound
	case resp.StatusCode != http.StatusOK:
		return statefulSet{}, fmt.Errorf("the API server answers %s", resp.Status)
	}
	return decode(body)
}

// saysGone tells whether the API server itself says that it has no such set: something in
// between, or a path that an API server does not serve, knows no StatefulSets
// and does not mean that this one is gone.
func saysGone(body []byte, set string) bool {
	var s struct {
		Kind    string `json:"kind"`
		Reason  string `json:"reason"`
		Details struct {
			Name string `json:"name"`
			Kind string `json:"kind"`
		} `json:"details"`
	}
	return json.Unmarshal(body, &s) == nil && s.Kind == "Status" && s.Reason == "NotFound" &&
		s.Details.Kind == "statefulsets" && s.Details.Name == set
}

// statefulSet is what matters of an apps/v1 StatefulSet.
type statefulSet struct {
	Kind     string `json:"kind"`
	Metadata struct {
		DeletionTimestamp *string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec *struct {
		Replicas *int32 `json:"replicas"` // 1 where it is left out
		Ordinals *struct {
			Start int32 `json:"start"`
		} `json:"ordinals"` // KEP-3335; from 0 where it is left out
	} `json:"spec"`
}

// decode reads a StatefulSet and refuses whatever else was sent in its place.
func decode(body []byte) (statefulSet, error) {
	var s statefulSet
	if err := json.Unmarshal(body, &s); err != nil {
		return statefulSet{}, fmt.Errorf("the answer is no StatefulSet: %w", err)
	}
	switch {
	case s.Kind != "StatefulSet" || s.Spec == nil:
		return statefulSet{}, errors.New("the answer is no StatefulSet")
	case s.Spec.Replicas != nil && *s.Spec.Replicas < 0:
		return statefulSet{}, fmt.Errorf("the StatefulSet has %d replicas", *s.Spec.Replicas)
	case s.Spec.Ordinals != nil && s.Spec.Ordinals.Start < 0:
		return statefulSet{}, fmt.Errorf("the StatefulSet's ordinals start at %d", s.Spec.Ordinals.Start)
	}
	return s, nil
}

// fate is that of the pod with this ordinal.
func (s statefulSet) fate(set string, ordinal int32) Fate {
	if s.Metadata.DeletionTimestamp != nil {
		return Fate{Gone: true, Why: fmt.Sprintf("StatefulSet %s is being deleted", set)}
	}
	first, replicas := int64(0), int64(1)
	if s.Spec.Ordinals != nil {
		first = int64(s.Spec.Ordinals.Start)
	}
	if s.Spec.Replicas != nil {
		replicas = int64(*s.Spec.Replicas)
	}
	why := fmt.Sprintf("StatefulSet %s has %d replicas, from ordinal %d on", set, replicas, first)
	at := int64(ordinal)
	return Fate{Gone: at < first || at >= first+replicas, Why: why}
}
