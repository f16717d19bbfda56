package audit

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// memory is a log in memory.
type memory struct {
	parts map[string][]*part
	batch int
}

type part struct {
	start, end int64
	records    []record.Record
	read       int64 // records handed out
}

func (m *memory) topic(name string, partitions int) {
	for range partitions {
		m.parts[name] = append(m.parts[name], &part{})
	}
}

func (m *memory) add(topic string, partition int32, r record.Record) int64 {
	p := m.parts[topic][partition]
	r.Offset = p.end
	p.records = append(p.records, r)
	p.end++
	return r.Offset
}

func (m *memory) Bounds(_ context.Context, topic string, partition int32) (start, end int64, err error) {
	p := m.parts[topic][partition]
	return p.start, p.end, nil
}

func (m *memory) Since(_ context.Context, topic string, partition int32, at record.Millis) (int64, error) {
	p := m.parts[topic][partition]
	for i := range p.records {
		if p.records[i].Timestamp >= at {
			return p.records[i].Offset, nil
		}
	}
	return p.end, nil
}

func (m *memory) Read(ctx context.Context, topic string, partition int32, from, to int64,
	each func([]record.Record) error, _ func(int64)) error {
	p := m.parts[topic][partition]
	i := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= from })
	for i < len(p.records) && p.records[i].Offset < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := i
		for n < len(p.records) && n < i+m.batch && p.records[n].Offset < to {
			n++
		}
		p.read += int64(n - i)
		if err := each(slices.Clone(p.records[i:n])); err != nil {
			return err
		}
		i = n
	}
	return nil
}

// remove takes records out of a partition, as compaction does.
func (p *part) remove(gone func(*record.Record) bool) {
	p.records = slices.DeleteFunc(p.records, func(r record.Record) bool { return gone(&r) })
}

// truncate moves the partition's start, as retention does.
func (p *part) truncate(start int64) {
	p.start = start
	p.remove(func(r *record.Record) bool { return r.Offset < start })
}

// world is a configuration, its topics, and a joiner that is a model: for each
// join it looks at all ticks there were, by the words of the documents.
type world struct {
	t      testing.TB
	log    *memory
	o      Options
	topics Topics
	placer *placement.Placer
	decode struct {
		market *enrich.MarketDecoder
		notes  *enrich.NoteDecoder
	}
	merged map[int32]int64 // market partition → next
	seen   map[int32][]modelTick
	alerts []*modelAlert
}

// modelTick is a good tick.
type modelTick struct {
	symbol string
	time   int64
	offset int64
	price  string
	none   bool
}

// modelAlert is what is known of an alert that the model made.
type modelAlert struct {
	at     place
	source place
	symbol string
	time   int64
	market int32
	next   int64
	tick   *modelTick // nil: miss
}

const (
	marketTopic, noteTopic, alertTopic, deadTopic = "market", "notes", "alerts", "dead"
	since1970                                     = 1_700_000_000_000
)

func newWorld(t testing.TB, partitions, deadPartitions int, history time.Duration) *world {
	t.Helper()
	w := &world{t: t, log: &memory{parts: make(map[string][]*part), batch: 7}, merged: make(map[int32]int64), seen: make(map[int32][]modelTick)}
	for _, topic := range []string{marketTopic, noteTopic, alertTopic} {
		w.log.topic(topic, partitions)
	}
	w.log.topic(deadTopic, deadPartitions)
	var err error
	if w.decode.market, err = enrich.NewMarketDecoder(enrich.MarketOptions{Symbol: "key", Price: "price", EventTime: "record"}); err != nil {
		t.Fatal(err)
	}
	if w.decode.notes, err = enrich.NewNoteDecoder(enrich.NoteOptions{Symbol: "key", EventTime: "record"}); err != nil {
		t.Fatal(err)
	}
	if w.placer, err = placement.New(placement.Options{Topic: marketTopic, Partitioner: "murmur2"}); err != nil {
		t.Fatal(err)
	}
	topic := func(name string, n int) Topic { return Topic{Name: name, Partitions: int32(n)} }
	w.topics = Topics{
		Market: topic(marketTopic, partitions), Notifications: topic(noteTopic, partitions),
		Alerts: topic(alertTopic, partitions), DeadLetters: topic(deadTopic, deadPartitions),
	}
	w.o = Options{
		Memory: leastMemory, Connect: time.Second,
		Market: marketTopic, Notifications: noteTopic, Alerts: alertTopic, DeadLetters: deadTopic,
		DecodeTick: w.decode.market.Decode, DecodeNote: w.decode.notes.Decode, Placer: w.placer,
		History: history, LocalIsCertain: true, Examples: 100, TempDir: t.TempDir(),
	}
	return w
}

