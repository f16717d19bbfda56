package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"joiner/internal/record"
)

// run drives a world in a bubble of its own clock.
func run(t *testing.T, change func(*Options), body func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, change)
		if w.opts.Prices == nil {
			w.opts.Prices = pricesOf{w}
		}
		defer func() { // also after a failure, or the bubble hides it
			if w.task != nil {
				w.stop()
			}
		}()
		body(t, w)
	})
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.outputs(); !slices.Equal(got, want) {
		w.t.Fatalf("outputs:\n%s\nwant:\n%s", lines(got), lines(want))
	}
}

func lines(s []string) (text string) {
	for _, l := range s {
		text += "  " + l + "\n"
	}
	return text
}

func src(offset int) string { return fmt.Sprintf("%s/3/%d", noteTopic, offset) }

func (w *world) expectCut(market, note int64) {
	w.t.Helper()
	synctest.Wait()
	cut, _ := w.task.Cut()
	if want := (record.Offsets{market, note}); cut != want {
		w.t.Fatalf("cut %v, want %v", cut, want)
	}
}

func TestJoinsByEventTime(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "9150", 1000)
		w.note("BBCA", 1500)
		w.tick("BBCA", "9175.50", 2000)
		w.note("BBCA", 2000)
		w.note("BBCA", 2500)
		w.expect(
			"BBCA "+src(0)+" 9150 local hit",
			"BBCA "+src(1)+" 9175.50 local hit",
			"BBCA "+src(2)+" 9175.50 local hit",
		)
		w.expectCut(2, 3)
	})
}

// A notification must see every tick that could be read when it was received,
// so an end that was asked for before proves nothing.
func TestNotificationWaitsForAnEndAskedForAfterIt(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		synctest.Wait()
		w.mu.Lock()
		w.endHold = true
		w.mu.Unlock()
		late := w.put(record.Market, "BBCA", `{"price":1}`, 900) // in the log, not fetched yet
		w.note("BBCA", 1000)
		w.expect()
		w.answerHeld()
		w.expect() // the end is known now, and the tick below it is still to come
		w.offer(record.Market, late)
		w.expect("BBCA " + src(0) + " 1 local hit")
	})
}

func TestControlRecordsDoNotStall(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 500)
		w.control(record.Market)
		w.note("BBCA", 1000)
		w.control(record.Notification)
		w.expect()
		w.fetch(record.Market)
		w.fetch(record.Notification)
		w.expect("BBCA " + src(0) + " 1 local hit")
		w.expectCut(2, 2) // both lags are 0
	})
}

func TestQuietTopicIsCaughtUpPastControlRecords(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.control(record.Market)
		w.control(record.Notification)
		w.control(record.Notification)
		w.fetch(record.Market)
		w.fetch(record.Notification)
		w.expectCut(1, 2)
	})
}

func TestTicksAloneAdvance(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		for i := range 10 {
			w.tick("BBCA", fmt.Sprint(i+1), record.Millis(1000+i))
		}
		time.Sleep(time.Second)
		w.expectCut(10, 0)
	})
}

func TestCutNeverPassesAnUnacknowledgedOutput(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.hold = true
		w.start(-1, -1)
		w.tick("BBCA", "1", 500)
		w.note("BBCA", 1000)
		w.tick("BBCA", "2", 1500)
		w.note("BBCA", 2000)
		w.expect("BBCA "+src(0)+" 1 local hit", "BBCA "+src(1)+" 2 local hit")
		w.expectCut(1, 0)
		w.settle(1)
		w.expectCut(1, 0)
		w.settle(0)
		w.expectCut(2, 2)
	})
}

func TestRestoreBeforeTheFirstJoin(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.put(record.Market, "BBCA", `{"price":7}`, 100)
		w.put(record.Market, "BBCA", `not json`, 150)
		w.put(record.Market, "TLKM", `{"price":8}`, 200)
		w.control(record.Market)
		w.start(4, 0)
		w.note("TLKM", 1000)
		w.note("BBCA", 1000)
		w.expect("TLKM "+src(0)+" 8 local hit", "BBCA "+src(1)+" 7 local hit")
		s := w.task.Status()
		if !s.CaughtUp || s.FirstCatchUp || s.Symbols != 2 {
			t.Fatalf("status %+v", s)
		}
		if begins := (record.Offsets{4, 0}); s.Committed != begins {
			t.Errorf("committed %s before the first commit, want where the claims began: %s", s.Committed, begins)
		}
	})
}

