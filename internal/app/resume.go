package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"joiner/internal/kafka"
	"joiner/internal/member"
	"joiner/internal/record"
	"joiner/internal/resume"
	"joiner/internal/sampled"
	"joiner/internal/task"
)

// resumer says where the pod's partitions are read on, labels what is committed
// of them, and tells of offsets that are gone.
type resumer struct {
	topics  [record.Sides]string
	clients func() *kafka.Clients
	reset   func(index int32) // ends a task, and has another take its place
	count   func(record.Side) // a reset
	log     *zap.Logger
	faults  *sampled.Log

	mu    sync.Mutex
	known map[int32]*standpoint // by index
}

// standpoint is what is known of an index's two partitions.
type standpoint struct {
	topicID [record.Sides]string // that the running task reads
	at      record.Offsets       // committed last, or begun at; resume.None
	lost    [record.Sides]*loss
}

// loss is a position that turned out to be gone while its task ran.
type loss struct {
	at  int64
	why resume.Why
}

func newResumer(topics [record.Sides]string, log *zap.Logger, faults *sampled.Log) *resumer {
	return &resumer{topics: topics, log: log, faults: faults, known: make(map[int32]*standpoint)}
}

// of returns what is known of an index. r.mu is held.
func (r *resumer) of(index int32) *standpoint {
	s := r.known[index]
	if s == nil {
		s = &standpoint{at: record.Offsets{resume.None, resume.None}}
		r.known[index] = s
	}
	return s
}

func (r *resumer) side(topic string) record.Side {
	if topic == r.topics[record.Market] {
		return record.Market
	}
	return record.Notification
}

// beginAgain is the pause between two tries to learn where to begin.
const beginAgain = time.Second

// begin implements member.Begin.
func (r *resumer) begin(ctx context.Context, side record.Side, index int32, _ int64) (member.Start, bool) {
	for {
		at, err := r.beginOnce(ctx, side, index)
		if err == nil {
			return at, true
		}
		if ctx.Err() != nil {
			return member.Start{}, false
		}
		r.faults.Warn("begin "+r.topics[side], "cannot learn where to read a partition on, trying again",
			zap.String("topic", r.topics[side]), zap.Int32("partition", index), zap.Error(err))
		select {
		case <-time.After(beginAgain):
		case <-ctx.Done():
			return member.Start{}, false
		}
	}
}

func (r *resumer) beginOnce(ctx context.Context, side record.Side, index int32) (member.Start, error) {
	log, err := r.logOf(ctx, side, index)
	if err != nil {
		return member.Start{}, err
	}
	own, err := r.committed(ctx, side, index)
	if err != nil {
		return member.Start{}, err
	}
	var other resume.Commit
	if own.Offset < 0 {
		other = r.remembered(side, index, r.otherCommitted(ctx, side.Other(), index))
	}
	start := resume.At(side, own, other, log)
	lost := r.take(side, index, log.TopicID, start)
	r.tell(side, index, own, log, start, lost)
	if side == record.Market && start.Why != resume.Kept {
		// The merge fills the table, as it does for a group without commits.
		return member.Start{Offset: resume.None, TopicID: log.TopicID}, nil
	}
	return member.Start{Offset: start.Offset, TopicID: log.TopicID}, nil
}

// logOf asks for the topic's id first: if the topic is made anew meanwhile the
// fetcher finds another one.
func (r *resumer) logOf(ctx context.Context, side record.Side, index int32) (resume.Log, error) {
	reader := r.clients().Reader
	id, err := reader.TopicID(ctx, r.topics[side], index)
	if err != nil {
		return resume.Log{}, err
	}
	e, err := reader.Extent(ctx, r.topics[side], index)
	if err != nil {
		return resume.Log{}, err
	}
	return resume.Log{TopicID: id, Start: e.Start, End: e.End, High: e.High}, nil
}

func (r *resumer) committed(ctx context.Context, side record.Side, index int32) (resume.Commit, error) {
	topic := r.topics[side]
	commits, err := r.clients().Committed(ctx, map[string][]int32{topic: {index}})
	if err != nil {
		return resume.Commit{}, err
	}
	c := commits[topic][index]
	return resume.Commit{Offset: c.Offset, Label: resume.ParseLabel(c.Label)}, nil
}

// otherPatience bounds the look at the other topic's commit, which is for the
// log and the count alone: that topic may be the one that is missing.
const otherPatience = 5 * time.Second

func (r *resumer) otherCommitted(ctx context.Context, side record.Side, index int32) resume.Commit {
	ctx, cancel := context.WithTimeout(ctx, otherPatience)
	defer cancel()
	c, err := r.committed(ctx, side, index)
	if err != nil {
		return resume.Commit{Offset: resume.None, Label: resume.ParseLabel("")}
	}
	return c
}