func (w *world) home(symbol string) int32 {
	p, _ := w.placer.Partition([]byte(symbol), w.topics.Market.Partitions)
	return p
}

// tick writes a good tick, or with no price a tombstone.
func (w *world) tick(symbol string, at int64, price string) int64 {
	r := record.Record{Key: []byte(symbol), Timestamp: record.Millis(since1970 + at)}
	if price != "" {
		r.Value = []byte(`{"price":` + price + `}`)
	}
	return w.log.add(marketTopic, w.home(symbol), r)
}

// merge merges the next n market records of a partition.
func (w *world) merge(partition int32, n int) {
	p := w.log.parts[marketTopic][partition]
	for ; n > 0 && w.merged[partition] < p.end; n-- {
		r := &p.records[w.merged[partition]]
		w.merged[partition]++
		tick, bad := w.decode.market.Decode(r)
		if bad != nil {
			source := enrich.Source{Topic: marketTopic, Partition: partition, Offset: r.Offset}
			w.deadLetter(source, r, bad)
			continue
		}
		w.seen[partition] = append(w.seen[partition], modelTick{
			symbol: string(tick.Symbol), time: int64(tick.EventTime), offset: r.Offset, price: string(tick.Price), none: tick.Tombstone,
		})
	}
}

func (w *world) deadLetter(source enrich.Source, r *record.Record, bad *enrich.Bad) {
	partition := source.Partition % int32(len(w.log.parts[deadTopic]))
	w.write(enrich.DeadLetter(deadTopic, partition, source, r, bad.Kind, bad.Detail))
}

// note writes a notification and returns where it lies.
func (w *world) note(partition int32, symbol string, at int64, value string) place {
	r := record.Record{
		Key: []byte(symbol), Timestamp: record.Millis(since1970 + at), Value: []byte(value),
		Headers: []record.Header{{Key: []byte("trace"), Value: []byte(symbol)}, {Key: []byte("null")}},
	}
	return place{partition, w.log.add(noteTopic, partition, r)}
}

// join joins a notification with what has been merged.
func (w *world) join(at place) *modelAlert {
	r := &w.log.parts[noteTopic][at.partition].records[at.offset]
	source := enrich.Source{Topic: noteTopic, Partition: at.partition, Offset: at.offset}
	note, bad := w.decode.notes.Decode(r)
	if bad != nil {
		w.deadLetter(source, r, bad)
		return nil
	}
	a := &modelAlert{source: at, symbol: string(note.Symbol), time: int64(note.EventTime), market: w.home(string(note.Symbol))}
	a.next = w.merged[a.market]
	a.tick = answerOf(w.seen[a.market], a.symbol, a.time, int64(w.o.History/time.Millisecond))
	m := enrich.Match{Result: record.Miss, Symbol: note.Symbol, Partition: a.market}
	if a.market != at.partition {
		m.Locality = record.Remote
	}
	if a.tick != nil {
		m.Result, m.Price = record.Hit, []byte(a.tick.price)
		m.PriceTime, m.Offset = record.Millis(a.tick.time), a.tick.offset
		m.NotAsOf = m.Locality == record.Remote && a.tick.time > a.time
	}
	a.at = w.write(enrich.NewAlert(alertTopic, source, r, note.EventTime, &m, &enrich.Citation{Partition: a.market, Next: a.next}))
	w.alerts = append(w.alerts, a)
	return a
}