func TestFirstCatchUpCountsDown(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		var recs []record.Record
		for i := range 3 {
			recs = append(recs, w.put(record.Market, "BBCA", fmt.Sprintf(`{"price":%d}`, i), record.Millis(i)))
		}
		w.start(-1, -1)
		synctest.Wait()
		if s := w.task.Status(); s.CaughtUp || !s.FirstCatchUp || s.RestoreRemaining != 3 || s.Committed != (record.Offsets{-1, -1}) {
			t.Fatalf("before: %+v", s)
		}
		w.expectCut(0, 0) // and once at the start for a group without commits
		for _, r := range recs {
			w.offer(record.Market, r)
		}
		time.Sleep(time.Second)
		if s := w.task.Status(); !s.CaughtUp || s.RestoreRemaining != 0 {
			t.Fatalf("after: %+v", s)
		}
	})
}

func TestBadRecordsDelayNobody(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.offer(record.Market, w.put(record.Market, "BBCA", `{"price":"abc"}`, 400))
		w.tick("BBCA", "1", 500)
		w.offer(record.Notification, w.put(record.Notification, "BBCA", `[1]`, 900))
		w.offer(record.Notification, w.put(record.Notification, "BBCA", ``, 900))
		w.offer(record.Notification, w.put(record.Notification, "", `{}`, 900))
		w.note("BBCA", 1000)
		synctest.Wait()
		got := w.outputs()
		slices.Sort(got)
		want := []string{
			"BBCA " + src(3) + " 1 local hit",
			"dead  " + src(2) + " missing_symbol",
			"dead BBCA " + marketTopic + "/3/0 invalid_price",
			"dead BBCA " + src(0) + " invalid_json",
			"dead BBCA " + src(1) + " null_value",
		}
		if !slices.Equal(got, want) {
			t.Fatalf("outputs:\n%s\nwant:\n%s", lines(got), lines(want))
		}
		w.expectCut(2, 4)
	})
}

func TestWithoutDeadLettersBadRecordsAreSkipped(t *testing.T) {
	run(t, func(o *Options) { o.DeadLetters = "" }, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.offer(record.Notification, w.put(record.Notification, "BBCA", `[1]`, 900))
		w.note("BBCA", 1000)
		w.expect("BBCA " + src(1) + " none local miss")
		w.expectCut(0, 2)
	})
}

func TestMissPolicies(t *testing.T) {
	for policy, want := range map[Policy][]string{
		Emit:         {"BBCA " + src(0) + " none local miss"},
		ToDeadLetter: {"dead BBCA " + src(0) + " no_price"},
		DropIt:       nil,
	} {
		t.Run(string(policy), func(t *testing.T) {
			run(t, func(o *Options) { o.OnMiss = policy }, func(_ *testing.T, w *world) {
				w.start(-1, -1)
				w.note("BBCA", 1000)
				w.expect(want...)
				w.expectCut(0, 1)
			})
		})
	}
}

func TestTombstoneMeansNoPrice(t *testing.T) {
	run(t, nil, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 500)
		w.offer(record.Market, w.put(record.Market, "BBCA", "", 600))
		w.note("BBCA", 1000)
		w.expect("BBCA " + src(0) + " none local miss")
	})
}

func TestHistoryPricesAsOfTheEventTime(t *testing.T) {
	run(t, func(o *Options) { o.History = time.Minute }, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 1000)
		w.tick("BBCA", "2", 2000)
		w.note("BBCA", 2500)
		w.expect("BBCA " + src(0) + " 2 local hit")
		w.note("BBCA", 1500) // behind its time: by now the table has moved on
		w.expect("BBCA "+src(0)+" 2 local hit", "BBCA "+src(1)+" 1 local hit")
	})
}

