package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/absence"
	"joiner/internal/metrics"
	"joiner/internal/task"
)

// slammed takes connections, ends them at once and counts them.
func slammed(t *testing.T) (address string, taken *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken = new(atomic.Int32)
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); ended.Wait() })
	return ln.Addr().String(), taken
}

// However many questions are open, a pod that refuses is asked by one of them at a
// time, after pauses that grow, also where every owner is asked.
func TestRefusalIsMetByOneAtATime(t *testing.T) {
	const questions, every, limit = 200, 5 * time.Millisecond, time.Second
	for _, partition := range []int32{1, task.AnyPartition} {
		address, taken := slammed(t)
		f := newFake("a")
		f.dir = directory(5, map[string]string{"a": "", "b": address}, "b", "b", "b", "b")
		c := ask(t, f, func(o *ClientOptions) { o.Patience = limit })
		began := time.Now()
		var all sync.WaitGroup
		for i := range questions {
			all.Add(1)
			c.Ask(t.Context(), task.Query{Symbol: symbolOf(int32(i)), Partition: partition, Except: task.AnyPartition}, Everywhere, func(a task.Answer) {
				if a.Outcome != task.Unanswered {
					t.Errorf("%+v", a)
				}
				all.Done()
			})
			time.Sleep(every)
		}
		all.Wait()
		took := time.Since(began)
		t.Logf("partition %d, %d questions within %v: %d connections, %d attempts counted",
			partition, questions, took.Round(time.Millisecond), taken.Load(), c.count(metrics.LookupError))
		// Those at once, the first pauses, and then one each time that the longest has
		// passed, a fifth less at least. net/http may try a connection twice.
		if most := 2 * (maxPerOwner + 4 + int(took/(limit/4*8/10))); int(taken.Load()) > most {
			t.Errorf("%d connections, %d at most were to be", taken.Load(), most)
		}
		if taken.Load() < 2 {
			t.Errorf("it was asked %d times only", taken.Load())
		}
	}
}

// A pod that refuses no more is asked by everybody who waits, and a new directory
// is not waited for.
func TestRefusalEnds(t *testing.T) {
	for name, test := range map[string]struct {
		held time.Duration
		news bool
	}{
		"with the next try":      {held: 50 * time.Millisecond},
		"with a new directory":   {held: time.Hour, news: true},
		"with one during a look": {held: 0, news: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil, nil)
			address := p.server.Addr().String()
			p.client.mu.Lock()
			p.client.refusals[address] = &refusal{pause: pauseFirst, until: time.Now().Add(test.held)}
			p.client.mu.Unlock()
			got := make(chan task.Answer, 100)
			for range cap(got) {
				p.client.Ask(t.Context(), task.Query{Symbol: "BBCA", Partition: 1, Except: task.AnyPartition, At: 1500}, Everywhere, func(a task.Answer) { got <- a })
			}
			if test.news {
				p.client.DirectoryChanged()
			}
			for range cap(got) {
				if a := p.client.get(t, got); a.Outcome != task.Found {
					t.Fatalf("%+v", a)
				}
			}
			p.client.mu.Lock()
			defer p.client.mu.Unlock()
			if len(p.client.refusals) != 0 {
				t.Error("it is held although it has answered")
			}
		})
	}
}

// A question waits no longer than its patience, wherever it does, and one that every
// owner is asked neither.
func TestRefusalAndPatience(t *testing.T) {
	for _, partition := range []int32{1, task.AnyPartition} {
		p := newPair(t, nil, func(o *ClientOptions) { o.Patience = 100 * time.Millisecond })
		p.client.mu.Lock()
		p.client.refusals[p.server.Addr().String()] = &refusal{until: time.Now().Add(time.Hour)}
		p.client.mu.Unlock()
		if a := p.client.one(t, partition, "BBCA"); a.Outcome != task.Unanswered {
			t.Errorf("partition %d: %+v", partition, a)
		}
		p.countedNothing(t)
	}
}

