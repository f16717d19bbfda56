package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Generation names the member that commits. The coordinator takes offsets only
// from a member of the group's current generation; of one that is empty (no
// member, generation -1) only while the group has no members.
type Generation struct {
	Group      string
	MemberID   string
	InstanceID string // static members only
	Generation int32
}

// Labels are what goes with committed offsets, as their metadata; a partition
// that has none gets none. No broker looks into them.
type Labels map[string]map[int32]string

// CommitOffsets commits the next offset to read of each partition and returns
// the partitions that the coordinator refused, each with its reason
// (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS,
// FENCED_INSTANCE_ID, a missing right …); what is not in the map is committed.
// The error is for what could not be asked at all before ctx ended; then any of
// the partitions may be committed or not. A coordinator that is away, loading
// or another one by now is looked up and asked again until ctx ends.
//
// It goes over the Admin client, so that it never waits for a JoinGroup, and
// past sarama's offset manager, which returns no error, swallows some, stops
// during a rejoin and cannot lower an offset.
func (c *Clients) CommitOffsets(
	ctx context.Context, gen Generation, offsets map[string]map[int32]int64, labels Labels,
) (map[string]map[int32]error, error) {
	left := make(map[string]map[int32]int64, len(offsets)) // a copy: a request may outlive this call
	for topic, partitions := range offsets {
		left[topic] = maps.Clone(partitions)
	}
	refused := make(map[string]map[int32]error)
	err := c.faults.again(ctx, "committing offsets", func(ctx context.Context) error {
		if len(left) == 0 {
			return nil
		}
		asked := left
		resp, err := atCoordinator(ctx, c.Admin, gen.Group, func(b *sarama.Broker) (*sarama.OffsetCommitResponse, error) {
			return b.CommitOffset(commitRequest(c.Admin.Config(), gen, asked, labels))
		})
		if err != nil {
			return err
		}
		left, err = sortCommitted(resp, asked, refused)
		return c.lookUpAfter(ctx, gen.Group, err)
	}, zap.String("group", gen.Group))
	if err != nil {
		return nil, c.rights.missed(readGroup(gen.Group), err)
	}
	for topic, partitions := range refused {
		for _, err := range partitions {
			_ = c.rights.missed(commitRight(gen.Group, topic, err), err)
		}
	}
	return refused, nil
}

// commitRight is the right whose lack err shows.
func commitRight(group, topic string, err error) Right {
	if errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
		return readTopic(topic)
	}
	return readGroup(group)
}

func commitRequest(conf *sarama.Config, gen Generation, offsets map[string]map[int32]int64, labels Labels) *sarama.OffsetCommitRequest {
	req := sarama.NewOffsetCommitRequest(conf, gen.Group)
	req.ConsumerGroupGeneration = gen.Generation
	req.ConsumerID = gen.MemberID
	if gen.InstanceID != "" {
		req.GroupInstanceId = &gen.InstanceID
	}
	for topic, partitions := range offsets {
		for id, offset := range partitions {
			// -1: unknown. sarama's AddBlock would claim leader epoch 0.
			req.AddBlockWithLeaderEpoch(topic, id, offset, -1, 0, labels[topic][id])
		}
	}
	return req
}

// sortCommitted adds what was refused to refused and returns what to ask again,
// with the reason as the error.
func sortCommitted(
	resp *sarama.OffsetCommitResponse, asked map[string]map[int32]int64, refused map[string]map[int32]error,
) (left map[string]map[int32]int64, err error) {
	for topic, partitions := range asked {
		for id, offset := range partitions {
			answer, ok := resp.Errors[topic][id]
			switch {
			case !ok:
				err = sarama.ErrIncompleteResponse
				put(&left, topic, id, offset)
			case answer == sarama.ErrNoError:
			case coordinatorAway(answer):
				err = answer
				put(&left, topic, id, offset)
			default:
				put(&refused, topic, id, error(answer))
			}
		}
	}
	return left, err
}

func put[T any](m *map[string]map[int32]T, topic string, id int32, v T) {
	if *m == nil {
		*m = make(map[string]map[int32]T)
	}
	if (*m)[topic] == nil {
		(*m)[topic] = make(map[int32]T)
	}
	(*m)[topic][id] = v
}

func coordinatorAway(err error) bool {
	return errors.Is(err, sarama.ErrNotCoordinatorForConsumer) ||
		errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable) ||
		errors.Is(err, sarama.ErrOffsetsLoadInProgress)
}

// Committed is what the group has for a partition.
type Committed struct {
	Offset int64  // the next to read; -1 where there is none
	Label  string // that was committed with it
}

