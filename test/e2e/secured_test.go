package e2e

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
	"joiner/test/pki"
)

// tokenLifetime is short: connections end with the token that they were opened
// with, and are opened again with another.
const tokenLifetime = 20 * time.Second

// A joiner on each listener of a secured cluster, as docs/operations.md says:
// the join is exact with the rights listed there, each one that is taken away
// is named and given back, whatever is replaced while it runs counts for the
// next connection, what is wrong is named, and no secret is told to anybody. One
// of them writes in transactions; the pods of each show each other certificates
// and a token.
func TestKafkaSecured(t *testing.T) {
	t.Parallel() // with others that have a cluster of their own: it waits more than it works
	c := cluster.Start(t, cluster.Options{
		Brokers: 1, Secure: true, TokenLifetime: tokenLifetime,
		// Whoever is still connected when its token ends has to show a new one.
		Settings: []string{"listener.name.oauth.oauthbearer.connections.max.reauth.ms=60000"},
	})
	rights := rightsUnder(t, "## Allowing what joiner does")
	sites := []*site{
		newSite(t, c, cluster.ListenerTLS, "### TLS", "ca.pem"),
		newSite(t, c, cluster.ListenerMTLS, "### Mutual TLS", "client.pem"),
		newSite(t, c, cluster.ListenerPlain, "### PLAIN", "password"),
		newSite(t, c, cluster.ListenerSCRAM256, "### SCRAM", "password", "mechanism: SCRAM-SHA-512", "mechanism: SCRAM-SHA-256"),
		newSite(t, c, cluster.ListenerSCRAM512, "### SCRAM", "password"),
		newSite(t, c, cluster.ListenerOAuth, "### OAUTHBEARER", "client_secret"),
	}
	exact := sites[4]
	exact.exactlyOnce = true
	exact.Settings["delivery.guarantee"] = "exactly_once"
	exact.Settings["delivery.transactional_id_prefix"] = exact.Group + "-"
	maker := newSite(t, c, cluster.ListenerSCRAM512, "### SCRAM", "password")
	wrong := wrongCredentials(t, c)
	peers := newPeerFiles(t)
	peers.guard(append(sites, maker), wrong)
	phase := func(name string, do func()) {
		began := time.Now()
		do()
		t.Logf("phase %q took %v", name, time.Since(began).Round(time.Millisecond))
		if t.Failed() {
			t.FailNow()
		}
	}
	phase("join", func() {
		outputMaker(maker, rights)
		exact.allow(needed(rights, exactlyOnce))
		for _, s := range sites {
			s.allow(needed(rights, always))
			s.produce(1100)
			s.start()
		}
		for _, s := range sites {
			s.awaitReady()
			s.awaitExact()
		}
	})
	phase("rights", func() { takeAway(shares(sites, exact, rights)) })
	phase("output topics", func() { makeOutputs(maker, needed(rights, "topics.create: true")) })
	phase("load", func() { loads(sites, rightsUnder(t, "### What joiner load needs besides")) })
	sites = append(sites, maker)
	phase("rotation", func() { wrong.rotate(t, c, sites, needed(rights, always)) })
	phase("wrong credentials", func() { wrong.refused(t, sites) })
	phase("tokens end", func() {
		// By now nobody connects with what the first secret has brought.
		time.Sleep(time.Until(wrong.since.Add(tokenLifetime)))
		for _, s := range sites {
			s.produce(110)
		}
		for _, s := range sites {
			s.awaitReady()
			s.AwaitCount(s.Alerts, s.Count(s.Notes), Pods{s.pod, s.second})
			s.AwaitNoLag()
		}
	})
	phase("secrets", func() { leaks(t, sites, wrong.secrets) })
	proofs := make([]Proof, len(sites))
	for i, s := range sites {
		proof := prove(t, s.Read(s.Notes), s.Read(s.Market), s.readAlerts(), lastCopy)
		proofs[i] = proof
		if s.exactlyOnce && proof.Doubled() > 0 {
			t.Errorf("%s: %d alerts are doubled, exactly once", s.listener, proof.Doubled())
		}
		if proof.Hits+proof.Misses != proof.Notes || proof.Remote != 0 {
			t.Errorf("%s: %d notifications, %d hits, %d misses, %d remote", s.listener, proof.Notes, proof.Hits, proof.Misses, proof.Remote)
		}
	}
	phase("audit", func() { audits(sites, proofs, rightsUnder(t, "### What joiner audit needs besides")) })
}