// join.wait: one waiting notification holds back the commits, not the others.
func TestWaitByTheClock(t *testing.T) {
	wait := func(o *Options) { o.Wait = 10 * time.Second }
	t.Run("a tick ends it", func(t *testing.T) {
		run(t, wait, func(_ *testing.T, w *world) {
			w.start(-1, -1)
			w.note("NEW", 1000)
			w.tick("BBCA", "1", 900)
			w.note("NEW", 1100)
			w.note("BBCA", 1200)
			w.expect("BBCA " + src(2) + " 1 local hit")
			w.expectCut(0, 0)
			if got := w.task.ledger.oldest(record.Notification); got != 1000 {
				t.Errorf("the oldest that is not settled is of %d: a lag is what waits, too", got)
			}
			if got := w.task.ledger.oldest(record.Market); got != record.NoTimestamp {
				t.Errorf("a tick of %d is not settled", got)
			}
			time.Sleep(5 * time.Second)
			w.tick("NEW", "3", 900)
			time.Sleep(freshEnd)
			w.expect("BBCA "+src(2)+" 1 local hit", "NEW "+src(0)+" 3 local hit", "NEW "+src(1)+" 3 local hit")
			w.expectCut(2, 3)
			if got := w.task.ledger.oldest(record.Notification); got != record.NoTimestamp {
				t.Errorf("one of %d is not settled", got)
			}
		})
	})
	t.Run("time ends it, traffic or not", func(t *testing.T) {
		run(t, wait, func(_ *testing.T, w *world) {
			w.start(-1, -1)
			w.note("NEW", 1000)
			time.Sleep(9 * time.Second)
			w.note("NEW", 1100)
			w.expect()
			time.Sleep(1100 * time.Millisecond)
			w.expect("NEW " + src(0) + " none local miss")
			time.Sleep(9 * time.Second)
			w.expect("NEW "+src(0)+" none local miss", "NEW "+src(1)+" none local miss")
			w.expectCut(0, 2)
		})
	})
	t.Run("no more than the pod may hold", func(t *testing.T) {
		run(t, func(o *Options) { wait(o); o.Waiting = NewWaiting(1) }, func(_ *testing.T, w *world) {
			w.start(-1, -1)
			w.note("A", 1000)
			w.note("B", 1000)
			w.expect("B " + src(1) + " none local miss")
			w.note("A", 1001) // a miss at once, but in its turn
			w.tick("A", "1", 900)
			time.Sleep(freshEnd)
			w.expect("B "+src(1)+" none local miss", "A "+src(0)+" 1 local hit", "A "+src(2)+" none local miss")
			w.note("C", 1002) // the allowance is free again
			w.expect("B "+src(1)+" none local miss", "A "+src(0)+" 1 local hit", "A "+src(2)+" none local miss")
			time.Sleep(11 * time.Second)
		})
	})
	t.Run("a closing task leaves it to the next owner", func(t *testing.T) {
		run(t, wait, func(t *testing.T, w *world) {
			w.start(-1, -1)
			w.note("NEW", 1000)
			for i := range 1000 {
				w.note(fmt.Sprint("S", i), 1000)
			}
			synctest.Wait()
			w.stop()
			if got := w.commits; len(got) != 1 || got[0] != (record.Offsets{0, 0}) {
				t.Fatalf("last commit %v", got)
			}
			if w.opts.Waiting.left.Load() != 100 {
				t.Fatal("the allowance was not given back")
			}
			w.task = nil
		})
	})
}

func TestMaxIdleGivesLateProducersTime(t *testing.T) {
	run(t, func(o *Options) { o.MaxIdle = 2 * time.Second }, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		w.note("BBCA", 1000)
		time.Sleep(time.Second)
		w.expect()
		w.tick("BBCA", "1", 900)
		time.Sleep(3 * time.Second)
		w.expect("BBCA " + src(0) + " 1 local hit")
		w.note("BBCA", 1001)
		time.Sleep(3 * time.Second)
		w.expect("BBCA "+src(0)+" 1 local hit", "BBCA "+src(1)+" 1 local hit")
	})
}

// Responses without records come all the time; they must neither end the
// patience nor begin it anew.
func TestMaxIdleWhileResponsesCome(t *testing.T) {
	run(t, func(o *Options) { o.MaxIdle = 2 * time.Second }, func(_ *testing.T, w *world) {
		w.start(-1, -1)
		responses := func(n int) {
			for range n {
				time.Sleep(100 * time.Millisecond)
				w.fetch(record.Market)
				w.fetch(record.Notification)
			}
		}
		responses(50) // both sides are long quiet
		w.note("BBCA", 1000)
		responses(19)
		w.expect()
		w.tick("BBCA", "1", 900)
		responses(21)
		w.expect("BBCA " + src(0) + " 1 local hit")
	})
}

