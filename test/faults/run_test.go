package faults

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"joiner/test/proc"
)

// run is rounds of faults on a group of pods under load.
type run struct {
	w         *world
	t         testing.TB
	guarantee string
	seed      uint64
	slots     []*slot
	load      *loader
	began     time.Time

	grown    atomic.Int32 // partitions of the topics by now
	shutCut  atomic.Int32 // shutdowns that left something uncommitted, and said so
	wayLocks [pods][brokers]sync.Mutex

	mu       sync.Mutex
	happened map[kind]int
	ends     []map[int32]int64 // of the notifications, after each round
}

const (
	faultPartitions = 6
	statics         = 1 // of the pods have an instance id, the last ones
	checkpointed    = 2 // of the pods keep checkpoints, the last ones
)

// newRun starts pods and load, and returns when alerts come out.
func newRun(t testing.TB, st *stage, guarantee string) *run {
	t.Helper()
	binary, err := proc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	w := st.world(t, faultPartitions, guarantee, nil)
	r := &run{w: w, t: t, guarantee: guarantee, seed: *flagSeed, began: time.Now(), happened: make(map[kind]int)}
	r.grown.Store(faultPartitions)
	for n := range pods {
		settings := make(map[string]string)
		if n >= pods-statics {
			settings["group.instance_id"] = fmt.Sprintf("pod-%d", n+1)
		}
		if n >= pods-checkpointed { // for all processes in that place
			settings["state.dir"], settings["state.checkpoint_interval"] = t.TempDir(), "1s"
		}
		s := w.slot(t, n, binary, settings)
		s.start()
		r.slots = append(r.slots, s)
	}
	r.awaitReady()
	r.load = w.load(r.seed, *flagRate, *flagTicks)
	r.awaitMore()
	return r
}

