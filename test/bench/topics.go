package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// topics is what the bench knows of the cluster.
type topics struct {
	cluster *cluster.Cluster
	client  sarama.Client
	admin   sarama.ClusterAdmin
}

func connect(c *cluster.Cluster) (*topics, error) {
	client, err := sarama.NewClient(c.Brokers, cluster.Config())
	if err != nil {
		return nil, fmt.Errorf("connecting to %v: %w", c.Brokers, err)
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to %v: %w", c.Brokers, err), client.Close())
	}
	return &topics{cluster: c, client: client, admin: admin}, nil
}

func (t *topics) close() error { return t.admin.Close() } // and the client with it

// create makes a topic of a fresh name and waits until its leaders are known.
func (t *topics) create(prefix string, partitions int, configs map[string]string) (string, error) {
	name := t.cluster.Name(prefix)
	if err := t.cluster.CreateTopic(name, int32(partitions), configs); err != nil {
		return "", err
	}
	return name, t.client.RefreshMetadata(name)
}

// remove deletes topics that are done with; they would only fill the disk.
func (t *topics) remove(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := t.admin.DeleteTopic(name); err != nil {
			errs = append(errs, fmt.Errorf("removing topic %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// ends returns each partition's end offset.
func (t *topics) ends(name string) (map[int32]int64, error) {
	partitions, err := t.client.Partitions(name)
	if err != nil {
		return nil, fmt.Errorf("partitions of %s: %w", name, err)
	}
	ask := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		ask[p] = sarama.OffsetNewest
	}
	results, err := t.admin.ListOffsets(map[string]map[int32]int64{name: ask}, nil)
	if err != nil {
		return nil, fmt.Errorf("ends of %s: %w", name, err)
	}
	ends := make(map[int32]int64, len(partitions))
	for p, result := range results[name] {
		if result.Err != nil && !errors.Is(result.Err, sarama.ErrNoError) {
			return nil, fmt.Errorf("end of %s/%d: %w", name, p, result.Err)
		}
		ends[p] = result.Offset
	}
	return ends, nil
}

// count is the number of records of a topic nothing was deleted from.
func (t *topics) count(name string) (int64, error) {
	ends, err := t.ends(name)
	var sum int64
	for _, end := range ends {
		sum += end
	}
	return sum, err
}

// lag is how many records of the topics a group has not committed.
func (t *topics) lag(group string, names ...string) (int64, error) {
	var lag int64
	for _, name := range names {
		ends, err := t.ends(name)
		if err != nil {
			return 0, err
		}
		ask := make([]int32, 0, len(ends))
		for p := range ends {
			ask = append(ask, p)
		}
		committed, err := t.admin.ListConsumerGroupOffsets(group, map[string][]int32{name: ask})
		if err != nil {
			return 0, fmt.Errorf("committed offsets of %s: %w", name, err)
		}
		for p, end := range ends {
			block := committed.GetBlock(name, p)
			if block == nil {
				return 0, fmt.Errorf("committed offset of %s/%d: not in the answer", name, p)
			}
			lag += end - max(block.Offset, 0)
		}
	}
	return lag, nil
}

// read calls each with every record of a topic, partition by partition.
func (t *topics) read(ctx context.Context, name string, each func(*sarama.ConsumerMessage)) (err error) {
	ends, err := t.ends(name)
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerFromClient(t.client)
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	for p, end := range ends {
		if err := readPartition(ctx, consumer, name, p, end, each); err != nil {
			return fmt.Errorf("reading %s/%d: %w", name, p, err)
		}
	}
	return nil
}

func readPartition(ctx context.Context, consumer sarama.Consumer, name string, partition int32, end int64, each func(*sarama.ConsumerMessage)) (err error) {
	if end == 0 {
		return nil
	}
	claim, err := consumer.ConsumePartition(name, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case message := <-claim.Messages():
			each(message)
			if message.Offset+1 >= end {
				return nil
			}
		}
	}
}
