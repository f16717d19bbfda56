package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"joiner/internal/enrich"
	"joiner/internal/hot"
	"joiner/internal/record"
)

const (
	// sampleRecords and sampleBytes bound what is read of one partition, and
	// totalBytes what is fetched of all, but for batches that are larger than a
	// fetch: one comes whole.
	sampleRecords = 10_000
	sampleBytes   = 16 << 20
	totalBytes    = 512 << 20
	// mostFetch and leastFetch bound what is asked for at once.
	mostFetch  = 1 << 20
	leastFetch = 16 << 10
	// probeRecords are read first, to learn how large records are.
	probeRecords = 200
	readers      = 4 // partitions read at once

	// sketchKeys is how many keys a partition's sketch holds: one in 64 is far
	// below the share that is called hot.
	sketchKeys = 64
	topKeys    = 5
	// maxKey is how many bytes of a key the sketch and the report keep.
	maxKey = 256
)

// sample reads the tails of all partitions, those of both inputs in turn, so
// that one with many does not take the time of the other.
func (g *gatherer) sample(ctx context.Context) {
	type place struct {
		side  int
		index int
	}
	var places []place
	in := &g.facts.Inputs
	for i := range max(len(in[0].Partitions), len(in[1].Partitions)) {
		for side := range in {
			if i < len(in[side].Partitions) {
				places = append(places, place{side, i})
			}
		}
	}
	if len(places) == 0 {
		return
	}
	// The last part of the time is for letting go.
	limit, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(ctx, limit.Add(-min(time.Second, g.o.Timeout/10)))
	defer cancel()
	budget := budgetOf(len(places))
	guesses := [record.Sides]*guess{}
	for side := range guesses {
		guesses[side] = newGuess(g.o.Inputs[side].Placer, int32(len(in[side].Partitions)))
	}
	former := formerCounts(g.facts.Group)
	sideBySide(len(places), readers, func(i int) {
		at := places[i]
		input := &g.o.Inputs[at.side]
		t := tail{
			gatherer: g, input: input, facts: &in[at.side].Partitions[at.index], guess: guesses[at.side],
			side: record.Side(at.side), count: int32(len(in[at.side].Partitions)), former: former[input.Topic], budget: budget,
		}
		t.facts.Err = g.leaderAway(t.input.Topic, at.index)
		if t.facts.Err == nil {
			t.facts.Err = t.bounded(ctx)
		}
	})
	for side := range guesses {
		in[side].Keys, in[side].Misplaced = suspectOf(guesses[side].all), suspectOf(guesses[side].misplaced)
		in[side].Growth = guesses[side].growth()
	}
}

// tail looks into one partition.
type tail struct {
	*gatherer
	input  *Input
	side   record.Side
	facts  *PartitionFacts
	guess  *guess
	count  int32   // partitions of the topic
	former []int32 // before it grew, as far as is known
	budget int64   // bytes to sample
}

// budgetOf is how many bytes are sampled of each of so many partitions. Behind
// the estimate by the newest records a sample may grow to twice that (take), and
// the estimate and the last fetches may take three quarters more.
func budgetOf(places int) int64 { return int64(min(sampleBytes, totalBytes/places/3)) }

// fetch is how many bytes to ask for at once.
func (t *tail) fetch() int32 { return int32(max(leastFetch, min(mostFetch, t.budget/4))) }

// leaderAway says why a partition cannot be read, where that is known already.
func (g *gatherer) leaderAway(topic string, index int) error {
	leader := g.facts.Layouts[topic].Partitions[index].Leader
	if leader < 0 {
		return errors.New("no leader")
	}
	for _, v := range g.facts.Brokers {
		if v.ID == leader && !answers(v) {
			return fmt.Errorf("its leader, broker %d, is away: %w", leader, v.Err)
		}
	}
	return nil
}

// bounded gives each partition a quarter of the time, so that one whose leader
// goes away meanwhile does not take that of the others.
func (t *tail) bounded(ctx context.Context) error {
	ctx, cancel := t.step(ctx)
	defer cancel()
	return t.read(ctx)
}

// errEnough ends a read.
var errEnough = errors.New("enough")

func (t *tail) read(ctx context.Context) error {
	p := t.facts
	var err error
	r := t.clients.Reader
	if p.Start, p.End, err = r.Bounds(ctx, t.input.Topic, p.ID); err != nil {
		return err
	}
	if err := t.next(ctx); err != nil {
		return err
	}
	from, err := t.begin(ctx)
	if err != nil {
		return err
	}
	s := newSampler(t)
	err = r.ReadBy(ctx, t.input.Topic, p.ID, from, p.End, t.fetch(), s.take, nil)
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	p.Sample = s.done()
	return nil
}