// remembered completes what the other side's label says of this side's partition
// by what this process has read of it: where both topics were made anew, all
// labels are gone with them.
func (r *resumer) remembered(side record.Side, index int32, other resume.Commit) resume.Commit {
	if other.Label.OtherID != "" {
		return other
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(index)
	other.Label.OtherID, other.Label.OtherOffset = s.topicID[side], s.at[side]
	return other
}

// take notes what a new task reads, and returns what was lost before it.
func (r *resumer) take(side record.Side, index int32, topicID string, start resume.Start) *loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.of(index)
	lost := s.lost[side]
	s.lost[side] = nil
	s.topicID[side], s.at[side] = topicID, start.Offset
	return lost
}

// tell counts and logs a partition that is read on elsewhere than where it was
// left.
func (r *resumer) tell(side record.Side, index int32, own resume.Commit, log resume.Log, start resume.Start, lost *loss) {
	if start.Why == resume.Kept && lost == nil {
		return
	}
	if start.Why == resume.Kept {
		// What was committed is still there, but the task was further.
		start.Why, start.From = lost.why, lost.at
	}
	to := start.Offset
	if to < 0 {
		to = log.Start
	}
	r.tellReset(side, index, start.Why,
		zap.Int64("committed", own.Offset), zap.Int64("log_start", log.Start), zap.Int64("log_end", log.High),
		zap.Int64("from", start.From), zap.Int64("to", to), zap.Int64("skipped", start.Skipped))
}

func (r *resumer) tellReset(side record.Side, index int32, why resume.Why, fields ...zap.Field) {
	r.count(side)
	r.log.Warn(resetMessage(side, why), append([]zap.Field{
		zap.String("topic", r.topics[side]), zap.Int32("partition", index), zap.String("why", string(why)),
	}, fields...)...)
}

func resetMessage(side record.Side, why resume.Why) string {
	switch {
	case why == resume.BelowStart:
		return "offsets are gone: the log begins above them, what lay between was never read"
	case why == resume.Recreated:
		return "offsets are gone: the topic was made anew and is read from its start; its offsets, and the joiner-source of its alerts, begin again"
	case side == record.Market:
		return "offsets are gone: the log was truncated; the price table is emptied and filled again from the log's start"
	default:
		return "offsets are gone: the log was truncated and is read on where it ends; offsets, and the joiner-source of alerts, come a second time"
	}
}

// outOfRange implements kafka.FetcherOptions.OutOfRange. Below the log's start
// the task goes on there. Above the end, where positions never go back within
// one task, another takes its place.
func (r *resumer) outOfRange(topic string, index int32, at, start, end int64) int64 {
	side := r.side(topic)
	if at > end {
		r.lose(side, index, at, resume.Truncated)
		return start
	}
	r.tellReset(side, index, resume.BelowStart,
		zap.Int64("committed", r.lastCommitted(side, index)), zap.Int64("log_start", start), zap.Int64("log_end", end),
		zap.Int64("from", at), zap.Int64("to", start), zap.Int64("skipped", start-at))
	return start
}

func (r *resumer) lastCommitted(side record.Side, index int32) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(index).at[side]
}

// remade implements kafka.FetcherOptions.Remade.
func (r *resumer) remade(topic string, index int32, at int64) {
	r.lose(r.side(topic), index, at, resume.Recreated)
}

// lose ends a task whose position is gone; the next one counts it.
func (r *resumer) lose(side record.Side, index int32, at int64, why resume.Why) {
	r.mu.Lock()
	r.of(index).lost[side] = &loss{at, why}
	r.mu.Unlock()
	r.reset(index)
}

// labels says which topics the offsets that are about to be committed belong to:
// those that their tasks read. It is called before anything is sent, so that an
// offset that is on its way for long cannot get the label of a later task.
func (r *resumer) labels(offsets map[string]map[int32]int64) kafka.Labels {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, partitions := range offsets {
		for index, offset := range partitions {
			r.of(index).at[r.side(topic)] = offset
		}
	}
	labels := make(kafka.Labels, len(offsets))
	for topic, partitions := range offsets {
		side := r.side(topic)
		labels[topic] = make(map[int32]string, len(partitions))
		for index := range partitions {
			s := r.of(index)
			labels[topic][index] = resume.Label{
				TopicID: s.topicID[side], OtherID: s.topicID[side.Other()], OtherOffset: s.at[side.Other()],
			}.String()
		}
	}
	return labels
}

// source is the log that the task of an index restores from.
type source struct {
	*kafka.Reader
	r *resumer
}

// Read implements task.Log. A topic that was made anew meanwhile may reach as
// far as the old one did: whatever came is then worth nothing.
func (s source) Read(ctx context.Context, topic string, index int32, from, to int64, each func([]record.Record) error, progress func(int64)) error {
	err := s.Reader.Read(ctx, topic, index, from, to, each, progress)
	var above *kafka.AboveEnd
	if errors.As(err, &above) {
		return fmt.Errorf("%w: %w", task.ErrGone, err)
	}
	if err != nil {
		return err
	}
	id, err := s.TopicID(ctx, topic, index)
	if err != nil {
		return err
	}
	if want := s.r.readID(topic, index); want != "" && id != want {
		return fmt.Errorf("%w: %s was made anew", task.ErrGone, topic)
	}
	return nil
}

// readID is the id of the topic that the index's task reads.
func (r *resumer) readID(topic string, index int32) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(index).topicID[r.side(topic)]
}
