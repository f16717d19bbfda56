package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/kafka"
	"joiner/internal/record"
	"joiner/internal/resume"
)

// startLatest is startLatestOnce, again and again while a right is missing,
// which readiness names.
func (a *App) startLatest(ctx context.Context) error {
	for {
		err := a.startLatestOnce(ctx)
		if err == nil || !kafka.Unauthorized(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rightsAgain):
		}
	}
}

// rightsAgain is the pause between two tries of what lacks a right.
const rightsAgain = 2 * time.Second

// startLatestOnce gives a group without any commit its start at the end of the
// notifications. It commits explicit offsets while the group is still empty,
// since sarama knows one initial offset for both topics, and market-updates
// always begin at the log's start.
func (a *App) startLatestOnce(ctx context.Context) error {
	if a.o.Config.Notification.Start != "latest" {
		return nil
	}
	topic := a.topics[record.Notification]
	topics, err := a.clients.Facts.Topics(ctx, a.topics[:]...)
	if err != nil {
		return fmt.Errorf("notification.start: %w", err)
	}
	partitions := make(map[string][]int32)
	for name, t := range topics {
		for p := range t.Partitions {
			partitions[name] = append(partitions[name], p)
		}
	}
	committed, err := a.clients.CommittedOffsets(ctx, partitions)
	if err != nil {
		return fmt.Errorf("notification.start: %w", err)
	}
	for _, offsets := range committed {
		for _, offset := range offsets {
			if offset >= 0 {
				return nil // the group has begun
			}
		}
	}
	ends := make(map[int32]int64)
	labels := kafka.Labels{topic: make(map[int32]string)}
	for _, p := range partitions[topic] {
		_, end, err := a.clients.Reader.Bounds(ctx, topic, p)
		if err != nil {
			return fmt.Errorf("notification.start: end of %s/%d: %w", topic, p, err)
		}
		ends[p] = end
		labels[topic][p] = resume.Label{TopicID: topics[topic].ID}.String()
	}
	refused, err := a.clients.CommitOffsets(ctx,
		kafka.Generation{Group: a.o.Config.Group.ID, Generation: -1},
		map[string]map[int32]int64{topic: ends}, labels)
	if err != nil {
		return fmt.Errorf("notification.start: %w", err)
	}
	for p, err := range refused[topic] {
		if !taken(err) {
			return fmt.Errorf("notification.start: committing the start of %s/%d: %w", topic, p, err)
		}
	}
	if len(refused) > 0 {
		// Another pod was first and has members by now; it has committed the start.
		a.log.Info("the group already has members, which have chosen where notifications begin")
		return nil
	}
	a.log.Info("a group without commits begins at the end of the notifications", zap.String("topic", topic))
	return nil
}

// taken reports whether a commit was refused because the group has members.
func taken(err error) bool {
	return errors.Is(err, sarama.ErrUnknownMemberId) || errors.Is(err, sarama.ErrIllegalGeneration) ||
		errors.Is(err, sarama.ErrRebalanceInProgress)
}
