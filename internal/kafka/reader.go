package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// Reader reads partitions without a claim, from their leaders, over connections
// of its own; what it asks of logs' bounds goes through the Log client. It may be
// used from many goroutines at once; partitions of one leader share a connection
// and take turns.
type Reader struct {
	client    sarama.Client
	links     *links
	codec     kgo.Decompressor
	committed bool
	faults    *sampler
	rights    *rights

	mu    sync.Mutex
	tries map[partition]*tries // of all partitions that were ever asked about
}

// tries counts the attempts to reach a partition's leader. Guarded by Reader.mu.
type tries struct {
	n     uint64
	under int       // way
	began time.Time // the newest
}

// AboveEnd reports that records were asked for above the end of a partition:
// it was truncated, or made anew. Time does not heal that.
type AboveEnd struct {
	Topic     string
	Partition int32
	Offset    int64 // asked for
	End       int64
}

func (e *AboveEnd) Error() string {
	return fmt.Sprintf("%s/%d: offset %d is above the end, %d", e.Topic, e.Partition, e.Offset, e.End)
}

const (
	readBytes    = 1 << 20 // a fetch of Read
	maxReadBytes = 1 << 30 // no broker takes a larger batch
	// idlePoll is how long to wait at the end for more. The wait is here and
	// not at the broker, where it would hold the connection.
	idlePoll = 25 * time.Millisecond
)

// Bounds returns the partition's start and its end for the clients' isolation
// level. Faults that time heals are tried again until ctx ends.
func (r *Reader) Bounds(ctx context.Context, topic string, id int32) (start, end int64, err error) {
	e, err := r.extent(ctx, partition{topic, id}, false)
	return e.Start, e.End, err
}

// TopicID returns the topic's id as the partition's leader knows it, empty where
// the broker is older than 2.8. A topic that does not exist is a fault that time
// heals, and tried again until ctx ends.
func (r *Reader) TopicID(ctx context.Context, topic string, id int32) (string, error) {
	p := partition{topic, id}
	var uuid string
	err := r.again(ctx, "topic id", p, func(ctx context.Context) (err error) {
		uuid, err = atLeader(ctx, r, p, func(b *sarama.Broker, _ int32) (string, error) {
			resp, err := b.GetMetadata(sarama.NewMetadataRequest(r.client.Config().Version, []string{topic}))
			if err != nil {
				return "", err
			}
			if len(resp.Topics) != 1 {
				return "", sarama.ErrIncompleteResponse
			}
			t := topicOf(resp.Topics[0])
			if t.Err == nil && !t.Exists() {
				return "", sarama.ErrUnknownTopicOrPartition
			}
			return t.ID, t.Err
		})
		return err
	})
	return uuid, err
}

// Extent is how far a partition's log reaches.
type Extent struct {
	Start int64
	End   int64 // for the clients' isolation level
	High  int64 // the high watermark, at least End
}

// Extent returns how far the partition reaches. Faults that time heals are tried
// again until ctx ends.
func (r *Reader) Extent(ctx context.Context, topic string, id int32) (Extent, error) {
	return r.extent(ctx, partition{topic, id}, true)
}

// extent is Extent; the high watermark costs a request where the end is another.
func (r *Reader) extent(ctx context.Context, p partition, high bool) (Extent, error) {
	var e Extent
	err := r.again(ctx, "log bounds", p, func(ctx context.Context) (err error) {
		e, err = atLeader(ctx, r, p, func(b *sarama.Broker, _ int32) (e Extent, err error) {
			// Several requests: one may name a partition only once. In this order
			// the high watermark is at least the end, which is at least the start.
			if e.Start, err = r.offset(b, p, sarama.OffsetOldest); err != nil {
				return e, err
			}
			if e.End, err = r.offset(b, p, sarama.OffsetNewest); err != nil {
				return e, err
			}
			e.High = e.End
			if high && r.committed {
				e.High, err = r.offsetFor(b, p, sarama.OffsetNewest, sarama.ReadUncommitted)
			}
			return e, err
		})
		return err
	})
	return e, err
}

