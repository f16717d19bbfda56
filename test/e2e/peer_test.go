package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/enrich"
	"joiner/internal/record"
	"joiner/test/pki"
)

const (
	peerToken  = "a-token-of-this-test-alone"
	midToken   = "the-token-in-between"
	nextToken  = "the-token-that-follows"
	wrongToken = "another-token"
)

// peerFiles are the files of pods that trust each other by an authority and a
// token.
type peerFiles struct {
	t         testing.TB
	dir       string
	authority *pki.Authority
}

func newPeerFiles(t testing.TB) *peerFiles {
	t.Helper()
	authority, err := pki.NewAuthority("pods")
	if err != nil {
		t.Fatal(err)
	}
	f := &peerFiles{t, t.TempDir(), authority}
	f.write("ca.pem", authority.PEM())
	f.certify()
	return f
}

func (f *peerFiles) path(name string) string { return filepath.Join(f.dir, name) }

func (f *peerFiles) write(name string, content []byte) {
	f.t.Helper()
	if err := pki.Replace(f.path(name), content); err != nil {
		f.t.Fatal(err)
	}
}

// certify gives the pods a new certificate and key.
func (f *peerFiles) certify() pki.Pair {
	f.t.Helper()
	pair, err := f.authority.Issue(pki.Request{Name: "pod", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := pair.Write(f.path("pod.pem"), f.path("pod.key")); err != nil {
		f.t.Fatal(err)
	}
	return pair
}

// settings name the files; the token is written to the one of that name.
func (f *peerFiles) settings(name, token string) Settings {
	f.t.Helper()
	f.write(name, []byte(token+"\n"))
	return Settings{
		"peer.tls.enabled": "true", "peer.tls.client_auth": "true",
		"peer.tls.ca_file": f.path("ca.pem"), "peer.tls.cert_file": f.path("pod.pem"), "peer.tls.key_file": f.path("pod.key"),
		"peer.token_file": f.path(name), "peer.allowed_names": "127.0.0.1",
	}
}

// knock asks a pod as a stranger would, by TLS with this certificate, if any,
// and this token, and returns the status and the serial number of the pod's
// certificate.
func (f *peerFiles) knock(address, token string, certificate *pki.Pair) (status int, serial string, err error) {
	f.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.authority.PEM())
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if certificate != nil {
		pair, err := tls.X509KeyPair(certificate.Cert, certificate.Key)
		if err != nil {
			f.t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf}}
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, "https://"+address+"/v1/lookup", http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode, answer.TLS.PeerCertificates[0].SerialNumber.String(), nil
}

// PeerAddress is where other pods reach the process.
func (p *Proc) PeerAddress() string {
	p.t.Helper()
	lines := p.Logged("listening for other pods")
	if len(lines) == 0 {
		p.t.Fatalf("%s does not say where other pods reach it", p.Name)
	}
	return lines[0].Text("advertised")
}

// with returns the settings with more over them.
func (s Settings) with(more Settings) Settings {
	all := maps.Clone(s)
	maps.Copy(all, more)
	return all
}

// Pods that show each other certificates and a token: 4, 5, 4 again under
// round-robin, where every price is asked for, lose nothing and are never
// wrong, also while both are replaced. One whose token is another
// one asks in vain and is asked in vain.
func TestKafkaPeersSecured(t *testing.T) {
	files := newPeerFiles(t)
	g := startRoundRobin(t, remotePods, files.settings("token", peerToken).with(Settings{
		"group.strategy": "roundrobin", "delivery.commit_interval": "200ms",
	}))
	g.step("4 to 5", g.join)
	leaving := g.pods[0]
	g.step("5 to 4", func() {
		g.leave(leaving)
		if code := leaving.Stop(); code != 0 {
			t.Errorf("%s ended with %d after SIGTERM", leaving.Name, code)
		}
	})
	g.step("other certificates and token", func() { strangers(t, files, g.pods[0].PeerAddress()) })
	g.statusAgrees()
	if proof := g.finish(lastCopy); proof.Remote < proof.Notes*9/10 {
		t.Errorf("%d of %d prices were looked up, though no index is co-located", proof.Remote, proof.Notes)
	}
	for _, p := range g.all {
		for _, secret := range []string{peerToken, midToken, nextToken} {
			if p.LogContains(secret) {
				t.Errorf("%s logs a token", p.Name)
			}
		}
	}
	wrongTokenIn(t, g.Beside(), files)
}

// strangers looks at whom a pod lets in, before and after its certificate and
// token are replaced.
func strangers(t *testing.T, files *peerFiles, address string) {
	t.Helper()
	ours := files.certify()
	_, before, err := files.knock(address, peerToken, &ours)
	if err != nil {
		t.Fatalf("a peer is not let in: %v", err)
	}
	// Twice: for a while those of before count as well, and no other ever.
	files.write("token", []byte(midToken))
	if status, _, err := files.knock(address, midToken, &ours); status != http.StatusBadRequest {
		t.Fatalf("a peer with a new token: status %d, %v", status, err)
	}
	files.write("token", []byte(nextToken))
	ours = files.certify()
	foreign, err := pki.NewAuthority("others")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := foreign.Issue(pki.Request{Name: "pod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who, token  string
		certificate *pki.Pair
		want        int // 0: no connection
	}{
		{"a peer with an empty request", nextToken, &ours, http.StatusBadRequest},
		{"a peer with the token of before", midToken, &ours, http.StatusBadRequest},
		{"a peer with the one before that", peerToken, &ours, http.StatusBadRequest},
		{"somebody with a certificate and a token that never was", wrongToken, &ours, http.StatusUnauthorized},
		{"somebody with the token and no certificate", nextToken, nil, 0},
		{"somebody with the token and a certificate of others", nextToken, &theirs, 0},
	} {
		status, serial, err := files.knock(address, c.token, c.certificate)
		if status != c.want {
			t.Errorf("%s: status %d, %v, want %d", c.who, status, err, c.want)
		}
		if status != 0 && serial == before {
			t.Errorf("%s sees the pod's certificate of before", c.who)
		}
	}
}

// wrongTokenIn runs four pods one of which has another token. What it would
// have to ask of others is unavailable under its own policy, what others would
// have to ask of it under theirs.
func wrongTokenIn(t *testing.T, w *World, files *peerFiles) {
	common := Settings{
		"group.strategy": "roundrobin", "notification.start": "latest",
		"join.remote_timeout": "200ms", "join.remote_patience": "1s",
	}
	pods := w.Pods(remotePods-1, files.settings("token", peerToken).with(common).with(Settings{"join.on_unavailable": "dead_letter"}))
	stranger := w.Start(files.settings("wrong", wrongToken).with(common))
	pods = append(pods, stranger)
	shared := pods.AwaitShared(remotePartitions)
	shared.alone(t)

	before := w.Ends(w.Notes)
	symbols := SymbolsOf(w, "S", remotePartitions, 2) // they have prices
	notes := make([]Record, len(symbols))
	for i, symbol := range symbols {
		notes[i] = Record{Key: symbol, Value: fmt.Sprintf(`{"n": %d}`, i)}
	}
	w.Send(w.Notes, notes...)
	w.AwaitNoLag()
	counts := lookupsOf(pods.Metrics())
	pods.Stop()

	fates := make(map[string]int)
	f := &faults{t: t}
	defer f.report()
	judge := func(m *sarama.ConsumerMessage, got string) {
		t.Helper()
		home := w.Home(string(m.Key))
		want := "hit"
		switch {
		case shared.notes[m.Partition] == stranger.Name:
			want = "unavailable"
		case shared.market[home] == stranger.Name:
			want = "dead letter"
		}
		fates[got]++
		if got != want {
			f.add("wrong fate", "a notification of %s is a %s, want %s: %s holds its price, %s asks, %s has another token",
				m.Key, got, want, shared.market[home], shared.notes[m.Partition], stranger.Name)
		}
	}
	for _, a := range w.ReadAlerts() {
		if a.Source.Offset < before[a.Source.Partition] {
			f.add("foreign", "alert of %v, older than the group's start", a.Source)
			continue
		}
		if a.Locality != record.Remote {
			f.add("wrong place", "%v is %s", a.Source, a.Locality)
		}
		judge(a.ConsumerMessage, a.Result.String())
	}
	for _, letters := range w.Read(w.Dead) {
		for _, m := range letters {
			if kind, _ := Header(m, enrich.HeaderErrorKind); kind != string(record.Unavailable) {
				f.add("wrong kind", "dead letter of %s: %s", m.Key, kind)
			}
			judge(m, "dead letter")
		}
	}
	t.Logf("one token is wrong: %v; look-ups: %s", fates, counts)
	if n := fates["hit"] + fates["unavailable"] + fates["dead letter"]; n != len(notes) {
		t.Errorf("%d notifications have a fate, want %d", n, len(notes))
	}
	for _, fate := range []string{"hit", "unavailable", "dead letter"} {
		if fates[fate] == 0 {
			t.Errorf("no %s: the test shows little", fate)
		}
	}
	if counts["error"] == 0 {
		t.Errorf("no look-up is counted as an error: %s", counts)
	}
}
