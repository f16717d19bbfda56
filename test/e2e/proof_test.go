package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

// place is where a record lies in its topic.
type place struct {
	partition int32
	offset    int64
}

func (p place) String() string { return fmt.Sprintf("%d/%d", p.partition, p.offset) }

// Proof is what the topics say about the join. Whatever is never right has
// failed the test already: a lost notification, one changed on its way, a
// price that the ticks do not give, a symbol's alerts out of order.
type Proof struct {
	Notes, Alerts int
	Hits, Misses  int           // of each notification's last alert
	Remote        int           // of the hits
	Copies        map[place]int // alerts of each notification that has more than one
	Last          map[place]Alert
	Revised       int // a tick merged after the join would have won by its event time
}

// Doubled is the number of alerts too many.
func (p Proof) Doubled() (n int) {
	for _, copies := range p.Copies {
		n += copies - 1
	}
	return n
}

// Prove compares the alerts with the inputs, by what lies in the topics: each
// notification has one, as it came; each price is the one that the ticks below
// the offset that the alert cites give for its symbol (newest event time, then
// offset); and the last alerts of a symbol's notifications are in their order.
// Nobody may write meanwhile, and nothing may have been written in
// transactions. joiner audit must come to the same.
func (w *World) Prove() Proof {
	w.t.Helper()
	proof := prove(w.t, w.Read(w.Notes), w.Read(w.Market), w.ReadAlerts(), lastCopy)
	w.SecondOpinion(proof)
	return proof
}

// ProveCommitted is Prove for alerts that were written in transactions: of those
// that a consumer sees who reads what is committed.
func (w *World) ProveCommitted() Proof {
	w.t.Helper()
	var alerts []Alert
	byPartition := w.ReadVisible(w.Alerts)
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		for _, m := range byPartition[p] {
			alerts = append(alerts, w.alert(m))
		}
	}
	return prove(w.t, w.Read(w.Notes), w.Read(w.Market), alerts, lastCopy)
}

// orderBy says which copies of alerts must be in the order of their
// notifications, a symbol at a time.
type orderBy bool

const (
	// lastCopy is for all who can be relied on to be gone when others do their
	// work: whatever they have written, the others write again behind it.
	lastCopy orderBy = false
	// firstCopy is for processes that stood still while others took over: when
	// they go on, what they had on its way comes behind what the others have
	// written since.
	firstCopy orderBy = true
)

func prove(t testing.TB, notes, ticks map[int32][]*sarama.ConsumerMessage, alerts []Alert, order orderBy) Proof {
	t.Helper()
	proof := Proof{Alerts: len(alerts), Copies: make(map[place]int), Last: make(map[place]Alert)}
	ordered := make(map[place]int64) // the offset that is to be in order
	for _, a := range alerts {
		at := place{a.Source.Partition, a.Source.Offset}
		if _, before := proof.Last[at]; before {
			proof.Copies[at] = max(proof.Copies[at], 1) + 1
		}
		if proof.Copies[at] == 0 || order == lastCopy {
			ordered[at] = a.Offset
		}
		proof.Last[at] = a
	}
	f := &faults{t: t}
	defer f.report()
	for partition, list := range notes {
		proof.Notes += len(list)
		lastOf := make(map[string]int64) // the offset of a symbol's newest alert so far
		for _, note := range list {
			at := place{partition, note.Offset}
			a, ok := proof.Last[at]
			if !ok {
				f.add("lost", "notification %s of %s", at, note.Key)
				continue
			}
			if !bytes.Equal(a.Key, note.Key) || !bytes.Equal(a.Notification, note.Value) || !a.Timestamp.Equal(note.Timestamp) {
				f.add("changed", "notification %s: %s %s at %v became %s %s at %v", at, note.Key, note.Value, note.Timestamp, a.Key, a.Notification, a.Timestamp)
			}
			if ordered[at] < lastOf[string(note.Key)] {
				f.add("out of order", "notification %s of %s overtook an older one of its symbol", at, note.Key)
			}
			lastOf[string(note.Key)] = ordered[at]
		}
	}
	if len(proof.Last) > proof.Notes {
		t.Errorf("%d notifications have alerts, but there are only %d", len(proof.Last), proof.Notes)
	}
	history := historyOf(ticks)
	for at, a := range proof.Last {
		proof.judge(at, a, history, f)
	}
	return proof
}

// judge compares one alert's price with the ticks that it cites.
func (p *Proof) judge(at place, a Alert, history map[tickKey][]tickSeen, f *faults) {
	if a.Result != record.Hit {
		p.Misses++
	} else {
		p.Hits++
		if a.Locality != record.Local {
			p.Remote++
		}
	}
	if a.Cited == nil {
		if a.Result == record.Hit {
			f.add("wrong", "alert of %s: a price and no citation", at)
		}
		return
	}
	seen := history[tickKey{a.Cited.Partition, string(a.Key)}]
	n := 0
	for n < len(seen) && seen[n].offset < a.Cited.Next {
		n++
	}
	switch {
	case a.Result != record.Hit && n > 0:
		f.add("wrong", "alert of %s: %s of %s, though %d/%d is cited and tick %+v lies below it", at, a.Result, a.Key, a.Cited.Partition, a.Cited.Next, seen[n-1])
	case a.Result == record.Hit && n == 0:
		f.add("wrong", "alert of %s: a price for %s, though no tick lies below %d/%d", at, a.Key, a.Cited.Partition, a.Cited.Next)
	case a.Result == record.Hit:
		want := seen[n-1].winner
		if a.Market.Offset != want.offset || a.Market.Partition != a.Cited.Partition || a.Market.EventTime != want.time {
			f.add("wrong", "alert of %s: the price of %s is that of %d/%d, the ticks below %d/%d give that at %d",
				at, a.Key, a.Market.Partition, a.Market.Offset, a.Cited.Partition, a.Cited.Next, want.offset)
		}
	}
	for _, later := range seen[n:] {
		if later.time <= record.MillisOf(a.Timestamp) && (n == 0 || later.time >= seen[n-1].winner.time) {
			p.Revised++
			return
		}
	}
}

// tickKey is a symbol in a partition.
type tickKey struct {
	partition int32
	symbol    string
}

// tick is what a price is chosen by.
type tick struct {
	offset int64
	time   record.Millis // record timestamp
}

// tickSeen is a tick and the one that wins among it and all before it.
type tickSeen struct {
	tick
	winner *tick
}

func historyOf(ticks map[int32][]*sarama.ConsumerMessage) map[tickKey][]tickSeen {
	history := make(map[tickKey][]tickSeen)
	for partition, list := range ticks {
		for _, m := range list {
			key := tickKey{partition, string(m.Key)}
			seen := history[key]
			now := &tick{m.Offset, record.MillisOf(m.Timestamp)}
			winner := now
			if len(seen) > 0 && seen[len(seen)-1].winner.time > now.time {
				winner = seen[len(seen)-1].winner
			}
			history[key] = append(seen, tickSeen{*now, winner})
		}
	}
	return history
}