// Since returns the first offset of a record whose timestamp is at least at,
// and the partition's end where there is none. What lies below that offset is
// older, what lies above it need not be younger. Faults that time heals are
// tried again until ctx ends.
func (r *Reader) Since(ctx context.Context, topic string, id int32, at record.Millis) (int64, error) {
	p := partition{topic, id}
	// Times before 1970 would ask for something else: -1 is the end, -2 the
	// start.
	at = max(at, 0)
	offset := int64(-1)
	err := r.again(ctx, "offset of a time", p, func(ctx context.Context) (err error) {
		offset, err = atLeader(ctx, r, p, func(b *sarama.Broker, _ int32) (int64, error) {
			first, err := r.offset(b, p, int64(at))
			if !errors.Is(err, sarama.ErrOffsetNotAvailable) {
				return first, err
			}
			return r.offset(b, p, sarama.OffsetNewest) // no record is so young
		})
		return err
	})
	return offset, err
}

func (r *Reader) offset(b *sarama.Broker, p partition, at int64) (int64, error) {
	return r.offsetFor(b, p, at, isolation(r.committed))
}

func (r *Reader) offsetFor(b *sarama.Broker, p partition, at int64, level sarama.IsolationLevel) (int64, error) {
	req := sarama.NewOffsetRequest(r.client.Config().Version)
	req.IsolationLevel = level
	req.AddBlock(p.topic, p.id, at, 1)
	resp, err := b.GetAvailableOffsets(req)
	if err != nil {
		return 0, err
	}
	return endOf(resp, p)
}

// Read calls each with the visible records from from up to but not including
// to, in order, in batches, and returns once every offset below to is known to
// be read or invisible. The slice is each's only until it returns, while keys,
// values and headers alias the fetch response. progress, which may be nil, is
// called with the position after every fetch that moved it.
//
// Offsets that retention has deleted are passed over. Faults that time heals
// are tried again until ctx ends, and an open transaction below to is waited
// for, as long as the log reaches that far. Its errors are each's own, ctx's, a
// missing right, and *AboveEnd.
func (r *Reader) Read(
	ctx context.Context, topic string, id int32, from, to int64,
	each func([]record.Record) error, progress func(position int64),
) error {
	return r.ReadBy(ctx, topic, id, from, to, readBytes, each, progress)
}

// ReadBy is Read by fetches of so many bytes, above 0, for those who may want
// less than Read would fetch. A batch comes whole, however large it is.
func (r *Reader) ReadBy(
	ctx context.Context, topic string, id int32, from, to int64, bytes int32,
	each func([]record.Record) error, progress func(position int64),
) error {
	var buf []record.Record
	s := scan{Reader: r, partition: partition{topic, id}, position: from, usual: bytes, bytes: bytes}
	for s.position < to {
		before := s.position
		c, err := s.step(ctx, buf[:0])
		if err != nil {
			return err
		}
		buf = c.records
		records := below(c.records, to)
		if len(records) > 0 {
			if err := each(records); err != nil {
				return err
			}
		}
		if s.position > before && progress != nil {
			progress(min(s.position, to))
		}
		if s.position > before || c.partial {
			continue
		}
		if c.high < to {
			if err := s.reaches(ctx, to); err != nil {
				return err
			}
		}
		if !pause(ctx, idlePoll) {
			return fmt.Errorf("reading %s/%d at offset %d, end %d: %w", topic, id, s.position, c.end, ctx.Err())
		}
	}
	return nil
}

// reaches fails where the log ends below to: it was truncated, or made anew, and
// what is waited for may never come. A leader's answer to a fetch does not say
// so for sure, since a new one's high watermark may be behind for a moment.
func (s *scan) reaches(ctx context.Context, to int64) error {
	e, err := s.Extent(ctx, s.topic, s.id)
	if err != nil {
		return err
	}
	if e.High < to {
		return &AboveEnd{Topic: s.topic, Partition: s.id, Offset: to, End: e.High}
	}
	return nil
}

func below(records []record.Record, to int64) []record.Record {
	n := len(records)
	for n > 0 && records[n-1].Offset >= to {
		n--
	}
	return records[:n]
}

// scan is a position in a partition that moves.
type scan struct {
	*Reader
	partition
	position int64
	usual    int32 // bytes to ask for
	bytes    int32 // likewise, more for a large batch
}

