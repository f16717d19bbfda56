package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// noReplica means that a partition is read from its leader.
const noReplica = -1

// NoLeader is no broker's id: the leader is looked for.
const NoLeader = -1

// Feed is a partition that a Fetcher reads.
type Feed struct {
	partition
	f      *Fetcher
	ctx    context.Context // ends with Remove
	cancel context.CancelFunc

	mu      sync.Mutex // held while the sink is called
	removed bool
	sink    Sink

	source *source      // that asks for it, if any; guarded by Fetcher.mu
	leader atomic.Int32 // broker id as last looked up, or NoLeader

	turns  atomic.Uint64 // how often its holder has looked after it
	given  atomic.Bool   // back: nothing is read for it any more, whoever it is read for is to end
	asking atomic.Int64  // since when its holder waits for the log's bounds, since Fetcher.made; 0: it does not

	// The rest is its holder's, see Fetcher, and changes hands under
	// Fetcher.mu.
	position int64
	bytes    int32 // to ask for
	epoch    int32 // the leader's
	until    time.Time

	topicID string    // that the position belongs to; empty: any topic's of the name
	sure    time.Time // when the broker last said that it is; zero: not yet
	asked   time.Time // when it was last asked for

	replica int32     // the follower to read from, or noReplica
	lease   time.Time // when to ask the leader again whom to read from

	spill func(*chunk) // made once, not for each response
}

func (f *Fetcher) newFeed(p partition, from int64, sink Sink) *Feed {
	fd := &Feed{
		partition: p, f: f, sink: sink,
		position: from, bytes: f.o.PartitionBytes, replica: noReplica,
	}
	fd.spill = fd.handOver
	fd.leader.Store(NoLeader)
	fd.ctx, fd.cancel = context.WithCancel(f.ctx)
	return fd
}

// Remove ends the reading. It waits for a call of the sink that is under way,
// but not for a request, whose result is dropped. It may be called more than
// once, by anybody but the sink.
func (fd *Feed) Remove() {
	fd.mu.Lock()
	fd.removed = true
	fd.mu.Unlock()
	fd.cancel()

	fd.f.mu.Lock()
	defer fd.f.mu.Unlock()
	fd.f.detach(fd)
	if fd.f.feeds[fd.partition] == fd {
		delete(fd.f.feeds, fd.partition)
	}
}

// Wake says that a sink that was full has room again. Without it the sink is
// asked every 25ms, or with the next request for another partition. The sink
// may call it under its own locks.
func (fd *Feed) Wake() {
	fd.f.mu.Lock()
	s := fd.source
	fd.f.mu.Unlock()
	if s != nil {
		signal(s.wake)
	}
}

// due tells whether to ask for the partition now, and if not, when to look
// again; 0 is never.
func (fd *Feed) due(now time.Time) (bool, time.Duration) {
	fd.turns.Add(1)
	if wait := fd.until.Sub(now); wait > 0 {
		return false, wait
	}
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if fd.removed {
		return false, 0
	}
	if fd.sink.Full() {
		return false, fullPoll
	}
	return true, 0
}

// unsure tells whether the topic may be another one of the same name by now.
func (fd *Feed) unsure(now time.Time) bool {
	if fd.topicID == "" {
		return false
	}
	return fd.sure.IsZero() || now.Sub(fd.sure) > fd.f.clients.MetadataRefresh ||
		now.Sub(fd.sure) > lapse && now.Sub(fd.asked) > lapse
}

// remade tells that the topic is another one.
func (fd *Feed) remade() {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if !fd.removed {
		fd.given.Store(true)
		fd.f.o.Remade(fd.topic, fd.id, fd.position)
	}
}

// verdict is what to do with a feed after a response.
type verdict uint8

const (
	stays  verdict = iota // ask the same broker again
	moves                 // read from another replica
	seeks                 // look for the leader
	strays                // its position is not in the log
)