// CommittedOffsets returns the offsets of Committed.
func (c *Clients) CommittedOffsets(ctx context.Context, topics map[string][]int32) (map[string]map[int32]int64, error) {
	commits, err := c.Committed(ctx, topics)
	if err != nil {
		return nil, err
	}
	offsets := make(map[string]map[int32]int64, len(commits))
	for topic, partitions := range commits {
		for id, commit := range partitions {
			put(&offsets, topic, id, commit.Offset)
		}
	}
	return offsets, nil
}

// Committed returns what the group has committed for each partition. Offsets
// that a transaction has still pending are waited for (RequireStable, KIP-447),
// as is a coordinator that is away, until ctx ends.
func (c *Clients) Committed(ctx context.Context, topics map[string][]int32) (map[string]map[int32]Committed, error) {
	asked := make(map[string][]int32, len(topics)) // a copy: a request may outlive this call
	for topic, ids := range topics {
		asked[topic] = slices.Clone(ids)
	}
	var offsets map[string]map[int32]Committed
	err := c.faults.again(ctx, "fetching committed offsets", func(ctx context.Context) error {
		resp, err := atCoordinator(ctx, c.Admin, c.opts.GroupID, func(b *sarama.Broker) (*sarama.OffsetFetchResponse, error) {
			req := sarama.NewOffsetFetchRequest(c.Admin.Config().Version, c.opts.GroupID, asked)
			req.RequireStable = true
			return b.FetchOffset(req)
		})
		if err != nil {
			return err
		}
		offsets, err = committed(resp, topics)
		return c.lookUpAfter(ctx, c.opts.GroupID, err)
	}, zap.String("group", c.opts.GroupID))
	if err != nil {
		return nil, c.unread(err)
	}
	return offsets, nil
}

// unread notes the right whose lack err may show.
func (c *Clients) unread(err error) error {
	if errors.Is(err, sarama.ErrGroupAuthorizationFailed) {
		return c.rights.missed(readGroup(c.opts.GroupID), err)
	}
	var at *topicFault
	if errors.As(err, &at) {
		return c.rights.missed(readTopic(at.topic), err)
	}
	return err
}

// topicFault is what an answer says of a topic's partition.
type topicFault struct {
	topic     string
	partition int32
	err       error
}

func (f *topicFault) Error() string { return fmt.Sprintf("%s/%d: %v", f.topic, f.partition, f.err) }
func (f *topicFault) Unwrap() error { return f.err }

func committed(resp *sarama.OffsetFetchResponse, topics map[string][]int32) (map[string]map[int32]Committed, error) {
	offsets := make(map[string]map[int32]Committed, len(topics))
	switch err := resp.GroupError(); err {
	case sarama.ErrNoError:
	case sarama.ErrGroupIDNotFound:
		// Kafka says -1 for a group that it has never seen; kfake says this.
		for topic, ids := range topics {
			for _, id := range ids {
				put(&offsets, topic, id, Committed{Offset: -1})
			}
		}
		return offsets, nil
	default:
		return nil, err
	}
	for topic, ids := range topics {
		for _, id := range ids {
			block := resp.GetBlock(topic, id)
			if block == nil {
				return nil, fmt.Errorf("%s/%d: %w", topic, id, sarama.ErrIncompleteResponse)
			}
			if block.Err != sarama.ErrNoError {
				return nil, &topicFault{topic, id, block.Err}
			}
			put(&offsets, topic, id, Committed{block.Offset, block.Metadata})
		}
	}
	return offsets, nil
}

// atCoordinator calls f with the group's coordinator on client. After a fault
// the next call has a fresh connection to a coordinator looked up anew. f may
// still run when ctx has ended, so it shares nothing with its caller.
func atCoordinator[T any](ctx context.Context, client sarama.Client, group string, f func(*sarama.Broker) (T, error)) (T, error) {
	return within(ctx, func() (T, error) {
		b, err := client.Coordinator(group)
		if err != nil {
			var zero T
			return zero, err
		}
		v, err := f(b)
		if err != nil {
			_ = b.Close()
			_ = client.RefreshCoordinator(group)
		}
		return v, err
	})
}

// lookUpAfter looks the coordinator up anew where err says that it is another
// one, and returns err.
func (c *Clients) lookUpAfter(ctx context.Context, group string, err error) error {
	if !coordinatorAway(err) {
		return err
	}
	_, _ = within(ctx, func() (struct{}, error) {
		return struct{}{}, c.Admin.RefreshCoordinator(group)
	})
	return err
}
