package task

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"joiner/internal/record"
)

// lookup asks the world's task and returns where the answer will be.
func (w *world) lookup(ctx context.Context, symbol string, at record.Millis) chan Answer {
	got := make(chan Answer, 1)
	w.task.Lookup(ctx, Query{Symbol: symbol, Partition: w.opts.Index, At: at}, func(a Answer) { got <- a })
	synctest.Wait()
	return got
}

func (w *world) open() int {
	w.task.mu.Lock()
	defer w.task.mu.Unlock()
	return w.task.inbox.open
}

// Questions whose asker has given up are forgotten, so that nothing piles up
// while the market is behind.
func TestLookupsOfNobodyAreForgotten(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		synctest.Wait()
		w.put(record.Market, "BBCA", `{"price":1}`, 900) // never comes
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		var last chan Answer
		for range 50 {
			last = w.lookup(ctx, "BBCA", 1000)
		}
		if n := w.open(); n != 50 {
			t.Fatalf("%d open", n)
		}
		time.Sleep(200*time.Millisecond + idleCheck)
		synctest.Wait()
		if a := <-last; a.Outcome != Unanswered || w.open() != 0 {
			t.Fatalf("%+v, %d open", a, w.open())
		}
	})
}

func TestTooManyLookups(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		synctest.Wait()
		tick := w.put(record.Market, "BBCA", `{"price":1}`, 900)
		var answered atomic.Int64
		for range MaxLookups {
			w.task.Lookup(t.Context(), Query{Symbol: "BBCA", Partition: 3, At: 1000}, func(Answer) { answered.Add(1) })
		}
		if a := <-w.lookup(t.Context(), "BBCA", 1000); a.Outcome != Busy {
			t.Fatalf("one more: %+v", a)
		}
		// The tick waits for the end of the notifications; since a question waits for
		// the tick, that is asked for at once.
		w.offer(record.Market, tick)
		if n := answered.Load(); n != MaxLookups || w.open() != 0 {
			t.Fatalf("%d answered, %d open", n, w.open())
		}
		if a := <-w.lookup(t.Context(), "BBCA", 1000); a.Outcome != Found {
			t.Fatalf("when there is room again: %+v", a)
		}
	})
}

// A task that has not read up to the end that it saw at its start has prices,
// and must not call anything a miss.
func TestOnlyWhoHasCaughtUpCallsItAMiss(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		first, second := w.put(record.Market, "BBCA", `{"price":1}`, 900), w.put(record.Market, "BMRI", `{"price":2}`, 2000)
		third := w.put(record.Market, "BBRI", `{"price":3}`, 3000)
		w.start(-1, -1)
		w.offer(record.Market, first)
		if a := w.task.Newest([]byte("BBCA")); a.Outcome != Unready {
			t.Fatalf("the newest price of a task that is behind: %+v", a)
		}
		w.holdNote(1500) // the merge stands before the second tick
		w.offer(record.Market, second)
		if a := <-w.lookup(t.Context(), "BBCA", 1000); a.Outcome != Found || a.Price.Text != "1" || !a.AsOf {
			t.Fatalf("a price in force: %+v", a)
		}
		if a := <-w.lookup(t.Context(), "NONE", 1000); a.Outcome != Unready {
			t.Fatalf("no price yet: %+v", a)
		}
		w.releaseNote()
		w.offer(record.Market, third)
		time.Sleep(2 * freshEnd)
		synctest.Wait()
		if a := <-w.lookup(t.Context(), "NONE", 1000); a.Outcome != NoPrice || a.Next != 3 || a.Held {
			t.Fatalf("no price at the end: %+v", a)
		}
		if a := w.task.Newest([]byte("BBRI")); a.Outcome != Found || a.Price.Text != "3" || a.Next != 3 {
			t.Fatalf("the newest price: %+v", a)
		}
	})
}

// holdNote brings a notification that waits for the end of the market, which
// is not told: the merge then stands.
func (w *world) holdNote(at record.Millis) {
	w.mu.Lock()
	w.endHold = true
	w.mu.Unlock()
	w.offer(record.Notification, w.put(record.Notification, "HELD", `{"user":"u"}`, at))
}

func (w *world) releaseNote() {
	w.answerHeld()
	synctest.Wait()
}

