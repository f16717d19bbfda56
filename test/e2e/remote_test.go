package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

const (
	remotePartitions = 6
	// With six partitions of each input and round-robin over four members, or
	// five, no index has both halves in one pod.
	remotePods = 4
)

// alone fails the test unless every index has its halves in two pods.
func (h halves) alone(t testing.TB) {
	t.Helper()
	if n := h.aligned(); n > 0 {
		t.Errorf("%d indices have both halves in one pod: %v", n, h)
	}
}

// lookupOutcomes are the values of joiner_remote_lookups_total's label.
var lookupOutcomes = []string{"hit", "miss", "moved", "restoring", "timeout", "error", "overload"}

// lookups counts the look-ups by how they ended.
type lookups map[string]int

func lookupsOf(m Metrics) lookups {
	counts := make(lookups)
	for _, outcome := range lookupOutcomes {
		counts[outcome] = int(m.Sum("joiner_remote_lookups_total", "outcome", outcome))
	}
	return counts
}

// since returns what has come on top of before.
func (l lookups) since(before lookups) lookups {
	more := make(lookups)
	for outcome, n := range l {
		more[outcome] = n - before[outcome]
	}
	return more
}

func (l lookups) String() string {
	var texts []string
	for _, outcome := range lookupOutcomes {
		if l[outcome] != 0 {
			texts = append(texts, fmt.Sprintf("%d %s", l[outcome], outcome))
		}
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, ", ")
}

// Thirty notifications under two strategies, read from the same topics: next to
// their prices, and with every price in another pod. One more waits for its
// first price, which its own table gets or another pod's.
func TestKafkaLocalAgainstRemote(t *testing.T) {
	const notes = 30
	near := NewWorld(t, remotePartitions, nil)
	far := near.Beside()
	nearPods := near.Pods(remotePods, Settings{"group.strategy": "copartition", "join.wait": "1h"})
	farPods := far.Pods(remotePods, Settings{"group.strategy": "roundrobin", "join.wait": "1h"})

	symbols := []string{"BBCA", "BRK.B", "MSFT", "AAPL", "BTC-USD", "M&M.NS", "日経225", "a/b", "..", "IBM"}
	p, last := near.Producer(), make(map[string]string)
	var ticks []Record
	for i, symbol := range symbols {
		last[symbol] = fmt.Sprintf("%d.2500", 9000+i)
		ticks = append(ticks, Record{Key: symbol, Value: fmt.Sprintf(`{"price": %d}`, i)},
			Record{Key: symbol, Value: fmt.Sprintf(`{"price": %s}`, last[symbol])})
	}
	p.Send(near.Market, ticks...)
	nearPods.AwaitBalanced(remotePartitions)
	farPods.AwaitShared(remotePartitions).alone(t)
	records := make([]Record, notes)
	for i := range records {
		records[i] = Record{Key: symbols[i%len(symbols)], Value: fmt.Sprintf(`{"n": %d}`, i)}
	}
	p.Send(near.Notes, records...)
	near.AwaitNoLag()
	far.AwaitNoLag()
	measured := map[string]Metrics{"copartition": nearPods.Metrics(), "roundrobin": farPods.Metrics()}
	const late = "LATE"
	p.Send(near.Notes, Record{Key: late, Value: `{"n": "late"}`})
	await(t, "both groups to wait for a first price", func() error {
		taken := nearPods.Metrics().Sum("joiner_partition_records_total", "topic", near.Notes)
		asked := lookupsOf(farPods.Metrics())["miss"]
		if taken <= notes || asked == 0 {
			return fmt.Errorf("%v notifications are taken under copartition, %d questions answered without a price under round-robin", taken, asked)
		}
		return nil
	})
	last[late] = "1.50"
	p.Send(near.Market, Record{Key: late, Value: `{"price": "1.50"}`})
	near.AwaitNoLag()
	far.AwaitNoLag()

	for _, side := range []struct {
		strategy      string
		w             *World
		pods          Pods
		local, remote int
	}{
		{"copartition", near, nearPods, notes, 0},
		{"roundrobin", far, farPods, 0, notes},
	} {
		m := measured[side.strategy]
		expect(t, m, side.local, "joiner_joins_total", "locality", "local", "result", "hit")
		expect(t, m, side.remote, "joiner_joins_total", "locality", "remote", "result", "hit")
		expect(t, m, notes, "joiner_joins_total")
		expect(t, m, side.remote, "joiner_remote_lookups_total", "outcome", "hit")
		side.pods.Stop()
		proof := side.w.Prove()
		remote := side.remote
		if remote > 0 {
			remote++ // the late one
		}
		if proof.Hits != notes+1 || proof.Remote != remote || proof.Doubled() > 0 {
			t.Errorf("%s: %d hits of %d notifications, %d of them remote, %d doubled", side.strategy, proof.Hits, proof.Notes, proof.Remote, proof.Doubled())
		}
		for at, a := range proof.Last {
			// Only of another pod's price it is said that it came later.
			asOf := string(a.Key) != late || side.remote == 0
			if a.Market == nil || a.Market.Price != last[string(a.Key)] || a.NotAsOf == asOf {
				t.Errorf("%s: notification %s of %s: %s", side.strategy, at, a.Key, a.Value)
			}
		}
		times := joinTimes(m)
		t.Logf("%-11s %2d local, %2d remote, %d of %d enriched; join times %s; look-ups: %s",
			side.strategy, int(m.Sum("joiner_joins_total", "locality", "local")), int(m.Sum("joiner_joins_total", "locality", "remote")),
			int(m.Sum("joiner_joins_total", "result", "hit")), notes, times, lookupsOf(m))
	}
}