// audits has joiner audit come to the same as the test, with the rights that it
// needs besides the joiner's own; first, on the first sites, with all of them
// but one. An empty topic is not read, so that nobody misses the right.
func audits(sites []*site, proofs []Proof, rights []right) {
	without := make(map[*site]right)
	for i, s := range sites {
		s.allow(rights)
		if i < len(rights) && s.Count(rights[i].name(s.World)) > 0 {
			without[s] = rights[i]
			s.Revoke(s.t, rights[i].acl(s.World, s.principal))
		}
	}
	for s, r := range without {
		if _, err := s.run("audit"); err == nil || !namesAll(err.Error(), "missing right: "+r.operation.String(), r.name(s.World)) {
			s.t.Errorf("joiner audit on %s without %s: %v", s.listener, r, err)
		}
		s.Allow(s.t, r.acl(s.World, s.principal))
	}
	var running sync.WaitGroup
	for i, s := range sites {
		running.Go(func() {
			if err := s.audit(proofs[i]); err != nil {
				s.t.Errorf("joiner audit on %s: %v", s.listener, err)
			}
		})
	}
	running.Wait()
}

// audit runs joiner audit, which must come to what the test has proven.
func (s *site) audit(proof Proof) error {
	out, err := s.run("audit", "-o", "json")
	if n := proof.Doubled(); n > 0 {
		// Restarts may double alerts, and the command then fails for that.
		if err != nil && strings.HasSuffix(err.Error(), fmt.Sprintf("joiner: audit: %d doubled\n", n)) {
			return nil
		}
		return errors.Join(fmt.Errorf("%d are doubled", n), err)
	}
	if err != nil {
		return err
	}
	var r audited
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return err
	}
	if r.Notifications != int64(proof.Notes) || r.Alerts != int64(proof.Alerts) {
		return fmt.Errorf("it reports %+v, there are %d notifications and %d alerts", r, proof.Notes, proof.Alerts)
	}
	return nil
}

// needed are the rights that are needed there.
func needed(rights []right, where string) []right {
	return slices.DeleteFunc(slices.Clone(rights), func(r right) bool { return r.where != where })
}

// shares deals the rights out to the sites that are to do without them, some at
// a time: those that every joiner needs one by one over all but the one that
// writes in transactions, and all to that one: first the group, which takes
// longest to get back into, as for the others; then all topics at once, without
// which it does not get so far that it misses the group; then what it alone needs.
func shares(sites []*site, exact *site, rights []right) map[*site][][]right {
	shares := make(map[*site][][]right)
	var others []*site
	for _, s := range sites {
		if s != exact {
			others = append(others, s)
		}
	}
	var topics, rest []right
	for i, r := range needed(rights, always) {
		s := others[i%len(others)]
		shares[s] = append(shares[s], []right{r})
		if r.kind == sarama.AclResourceTopic {
			topics = append(topics, r)
		} else {
			rest = append(rest, r)
		}
	}
	shares[exact] = [][]right{rest, topics, needed(rights, exactlyOnce)}
	return shares
}

// takeAway takes rights away from sites, once while the joiner runs and once
// before it starts: it must name each, and go on when they are given back.
func takeAway(shares map[*site][][]right) {
	for round := 0; ; round++ {
		missing := make(map[*site][]right)
		for s, lists := range shares {
			if round < len(lists) {
				missing[s] = lists[round]
			}
		}
		if len(missing) == 0 {
			return
		}
		began := time.Now()
		withdraw(missing)
		for s := range missing {
			s.t.Logf("round %d of rights took %v, for %d joiners", round+1, time.Since(began).Round(time.Millisecond), len(missing))
			break
		}
	}
}

