package keys

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"joiner/internal/placement"
	"joiner/internal/record"
)

const (
	// lately is the length of a window of misplaced keys; the present one and
	// the one before are what a note speaks of.
	lately = 5 * time.Minute
	// atOnce is how many misplaced records of one run of a merge are looked at:
	// where all are misplaced these suffice.
	atOnce = 4
	// maxKey is how many bytes of a key are logged.
	maxKey = 64
	// several is of how many placements it can be said that not all are alike.
	several = 20
)

// topic is what is known of one topic's misplaced keys.
type topic struct {
	watch *Watch
	side  record.Side
	// suspicious: keys were misplaced lately, so that those that are sampled
	// anyway are evidence. Without it nothing of a sound topic is looked at.
	suspicious atomic.Bool

	mu     sync.Mutex
	began  time.Time
	now    judged
	before judged
	total  uint64 // misplaced since the start
}

// judged is a window of judged records. Two detectives look at it. One sees
// misplaced keys only: it says how they are placed even where one producer of
// many goes astray, and a well-placed key tells it nothing. The other sees the
// sample of all records, wherever they lie, which alone can say whether the
// whole topic is placed so.
type judged struct {
	records, misplaced uint64
	strays, all        *placement.Detective // nil: none needed yet
}

func (t *topic) init(w *Watch, side record.Side) { t.watch, t.side = w, side }

// Judged is told how many records of the side a run of the merge took, and how
// many of them were misplaced.
func (p *Partition) Judged(which record.Side, records, misplaced int) {
	if records == 0 {
		return
	}
	t := &p.watch.topics[which]
	now := p.watch.o.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(now)
	if misplaced > 0 {
		t.suspicious.Store(true)
	}
	t.now.records += uint64(records)
	t.now.misplaced += uint64(misplaced)
	t.total += uint64(misplaced)
}

// Misplaced is told of a record of the side that its key (its symbol, where
// Options.BySymbol is set) does not belong to this partition; before is how many there were before it in the same run of
// the merge. The key is not kept.
func (p *Partition) Misplaced(which record.Side, key []byte, before int) {
	if before >= atOnce {
		return
	}
	t := &p.watch.topics[which]
	t.mu.Lock()
	t.turn(p.watch.o.Now())
	t.suspicious.Store(true)
	t.see(&t.now.strays, key, p.index)
	v, soFar := t.verdict(), t.total+uint64(before)+1
	t.mu.Unlock()

	// A new explanation is news, whatever was logged just before.
	p.watch.o.Faults.WarnFunc(fmt.Sprintf("misplaced %s %s %t", p.watch.o.Topics[which], v.name, v.astray), func() (string, []zap.Field) {
		fields := []zap.Field{
			zap.String("topic", p.watch.o.Topics[which]), zap.Int32("partition", p.index), zap.String(p.watch.o.what(which), printable(key)),
		}
		if want, ok := p.watch.o.Places.Expected(which, key); ok {
			fields = append(fields, zap.Int32("expected_partition", want))
		}
		return t.explain(v), append(fields, zap.Uint64("misplaced", soFar), zap.String("likely_partitioner", v.name))
	})
}

// sampled is told of a record that was sampled, wherever it lies.
func (t *topic) sampled(key []byte, partition int32) {
	if !t.suspicious.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.see(&t.now.all, key, partition)
}

// see shows a placement to a detective, a new one where the topic has grown.
func (t *topic) see(d **placement.Detective, key []byte, partition int32) {
	partitions := t.watch.o.Places.Partitions(t.side)
	if partitions <= 0 {
		return
	}
	if *d == nil || (*d).Partitions() != partitions {
		*d = t.watch.o.Places.Detective(t.side)
	}
	(*d).See(key, partition)
}