// joinTimes describes joiner_join_duration_seconds for people.
func joinTimes(m Metrics) string {
	var texts []string
	for _, locality := range []string{"local", "remote"} {
		if m.Sum("joiner_join_duration_seconds_count", "locality", locality) > 0 {
			texts = append(texts, fmt.Sprintf("%s p50 %v, p99 %v", locality,
				m.Quantile(0.5, "joiner_join_duration_seconds", "locality", locality).Round(100*time.Nanosecond),
				m.Quantile(0.99, "joiner_join_duration_seconds", "locality", locality).Round(100*time.Nanosecond)))
		}
	}
	return strings.Join(texts, "; ")
}

const (
	asOfRate    = 1000 // a second, of ticks and of notifications
	asOfFor     = 12 * time.Second
	asOfHistory = 10 * time.Second
	// Half of the notifications come at once, so that their ticks are still on
	// their way, half up to this far behind their time. Ticks come in order,
	// and every tick up to a notification's time can be read when the
	// notification is written, so that what is right does not depend on who
	// reads when. The rest of the history is for pods that are behind.
	asOfLate = 2 * time.Second
)

// Ticks and notifications interleaved, these behind their time: whichever pod
// holds the prices, each notification gets the one of its own time.
func TestKafkaRemoteAsOf(t *testing.T) {
	near := NewWorld(t, remotePartitions, nil)
	far := near.Beside()
	history := Settings{"join.history": asOfHistory.String(), "group.strategy": "copartition"}
	nearPods := near.Pods(remotePods, history)
	farPods := far.Pods(remotePods, Settings{"join.history": asOfHistory.String(), "group.strategy": "roundrobin"})
	symbols := SymbolsOf(near, "S", remotePartitions, 10)
	seed := make([]Record, len(symbols))
	for i, symbol := range symbols {
		seed[i] = Record{Key: symbol, Value: fmt.Sprintf(`{"price": "0.%d0"}`, i+1), Time: time.Now().Add(-time.Minute).UnixMilli()}
	}
	near.Producer().Send(near.Market, seed...)
	nearPods.AwaitBalanced(remotePartitions)
	farPods.AwaitShared(remotePartitions).alone(t)

	ticks, notes := near.interleave(symbols)
	near.AwaitNoLag()
	far.AwaitNoLag()
	m := farPods.Metrics()
	t.Logf("%d ticks and %d notifications; copartition: join times %s; roundrobin: %s; look-ups: %s",
		ticks, notes, joinTimes(nearPods.Metrics()), joinTimes(m), lookupsOf(m))
	nearPods.Stop()
	farPods.Stop()

	model := newAsOfModel(t, near.Read(near.Market))
	byNote := make(map[place]Alert)
	for _, a := range near.ReadAlerts() {
		byNote[place{a.Source.Partition, a.Source.Offset}] = a
	}
	for _, w := range []*World{near, far} {
		if r, code := w.Audit(nil); code != 0 || r.faultCounts != (faultCounts{}) || r.Notifications != int64(notes) || r.Revised > 0 {
			t.Errorf("the audit of group %s ends with %d: %+v", w.Group, code, r)
		}
	}
	f := &faults{t: t}
	defer f.report()
	checkOnce(f, near.Read(near.Notes), near.ReadAlerts())
	alerts := far.ReadAlerts()
	checkOnce(f, near.Read(near.Notes), alerts)
	overtaken, gone := 0, 0
	for _, a := range alerts {
		at := place{a.Source.Partition, a.Source.Offset}
		want, overtakenBy := model.inForce(string(a.Key), a.Timestamp.UnixMilli())
		if overtakenBy != nil && a.Cited != nil && overtakenBy.Offset < a.Cited.Next {
			overtaken++
		}
		if want.tombstone {
			gone++
		}
		b := byNote[at]
		switch {
		case b.ConsumerMessage == nil: // reported as lost
		case a.Locality != record.Remote || b.Locality != record.Local:
			f.add("wrong place", "notification %s is %s under round-robin and %s under copartition", at, a.Locality, b.Locality)
		case a.Result != b.Result || a.NotAsOf != b.NotAsOf || marketOf(a) != marketOf(b):
			f.add("unequal", "notification %s of %s at %d: %s, and %s under copartition", at, a.Key, a.Timestamp.UnixMilli(), a.Value, b.Value)
		}
		model.judge(f, a, want)
	}
	t.Logf("of %d notifications %d get a price that their owner had newer ones than, %d fall into a time without one", notes, overtaken, gone)
	if overtaken < notes/10 || gone == 0 {
		t.Error("the test shows little")
	}
}

