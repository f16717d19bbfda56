package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"joiner/test/cluster"
	"joiner/test/pki"
)

// The parts of the manual's snippets that are other people's.
const (
	manualDir    = "/etc/joiner/kafka/"
	manualBroker = "broker1.example.com:9093"
	manualTokens = "https://login.example.com/oauth2/token"
)

// siteFiles are what the manual's snippets may name, called as test/secure
// calls them.
var siteFiles = []string{"ca.pem", "client.pem", "client.key", "password", "client_secret"}

// site is a joiner on one listener, configured as the manual says.
type site struct {
	*World
	listener  string
	principal string
	dir       string // holds config.yaml, certificates and passwords
	bad       string // the file that somebody on this listener can have wrong
	feed      *feed
	pod       *Proc
	second    *Proc // one more, that began with something wrong

	exactlyOnce bool // it writes in transactions
}

// newSite makes the world of a listener; nothing is granted yet.
func newSite(t *testing.T, c *cluster.Cluster, listener, heading, bad string, edit ...string) *site {
	t.Helper()
	s := &site{
		World:    NewWorldOn(t, c, 2, nil),
		listener: listener, principal: "User:" + cluster.SecureUser, dir: t.TempDir(), bad: bad,
	}
	if listener == cluster.ListenerTLS {
		s.principal = "User:ANONYMOUS"
	}
	s.feed = newFeed(s.World)
	for _, file := range siteFiles {
		s.copyFile(c.Secure.File(file), file)
	}
	edit = append(edit, manualDir, s.dir+"/", manualTokens, c.Secure.TokenURL,
		manualBroker, strings.Join(c.Secure.Listeners[listener], ", "))
	config := strings.NewReplacer(edit...).Replace(snippet(t, heading))
	if strings.Contains(config, "example.com") {
		t.Fatalf("the snippet under %q is not understood: %s", heading, config)
	}
	s.write("config.yaml", config)
	delete(s.Settings, "kafka.brokers")
	return s
}