// withdraw takes these rights away from these sites.
func withdraw(missing map[*site][]right) {
	each := func(do func(*site, right)) {
		for s, list := range missing {
			for _, r := range list {
				do(s, r)
			}
		}
	}
	revoke := func(s *site, r right) { s.Revoke(s.t, r.acl(s.World, s.principal)) }
	allow := func(s *site, r right) { s.Allow(s.t, r.acl(s.World, s.principal)) }
	since := make(map[*site]int)
	for s := range missing {
		since[s] = len(s.pod.Lines())
	}
	each(revoke)
	for s := range missing {
		s.produce(110)
	}
	each(func(s *site, r right) { s.awaitNamed(since[s], r) })
	each(allow)
	for s := range missing {
		s.awaitReady()
		s.awaitAlerts()
	}

	for s := range missing {
		s.pod.Signal(syscall.SIGTERM)
	}
	for s := range missing {
		if code := s.pod.Wait(); code != 0 {
			s.t.Errorf("%s ended with %d", s.pod.Name, code)
		}
	}
	each(revoke)
	for s := range missing {
		s.produce(110)
		s.start()
	}
	restart := make(map[*site]bool)
	each(func(s *site, r right) {
		if strings.HasPrefix(r.without, ends) {
			s.awaitEnd(r)
			restart[s] = true
		} else {
			s.awaitNamed(0, r)
		}
	})
	each(allow)
	for s := range restart {
		s.start()
	}
	for s := range missing {
		s.awaitReady()
		s.awaitAlerts()
	}
}

// outputMaker is a joiner whose output topics are missing, and that may make
// them, and grow them, as soon as it has the right to.
func outputMaker(s *site, rights []right) {
	s.t.Helper()
	for _, topic := range []string{s.Alerts, s.Dead} {
		if err := s.Admin().DeleteTopic(topic); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Settings["topics.create"] = "true"
	s.allow(needed(rights, always))
	s.start()
}

// makeOutputs lets it make its output topics, then grow them.
func makeOutputs(s *site, rights []right) {
	s.t.Helper()
	of := func(operation sarama.AclOperation) (found []right) {
		for _, r := range rights {
			if r.operation == operation {
				found = append(found, r)
			}
		}
		return found
	}
	create, alter := of(sarama.AclOperationCreate), of(sarama.AclOperationAlter)
	if len(create) != 2 || len(alter) != 2 || len(rights) != 4 {
		s.t.Fatalf("the rights for making output topics are %v: the test does not know what to do", rights)
	}
	s.give(create)
	s.Partitions++
	for _, topic := range []string{s.Market, s.Notes} {
		if err := s.Admin().CreatePartitions(topic, s.Partitions, nil, false); err != nil {
			s.t.Fatal(err)
		}
	}
	s.give(alter)
	s.produce(110)
	s.awaitAlerts()
}

// give waits until all these rights are named, and grants them.
func (s *site) give(missing []right) {
	s.t.Helper()
	for _, r := range missing {
		s.awaitNamed(0, r)
	}
	for _, r := range missing {
		s.Allow(s.t, r.acl(s.World, s.principal))
	}
	s.awaitReady()
}

// loads runs joiner load on each site, with the rights that it needs besides
// the joiner's own; first, on the first sites, with all of them but one.
func loads(sites []*site, rights []right) {
	all := func(sites []*site) []error {
		errs := make([]error, len(sites))
		var running sync.WaitGroup
		for i, s := range sites {
			running.Go(func() { errs[i] = s.load() })
		}
		running.Wait()
		return errs
	}
	for i, s := range sites {
		s.allow(rights)
		if i < len(rights) {
			s.Revoke(s.t, rights[i].acl(s.World, s.principal))
		}
	}
	for i, err := range all(sites[:len(rights)]) {
		s, r := sites[i], rights[i]
		if err == nil || !namesAll(err.Error(), "missing right: "+r.operation.String(), r.name(s.World)) {
			s.t.Errorf("joiner load on %s without %s: %v", s.listener, r, err)
		}
		s.Allow(s.t, r.acl(s.World, s.principal))
	}
	for i, err := range all(sites) {
		if err != nil {
			sites[i].t.Errorf("joiner load on %s: %v", sites[i].listener, err)
		}
		for _, r := range rights {
			sites[i].Revoke(sites[i].t, r.acl(sites[i].World, sites[i].principal))
		}
	}
}

// load runs joiner load, which must get every alert back.
func (s *site) load() error {
	const count = 20
	out, err := s.run("load", "--count", fmt.Sprint(count), "--rate", "0", "--symbols", "5", "-o", "json")
	if err != nil {
		return err
	}
	var report struct{ Notifications, Alerts, Missing int }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return err
	}
	if report.Notifications != count || report.Alerts != count || report.Missing != 0 {
		return fmt.Errorf("it reports %+v", report)
	}
	return nil
}