// marketOf returns the alert's word on the market, byte for byte.
func marketOf(a Alert) string {
	var value struct{ Market json.RawMessage }
	_ = json.Unmarshal(a.Value, &value) // it was parsed before
	return string(value.Market)
}

// interleave writes ticks, now and then a tombstone, and notifications in turn
// and returns how many.
func (w *World) interleave(symbols []string) (ticks, notes int) {
	w.t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	p := w.Producer()
	late := func() int64 {
		by := time.Millisecond // never this very one: the next ticks may be of it
		if r.IntN(2) == 0 {
			by += time.Duration(r.Int64N(int64(asOfLate)))
		}
		return time.Now().Add(-by).UnixMilli()
	}
	beat := time.NewTicker(steadyBeat)
	defer beat.Stop()
	for began := time.Now(); time.Since(began) < asOfFor; <-beat.C {
		due := int(time.Since(began).Seconds() * asOfRate)
		now := time.Now().UnixMilli()
		var batch []*sarama.ProducerMessage
		for ; ticks < due; ticks++ {
			tick := Record{
				Key: symbols[r.IntN(len(symbols))], Value: fmt.Sprintf(`{"price": %d.%02d}`, ticks, r.IntN(100)), Time: now,
			}
			tick.Null = r.IntN(50) == 0
			batch = append(batch, w.message(w.Market, tick))
		}
		p.SendMessages(batch)
		batch = nil
		for ; notes < due; notes++ {
			batch = append(batch, w.message(w.Notes, Record{
				Key: symbols[r.IntN(len(symbols))], Value: fmt.Sprintf(`{"n": %d}`, notes), Time: late(),
			}))
		}
		p.SendMessages(batch)
	}
	return ticks, notes
}

// asOfVersion is a symbol's price, or that it has none, from a time on.
type asOfVersion struct {
	at        int64
	tick      *sarama.ConsumerMessage
	tombstone bool
}

// asOfModel knows every version of every symbol, in the order of their times;
// of those of one time it knows the one of the highest offset.
type asOfModel struct {
	t        testing.TB
	versions map[string][]asOfVersion
}

func newAsOfModel(t testing.TB, market map[int32][]*sarama.ConsumerMessage) asOfModel {
	m := asOfModel{t, make(map[string][]asOfVersion)}
	for _, records := range market {
		for _, r := range records {
			key := string(r.Key)
			v := asOfVersion{r.Timestamp.UnixMilli(), r, r.Value == nil}
			i, found := slices.BinarySearchFunc(m.versions[key], v.at, func(v asOfVersion, at int64) int { return int(v.at - at) })
			if found {
				m.versions[key][i] = v
				continue
			}
			m.versions[key] = slices.Insert(m.versions[key], i, v)
		}
	}
	return m
}

// inForce returns the version of that time, and the tick or tombstone that
// came next, nil where none did.
func (m asOfModel) inForce(symbol string, at int64) (v asOfVersion, next *sarama.ConsumerMessage) {
	m.t.Helper()
	versions := m.versions[symbol]
	i := len(versions) - 1
	for i > 0 && versions[i].at > at {
		i--
	}
	if i < 0 || versions[i].at > at {
		m.t.Fatalf("no tick of %s is older than %d", symbol, at)
	}
	if i < len(versions)-1 {
		next = versions[i+1].tick
	}
	return versions[i], next
}

// judge compares an alert with the version in force at its time.
func (m asOfModel) judge(f *faults, a Alert, want asOfVersion) {
	f.t.Helper()
	switch {
	case a.NotAsOf:
		f.add("not as of", "%v of %s at %d: %s", a.Source, a.Key, a.Timestamp.UnixMilli(), a.Value)
	case want.tombstone:
		if a.Result != record.Miss {
			f.add("wrong", "%v of %s at %d is a %s, offset %d is a tombstone", a.Source, a.Key, a.Timestamp.UnixMilli(), a.Result, want.tick.Offset)
		}
	case a.Result != record.Hit:
		f.add("wrong", "%v of %s at %d is a %s, offset %d has its price", a.Source, a.Key, a.Timestamp.UnixMilli(), a.Result, want.tick.Offset)
	case a.Market.Offset != want.tick.Offset || a.Market.Partition != want.tick.Partition || a.Market.Price != priceOf(f.t, want.tick) ||
		int64(a.Market.EventTime) != want.at || a.Market.AgeMS != a.Timestamp.UnixMilli()-want.at:
		f.add("wrong", "%v of %s at %d: %+v, want offset %d of %d", a.Source, a.Key, a.Timestamp.UnixMilli(), *a.Market, want.tick.Offset, want.at)
	}
}