func (w *world) write(o *record.Output) place {
	r := record.Record{Timestamp: o.Timestamp, Key: o.Key, Value: o.Value, Headers: o.Headers}
	return place{o.Partition, w.log.add(o.Topic, o.Partition, r)}
}

func (w *world) audit() *Report {
	w.t.Helper()
	r, err := Audit(w.t.Context(), w.o, w.log, w.topics)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// answerOf is join.history by its words: of the ticks of a symbol, those of one
// event time count by the highest offset; kept are those within the history
// behind the newest, and the one in force where that begins; the last that is
// not after at answers, else the oldest kept. A tombstone is no price: nil.
func answerOf(ticks []modelTick, symbol string, at, history int64) *modelTick {
	if t := versionOf(ticks, symbol, at, history); t != nil && !t.none {
		return t
	}
	return nil
}

func versionOf(ticks []modelTick, symbol string, at, history int64) *modelTick {
	byTime := make(map[int64]modelTick)
	for _, t := range ticks {
		if before, ok := byTime[t.time]; t.symbol == symbol && (!ok || t.offset > before.offset) {
			byTime[t.time] = t
		}
	}
	var times []int64
	for at := range byTime {
		times = append(times, at)
	}
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	start := times[len(times)-1] - history
	oldest := 0
	for i, at := range times {
		if at <= start {
			oldest = i
		}
	}
	chosen := times[oldest]
	for _, t := range times[oldest:] {
		if t <= at {
			chosen = t
		}
	}
	t := byTime[chosen]
	return &t
}

// revisedOf counts the alerts that one tick more would have changed.
func (w *world) revisedOf() (n int64) {
	history := int64(w.o.History / time.Millisecond)
	all := make(map[int32][]modelTick)
	for p := range w.log.parts[marketTopic] {
		for i := range w.log.parts[marketTopic][p].records {
			r := &w.log.parts[marketTopic][p].records[i]
			if tick, bad := w.decode.market.Decode(r); bad == nil {
				all[int32(p)] = append(all[int32(p)], modelTick{
					symbol: string(tick.Symbol), time: int64(tick.EventTime), offset: r.Offset, none: tick.Tombstone,
				})
			}
		}
	}
	for _, a := range w.alerts {
		var below []modelTick
		for _, t := range all[a.market] {
			if t.offset < a.next {
				below = append(below, t)
			}
		}
		for _, t := range all[a.market] {
			if t.offset < a.next || t.symbol != a.symbol || t.time > a.time || a.tick == nil && t.none {
				continue
			}
			if v := versionOf(append(slices.Clone(below), t), a.symbol, a.time, history); v.offset == t.offset {
				n++
				break
			}
		}
	}
	return n
}

// figures are the counts that tests compare.
type figures struct {
	Lost, Doubled, Wrong, OutOfOrder, DeadLettered, Dropped, Missed, Unavailable, Revised, Unverifiable, Foreign, TicksLost int64
}

func figuresOf(r *Report) figures {
	return figures{
		r.Lost, r.Doubled, r.Wrong, r.OutOfOrder, r.DeadLettered, r.Dropped, r.Missed, r.Unavailable, r.Revised,
		r.Unverifiable, r.Foreign, r.TicksLost,
	}
}

func (r *Report) dump() string {
	s := ""
	for _, e := range r.Examples {
		s += fmt.Sprintf("\n%s: %s/%d/%d key %s: %s", e.Kind, e.Topic, e.Partition, e.Offset, e.Key, e.Detail)
	}
	return s
}