// take hands what a response tells of the partition to the sink and moves the
// position. An error is what the broker, or the batch, says.
func (fd *Feed) take(p *block) (verdict, error) {
	if p == nil {
		return seeks, sarama.ErrIncompleteResponse
	}
	if p.ErrorCode != 0 {
		return fd.refused(sarama.KError(p.ErrorCode))
	}
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if fd.removed {
		return stays, nil
	}
	fd.f.rights.seen(readTopic(fd.topic))
	before := fd.position
	c := chunk{spill: fd.spill, codec: fd.f.codec}
	err := c.parse(p, before, fd.f.isolation == sarama.ReadCommitted)
	fd.deliver(&c, max(fd.position, c.next))
	if err != nil {
		fd.until = time.Now().Add(slow)
		return stays, fmt.Errorf("offset %d: %w", fd.position, err)
	}
	if err := fd.resize(&c, before); err != nil {
		fd.until = time.Now().Add(slow)
		return stays, err
	}
	return fd.prefer(p.PreferredReadReplica), nil
}

// handOver is the chunk's spill.
func (fd *Feed) handOver(c *chunk) {
	if n := len(c.records); n > 0 {
		fd.deliver(c, c.records[n-1].Offset+1)
	}
	c.records = fd.sink.Batch()
}

func (fd *Feed) deliver(c *chunk, position int64) {
	end := c.end
	if fd.replica != noReplica {
		end = -1
	}
	fd.position = position
	fd.sink.Deliver(c.records, position, end, c.high)
}

// resize asks for more where a batch did not fit, and for the usual after it.
func (fd *Feed) resize(c *chunk, before int64) error {
	switch {
	case c.next > before:
		fd.bytes = fd.f.o.PartitionBytes
	case c.partial && fd.bytes >= maxReadBytes:
		return fmt.Errorf("offset %d: no whole batch in %d bytes", fd.position, fd.bytes)
	case c.partial:
		fd.bytes *= 2
	case fd.position < c.end:
		// From a partition that is not the first of a response brokers send
		// nothing where its next batch is larger than its share (KIP-74).
		fd.bytes = max(fd.bytes, min(2*fd.bytes, fd.f.o.ResponseBytes))
	}
	return nil
}

// prefer follows the leader's word on whom to read from (KIP-392) until the
// lease ends: a follower does not know when it is no longer the right one.
func (fd *Feed) prefer(replica int32) verdict {
	if replica < 0 || replica == fd.replica {
		return stays
	}
	fd.replica = replica
	fd.lease = time.Now().Add(fd.f.clients.MetadataRefresh)
	return moves
}

// expired tells whether to ask the leader again whom to read from.
func (fd *Feed) expired(now time.Time) bool {
	return fd.replica != noReplica && now.After(fd.lease)
}

// refused sorts a broker's error for the partition.
func (fd *Feed) refused(err sarama.KError) (verdict, error) {
	follower := fd.replica != noReplica
	fd.replica = noReplica
	switch {
	case follower:
		return seeks, err // it lags, or knows no better: the leader has the last word
	case err == sarama.ErrOffsetOutOfRange:
		return strays, err
	case err == sarama.ErrInvalidMessage: // CORRUPT_MESSAGE
		fd.until = time.Now().Add(backoff)
		return stays, err
	case lasting(err):
		_ = fd.f.rights.missed(readTopic(fd.topic), err)
		fd.until = time.Now().Add(slow)
		return stays, err
	default:
		return seeks, err
	}
}

// reset asks where to go on and tells whether the feed is still there.
func (fd *Feed) reset(start, end int64) bool {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if fd.removed {
		return false
	}
	fd.position = max(0, fd.f.o.OutOfRange(fd.topic, fd.id, fd.position, start, end))
	fd.bytes = fd.f.o.PartitionBytes
	return true
}

// lastingOrGone tells whether trying again often is of no use.
func lastingOrGone(err error) bool {
	return lasting(err) || errors.Is(err, sarama.ErrUnknownTopicOrPartition)
}