// Where a broker takes longer to tell an end than an attempt lasts, the next
// attempt goes by the end that an earlier one has asked for; nobody else may.
func TestTicketsMakeAnEarlierEndCount(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 900)
		hold := func() {
			w.mu.Lock()
			w.endHold = true
			w.mu.Unlock()
		}
		ask := func(ticket Ticket) (Ticket, chan Answer) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			t.Cleanup(cancel)
			got := make(chan Answer, 1)
			next := w.task.Lookup(ctx, Query{Symbol: "BBCA", Partition: 3, At: 1000, Ticket: ticket}, func(a Answer) { got <- a })
			synctest.Wait()
			return next, got
		}
		hold()
		ticket, got := ask(Ticket{})
		time.Sleep(200*time.Millisecond + idleCheck)
		if a := <-got; a.Outcome != Unanswered {
			t.Fatalf("the first attempt: %+v", a)
		}
		w.answerHeld()
		hold()
		synctest.Wait()
		for name, other := range map[string]Ticket{
			"none": {}, "another task's": {Task: ticket.Task + 1, Seq: ticket.Seq}, "of what is to come": {Task: ticket.Task, Seq: ticket.Seq + 1000},
		} {
			next, got := ask(other)
			if len(got) != 0 {
				t.Errorf("%s: an end that was asked for before the question counts: %+v", name, <-got)
			}
			if next == other || next.Task != ticket.Task {
				t.Errorf("%s: taken for a ticket of this task: %+v", name, next)
			}
		}
		again, got := ask(ticket)
		if len(got) != 1 {
			t.Fatal("the second attempt is not answered")
		}
		if a := <-got; a.Outcome != Found || a.Price.Text != "1" || again != ticket {
			t.Errorf("%+v, ticket %v after %v", a, again, ticket)
		}
	})
}

// A question waits for late producers as long as a notification would, counted
// from when it was first asked.
func TestLookupsWaitForLateProducers(t *testing.T) {
	run(t, func(o *Options) { o.MaxIdle = 2 * time.Second }, func(t *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 900)
		time.Sleep(10 * time.Second) // the end is an old one by then
		ask := func(at record.Millis, since time.Time) chan Answer {
			got := make(chan Answer, 1)
			w.task.Lookup(t.Context(), Query{Symbol: "BBCA", Partition: 3, At: at, Since: since}, func(a Answer) { got <- a })
			synctest.Wait()
			return got
		}
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		got := ask(1000, time.Time{})
		pass(1990 * time.Millisecond)
		if len(got) != 0 {
			t.Fatalf("answered early: %+v", <-got)
		}
		w.tick("BBCA", "2", 950) // late
		pass(10 * time.Second)
		if len(got) != 1 {
			t.Fatal("not answered")
		}
		if a := <-got; a.Price.Text != "2" {
			t.Errorf("%+v", a)
		}
		got = ask(1000, time.Now().Add(-1500*time.Millisecond))
		pass(490 * time.Millisecond)
		if len(got) != 0 {
			t.Fatal("answered early, asked for 1.5s before")
		}
		pass(10 * time.Millisecond)
		if len(got) != 1 {
			t.Fatal("not answered, asked for 2s")
		}
		w.tick("BBCA", "3", 5000)
		w.note("BBCA", 1000) // the merge stands before the tick
		if got = ask(940, time.Time{}); len(got) != 1 {
			t.Error("nothing is to come for what is before the head")
		}
	})
}

// Where ticks keep coming a question is answered before the first one behind its
// event time, as a notification would be joined, and not only when they stop:
// also by a task that has no notifications for a tick to wait for, and out of
// the middle of what came at once.
func TestLookupsAreAnsweredBetweenTicks(t *testing.T) {
	for name, alone := range map[string]bool{"both halves": false, "market half": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(o *Options) {
				o.MaxIdle = time.Hour
				o.Mine[record.Notification] = !alone
			}, func(t *testing.T, w *world) {
				w.start(-1, -1)
				w.tick("BBCA", "1", 900)
				got := w.lookup(t.Context(), "BBCA", 1000)
				later := w.lookup(t.Context(), "BBCA", 1002)
				w.offer(record.Market, w.put(record.Market, "BBCA", `{"price":2}`, 1000), w.put(record.Market, "BBCA", `{"price":3}`, 1001),
					w.put(record.Market, "BBCA", `{"price":4}`, 1002), w.put(record.Market, "BBCA", `{"price":5}`, 1003))
				if !alone {
					// Each tick but the last is taken at once, before this one.
					w.note("BBCA", 1002)
				}
				for want, got := range map[string]chan Answer{"2": got, "4": later} {
					select {
					case a := <-got:
						if a.Outcome != Found || a.Price.Text != want || !a.AsOf {
							t.Errorf("%+v, want %s", a, want)
						}
					default:
						t.Errorf("not answered, want %s", want)
					}
				}
			})
		})
	}
}