func TestRefusedOutputs(t *testing.T) {
	refuse := func(kind record.Kind, topic string) func(*record.Output) error {
		return func(o *record.Output) error {
			if o.Topic == topic && len(o.Value) > 0 {
				return &record.Refused{Kind: kind, Err: errors.New("no")}
			}
			return nil
		}
	}
	t.Run("an alert becomes a dead letter", func(t *testing.T) {
		run(t, nil, func(_ *testing.T, w *world) {
			w.refuse = refuse(record.InvalidTimestamp, alertTopic)
			w.start(-1, -1)
			w.note("BBCA", 1000)
			w.expect("BBCA "+src(0)+" none local miss", "dead BBCA "+src(0)+" invalid_timestamp")
			w.expectCut(0, 1)
		})
	})
	t.Run("a dead letter too large loses its value", func(t *testing.T) {
		run(t, nil, func(t *testing.T, w *world) {
			w.refuse = refuse(record.TooLarge, deadTopic)
			w.start(-1, -1)
			w.offer(record.Notification, w.put(record.Notification, "BBCA", `[1]`, 900))
			synctest.Wait()
			last := w.sent[len(w.sent)-1]
			if len(w.sent) != 2 || len(last.Value) != 0 || header(last, "joiner-value-bytes") != "3" {
				t.Fatalf("sent %d, last %+v", len(w.sent), last)
			}
			w.expectCut(0, 1)
		})
	})
	t.Run("a dead letter keeps its timestamp only where its topic takes it", func(t *testing.T) {
		run(t, nil, func(t *testing.T, w *world) {
			now := record.MillisOf(time.Now()) // the clock of the bubble
			ahead := now + record.Millis((2 * time.Hour).Milliseconds())
			w.refuse = func(o *record.Output) error {
				switch {
				case o.Timestamp > now:
					return &record.Refused{Kind: record.InvalidTimestamp, Err: errors.New("ahead")}
				case o.Topic == deadTopic && len(o.Value) > 0:
					return &record.Refused{Kind: record.TooLarge, Err: errors.New("large")}
				}
				return nil
			}
			w.start(-1, -1)
			w.offer(record.Notification, w.put(record.Notification, "BBCA", `{}`, ahead))
			synctest.Wait()
			last := w.sent[len(w.sent)-1]
			if len(w.sent) != 4 || last.Topic != deadTopic || last.Timestamp != now || len(last.Value) != 0 {
				t.Fatalf("sent %d, last %+v", len(w.sent), last)
			}
			if kind := header(last, "joiner-error-kind"); kind != "invalid_timestamp" {
				t.Fatalf("the kind is %q", kind)
			}
			w.expectCut(0, 1)
		})
	})
	t.Run("one refused for good is dropped and counted", func(t *testing.T) {
		run(t, nil, func(_ *testing.T, w *world) {
			w.refuse = func(*record.Output) error {
				return &record.Refused{Kind: record.Rejected, Err: errors.New("no")}
			}
			w.start(-1, -1)
			w.note("BBCA", 1000)
			synctest.Wait()
			w.expectCut(0, 1)
		})
	})
}

func TestQueuePausesAndResumes(t *testing.T) {
	run(t, func(o *Options) { o.Limits.QueueRecords = 10 }, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.endHold = true // the merge cannot go on: the notifications' end is unknown
		w.mu.Unlock()
		w.start(-1, -1)
		for i := range 30 {
			w.tick("BBCA", "1", record.Millis(i))
		}
		synctest.Wait()
		if !w.task.Full(record.Market) || w.task.Full(record.Notification) {
			t.Fatal("the market side alone should be full")
		}
		w.answerHeld()
		time.Sleep(time.Second)
		if w.task.Full(record.Market) || w.resumes != 1 {
			t.Fatalf("full %v after %d resumes", w.task.Full(record.Market), w.resumes)
		}
	})
}

// Small batches that pile up behind a merge share their room; the position must
// be that of the last record all the same.
func TestSmallBatchesPileUp(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.endHold = true
		w.mu.Unlock()
		w.start(-1, -1)
		for i := range 3 * BatchSize {
			r := w.put(record.Market, "BBCA", fmt.Sprint(`{"price":`, i, `}`), record.Millis(i))
			w.task.Deliver(record.Market, append(w.task.Batch(record.Market), r), r.Offset+1, -1, 0)
		}
		w.mu.Lock()
		batches := len(w.task.in[record.Market].pending)
		w.mu.Unlock()
		if batches > 4 {
			t.Fatalf("%d records in %d batches", 3*BatchSize, batches)
		}
		w.note("BBCA", 5000)
		w.answerHeld()
		w.expect(fmt.Sprintf("BBCA %s %d local hit", src(0), 3*BatchSize-1))
		w.expectCut(3*BatchSize, 1)
	})
}

