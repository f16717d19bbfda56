package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

// bareCommand makes this program run the bare loop instead of measuring it.
const bareCommand = "bare"

// consumedLine is what the bare loop says when it has read every input record.
const consumedLine = "consumed"

// bare runs the loop until SIGTERM.
func bare(args []string) error {
	var (
		brokers, group, market, notes, output string
		expect                                int64
	)
	flags := flag.NewFlagSet(bareCommand, flag.ContinueOnError)
	flags.StringVar(&brokers, "brokers", "", "")
	flags.StringVar(&group, "group", "", "")
	flags.StringVar(&market, "market", "", "")
	flags.StringVar(&notes, "notifications", "", "")
	flags.StringVar(&output, "output", "", "")
	flags.Int64Var(&expect, "expect", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()

	client, err := sarama.NewClient(strings.Split(brokers, ","), bareConfig())
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() { _ = client.Close() }()
	producer, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		return fmt.Errorf("making the producer: %w", err)
	}
	failed := make(chan error, 1)
	go func() {
		for err := range producer.Errors() {
			select {
			case failed <- err:
				stop() // a lost output makes the measurement worthless
			default:
			}
		}
	}()
	consumer, err := sarama.NewConsumerGroupFromClient(group, client)
	if err != nil {
		return fmt.Errorf("joining: %w", err)
	}

	loop := &bareLoop{producer: producer, notes: notes, output: output, expect: expect}
	for ctx.Err() == nil {
		if err := consumer.Consume(ctx, []string{market, notes}, loop); err != nil && ctx.Err() == nil {
			return fmt.Errorf("consuming: %w", err)
		}
	}
	err = errors.Join(consumer.Close(), producer.Close())
	select {
	case first := <-failed:
		return errors.Join(first, err)
	default:
		return err
	}
}

// bareConfig is sarama's default where the joiner's guarantees and settings do
// not ask for another: acknowledged by all, committed records only, the same
// linger as delivery.linger.
func bareConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.ClientID = "bare"
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.Offsets.AutoCommit.Interval = time.Second
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	return config
}

type bareLoop struct {
	producer sarama.AsyncProducer
	notes    string
	output   string
	expect   int64
	read     atomic.Int64
}

func (*bareLoop) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*bareLoop) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim hands every notification on as it came. It marks what it has
// handed over, not what is acknowledged: bare.
func (l *bareLoop) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	isNote := claim.Topic() == l.notes
	var count int64
	for message := range claim.Messages() {
		if isNote {
			l.producer.Input() <- &sarama.ProducerMessage{
				Topic:     l.output,
				Partition: message.Partition,
				Key:       sarama.ByteEncoder(message.Key),
				Value:     sarama.ByteEncoder(message.Value),
				Timestamp: message.Timestamp,
			}
		}
		session.MarkMessage(message, "")
		count++
		if message.Offset+1 == claim.HighWaterMarkOffset() {
			l.add(count)
			count = 0
		}
	}
	l.add(count)
	return nil
}

func (l *bareLoop) add(count int64) {
	if count > 0 && l.read.Add(count) == l.expect {
		fmt.Println(consumedLine)
	}
}