// looked counts how often a question is looked at.
type looked struct {
	context.Context
	times *int
}

func (l looked) Err() error {
	*l.times++
	return l.Context.Err()
}

// Each tick concerns the questions that it is behind of, and not all that wait.
func TestManyLookupsCostWhatTheyAre(t *testing.T) {
	const n = 2000
	run(t, func(o *Options) {
		o.MaxIdle = time.Hour
		o.Mine[record.Notification] = false
	}, func(t *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 1)
		times, answered := 0, 0
		ctx := looked{t.Context(), &times}
		for i := range n {
			at := record.Millis(10 * (n - i))
			w.task.Lookup(ctx, Query{Symbol: "BBCA", Partition: 3, At: at}, func(a Answer) {
				answered++
				// The tick of the question's time has come, the one behind it has not.
				if want := fmt.Sprint(int64(at)); a.Outcome != Found || !a.AsOf || a.Price.Text != want {
					t.Errorf("at %d: %+v", at, a)
				}
			})
		}
		synctest.Wait()
		times = 0
		ticks := make([]record.Record, 0, n+1)
		for i := 1; i <= n+1; i++ {
			ticks = append(ticks, w.put(record.Market, "BBCA", fmt.Sprintf(`{"price":%d}`, 10*i), record.Millis(10*i)))
		}
		w.offer(record.Market, ticks...)
		if answered != n || times > 4*n {
			t.Errorf("%d of %d are answered, and were looked at %d times", answered, n, times)
		}
	})
}

// A bad tick lets look-ups pass although the ledger is full: tasks whose places
// all ask each other would else stand still together.
func TestABadTickDoesNotHoldUpLookupsWhenTheLedgerIsFull(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil; o.Limits.Places = 1 }, func(t *testing.T, w *world) {
		asked := make(chan struct{})
		w.home = func(string) (int32, bool) { return 5, true }
		w.prices = func(Query) Answer {
			<-asked
			return Answer{Outcome: NoPrice, Known: true, Partition: 5}
		}
		w.start(-1, -1)
		w.tick("BBCA", "1", 900)
		w.note("BBRI", 1000)
		w.note("BBRI", 1001) // there is no room for it
		w.offer(record.Market, w.put(record.Market, "BBCA", `{}`, 1100))
		w.tick("BBCA", "2", 1200)
		got := w.lookup(t.Context(), "BBCA", 1000)
		select {
		case a := <-got:
			if a.Outcome != Found || a.Price.Text != "1" {
				t.Errorf("%+v", a)
			}
		default:
			t.Error("the look-up waits for room in the ledger")
		}
		close(asked)
		synctest.Wait()
	})
}

// An owner that is beyond the question answers from what it keeps: a later removal is
// "no price" where that is all, and the price in force where there is a history.
func TestQuestionsFromBeforeARemoval(t *testing.T) {
	for history, want := range map[time.Duration]Outcome{0: NoPrice, time.Second: Found} {
		run(t, func(o *Options) { o.History = history }, func(t *testing.T, w *world) {
			w.start(-1, -1)
			w.tick("BBCA", "1", 900)
			w.offer(record.Market, w.put(record.Market, "BBCA", "", 1000))
			time.Sleep(2 * idleCheck) // it has been merged
			a := <-w.lookup(t.Context(), "BBCA", 950)
			if a.Outcome != want || a.AsOf != (want == Found) || want == Found && a.Price.Text != "1" || want == NoPrice && !a.Held {
				t.Errorf("history %v: %+v", history, a)
			}
		})
	}
}

func TestTombstonesAreTold(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		w.start(-1, -1)
		w.tick("BBCA", "1", 900)
		w.offer(record.Market, w.put(record.Market, "BBCA", "", 1000))
		if a := <-w.lookup(t.Context(), "BBCA", 1500); a.Outcome != NoPrice || !a.Held {
			t.Fatalf("%+v", a)
		}
		if a := w.task.Newest([]byte("BBCA")); a.Outcome != NoPrice || !a.Held {
			t.Fatalf("%+v", a)
		}
		if a := w.task.Newest([]byte("NONE")); a.Outcome != NoPrice || a.Held {
			t.Fatalf("%+v", a)
		}
		w.task.Freeze()
		if a := w.task.Newest([]byte("BBCA")); a.Outcome != Moved {
			t.Fatalf("after the freeze: %+v", a)
		}
	})
}

