package faults

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"joiner/test/cluster"
)

// proxies are the ways of the pods to the brokers: one for each pod and broker, so
// that one pod loses a broker which the others still reach.
type proxies struct {
	all [][]*toxiproxy.Proxy // by pod, by broker
}

// openProxies listens where the cluster's fronts say that their proxies are.
func openProxies(t testing.TB, fronts [][]cluster.Front) *proxies {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &proxies{}
	for pod, front := range fronts {
		var list []*toxiproxy.Proxy
		for broker, way := range front {
			one := toxiproxy.NewProxy(server, fmt.Sprintf("pod%d-broker%d", pod+1, broker+1), way.Proxy, way.Broker)
			if err := one.Start(); err != nil {
				t.Fatalf("proxy on %s: %v", way.Proxy, err)
			}
			t.Cleanup(one.Stop)
			list = append(list, one)
		}
		p.all = append(p.all, list)
	}
	return p
}

// bootstrap is what a pod is told of the brokers.
func (p *proxies) bootstrap(pod int) string {
	var list []string
	for _, one := range p.all[pod] {
		list = append(list, one.Listen)
	}
	return strings.Join(list, ",")
}

// toxic puts a toxic on a way, for both directions where none is named, until
// it is taken off.
func (p *proxies) toxic(pod, broker int, kind, attributes string, directions ...string) error {
	if len(directions) == 0 {
		directions = []string{"upstream", "downstream"}
	}
	for _, d := range directions {
		text := fmt.Sprintf(`{"type": %q, "stream": %q, "attributes": {%s}}`, kind, d, attributes)
		if _, err := p.all[pod][broker].Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
			return fmt.Errorf("toxic %s: %w", text, err)
		}
	}
	return nil
}

// heal takes all toxics off.
func (p *proxies) heal(pod, broker int) {
	p.all[pod][broker].Toxics.ResetToxics(context.Background())
}

// established counts the connections that clients have open to a way.
func (p *proxies) established(pod, broker int) (n int, err error) {
	_, text, err := net.SplitHostPort(p.all[pod][broker].Listen)
	if err != nil {
		return 0, err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	const establishedState = "01"
	want := fmt.Sprintf(":%04X", port)
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) > 3 && strings.HasSuffix(fields[1], want) && fields[3] == establishedState {
			n++
		}
	}
	return n, nil
}