// turn begins a new window where it is time. Called with mu held.
func (t *topic) turn(now time.Time) {
	age := now.Sub(t.began)
	if age < lately {
		return
	}
	t.before = t.now
	if age >= 2*lately {
		t.before = judged{}
	}
	t.now, t.began = judged{}, now
	t.suspicious.Store(t.before.misplaced > 0)
}

// verdict is what explains the misplaced keys of a topic.
type verdict struct {
	name  string // as placement.Detective gives it; "" nothing does
	mixed bool   // other keys of the topic are placed in another way
	// astray: the misplaced ones are keys that topics.reserved gives a partition of
	// their own.
	astray bool
}

// verdict asks the detectives of the present window, and where that is young
// those of the one before. Called with mu held.
func (t *topic) verdict() verdict {
	for _, j := range []*judged{&t.now, &t.before} {
		if j.strays == nil {
			continue
		}
		name, _, _ := j.strays.Likely()
		if name == "" {
			if _, astray := j.strays.Astray(); astray {
				return verdict{astray: true}
			}
			continue
		}
		v := verdict{name: name}
		if j.all != nil {
			whole, _, seen := j.all.Likely()
			v.mixed = whole != name && seen >= several
		}
		return v
	}
	return verdict{}
}

// explain puts a verdict and what to do into words.
func (t *topic) explain(v verdict) string {
	o := &t.watch.o
	topic, configured, setting := o.Topics[t.side], o.Partitioners[t.side], o.Settings[t.side]
	what := o.what(t.side) + "s"
	name, overAll := strings.CutSuffix(v.name, placement.OverAll)
	switch {
	case v.astray:
		return fmt.Sprintf("%s of %s that topics.reserved names lie in other partitions than the one it gives them: tell their producer, or take them out of the configuration", what, topic)
	case name == "" && o.BySymbol[t.side]:
		return fmt.Sprintf("symbols of %s, which are not the records' keys, lie in other partitions than %s would place them in, where their prices are looked for: set %s: custom, and every owner is asked, or have the producer place records by their symbol", topic, configured, setting)
	case name == "":
		return fmt.Sprintf("keys of %s lie in other partitions than %s would place them in, and no other known partitioner explains it yet", topic, configured)
	case overAll:
		return fmt.Sprintf("%s of %s lie as %s would place them if topics.reserved set no partition aside: tell their producer, or take it out of the configuration", what, topic, name)
	case v.mixed:
		return fmt.Sprintf("some %s of %s lie as %s%s would place them, others do not: set the partitioner of their producer to %s", what, topic, name, defaultOf(name), configured)
	default:
		return fmt.Sprintf("%s of %s lie as %s%s would place them: set %s: %s, or their producer's partitioner to %s", what, topic, name, defaultOf(name), setting, name, configured)
	}
}

// what is judged of the side's records.
func (o *Options) what(side record.Side) string {
	if o.BySymbol[side] {
		return "symbol"
	}
	return "key"
}

// defaultOf says whose default a partitioner is.
func defaultOf(name string) string {
	switch name {
	case "crc32":
		return " (librdkafka's default)"
	case "fnv1a":
		return " (sarama's default)"
	case "murmur2":
		return " (the default of Java's client and most others)"
	}
	return ""
}

// note is the topic's sentence for readiness; "" where nothing was misplaced
// lately.
func (t *topic) note() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn(t.watch.o.Now())
	misplaced, records := t.now.misplaced+t.before.misplaced, t.now.records+t.before.records
	if misplaced == 0 {
		return ""
	}
	return fmt.Sprintf("%d of the latest %d records of %s (%.3g %%) are misplaced: %s",
		misplaced, records, t.watch.o.Topics[t.side], 100*float64(misplaced)/float64(records), t.explain(t.verdict()))
}

// printable is a key for the log: what is not printable is escaped, and what is
// long is cut.
func printable(key []byte) string {
	text := strconv.Quote(string(key[:min(len(key), maxKey)]))
	text = text[1 : len(text)-1]
	if len(key) > maxKey {
		text += "…"
	}
	return text
}