// Where the symbol belongs it has been removed: an older price elsewhere must
// not come back.
func TestTombstoneAtHomeEndsTheSearch(t *testing.T) {
	for held, want := range map[bool]string{
		true:  "BBCA " + src(0) + " none remote miss",
		false: "BBCA " + src(0) + " 7 remote hit",
	} {
		run(t, func(o *Options) { o.Prices = nil }, func(t *testing.T, w *world) {
			w.home = func(string) (int32, bool) { return 5, true }
			w.former = func(string) []int32 { return []int32{1} }
			w.prices = func(q Query) Answer {
				if q.Partition == 5 {
					return Answer{Outcome: NoPrice, Known: true, Partition: 5, Next: 9, Held: held}
				}
				return Answer{Outcome: Found, Known: true, Partition: 1, Next: 4, AsOf: true, Price: record.Price{Text: "7", Partition: 1}}
			}
			w.start(-1, -1)
			w.note("BBCA", 1000)
			w.expect(want)
			cited := header(w.sent[0], "joiner-market")
			if held && cited != "5/9" || !held && cited != "1/4" {
				t.Fatalf("joiner-market %q", cited)
			}
		})
	}
}

// Ticks that lie beside a misplaced notification count where the symbol's home
// has no price, whoever owns them: every strategy must find the same.
func TestTicksBesideAMisplacedNotification(t *testing.T) {
	for mine, want := range map[bool]string{
		true:  "BBCA " + src(0) + " 7 local hit",
		false: "BBCA " + src(0) + " 7 remote hit",
	} {
		run(t, func(o *Options) { o.Prices = nil; o.Mine[record.Market] = mine }, func(t *testing.T, w *world) {
			w.home = func(string) (int32, bool) { return 5, true }
			w.prices = func(q Query) Answer {
				if q.Partition == 5 {
					return Answer{Outcome: NoPrice, Known: true, Partition: 5, Next: 9}
				}
				return Answer{Outcome: Found, Known: true, Partition: 3, Next: 1, AsOf: true, Price: record.Price{Text: "7", Partition: 3}}
			}
			w.start(-1, -1)
			if mine {
				w.tick("BBCA", "7", 900)
			}
			w.note("BBCA", 1000)
			w.expect(want)
			if cited := header(w.sent[0], "joiner-market"); cited != "3/1" {
				t.Fatalf("joiner-market %q", cited)
			}
		})
	}
}

// Under the custom partitioner the notification's own number is asked first,
// whoever owns it, then all others.
func TestCustomPartitioner(t *testing.T) {
	for _, c := range []struct {
		name   string
		mine   bool // this pod owns the own number's market half
		owns5  bool
		own    Answer // of partition 3, where it is another's
		others Answer
		want   string
		cited  string
	}{
		{"elsewhere, another pod", true, false, Answer{},
			Answer{Outcome: Found, Known: true, Partition: 5, Next: 8, AsOf: true, Price: record.Price{Text: "2", Partition: 5}}, "2 remote hit", "5/8"},
		{"elsewhere, this pod", true, true, Answer{},
			Answer{Outcome: Found, Known: true, Partition: 5, Next: 8, AsOf: true, Price: record.Price{Text: "2", Partition: 5}}, "2 local hit", "5/8"},
		{"nowhere", true, false, Answer{}, Answer{Outcome: NoPrice}, "none local miss", "3/1"},
		{"nowhere that may be asked", true, false, Answer{}, Answer{Outcome: NotAsked}, "none local miss", "3/1"},
		{"not all answer", true, false, Answer{}, Answer{Outcome: Unanswered}, "none local unavailable", "3/1"},
		{"the own number is another's, and has it", false, false,
			Answer{Outcome: Found, Known: true, Partition: 3, Next: 6, AsOf: true, Price: record.Price{Text: "4", Partition: 3}}, Answer{}, "4 remote hit", "3/6"},
		{"the own number is another's, nowhere", false, false,
			Answer{Outcome: NoPrice, Known: true, Partition: 3, Next: 6}, Answer{Outcome: NoPrice}, "none remote miss", "3/6"},
		{"the own number is another's, elsewhere", false, false, Answer{Outcome: NoPrice, Known: true, Partition: 3, Next: 6, Held: true},
			Answer{Outcome: Found, Known: true, Partition: 5, Next: 8, AsOf: true, Price: record.Price{Text: "2", Partition: 5}}, "2 remote hit", "5/8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(o *Options) { o.Prices = nil; o.Mine[record.Market] = c.mine }, func(t *testing.T, w *world) {
				w.home = unknownHome
				w.owns[5] = c.owns5
				w.prices = func(q Query) Answer {
					if q.Partition == AnyPartition && q.Except == 3 {
						return c.others
					}
					if q.Partition == 3 && !c.mine {
						return c.own
					}
					return Answer{Outcome: Unanswered}
				}
				w.start(-1, -1)
				if c.mine {
					w.tick("OTHER", "1", 500)
				}
				w.note("BBCA", 1000)
				w.expect("BBCA " + src(0) + " " + c.want)
				if got := header(w.sent[0], "joiner-market"); got != c.cited {
					t.Fatalf("joiner-market %q, want %q", got, c.cited)
				}
			})
		})
	}
}

