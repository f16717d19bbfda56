package k8s

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// awayVariable is for how long brokers are away; the ten minutes are the
// long form.
const awayVariable = "JOINER_K8S_AWAY"

// Brokers are away when the chart is installed for the first time: pods wait, and
// none is restarted for it.
func brokersAway(t *testing.T, s *stage) {
	away := time.Minute
	if text := os.Getenv(awayVariable); text != "" {
		var err error
		if away, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", awayVariable, err)
		}
	}
	r := s.release(t, "away")
	for n := range s.Brokers {
		s.KillBroker(t, n+1)
	}
	r.install()
	looks := 0
	for from := time.Now(); time.Since(from) < away; time.Sleep(2 * time.Second) {
		looks += r.waits()
	}
	r.saysWhy()
	s.comeBack(t)
	back := time.Now()
	pods := r.awaitReady(2)
	took := time.Since(back)
	restarts := 0
	for _, p := range pods {
		restarts += p.restarts()
	}
	t.Logf("figure: brokers away for %v from the first installation: %d restarts, ready %v after they were back (%d looks)",
		away, restarts, took.Round(100*time.Millisecond), looks)
	if restarts != 0 {
		t.Errorf("%d restarts", restarts)
	}
	if looks == 0 {
		t.Error("no pod was seen waiting")
	}
	r.awaitBalanced(pods)
	r.thirty(pods, 30)
}

// waits looks at the pods that run: alive, and not ready, for a reason.
func (r *release) waits() (looks int) {
	r.t.Helper()
	for _, p := range r.pods() {
		if p.restarts() != 0 {
			r.t.Errorf("%s was restarted while brokers are away", p.name())
		}
		if p.Status.PodIP == "" {
			continue
		}
		status, _, err := get(p, "/livez")
		if err != nil {
			continue // it does not listen yet; whether it ever does, restarts and readiness tell
		}
		if status != http.StatusOK || p.ready() {
			r.t.Errorf("%s: /livez answers %d, ready: %v", p.name(), status, p.ready())
		}
		looks++
	}
	return looks
}

// saysWhy runs in a pod what the chart's notes tell to, where one does not get
// ready.
func (r *release) saysWhy() {
	r.t.Helper()
	out, errs, err := r.tryKubectl("exec", r.name+"-0", "--container", "joiner", "--", "/joiner", "health")
	if err == nil || !strings.Contains(out+errs, "no broker") {
		r.t.Errorf("joiner health in a pod that waits for brokers: %v\n%s%s", err, out, errs)
	}
}

// comeBack starts all brokers at once, since none answers before there are two,
// and returns when all do.
func (s *stage) comeBack(t *testing.T) {
	t.Helper()
	script, err := filepath.Abs("../kafka/broker")
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, len(s.Brokers))
	for n := range s.Brokers {
		go func() {
			cmd := exec.Command(script, strconv.Itoa(n+1), "start")
			cmd.Env = append(os.Environ(), "KAFKA_DIR="+s.Dir)
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("broker %d: %w: %s", n+1, err, out)
			}
			failed <- err
		}()
	}
	for range s.Brokers {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}