// rotate replaces everything under the running joiners, restarts the broker,
// which then takes nothing old, and waits until they go on.
func (old *credentials) rotate(t *testing.T, c *cluster.Cluster, sites []*site, rights []right) {
	t.Helper()
	authority, err := pki.NewAuthority("joiner second authority")
	if err != nil {
		t.Fatal(err)
	}
	password, secret := "fresh"+rand.Text(), "fresh"+rand.Text()
	first, err := pki.Load(c.Secure.File("ca.pem"), c.Secure.File("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	// As an administrator would: first the clients trust both authorities, then
	// the brokers change.
	client, err := first.Issue(pki.Request{Name: renamed, Validity: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sites {
		s.replace("ca.pem", string(first.PEM())+string(authority.PEM()))
		s.replace("password", password+"\n")
		s.replace("client_secret", secret+"\n")
		if s.listener == cluster.ListenerMTLS {
			if err := client.Write(filepath.Join(s.dir, "client.pem"), filepath.Join(s.dir, "client.key")); err != nil {
				t.Fatal(err)
			}
			before := s.principal
			s.principal = "User:" + renamed
			s.allow(rights)
			for _, r := range rights {
				s.Revoke(t, r.acl(s.World, before))
			}
		}
	}
	c.SetSCRAMPassword(t, cluster.SecureUser, password)
	c.SetPlainPassword(t, cluster.SecureUser, password)
	c.SetClientSecret(t, cluster.SecureUser, secret)
	old.since = time.Now()
	c.SetBrokerCertificate(t, authority)
	c.KillBroker(t, 1)
	c.StartBroker(t, 1)
	for _, s := range sites {
		s.admin = nil // it was on a connection that has gone
		s.produce(110)
	}
	for _, s := range sites {
		s.awaitReady()
		s.awaitAlerts()
		checkExpiry(s)
	}
	old.secrets = append(old.secrets, password, secret, string(client.Key))
}

// checkExpiry fails the test unless the metrics tell when the certificates end
// that lie in the site's directory now, and its pods' own.
func checkExpiry(s *site) {
	s.t.Helper()
	want := map[string]float64{
		"kafka_ca": firstEnd(s, filepath.Join(s.dir, "ca.pem")),
		"peer":     firstEnd(s, s.Settings["peer.tls.cert_file"]),
		"peer_ca":  firstEnd(s, s.Settings["peer.tls.ca_file"]),
	}
	if s.listener == cluster.ListenerMTLS {
		want["kafka"] = firstEnd(s, filepath.Join(s.dir, "client.pem"))
	}
	const name = "joiner_tls_certificate_not_after_timestamp_seconds"
	got := make(map[string]float64)
	for _, sample := range s.pod.Metrics().Find(name) {
		got[sample.Labels["use"]] = sample.Value
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("%s: %s is %v, want %v", s.pod.Name, name, got, want)
	}
}

// firstEnd is when the first of the file's certificates to end does so, in
// seconds since 1970.
func firstEnd(s *site, file string) float64 {
	s.t.Helper()
	rest, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	end := math.Inf(1)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return end
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			s.t.Fatal(err)
		}
		end = min(end, float64(cert.NotAfter.Unix()))
	}
}

// renamed is the name in the certificate that replaces the first one: only who
// shows the new one has any rights.
const renamed = "joiner-renamed"

// credentials are what was right before the rotation, or never.
type credentials struct {
	files   map[string]string
	secrets []string  // that nobody may be told, old and new
	since   time.Time // when the rotation was
}

func wrongCredentials(t *testing.T, c *cluster.Cluster) *credentials {
	t.Helper()
	wrong := &credentials{files: make(map[string]string)}
	for _, file := range siteFiles {
		text, err := os.ReadFile(c.Secure.File(file))
		if err != nil {
			t.Fatal(err)
		}
		wrong.files[file] = string(text)
	}
	stranger, err := pki.NewAuthority("a stranger's authority")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := stranger.Issue(pki.Request{Name: renamed})
	if err != nil {
		t.Fatal(err)
	}
	wrong.secrets = []string{wrong.files["client.key"], wrong.files["password"], wrong.files["client_secret"], string(pair.Key)}
	wrong.files["client.pem"], wrong.files["client.key"] = string(pair.Cert), string(pair.Key)
	return wrong
}

// refused starts one more joiner on each site with something wrong: it must say
// what, and go on when that is mended.
func (old *credentials) refused(t *testing.T, sites []*site) {
	t.Helper()
	others := make([]*site, len(sites))
	for i, s := range sites {
		others[i] = s.beside(t)
		others[i].write(s.bad, old.files[s.bad])
		if s.bad == "client.pem" {
			others[i].write("client.key", old.files["client.key"])
		}
		others[i].start()
	}
	for _, s := range others {
		var said string
		await(t, s.pod.Name+" to say what is wrong", func() error {
			reasons := s.pod.Readiness().Reasons
			for _, said = range reasons {
				if namesAll(said, complaints(s)...) {
					return nil
				}
			}
			return fmt.Errorf("it says %q, not %q", reasons, complaints(s))
		})
		// Its own log tells how long that took, however slow this test is to look.
		named := s.pod.Logged("a broker could be reached, but not be talked to; trying again")
		if len(named) == 0 || s.pod.LogContains(claimBegins) {
			t.Fatalf("%s does not log what is wrong, or has joined the group in spite of it", s.pod.Name)
		}
		t.Logf("figure: %s names what is wrong %v after it has started, target 10 s: %s", s.pod.Name,
			named[0].Time().Sub(s.pod.Logs()[0].Time()).Round(time.Millisecond), said)
	}
	for i, s := range others {
		for _, file := range []string{"client.key", s.bad} {
			text, err := os.ReadFile(filepath.Join(sites[i].dir, file))
			if err != nil {
				t.Fatal(err)
			}
			s.replace(file, string(text))
		}
	}
	for i, s := range others {
		s.awaitReady()
		sites[i].second = s.pod
		await(t, s.pod.Name+" to log that it has joined", func() error {
			if !s.pod.LogContains(claimBegins) {
				return errors.New("it does not, though it is ready")
			}
			return nil
		})
	}
}

// claimBegins is in the log of a joiner that has become a member of its group.
const claimBegins = `"msg":"claim begins"`

// complaints is what a joiner with that file wrong must say in one breath.
func complaints(s *site) []string {
	switch s.bad {
	case "ca.pem", "client.pem":
		return []string{"certificate"}
	case "password":
		return []string{"password", cluster.SecureUser}
	default:
		return []string{"client", "secret"}
	}
}

// leaks fails the test where a secret shows in what the joiners tell anybody,
// alive or dying.
func leaks(t *testing.T, sites []*site, secrets []string) {
	t.Helper()
	planted := "planted" + rand.Text()
	forms := formsOf(append(secrets, planted))
	look := func(where, text string) {
		for _, form := range forms {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%s shows a secret: %q", where, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	}
	var pods Pods
	for _, s := range sites {
		showConfig(s, planted, look)
		pods = append(pods, s.pod, s.second)
	}
	showChecks(sites, look)
	for _, p := range pods {
		for _, path := range []string{"/metrics", "/readyz", "/livez", "/", "/v1/status", "/v1/status?scope=group", "/v1/prices?symbol=SYM1"} {
			_, body, err := p.Get(path)
			if err != nil {
				t.Fatal(err)
			}
			look(p.Name+path, string(body))
		}
	}
	for _, p := range pods {
		p.Signal(syscall.SIGQUIT) // what a panic leaves, of all goroutines
	}
	for _, p := range pods {
		p.Wait()
		if !p.LogContains("goroutine ") {
			t.Errorf("%s died without a dump", p.Name)
		}
		if !p.LogContains(`"logger":"sarama"`) {
			t.Errorf("%s's log is not a debug log", p.Name)
		}
		look(p.Name+"'s log", p.Tail(0))
	}
}

// showConfig looks at the effective configuration of a joiner that is given a
// secret outright.
func showConfig(s *site, secret string, look func(where, text string)) {
	s.t.Helper()
	settings := maps.Clone(s.Settings)
	settings["peer.token"], settings["peer.token_file"] = secret, ""
	switch s.bad {
	case "password":
		settings["kafka.sasl.password"], settings["kafka.sasl.password_file"] = secret, ""
	case "client_secret":
		settings["kafka.sasl.client_secret"], settings["kafka.sasl.client_secret_file"] = secret, ""
	}
	for _, args := range [][]string{{"config"}, {"config", "-o", "json"}} {
		out, err := s.runWith(settings, args...)
		if err != nil {
			s.t.Fatal(err)
		}
		if !strings.Contains(out, "ca_file") {
			s.t.Errorf("joiner %s shows no configuration: %s", strings.Join(args, " "), out)
		}
		look("joiner "+strings.Join(args, " ")+" on "+s.listener, out)
	}
}

// showChecks looks at what joiner check says of each site, good or bad.
func showChecks(sites []*site, look func(where, text string)) {
	var running sync.WaitGroup
	out := make([]string, len(sites))
	for i, s := range sites {
		running.Go(func() {
			text, err := s.run("check", "-o", "json")
			if err != nil { // it holds all that was said
				text = err.Error()
			}
			out[i] = text
		})
	}
	running.Wait()
	for i, s := range sites {
		if !strings.Contains(out[i], `"findings"`) {
			s.t.Errorf("joiner check on %s finds nothing: %s", s.listener, out[i])
		}
		look("joiner check on "+s.listener, out[i])
	}
}

// guard has the pods of all sites show each other a certificate and a token,
// which are secrets more.
func (f *peerFiles) guard(sites []*site, all *credentials) {
	f.t.Helper()
	pair := f.certify()
	token := "peers" + rand.Text()
	for _, s := range sites {
		maps.Copy(s.Settings, f.settings("token", token))
	}
	all.secrets = append(all.secrets, token, string(pair.Key))
}

// formsOf are the secrets as they are and as they travel.
func formsOf(secrets []string) []string {
	forms := []string{"eyJhbGci"} // how a token begins
	for _, secret := range secrets {
		secret = strings.TrimSpace(secret)
		if _, body, ok := strings.Cut(secret, "PRIVATE KEY-----\n"); ok {
			secret, _, _ = strings.Cut(body, "\n")
		}
		forms = append(forms, secret, hex.EncodeToString([]byte(secret)))
		for _, as := range []string{secret, "\x00" + cluster.SecureUser + "\x00" + secret, cluster.SecureUser + ":" + secret} {
			forms = append(forms, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(as)), "="))
		}
	}
	return forms
}