// What becomes of a notification that nobody answers.
func TestUnavailablePolicies(t *testing.T) {
	for policy, want := range map[Policy]string{
		Emit:         fmt.Sprintf("BBCA %s none remote unavailable", src(0)),
		ToDeadLetter: fmt.Sprintf("dead BBCA %s unavailable", src(0)),
		DropIt:       "",
	} {
		run(t, func(o *Options) { o.Prices = nil; o.OnUnavailable = policy }, func(_ *testing.T, w *world) {
			w.home = func(string) (int32, bool) { return 5, true }
			w.prices = func(Query) Answer { return Answer{Outcome: Unanswered} }
			w.start(-1, -1)
			w.note("BBCA", 1000)
			if want == "" {
				w.expect()
			} else {
				w.expect(want)
			}
			w.expectCut(0, 1)
		})
	}
}

// Questions of a frozen task are nobody's: the next owner asks them anew.
func TestFreezeEndsTheQuestions(t *testing.T) {
	run(t, nil, func(t *testing.T, w *world) {
		var asked []context.Context
		w.opts.Prices = recorder{w, &asked}
		w.home = func(string) (int32, bool) { return 5, true }
		w.start(-1, -1)
		w.note("BBCA", 1000)
		w.expect()
		if len(asked) != 1 || asked[0].Err() != nil {
			t.Fatalf("%d questions", len(asked))
		}
		w.task.Freeze()
		if asked[0].Err() == nil {
			t.Fatal("the question goes on")
		}
	})
}

// recorder answers nothing.
type recorder struct {
	*world
	asked *[]context.Context
}

// Ask implements Prices.
func (r recorder) Ask(ctx context.Context, _ Query, _ func(Answer)) { *r.asked = append(*r.asked, ctx) }

// All partitions that are asked for one notification share a patience, counted from
// when it was merged. Where join.wait has them asked again, because they had no
// price, that is a question of its own, whose answer is wanted since as long.
func TestOnePatienceForAllPartitions(t *testing.T) {
	run(t, func(o *Options) { o.Prices = nil; o.Mine[record.Market] = false; o.Wait = 3 * time.Second }, func(t *testing.T, w *world) {
		w.home = func(string) (int32, bool) { return 5, true }
		w.former = func(string) []int32 { return []int32{4, 2, 4} }
		var asked []Query
		w.prices = func(q Query) Answer {
			w.mu.Lock()
			asked = append(asked, q)
			w.mu.Unlock()
			time.Sleep(time.Second)
			return Answer{Outcome: NoPrice, Known: true, Partition: q.Partition}
		}
		w.start(-1, -1)
		began := time.Now()
		w.note("BBCA", 1000)
		time.Sleep(time.Minute)
		w.expect("BBCA " + src(0) + " none remote miss")
		w.mu.Lock()
		defer w.mu.Unlock()
		again := began.Add(4*time.Second + askAgain)
		var got []string
		for _, q := range asked {
			if !q.Since.Equal(began) {
				t.Errorf("partition %d is asked since %v, want %v", q.Partition, q.Since, began)
			}
			got = append(got, fmt.Sprintf("%d begun %v", q.Partition, q.Begun.Sub(began)))
		}
		var want []string
		for _, partition := range []int{5, 4, 2, 3} {
			want = append(want, fmt.Sprintf("%d begun 0s", partition))
		}
		for _, partition := range []int{5, 4, 2} { // the wait ends before the fourth has its turn
			want = append(want, fmt.Sprintf("%d begun %v", partition, again.Sub(began)))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("asked %q, want %q", got, want)
		}
	})
}