func TestFullLedgerStopsTheMerge(t *testing.T) {
	run(t, func(o *Options) { o.Limits.Places = 2 }, func(_ *testing.T, w *world) {
		w.hold = true
		w.start(-1, -1)
		for range 4 {
			w.note("BBCA", 1000)
		}
		w.expect("BBCA "+src(0)+" none local miss", "BBCA "+src(1)+" none local miss")
		w.settle(0)
		w.expect("BBCA "+src(0)+" none local miss", "BBCA "+src(1)+" none local miss", "BBCA "+src(2)+" none local miss")
		w.hold = false
		for i := 1; i < 3; i++ {
			w.settle(i)
		}
		synctest.Wait()
		w.expectCut(0, 4)
	})
}

func TestFreezeTakesNothingMore(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		w.note("BBCA", 1000)
		synctest.Wait()
		w.task.Freeze()
		w.note("BBCA", 1001)
		<-w.task.Done()
		w.expect("BBCA " + src(0) + " none local miss")
		if got := w.commits; len(got) != 1 || got[0] != (record.Offsets{0, 1}) {
			t.Fatalf("last commit %v", got)
		}
	})
}

func TestClosingAwaitsWhatWasSent(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.hold = true
		w.start(-1, -1)
		w.note("BBCA", 1000)
		synctest.Wait()
		w.task.Freeze()
		time.Sleep(time.Second)
		if w.task.State() != Frozen {
			t.Fatalf("state %s", w.task.State())
		}
		w.settle(0)
		<-w.task.Done()
		if got := w.commits; len(got) != 1 || got[0] != (record.Offsets{0, 1}) {
			t.Fatalf("last commit %v", got)
		}
	})
}

func TestClosingDoesNotWaitForEver(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.hold = true
		w.start(-1, -1)
		w.note("BBCA", 1000)
		synctest.Wait()
		w.task.Freeze()
		<-w.task.Done() // after Options.Drain
		if got := w.commits; len(got) != 1 || got[0] != (record.Offsets{0, 0}) {
			t.Fatalf("last commit %v", got)
		}
	})
}

func TestHalves(t *testing.T) {
	t.Run("market only answers", func(t *testing.T) {
		run(t, func(o *Options) { o.Mine[record.Notification] = false }, func(t *testing.T, w *world) {
			w.start(-1, -1)
			w.tick("BBCA", "1", 1000)
			got := make(chan Answer, 1)
			w.task.Lookup(t.Context(), Query{Symbol: "BBCA", Partition: 3, At: 1500}, func(a Answer) { got <- a })
			if a := <-got; a.Outcome != Found || a.Price.Text != "1" || !a.AsOf || a.Next != 1 {
				t.Fatalf("answer %+v", a)
			}
			time.Sleep(time.Second)
			_, halves := w.task.Cut()
			if halves != [record.Sides]bool{true, false} {
				t.Fatalf("halves %v", halves)
			}
		})
	})
	t.Run("notifications only asks", func(t *testing.T) {
		run(t, func(o *Options) { o.Mine[record.Market] = false; o.Prices = nil }, func(_ *testing.T, w *world) {
			w.prices = func(q Query) Answer {
				return Answer{Outcome: Found, Partition: 3, Next: 12, Known: true, AsOf: true,
					Price: record.Price{Text: "4.5", EventTime: q.At, Partition: 3, Offset: 11}}
			}
			w.start(-1, -1)
			w.note("BBCA", 1000)
			w.expect("BBCA " + src(0) + " 4.5 remote hit")
			if got := header(w.sent[0], "joiner-market"); got != "3/12" {
				t.Fatalf("joiner-market %q", got)
			}
		})
	})
}

func TestMisplacedNotificationAsksTheOwner(t *testing.T) {
	elsewhere := func(string) (int32, bool) { return 5, true }
	for name, c := range map[string]struct {
		answer Answer
		owns   bool
		want   string
	}{
		"hit": {Answer{Outcome: Found, Known: true, Partition: 5, Next: 9, AsOf: true, Price: record.Price{Text: "2", Partition: 5}}, false,
			"BBCA " + src(1) + " 2 remote hit"},
		"this pod owns it": {Answer{Outcome: Found, Known: true, Partition: 5, Next: 9, AsOf: true, Price: record.Price{Text: "2", Partition: 5}}, true,
			"BBCA " + src(1) + " 2 local hit"},
		"look-ups are off": {Answer{Outcome: NotAsked}, false, "BBCA " + src(1) + " none remote miss"},
		"nobody answers":   {Answer{Outcome: Unanswered}, false, "BBCA " + src(1) + " none remote unavailable"},
		// The owner has no price, so the ticks that lie here are all there is.
		"ticks lie here too": {Answer{Outcome: NoPrice, Known: true, Partition: 5, Next: 9}, false, "BBCA " + src(1) + " 1 local hit"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(o *Options) { o.Prices = nil }, func(_ *testing.T, w *world) {
				w.prices = func(Query) Answer { return c.answer }
				w.home = func(s string) (int32, bool) {
					if s == "OTHER" {
						return 3, true
					}
					return elsewhere(s)
				}
				w.owns[5] = c.owns
				w.start(-1, -1)
				w.tick("BBCA", "1", 500)
				w.note("OTHER", 600)
				w.note("BBCA", 1000)
				w.expect("OTHER "+src(0)+" none local miss", c.want)
			})
		})
	}
}

