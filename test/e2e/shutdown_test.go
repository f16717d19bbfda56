package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"joiner/test/cluster"
)

// SIGTERM in the middle of work: what was taken is finished and committed, so
// that whoever comes next joins nothing twice.
func TestKafkaShutdown(t *testing.T) {
	const partitions, notes = 3, 60_000
	w := NewWorld(t, partitions, nil)
	symbols := SymbolsOf(w, "S", partitions, 10)
	w.Seed(symbols)
	records := make([]Record, notes)
	for i := range records {
		records[i] = Record{Key: symbols[i%len(symbols)], Value: fmt.Sprintf(`{"n": %d, "text": "%s"}`, i, strings.Repeat("x", 200))}
	}
	p := w.Producer()
	for part := range slices.Chunk(records, 3000) { // a batch holds what is sent at once, and brokers bound it
		p.Send(w.Notes, part...)
	}

	stops := 0
	for out := int64(0); out < notes; stops++ {
		pod := w.Start(nil)
		w.AwaitCount(w.Alerts, min(out+2000, notes), Pods{pod})
		began := time.Now()
		if code := pod.Stop(); code != 0 {
			t.Fatalf("%s ended with %d after SIGTERM, in the middle of work", pod.Name, code)
		}
		took := time.Since(began)
		out = w.Count(w.Alerts)
		t.Logf("stopped with %d of %d alerts out, %v after SIGTERM (target: inside shutdown.timeout, 25 s)", out, notes, took.Round(time.Millisecond))
		committed := int64(0)
		for _, offset := range w.Committed(w.Notes) {
			committed += max(offset, 0)
		}
		if committed != out {
			t.Errorf("%d alerts are out, %d notifications committed", out, committed)
		}
	}
	if stops < 2 {
		t.Log("all was out before the first SIGTERM: this run shows little")
	}
	proof := w.Prove()
	if proof.Alerts != notes || proof.Hits != notes {
		t.Errorf("%d notifications, %d alerts, %d hits", notes, proof.Alerts, proof.Hits)
	}
}

// Nothing answers: a first signal waits for what it cannot get, a second one
// ends the process at once, and where nobody sends one the shutdown is cut
// short and says what it left.
func TestKafkaShutdownWithoutBrokers(t *testing.T) {
	t.Parallel() // with others that have a cluster of their own: it waits more than it works
	c := cluster.Start(t, cluster.Options{Brokers: 1, Private: true})
	w := NewWorldOn(t, c, 1, nil)
	// The next pod has to wait for the one before, which could not leave.
	w.Settings["group.session_timeout"] = "3s"
	symbols := SymbolsOf(w, "S", 1, 3)
	w.Seed(symbols)

	for _, test := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGTERM, 143}, {syscall.SIGINT, 130}} {
		t.Run(test.signal.String(), func(t *testing.T) {
			pod := w.Start(Settings{"shutdown.timeout": "10m"})
			pod.WaitReady()
			c.PauseBroker(t, 1)
			defer c.ResumeBroker(t, 1)
			pod.Signal(syscall.SIGTERM)
			await(t, "the pod to be stopping", func() error {
				if len(pod.Logged("stopping")) == 0 {
					return fmt.Errorf("it has not said so")
				}
				return nil
			})
			time.Sleep(time.Second) // well inside the shutdown
			if code, ended := pod.Ended(); ended {
				t.Fatalf("it ended by itself, with %d", code)
			}
			began := time.Now()
			pod.Signal(test.signal)
			if code := pod.Wait(); code != test.code {
				t.Errorf("exit code %d after %s, want %d", code, test.signal, test.code)
			}
			t.Logf("ended %v after the second signal", time.Since(began).Round(time.Millisecond))
		})
	}

	t.Run("cut short", func(t *testing.T) {
		pod := w.Start(Settings{"shutdown.timeout": "6s", "delivery.commit_interval": "1h"})
		pod.WaitReady()
		w.Producer().Send(w.Notes, Record{Key: symbols[0], Value: `{}`}, Record{Key: symbols[1], Value: `{}`})
		w.AwaitCount(w.Alerts, 2, Pods{pod})
		c.KillBroker(t, 1)
		began := time.Now()
		code := pod.Stop()
		t.Logf("ended %v after SIGTERM (shutdown.timeout: 6 s)", time.Since(began).Round(time.Millisecond))
		if code != 1 {
			t.Errorf("exit code %d, want 1: two notifications are not committed", code)
		}
		said := finalWords(pod)
		if !strings.Contains(said, "uncommitted: partition 0") {
			t.Errorf("it does not say what was left uncommitted: %q", said)
		}
		t.Log(said)
		if !pod.LogContains("still stopping: waiting for brokers to take what was joined") {
			t.Error("it waited without saying for what")
		}

		// What was not committed is joined again by whoever comes next.
		c.StartBroker(t, 1)
		w.admin = nil // it was on a connection that has gone
		before := w.Count(w.Alerts)
		next := w.Start(nil)
		w.AwaitCount(w.Alerts, before+2, Pods{next})
		w.AwaitNoLag()
		if code := next.Stop(); code != 0 {
			t.Errorf("with the broker back it ended with %d", code)
		}
		if proof := w.Prove(); proof.Hits != proof.Notes {
			t.Errorf("of %d notifications %d are hits", proof.Notes, proof.Hits)
		}
	})
}

// finalWords is what the process said at its end, to people.
func finalWords(p *Proc) string {
	log := p.Tail(0)
	if at := strings.Index(log, "\njoiner: "); at >= 0 {
		return log[at+1:]
	}
	return ""
}
