package load

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// sourceHeader names the notification an alert was made from, as
// topic/partition/offset.
const sourceHeader = "joiner-source"

// tracker matches alerts to the notifications that were acknowledged. Either
// may come first: an alert can be read before the acknowledgement is.
type tracker struct {
	topic string // of notifications

	mu         sync.Mutex
	partitions map[int32]*sources
	sent       int64 // notifications acknowledged
	answered   int64 // of them, with at least one alert
	duplicates int64 // further alerts of the same notification
	latency    latencies
	lastAlert  time.Time // of ours, zero where there was none
}

// sources is one partition of the notifications. Offsets that are not ours
// belong to other producers.
type sources struct {
	ours  map[int64]time.Time // offset -> when it was sent; zero once answered
	early map[int64][]time.Time
	acked int64 // the highest offset of ours; acknowledgements come in order
}

func newTracker(topic string) *tracker {
	return &tracker{topic: topic, partitions: map[int32]*sources{}}
}

func (t *tracker) of(partition int32) *sources {
	s := t.partitions[partition]
	if s == nil {
		s = &sources{ours: map[int64]time.Time{}, early: map[int64][]time.Time{}, acked: -1}
		t.partitions[partition] = s
	}
	return s
}

// acknowledged notes a notification of ours that is in the topic.
func (t *tracker) acknowledged(partition int32, offset int64, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of(partition)
	t.sent++
	s.ours[offset] = sent
	s.acked = max(s.acked, offset)
	for _, at := range s.early[offset] {
		t.match(s, offset, at)
	}
	delete(s.early, offset)
	s.forgetForeign()
}

// manyEarly is how many unmatched alerts a partition may hold before those of
// other producers are looked for among them.
const manyEarly = 1024

// forgetForeign drops early alerts that no acknowledgement can claim any more.
func (s *sources) forgetForeign() {
	if len(s.early) < manyEarly {
		return
	}
	for offset := range s.early {
		if offset <= s.acked {
			delete(s.early, offset)
		}
	}
}

// alert notes an alert read back at a time.
func (t *tracker) alert(headers []*sarama.RecordHeader, at time.Time) {
	partition, offset, ok := t.source(headers)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of(partition)
	if _, ours := s.ours[offset]; ours {
		t.match(s, offset, at)
		return
	}
	if offset > s.acked {
		s.early[offset] = append(s.early[offset], at)
	}
}

func (t *tracker) match(s *sources, offset int64, at time.Time) {
	sent := s.ours[offset]
	if sent.IsZero() {
		t.duplicates++
		return
	}
	s.ours[offset] = time.Time{}
	t.answered++
	t.latency.add(at.Sub(sent))
	if at.After(t.lastAlert) {
		t.lastAlert = at
	}
}

// source reads the last header of the name, which is joiner's own.
func (t *tracker) source(headers []*sarama.RecordHeader) (partition int32, offset int64, ok bool) {
	for i := len(headers) - 1; i >= 0; i-- {
		if string(headers[i].Key) == sourceHeader {
			return parseSource(string(headers[i].Value), t.topic)
		}
	}
	return 0, 0, false
}

// parseSource reads topic/partition/offset of the given topic.
func parseSource(s, topic string) (partition int32, offset int64, ok bool) {
	rest, ok := strings.CutPrefix(s, topic+"/")
	if !ok {
		return 0, 0, false
	}
	p, o, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, false
	}
	p64, err := strconv.ParseUint(p, 10, 31)
	if err != nil {
		return 0, 0, false
	}
	o64, err := strconv.ParseUint(o, 10, 63)
	if err != nil {
		return 0, 0, false
	}
	return int32(p64), int64(o64), true //nolint:gosec // 31 and 63 bits
}

// waiting returns how many notifications have no alert yet, and when the last
// alert came.
func (t *tracker) waiting() (missing int64, last time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent - t.answered, t.lastAlert
}

// counts is what the tracker knows at one moment.
type counts struct {
	sent, answered, duplicates int64
	lastAlert                  time.Time
	latency                    Latency
}

func (t *tracker) counts() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return counts{
		sent: t.sent, answered: t.answered, duplicates: t.duplicates,
		lastAlert: t.lastAlert, latency: t.latency.summary(),
	}
}

// latencies is a histogram of durations with a relative error below 1/64: a
// run of hours must not keep every sample.
type latencies struct {
	buckets [64 * perOctave]int64
	n       int64
	max     time.Duration
}

// perOctave buckets divide each doubling of a duration in microseconds.
const perOctave = 64

func (l *latencies) add(d time.Duration) {
	d = max(d, 0)
	l.buckets[bucketOf(d.Microseconds())]++
	l.n++
	l.max = max(l.max, d)
}

// bucketOf counts one by one up to perOctave, then perOctave steps a doubling.
func bucketOf(us int64) int {
	if us < perOctave {
		return int(us)
	}
	octave := bits.Len64(uint64(us)) - 1 //nolint:gosec // not negative
	base := int64(1) << octave
	return (octave-5)*perOctave + int((us-base)*perOctave/base)
}

// upperBound is the largest number of microseconds in a bucket.
func upperBound(bucket int) int64 {
	if bucket < perOctave {
		return int64(bucket)
	}
	octave := bucket/perOctave + 5
	base := int64(1) << octave
	within := int64(bucket%perOctave) + 1
	return base + within*(base/perOctave) - 1
}

func (l *latencies) quantile(q float64) time.Duration {
	if l.n == 0 {
		return 0
	}
	rank := int64(math.Ceil(q * float64(l.n)))
	seen := int64(0)
	for i, n := range l.buckets {
		seen += n
		if seen >= rank && n > 0 {
			return min(l.max, time.Duration(upperBound(i))*time.Microsecond)
		}
	}
	return l.max
}

func (l *latencies) summary() Latency {
	return Latency{
		P50: millis(l.quantile(0.50)), P95: millis(l.quantile(0.95)),
		P99: millis(l.quantile(0.99)), Max: millis(l.max),
	}
}

// millis returns d in milliseconds with three decimals.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