// Growth re-hashes symbols: the last price may lie where the earlier count put
// it. A tombstone in the new place is an answer, too.
func TestPriceOfTheFormerPartition(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil }, func(_ *testing.T, w *world) {
		w.former = func(string) []int32 { return []int32{1} }
		w.owns[1] = true
		w.prices = func(Query) Answer {
			return Answer{Outcome: Found, Known: true, Partition: 1, Next: 4, AsOf: true, Price: record.Price{Text: "2", Partition: 1}}
		}
		w.start(-1, -1)
		w.note("BBCA", 1000)
		w.expect("BBCA " + src(0) + " 2 local hit")
		w.offer(record.Market, w.put(record.Market, "BBCA", "", 1100))
		w.note("BBCA", 1200)
		w.expect("BBCA "+src(0)+" 2 local hit", "BBCA "+src(1)+" none local miss")
	})
}

// After several growths the counts are asked newest first, each partition once,
// and a tombstone hides what lies under counts before it: in another partition,
// or in this one.
func TestPriceUnderCountsBeforeTheLast(t *testing.T) {
	const here = 3
	found := func(q Query) Answer {
		return Answer{Outcome: Found, Known: true, Partition: q.Partition, Next: 4, AsOf: true,
			Price: record.Price{Text: fmt.Sprint(q.Partition), Partition: q.Partition}}
	}
	none := func(held bool) func(Query) Answer {
		return func(q Query) Answer {
			return Answer{Outcome: NoPrice, Known: true, Partition: q.Partition, Next: 9, Held: held}
		}
	}
	for name, c := range map[string]struct {
		home    int32
		former  []int32
		answers map[int32]func(Query) Answer
		removed bool // here
		asked   []int32
		want    string
	}{
		"two growths ago":  {here, []int32{1, 2}, map[int32]func(Query) Answer{1: none(false), 2: found}, false, []int32{1, 2}, "2 remote hit"},
		"the newest wins":  {here, []int32{1, 2}, map[int32]func(Query) Answer{1: found, 2: found}, false, []int32{1}, "1 remote hit"},
		"a tombstone":      {here, []int32{1, 2}, map[int32]func(Query) Answer{1: none(true), 2: found}, false, []int32{1}, "none local miss"},
		"not as home":      {5, []int32{1, 5, 2}, map[int32]func(Query) Answer{5: none(false), 1: none(false), 2: found}, false, []int32{5, 1, 2}, "2 remote hit"},
		"a tombstone here": {5, []int32{here, 2}, map[int32]func(Query) Answer{5: none(false), 2: found}, true, []int32{5}, "none remote miss"},
		"nowhere": {here, []int32{1, 1, 2, here, 4, 5, 6, 7, 8}, map[int32]func(Query) Answer{
			1: none(false), 2: none(false), 4: none(false), 5: none(false), 6: none(false), 7: none(false), 8: found,
		}, false, []int32{1, 2, 4, 5, 6, 7}, "none local miss"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(o *Options) { o.Prices = nil }, func(t *testing.T, w *world) {
				var asked []int32
				w.home = func(string) (int32, bool) { return c.home, true }
				w.former = func(string) []int32 { return c.former }
				w.prices = func(q Query) Answer {
					asked = append(asked, q.Partition)
					return c.answers[q.Partition](q)
				}
				w.start(-1, -1)
				if c.removed {
					w.offer(record.Market, w.put(record.Market, "BBCA", "", 900))
				}
				w.note("BBCA", 1000)
				w.expect("BBCA " + src(0) + " " + c.want)
				if !slices.Equal(asked, c.asked) {
					t.Errorf("asked %v, want %v", asked, c.asked)
				}
			})
		})
	}
}