// next finds the timestamp of the record that the group reads next.
func (t *tail) next(ctx context.Context) error {
	p := t.facts
	from := p.position(t.o.StartLatest && t.side == record.Notification)
	if from < p.Start || from >= p.End {
		from = max(from, p.Start)
	}
	if from >= p.End {
		return nil
	}
	err := t.clients.Reader.ReadBy(ctx, t.input.Topic, p.ID, from, p.End, leastFetch, func(records []record.Record) error {
		p.Next = records[0].Timestamp
		return errEnough
	}, nil)
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// begin is where the sample begins: so far back from the end that it stays
// within its bounds, by the size of the newest records.
func (t *tail) begin(ctx context.Context) (int64, error) {
	p := t.facts
	if p.End-p.Start <= probeRecords {
		return p.Start, nil
	}
	records, bytes := int64(0), int64(0)
	err := t.clients.Reader.ReadBy(ctx, t.input.Topic, p.ID, p.End-probeRecords, p.End, t.fetch(), func(batch []record.Record) error {
		for i := range batch {
			records++
			bytes += int64(size(&batch[i]))
		}
		if bytes > t.budget/4 {
			return errEnough
		}
		return nil
	}, nil)
	if err != nil && !errors.Is(err, errEnough) {
		return 0, err
	}
	n := int64(sampleRecords)
	if records > 0 && bytes > 0 {
		n = min(n, max(1, t.budget*records/bytes))
	}
	return max(p.Start, p.End-n), nil
}

// size is what a record takes, uncompressed, in bytes.
func size(r *record.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// sampler takes records in.
type sampler struct {
	*tail
	s      Sample
	keys   *hot.Sketch
	behind []time.Duration          // of the records that were
	newest map[string]record.Millis // event time by symbol
}

func newSampler(t *tail) *sampler {
	return &sampler{
		tail: t, keys: hot.New(sketchKeys), newest: make(map[string]record.Millis),
		s: Sample{
			Oldest: record.NoTimestamp, Newest: record.NoTimestamp, Event: record.NoTimestamp, EventOldest: record.NoTimestamp,
			Bad: make(map[record.Kind]int), BadDetail: make(map[record.Kind]string),
		},
	}
}

func (s *sampler) done() Sample {
	s.s.At = time.Now()
	s.s.Keys = s.keys.Top(topKeys)
	s.s.Late = late(s.behind, s.s.Records)
	return s.s
}

// lateRecords and lateShare are how many records with old timestamps are no
// strays any more.
const (
	lateRecords = 10
	lateShare   = 100 // one in so many
)

// late is how far so many of n records were behind at least; 0 where fewer were.
func late(behind []time.Duration, n int) time.Duration {
	many := max(lateRecords, (n+lateShare-1)/lateShare)
	if len(behind) < many {
		return 0
	}
	slices.Sort(behind)
	return behind[len(behind)-many]
}

func (s *sampler) take(records []record.Record) error {
	for i := range records {
		s.one(&records[i])
	}
	if s.s.Bytes > 2*s.budget || s.s.Records >= sampleRecords {
		return errEnough
	}
	return nil
}

func (s *sampler) one(r *record.Record) {
	n := size(r)
	s.s.Records++
	s.s.Bytes += int64(n)
	s.s.Largest = max(s.s.Largest, n)
	s.timestamp(r.Timestamp)
	symbol, at, bad := s.input.Decode(r)
	key := r.Key
	if s.input.BySymbol {
		key = symbol
		if bad != nil { // it is not looked for
			key = nil
		}
	}
	s.place(key)
	if len(key) > 0 {
		s.keys.Add(key[:min(len(key), maxKey)])
	}
	if bad != nil {
		s.bad(r.Offset, bad)
		return
	}
	s.event(at)
	if s.side == record.Market {
		s.order(symbol, at)
	}
}

func (s *sampler) timestamp(at record.Millis) {
	if at == record.NoTimestamp {
		return
	}
	if s.s.Oldest == record.NoTimestamp || at < s.s.Oldest {
		s.s.Oldest = at
	}
	if s.s.Newest != record.NoTimestamp && at < s.s.Newest {
		d := s.s.Newest.Time().Sub(at.Time())
		s.s.Behind, s.behind = max(s.s.Behind, d), append(s.behind, d)
	}
	s.s.Newest = max(s.s.Newest, at)
}

func (s *sampler) event(at record.Millis) {
	if s.s.Event == record.NoTimestamp {
		s.s.EventOldest = at
	}
	s.s.EventOldest = min(s.s.EventOldest, at)
	s.s.Event = max(s.s.Event, at)
}

func (s *sampler) place(key []byte) {
	if len(key) == 0 {
		s.s.Keyless++
		return
	}
	well := s.input.Placer.WellPlaced(key, s.facts.ID, s.count, s.former)
	if !well {
		s.s.Misplaced++
	}
	s.guess.see(key, s.facts.ID, well)
}

func (s *sampler) bad(offset int64, bad *enrich.Bad) {
	s.s.Bad[bad.Kind]++
	if s.s.BadDetail[bad.Kind] == "" {
		s.s.BadDetail[bad.Kind] = fmt.Sprintf("partition %d, offset %d: %s", s.facts.ID, offset, bad.Detail)
	}
}

// maxSymbols bounds the symbols whose order is followed; those that come later
// are not judged.
const maxSymbols = 100_000

func (s *sampler) order(symbol []byte, at record.Millis) {
	newest, known := s.newest[string(symbol)]
	switch {
	case known && at < newest:
		s.s.OutOfOrder++
		if s.s.Disordered == "" {
			s.s.Disordered = fmt.Sprintf("%.64q", symbol)
		}
	case known || len(s.newest) < maxSymbols:
		s.newest[string(symbol)] = at
	}
}