// awaitReady waits until all pods are.
func (r *run) awaitReady() {
	r.t.Helper()
	proc.Await(r.t, "all pods to be ready", func() error {
		for _, s := range r.slots {
			if err := s.alive(); err != nil {
				r.t.Fatal(err)
			}
			if err := s.ready(); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitMore waits until alerts have come out.
func (r *run) awaitMore() {
	r.t.Helper()
	from := int64(-1)
	proc.Await(r.t, "alerts to come out", func() error {
		ends, err := r.w.ends(r.w.alerts)
		if err != nil {
			return err
		}
		n := total(ends)
		if from < 0 {
			from = n
		}
		if n < from+100 {
			return fmt.Errorf("%d have come", n-from)
		}
		return nil
	})
}

func (r *run) logf(format string, args ...any) {
	r.t.Helper()
	r.t.Logf("%7.2fs  %s", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// round has all faults of a round happen, each at its time, and waits until all
// is mended and the pods are ready.
func (r *run) round(n int) {
	r.t.Helper()
	from, before := time.Now(), r.count()
	stop := r.watch()
	defer stop()
	var running sync.WaitGroup
	for _, p := range plan(r.seed, n, r.guarantee, *flagRound) {
		running.Go(func() {
			time.Sleep(time.Until(from.Add(p.at)))
			began := time.Now()
			touched, err := r.inject(p)
			if err != nil {
				r.t.Errorf("round %d, %s: %v", n, p, err)
				return
			}
			r.logf("round %d: %s → at %.2fs, %s, over after %.2fs", n, p, began.Sub(from).Seconds(), touched, time.Since(began).Seconds())
			r.mu.Lock()
			defer r.mu.Unlock()
			r.happened[p.kind]++
		})
	}
	running.Wait()
	if r.t.Failed() {
		r.t.FailNow()
	}
	r.awaitReady()
	r.awaitMore()
	stop()
	r.report(n, from, before)
}

// watch scrapes the pods until it is told to stop; what a process counted
// between the last look and its death is not known.
func (r *run) watch() (stop func()) {
	done := make(chan struct{})
	var looking sync.WaitGroup
	for _, s := range r.slots {
		looking.Go(func() {
			for {
				_ = s.scrape() // it may be dead, or stopped
				select {
				case <-done:
					return
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(done); looking.Wait() })
}

func (r *run) count() counts {
	sum := make(counts)
	for _, s := range r.slots {
		sum = sum.plus(s.count())
	}
	return sum
}

// figures of counts, for people.
func (c counts) String() string {
	text := fmt.Sprintf("%d rebalances, %d fences (%d of producers, %d of members that left, %d members expelled, %d offsets refused), %d retries (%d failed commits, %d transactions aborted, %d unknown",
		c.of(rebalances), c.fences(), c.of(txnFenced), c.of(fencedOthers), c.of(expelled), c.of(fencedByOthers),
		c.retries(), c.of(commitsFailed), c.of(txnAborted), c.of(txnUnknown))
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if strings.HasPrefix(name, produceErrors) && c[name] > 0 {
			text += fmt.Sprintf(", %d %s", int(c[name]), strings.Trim(strings.TrimPrefix(name, produceErrors), "{}"))
		}
	}
	return text + ")"
}

func (c counts) fences() int { return c.of(txnFenced, fencedOthers, expelled, fencedByOthers) }
func (c counts) retries() int {
	return c.of(commitsFailed, txnAborted, txnUnknown, produceErrors)
}

func (r *run) report(n int, from time.Time, before counts) {
	r.t.Helper()
	ends, err := r.w.ends(r.w.notes)
	if err != nil {
		r.t.Fatal(err)
	}
	written := total(ends)
	if len(r.ends) > 0 {
		written -= total(r.ends[len(r.ends)-1])
	}
	r.ends = append(r.ends, ends)
	lag := int64(0)
	proc.Await(r.t, "the lag to be known", func() error {
		lag, err = r.w.lag()
		return err
	})
	r.logf("round %d took %.1fs: %d notifications, lag %d; %s", n, time.Since(from).Seconds(), written, lag, r.count().minus(before))
}

// finish ends the load, waits for what is left to be joined, and stops the pods.
func (r *run) finish() {
	r.t.Helper()
	for r.load.notes.Load() < *flagTotal {
		time.Sleep(100 * time.Millisecond)
	}
	r.load.end()
	if n := r.load.failures.Load(); n > 0 {
		r.logf("%d sendings of the load failed: %v", n, r.load.lastError)
	}
	at := time.Now()
	r.w.awaitNoLag(func() error {
		for _, s := range r.slots {
			if err := s.alive(); err != nil {
				return err
			}
		}
		return nil
	})
	r.logf("the load has ended, sendings took %.1fs at most; nothing was left to join %.1fs later", r.load.slowest.Seconds(), time.Since(at).Seconds())
	for _, s := range r.slots {
		if err := s.scrape(); err != nil {
			r.t.Error(err)
		}
		s.process().Signal(syscall.SIGTERM)
	}
	for _, s := range r.slots {
		if code := s.process().Wait(); code != 0 {
			r.t.Errorf("%s ended with %d after SIGTERM, though nothing was wrong any more", s.process().Name, code)
		}
	}
}

// judge says what the topics say, and whether enough has happened.
func (r *run) judge(rounds int) {
	r.t.Helper()
	for _, k := range kindsUnder(r.guarantee) {
		if r.happened[k] < rounds {
			r.t.Errorf("%q happened %d times in %d rounds", k, r.happened[k], rounds)
		}
	}
	counted := r.count()
	r.logf("in all: %s; %d shutdowns left something uncommitted", counted, r.shutCut.Load())
	if counted.of(rebalances) == 0 || counted.fences() == 0 || counted.retries() == 0 {
		r.t.Error("no rebalance, no fence or no retry was counted: the faults have touched nothing")
	}
	if r.guarantee == exactlyOnce && (counted.of(txnFenced) < rounds || counted.of(txnCommitted) == 0) {
		r.t.Errorf("%d transactions were committed and %d fenced in %d rounds", counted.of(txnCommitted), counted.of(txnFenced), rounds)
	}
	r.checkpoints(rounds, counted)
	r.complaints()

	a := r.w.audit(r.t)
	own := r.w.tally()
	r.logf("own count: %d notifications, %d alerts, %d lost, %d doubled, %d out of order by first copies", own.notes, own.alerts, own.lost, own.doubled, own.outOfOrder)
	if a.Notifications != int64(own.notes) || a.Lost != int64(own.lost) || a.Doubled != int64(own.doubled) {
		r.t.Error("the audit does not agree with the count")
	}
	var claims []claim
	for _, s := range r.slots {
		claims = append(claims, claimsOf(r.w.notes, s.processes(), time.Now())...)
	}
	most, unexplained := own.bound(claims)
	r.logf("%d claims; what they may have joined again is %d notifications at most, %d were; by round: %v",
		len(claims), most, own.doubled, r.doubledByRound(&own))
	if r.guarantee == exactlyOnce {
		if !a.clean() || own.outOfOrder > 0 {
			r.t.Errorf("under exactly_once: %s: %v", a, a.Examples)
		}
		return
	}
	if a.Lost+a.Wrong+a.Foreign+a.Unverifiable+a.TicksLost+a.DeadLettered > 0 {
		r.t.Errorf("under at_least_once: %s: %v", a, a.Examples)
	}
	if own.doubled > most || len(unexplained) > 0 {
		r.t.Errorf("%d copies, at most %d of them can be explained; %d are not: %v", own.doubled, most, len(unexplained), unexplained[:min(5, len(unexplained))])
	}
}

// enoughRounds have a pod with checkpoints among those that come back with
// partitions that they had long enough to keep one.
const enoughRounds = 5

// checkpoints says what became of the checkpoints of pods that came back.
func (r *run) checkpoints(rounds int, counted counts) {
	r.t.Helper()
	back := 0
	for _, s := range r.slots[pods-checkpointed:] {
		back += s.cameBack()
	}
	outcomes := make(map[string]int)
	for name, n := range counted {
		if strings.HasPrefix(name, restores) && n > 0 {
			outcomes[strings.Trim(strings.TrimPrefix(name, restores), "{}")] = int(n)
		}
	}
	r.logf("checkpoints: %d restores used one; all by outcome: %v; %d partitions came back to the pod that had had them", counted.of(restoresUsed), outcomes, back)
	if rounds >= enoughRounds && counted.of(restoresUsed) == 0 {
		r.t.Errorf("no checkpoint was used in %d rounds", rounds)
	}
}

// doubledByRound counts the copies by the round that their notification was
// written in; the last number is of those that came after the last round.
func (r *run) doubledByRound(t *tally) []int {
	all := make([]int, len(r.ends)+1)
	for p, list := range t.byPartition {
		for offset, n := range list {
			round := slices.IndexFunc(r.ends, func(ends map[int32]int64) bool { return int64(offset) < ends[p] })
			if round < 0 {
				round = len(r.ends)
			}
			all[round] += max(n.copies-1, 0)
		}
	}
	return all
}

// complaints looks through the logs for what should never stand there, and
// counts what else they complain of.
func (r *run) complaints() {
	r.t.Helper()
	warnings := make(map[string]int)
	for _, s := range r.slots {
		for _, pod := range s.processes() {
			for _, l := range pod.Logs() { // a panic, or a race, is not JSON, and fails the test
				switch l.Text("level") {
				case "warn":
					warnings[l.Msg()]++
				case "error", "dpanic", "panic", "fatal":
					warnings["ERROR "+l.Msg()+": "+l.Text("error")]++
				}
			}
		}
	}
	for _, msg := range slices.Sorted(maps.Keys(warnings)) {
		r.logf("logged %d times: %s", warnings[msg], msg)
	}
}

var errUnknownGuarantee = errors.New("guarantee must be at_least_once or exactly_once")

// faultRun is a run from its beginning to its end.
func faultRun(t *testing.T, st *stage, guarantee string, rounds int) {
	t.Logf("seed %d, %d rounds of %v, %d notifications and %d ticks a second; again: FAULT_SEED=%d make test-faults ROUNDS=%d GUARANTEE=%s",
		*flagSeed, rounds, *flagRound, *flagRate, *flagRate**flagTicks, *flagSeed, rounds, guarantee)
	defer func() {
		if t.Failed() {
			t.Logf("failed with FAULT_SEED=%d", *flagSeed)
		}
	}()
	r := newRun(t, st, guarantee)
	for n := 1; n <= rounds; n++ {
		r.round(n)
	}
	r.finish()
	r.judge(rounds)
	t.Logf("%s: %d rounds in %v", guarantee, rounds, time.Since(r.began).Round(time.Second))
}