// Outputs of one symbol leave in source order although the first one asks.
func TestAskingKeepsTheSymbolsOrder(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil; o.Mine[record.Market] = false }, func(_ *testing.T, w *world) {
		release := make(chan struct{})
		w.prices = func(q Query) Answer {
			if q.At == 1000 {
				<-release
			}
			return Answer{Outcome: Found, Known: true, Partition: 3, AsOf: true, Price: record.Price{Text: fmt.Sprint(q.At)}}
		}
		w.start(-1, -1)
		w.note("A", 1000)
		w.note("A", 1001)
		w.note("B", 1002)
		w.expect("B " + src(2) + " 1002 remote hit")
		close(release)
		w.expect("B "+src(2)+" 1002 remote hit", "A "+src(0)+" 1000 remote hit", "A "+src(1)+" 1001 remote hit")
	})
}

// A question is answered where a notification of its event time would be
// joined: not before the ticks up to it are merged.
func TestLookupWaitsForItsMoment(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		synctest.Wait()
		late := w.put(record.Market, "BBCA", `{"price":1}`, 900)
		got := make(chan Answer, 1)
		w.task.Lookup(t.Context(), Query{Symbol: "BBCA", Partition: 3, At: 1000}, func(a Answer) { got <- a })
		synctest.Wait()
		select {
		case a := <-got:
			t.Fatalf("answered too early: %+v", a)
		default:
		}
		w.offer(record.Market, late)
		if a := <-got; a.Outcome != Found || a.Price.Text != "1" {
			t.Fatalf("answer %+v", a)
		}
		w.task.Freeze()
		<-w.task.Done()
		w.task.Lookup(t.Context(), Query{Symbol: "BBCA", Partition: 3, At: 1000}, func(a Answer) { got <- a })
		if a := <-got; a.Outcome != Moved {
			t.Fatalf("answer after the end %+v", a)
		}
	})
}

// unknownHome is a placement that nobody can judge.
func unknownHome(string) (int32, bool) { return 0, false }

// A place that is final but stands behind an open one of its symbol is encoded
// later: by then the table has used its price's bytes again.
func TestPriceBehindAnOpenPlaceIsItsOwn(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil }, func(_ *testing.T, w *world) {
		release := make(chan struct{})
		w.prices = func(Query) Answer {
			<-release
			return Answer{Outcome: NotAsked}
		}
		w.home = unknownHome
		w.start(-1, -1)
		w.note("BBCA", 1000)
		w.tick("BBCA", "11", 2000)
		time.Sleep(freshEnd)
		w.note("BBCA", 3000)
		w.tick("BBCA", "99", 4000)
		time.Sleep(freshEnd)
		w.note("BBCA", 5000)
		close(release)
		w.expect("BBCA "+src(0)+" none local miss", "BBCA "+src(1)+" 11 local hit", "BBCA "+src(2)+" 99 local hit")
	})
}

// Likewise where a tick ends the wait of a place behind one that still asks.
func TestPriceThatCameBehindAnAskingPlaceIsItsOwn(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil; o.Wait = time.Minute }, func(_ *testing.T, w *world) {
		release := make(chan struct{})
		asked := 0
		w.prices = func(Query) Answer {
			if asked++; asked == 1 {
				<-release
			}
			return Answer{Outcome: NoPrice, Known: true, Partition: 1}
		}
		w.former = func(string) []int32 { return []int32{1} }
		w.owns[1] = true
		w.start(-1, -1)
		w.note("BBCA", 1000) // asks the former partition
		w.note("BBCA", 1001) // has its answer and waits
		w.tick("BBCA", "11", 2000)
		time.Sleep(freshEnd)
		w.tick("BBCA", "99", 4000)
		time.Sleep(freshEnd)
		w.expect()
		close(release) // and the tick that came meanwhile is found
		w.expect("BBCA "+src(0)+" 99 local hit", "BBCA "+src(1)+" 11 local hit")
	})
}

// A refusal that arrives together with the freeze must not cost the whole
// drain.
func TestRefusalAtTheFreezeIsDealtWith(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.hold = true
		w.start(-1, -1)
		w.note("BBCA", 1000)
		w.mu.Lock()
		first := w.sent[0]
		w.hold = false
		w.mu.Unlock()
		began := time.Now()
		first.Owner.Settled(first, &record.Refused{Kind: record.Rejected, Err: errors.New("no")})
		w.task.Freeze()
		<-w.task.Done()
		if took := time.Since(began); took >= w.opts.Drain {
			t.Fatalf("closed after %s of the bubble's clock, the whole drain", took)
		}
		w.expect("BBCA "+src(0)+" none local miss", "dead BBCA "+src(0)+" rejected")
		if got := w.commits; len(got) != 1 || got[0] != (record.Offsets{0, 1}) {
			t.Fatalf("last commit %v", got)
		}
	})
}