func (s *site) copyFile(from, name string) {
	s.t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(name, string(text))
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the site's joiner.
func (s *site) start() {
	s.t.Helper()
	s.pods++
	settings := Settings{"log.level": "debug", "kafka.metadata_refresh": "1s"}
	for k, v := range s.Settings {
		settings[k] = v
	}
	s.pod = StartIn(s.t, fmt.Sprintf("%s-%d", strings.ToLower(s.listener), s.pods), s.dir, settings)
}

// allow grants all these rights.
func (s *site) allow(rights []right) {
	s.t.Helper()
	acls := make([]cluster.ACL, len(rights))
	for i, r := range rights {
		acls[i] = r.acl(s.World, s.principal)
	}
	s.Allow(s.t, acls...)
}

// produce writes n more records, one of eleven a notification.
func (s *site) produce(n int) {
	s.t.Helper()
	s.SendBulk(s.feed.batch(n, s.listener))
}

// awaitReady waits until the joiner says that it is ready.
func (s *site) awaitReady() { s.t.Helper(); s.pod.WaitReady() }

// awaitAlerts waits until each notification has its alert and all is committed.
func (s *site) awaitAlerts() {
	s.t.Helper()
	s.AwaitCount(s.Alerts, s.Count(s.Notes), Pods{s.pod})
	s.AwaitNoLag()
}

// awaitExact waits for the alerts of what was produced before the joiner came,
// and fails the test unless each has the price that its event time demands.
func (s *site) awaitExact() {
	s.t.Helper()
	s.awaitAlerts()
	market, notes, alerts := s.Read(s.Market), s.Read(s.Notes), s.readAlerts()
	proof := prove(s.t, notes, market, alerts, lastCopy)
	f := &faults{t: s.t}
	for p := range notes {
		want, _ := joins(s.t, market[p], notes[p])
		for _, a := range alerts {
			if a.Partition == p {
				checkJoin(f, a, want[a.Source.Offset])
			}
		}
	}
	f.report()
	// On a machine that stands still the group may lose its member.
	if n := proof.Doubled(); n > 0 && len(s.pod.Claims("claim ends")) == 0 {
		s.t.Errorf("%s: %d alerts are doubled, though no claim ended", s.listener, n)
	}
	if proof.Hits == 0 {
		s.t.Errorf("%s: no hits: the test shows nothing", s.listener)
	}
	s.t.Logf("%s: %d ticks, %d notifications, %d hits", s.listener, size(market), proof.Notes, proof.Hits)
}

// readAlerts reads all alerts that can be seen once everything is committed.
func (s *site) readAlerts() []Alert {
	s.t.Helper()
	if s.exactlyOnce {
		return s.ReadCommittedAlerts(int(s.Count(s.Notes)))
	}
	return s.ReadAlerts()
}

// says returns what the joiner says, since a line of its log and now, that
// names all of these; "" where it does not.
func (s *site) says(since int, notReady bool, names ...string) string {
	s.t.Helper()
	if notReady {
		for _, reason := range s.pod.Readiness().Reasons {
			if namesAll(reason, names...) {
				return reason
			}
		}
		return ""
	}
	for _, line := range s.pod.Lines()[since:] {
		if strings.Contains(line, `"level":"warn"`) && namesAll(line, names...) {
			return line
		}
	}
	return ""
}

func namesAll(text string, names ...string) bool {
	for _, name := range names {
		if !strings.Contains(text, name) {
			return false
		}
	}
	return true
}

// awaitNamed waits until the joiner names the right that it lacks, in its
// reasons for not being ready or, where the manual says so, in a warning.
func (s *site) awaitNamed(since int, r right) {
	s.t.Helper()
	notReady := !strings.HasPrefix(r.without, warns)
	began := time.Now()
	var said string
	await(s.t, fmt.Sprintf("%s to name the right that it lacks: %s", s.pod.Name, r), func() error {
		if code, ended := s.pod.Ended(); ended {
			s.t.Fatalf("%s ended with %d for want of %s", s.pod.Name, code, r)
		}
		if said = s.says(since, notReady, r.operation.String(), r.name(s.World)); said == "" {
			return fmt.Errorf("it says %q", s.pod.Readiness().Reasons)
		}
		return nil
	})
	s.t.Logf("%s without %s, after %v: %s", s.pod.Name, r, time.Since(began).Round(time.Millisecond), said)
}

// awaitEnd waits until the joiner has ended for want of a right, which its last
// words name.
func (s *site) awaitEnd(r right) {
	s.t.Helper()
	code := s.pod.Wait()
	var said string
	for _, line := range s.pod.Lines() {
		if namesAll(line, "missing right: "+r.operation.String(), r.name(s.World)) {
			said = line
		}
	}
	if code != 1 || said == "" {
		s.t.Fatalf("%s ended with %d for want of %s, which it does not name", s.pod.Name, code, r)
	}
	s.t.Logf("%s without %s ended with %d: %s", s.pod.Name, r, code, said)
}

// run runs another command of the joiner in the site's directory and returns
// its standard output.
func (s *site) run(args ...string) (string, error) { return s.runWith(s.Settings, args...) }

func (s *site) runWith(settings Settings, args ...string) (string, error) {
	binary, err := joinerBinary()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Env = s.dir, environment(settings)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("joiner %s: %w: %s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func (s *site) replace(name, text string) {
	s.t.Helper()
	if err := pki.Replace(filepath.Join(s.dir, name), []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

// beside is a joiner of the same group and configuration with files of its own.
func (s *site) beside(t testing.TB) *site {
	t.Helper()
	other := *s
	other.dir = t.TempDir()
	for _, file := range append([]string{"config.yaml"}, siteFiles...) {
		text, err := os.ReadFile(filepath.Join(s.dir, file))
		if err != nil {
			t.Fatal(err)
		}
		other.write(file, strings.ReplaceAll(string(text), s.dir+"/", other.dir+"/"))
	}
	return &other
}