func TestNotesOfOwners(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	mutual := ours.server(t)
	mutual.ClientAuth, mutual.ClientCAs = tls.RequireAndVerifyClientCert, ours.pool
	for _, test := range []struct {
		name   string
		server func(*ServerOptions)
		client func(*ClientOptions)
		change func(*pair)
		want   string // of the note, between the address and the time; and of the reason
		why    string
	}{
		{"wrong token", withToken(ours, t, "s3cret"), func(o *ClientOptions) { o.TLS, o.Token = ours.client(), tokenOf("s3cre") }, nil, "refuses this pod's token", "HTTP 401"},
		{"its certificate", func(o *ServerOptions) { o.TLS = theirs.server(t) }, func(o *ClientOptions) { o.TLS = ours.client() }, nil, "shows a certificate that this pod does not take", "unknown authority"},
		{"ours", func(o *ServerOptions) { o.TLS = mutual }, func(o *ClientOptions) { o.TLS = ours.client(theirs.sign(t)) }, nil, "", "certificate"},
		{"foreign", nil, func(o *ClientOptions) { o.AllowedNames = []string{"*.example"} }, nil, "cannot be asked", "peer.allowed_names"},
		{"no address", nil, nil, func(p *pair) { p.asker.dir = directory(5, map[string]string{"b": ""}, "a", "b", "b", "b") }, "cannot be asked", "advertises no address"},
		{"of another group", nil, nil, func(p *pair) { p.owner.s.Group = "others" }, "refuses this pod's look-ups", "it is in another group"},
		{"gone", nil, nil, func(p *pair) { _ = p.server.Close(context.Background()) }, "does not answer", "connection refused"},
		{"silent", nil, func(o *ClientOptions) { o.Timeout = 20 * time.Millisecond }, func(p *pair) { p.owner.gate = make(chan struct{}) }, "does not answer", "no answer within 20ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var now atomic.Int64
			now.Store(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixNano())
			p := newPair(t, test.server, func(o *ClientOptions) {
				o.Patience = 300 * time.Millisecond
				if test.client != nil {
					test.client(o)
				}
			})
			p.client.away = absence.NewRoll[pod](func() time.Time { return time.Unix(0, now.Load()) })
			if test.change != nil {
				test.change(p)
			}
			if gate := p.owner.gate; gate != nil {
				defer close(gate)
			}
			_ = p.client.one(t, 1, "BBCA")
			if notes := p.client.Notes(); len(notes) != 0 {
				t.Errorf("at once: %q", notes)
			}
			now.Add(int64(5 * time.Second))
			at := ""
			if p.asker.dir.Members[len(p.asker.dir.Members)-1].Address != "" {
				at = " at " + p.server.Addr().String()
			}
			notes := p.client.Notes()
			if len(notes) != 1 || !strings.HasPrefix(notes[0], "look-ups: owner b"+at+" "+test.want) ||
				!strings.Contains(notes[0], " since 2026-01-01T12:00:00Z: ") || !strings.Contains(notes[0], test.why) {
				t.Errorf("%q", notes)
			}
			t.Log(notes)
			p.asker.change(func() { p.asker.dir = directory(6, map[string]string{"c": "host:1"}, "c", "c", "c", "c") })
			if notes := p.client.Notes(); len(notes) != 0 {
				t.Errorf("of one that is no owner any more: %q", notes)
			}
		})
	}
}

// The first answer ends the note, one that is none of use too; the note's time is
// that of the first failure.
func TestNotesEndWithTheFirstAnswer(t *testing.T) {
	p := newPair(t, nil, nil)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	p.client.away = absence.NewRoll[pod](func() time.Time { return now })
	b := pod{"b", p.server.Addr().String()}
	for _, answer := range []func(){
		func() { p.client.note(b, nil, statusError{429}) },
		func() { p.client.note(b, &response{refusal: whyGeneration}, nil) },
		func() {
			if a := p.client.one(t, 1, "BBCA"); a.Outcome != task.Found {
				t.Errorf("%+v", a)
			}
		},
	} {
		p.client.note(b, nil, late(time.Second, context.DeadlineExceeded))
		now = now.Add(10 * time.Second)
		p.client.note(b, nil, errNotAsked) // nobody was asked
		if notes := p.client.Notes(); len(notes) != 1 || !strings.HasSuffix(notes[0], ": no answer within 1s") {
			t.Errorf("%q", notes)
		}
		answer()
		if notes := p.client.Notes(); len(notes) != 0 {
			t.Errorf("%q", notes)
		}
	}
}

// The reason of a look-up that brought no answer is said once.
func TestReasonIsSaidOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	p := newPair(t, nil, func(o *ClientOptions) {
		o.Timeout, o.Patience, o.Log = 20*time.Millisecond, 100*time.Millisecond, zap.New(core)
	})
	p.owner.gate = make(chan struct{})
	defer close(p.owner.gate)
	_ = p.client.one(t, 1, "BBCA")
	var said []string
	for _, e := range logs.FilterMessage("a look-up brought no answer, asking again").All() {
		said = append(said, fmt.Sprint(e.ContextMap()["error"]))
	}
	if len(said) == 0 || slices.ContainsFunc(said, func(s string) bool { return s != "no answer within 20ms" }) {
		t.Errorf("%q", said)
	}
	cut := late(time.Second, errors.New("half of it"))
	if !errors.Is(cut, context.DeadlineExceeded) || cut.Error() != "no answer within 1s: half of it" {
		t.Error(cut)
	}
}