func (w *world) sendable(limit int) (values []string, cut record.Offsets, more bool) {
	w.t.Helper()
	outs, cut, _, more := w.task.Sendable(nil, limit)
	for _, o := range outs {
		values = append(values, describe(w.t, o))
	}
	return values, cut, more
}

// What may be committed at once with its offsets ends at the first place that is
// not filled, or whose output was refused.
func TestSendable(t *testing.T) {
	run(t, func(o *Options) { o.Wait = time.Minute }, func(t *testing.T, w *world) {
		w.hold = true
		goOn := make(chan struct{}) // before it, nothing becomes a dead letter
		w.opts.DeadLetterPartition = func() int32 { <-goOn; return 3 }
		w.start(-1, -1)
		w.tick("BBCA", "1", 1000)
		w.note("BBCA", 1001)
		w.note("BBCA", 1002)
		w.note("AAPL", 1003) // waits for a first price
		w.note("BBCA", 1004)
		hit := func(offset int) string { return "BBCA " + src(offset) + " 1 local hit" }
		expect := func(limit int, cut record.Offsets, more bool, want ...string) {
			t.Helper()
			got, at, m := w.sendable(limit)
			if !slices.Equal(got, want) || at != cut || m != more {
				t.Errorf("%v up to %v, more %v; want %v up to %v, more %v", got, at, m, want, cut, more)
			}
		}
		expect(1<<20, record.Offsets{1, 2}, false, hit(0), hit(1))
		expect(1, record.Offsets{1, 1}, true, hit(0))

		// The second is refused: until there is a dead letter it ends there, also
		// while the task is busy with another one and has not heard of it.
		w.offer(record.Notification, w.put(record.Notification, "BBCA", `[1]`, 1005))
		w.mu.Lock()
		second := w.sent[1]
		w.mu.Unlock()
		second.Owner.Settled(second, &record.Refused{Kind: record.Rejected, Err: errors.New("no")})
		expect(1<<20, record.Offsets{1, 1}, false, hit(0))
		close(goOn)
		synctest.Wait()
		expect(1<<20, record.Offsets{1, 2}, false, hit(0), "dead BBCA "+src(1)+" rejected")
		if cut, _ := w.task.Cut(); cut != (record.Offsets{1, 0}) {
			t.Errorf("nothing is settled, and the cut is %v", cut)
		}

		// The price comes: everything behind the waiting one may go.
		w.settle(0)
		w.tick("AAPL", "5", 1000)
		time.Sleep(time.Second)
		synctest.Wait()
		got, cut, _ := w.sendable(1 << 20)
		if len(got) != 4 || cut != (record.Offsets{2, 5}) {
			t.Errorf("%v up to %v", got, cut)
		}
		w.mu.Lock()
		w.hold = false
		w.mu.Unlock()
	})
}

// A closing task whose outputs are settled by commits has them committed up to
// its first unfilled place, dead letters of what is refused then among them.
func TestClosingSettlesByCommit(t *testing.T) {
	run(t, func(o *Options) { o.Wait = time.Minute }, func(t *testing.T, w *world) {
		w.hold = true
		rounds := 0
		w.opts.Settle = func(_ context.Context, x *Task) error {
			rounds++
			outs, _, _, _ := x.Sendable(nil, 1<<20)
			for _, o := range outs {
				if o.Topic == alertTopic && rounds == 1 {
					o.Owner.Settled(o, &record.Refused{Kind: record.Rejected, Err: errors.New("no")})
					return nil
				}
				o.Owner.Settled(o, nil)
			}
			return nil
		}
		w.start(-1, -1)
		w.tick("BBCA", "1", 1000)
		w.note("BBCA", 1001)
		w.note("AAPL", 1002) // is never filled
		w.note("BBCA", 1003)
		synctest.Wait()
		w.task.Freeze()
		<-w.task.Done()
		if got := w.commits; rounds != 2 || len(got) != 1 || got[0] != (record.Offsets{1, 1}) {
			t.Errorf("%d rounds, last commit %v", rounds, got)
		}
	})
}