// step fetches once at the position and moves it over what is then known.
func (s *scan) step(ctx context.Context, buf []record.Record) (chunk, error) {
	var c chunk
	err := s.again(ctx, "reading", s.partition, func(ctx context.Context) error {
		p, err := s.fetch(ctx)
		if errors.Is(err, sarama.ErrOffsetOutOfRange) {
			return s.backInRange(ctx)
		}
		if err != nil {
			return err
		}
		c = chunk{records: buf, codec: s.codec}
		return c.parse(p, s.position, s.committed)
	}, zap.Int64("offset", s.position))
	if err != nil {
		return c, fmt.Errorf("%s/%d at offset %d: %w", s.topic, s.id, s.position, err)
	}
	if c.partial && s.bytes >= maxReadBytes {
		return c, fmt.Errorf("%s/%d at offset %d: no whole batch in %d bytes", s.topic, s.id, s.position, s.bytes)
	}
	switch {
	case c.partial:
		s.bytes *= 2
	case c.next > s.position:
		s.bytes = s.usual
	}
	s.position = max(s.position, c.next)
	return c, nil
}

// errMoved asks for another try at the new position.
var errMoved = errors.New("the log's start has moved past the position")

// backInRange finds out why the position is out of range: the log's start has
// moved on, and so does the position, or it is above the end.
func (s *scan) backInRange(ctx context.Context) error {
	e, err := s.Extent(ctx, s.topic, s.id)
	if err != nil {
		return err
	}
	if s.position > e.High {
		return &AboveEnd{Topic: s.topic, Partition: s.id, Offset: s.position, End: e.High}
	}
	if s.position >= e.Start {
		return sarama.ErrOffsetOutOfRange // back in range meanwhile
	}
	s.position = e.Start
	return errMoved
}

func (s *scan) fetch(ctx context.Context) (*block, error) {
	level, position, bytes, p := isolation(s.committed), s.position, s.bytes, s.partition
	return atLeader(ctx, s.Reader, p, func(b *sarama.Broker, epoch int32) (*block, error) {
		req := newFetch(level, bytes)
		req.MinBytes = 1
		addPartition(req, p, position, bytes, epoch)
		resp, err := s.links.fetch(ctx, b.Addr(), req)
		if err != nil {
			return nil, err
		}
		told := make(map[partition]*block, 1)
		blocksOf(resp, told)
		switch one := told[p]; {
		case one == nil:
			return nil, sarama.ErrIncompleteResponse
		case one.ErrorCode != 0:
			return nil, sarama.KError(one.ErrorCode)
		default:
			return one, nil
		}
	})
}

// atLeader calls f with the partition's leader and, after a fault, sees to it
// that the next call has a fresh connection and fresh metadata. f may still run
// when ctx has ended, so it shares nothing with its caller.
func atLeader[T any](ctx context.Context, r *Reader, p partition, f func(b *sarama.Broker, epoch int32) (T, error)) (T, error) {
	return within(ctx, func() (T, error) {
		leader, epoch, err := r.client.LeaderAndEpoch(p.topic, p.id)
		if err != nil {
			var zero T
			return zero, err // has refreshed already
		}
		v, err := f(leader, epoch)
		if err == nil || errors.Is(err, sarama.ErrOffsetOutOfRange) {
			return v, err
		}
		var link *linkFault
		if !answered(err) && !errors.As(err, &link) {
			_ = leader.Close() // sarama keeps one that timed out
		}
		_ = r.client.RefreshMetadata(p.topic)
		return v, err
	})
}

func (r *Reader) again(ctx context.Context, what string, p partition, f func(context.Context) error, fields ...zap.Field) error {
	fields = append(fields, zap.String("topic", p.topic), zap.Int32("partition", p.id))
	try := func(ctx context.Context) error {
		r.count(p, 1)
		defer r.count(p, -1)
		return f(ctx)
	}
	return r.rights.missed(readTopic(p.topic), r.faults.again(ctx, what, try, fields...))
}

// count notes that an attempt begins (1) or ends (-1).
func (r *Reader) count(p partition, change int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tries[p]
	if t == nil {
		t = &tries{}
		if r.tries == nil {
			r.tries = make(map[partition]*tries)
		}
		r.tries[p] = t
	}
	t.n++
	t.under += change
	if change > 0 {
		t.began = time.Now()
	}
}

// Tries tells, to whoever watches that a reader gets on, how often brokers were
// asked about the partition, and whether an attempt is under way, which is up to
// them however long it lasts, within the backstop. It waits for nobody.
func (r *Reader) Tries(topic string, id int32) (n uint64, waiting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tries[partition{topic, id}]; t != nil {
		return t.n, t.under > 0 && time.Since(t.began) < backstop
	}
	return 0, false
}
