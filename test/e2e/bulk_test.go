package e2e

import (
	"errors"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// bulkBatch is how many records go into one batch: with small values it stays
// well below a topic's default max.message.bytes.
const bulkBatch = 5000

// SendBulk writes messages in batches of its own, several times faster than a
// producer under the race detector, each partition's in the order given. Every
// message needs its timestamp and its partition.
func (w *World) SendBulk(messages []*sarama.ProducerMessage) {
	w.t.Helper()
	config := w.producerConfig()
	client, err := sarama.NewClient(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("client: %v", err)
	}
	defer func() { _ = client.Close() }()

	byPartition := make(map[topicPartition][]*sarama.ProducerMessage)
	for _, m := range messages {
		at := topicPartition{m.Topic, m.Partition}
		byPartition[at] = append(byPartition[at], m)
	}
	for at, all := range byPartition {
		for part := range slices.Chunk(all, bulkBatch) {
			batch := w.batchOf(part)
			await(w.t, "a batch to be written", func() error { return produceBatch(client, at, batch) })
		}
	}
}

func (w *World) batchOf(messages []*sarama.ProducerMessage) *sarama.RecordBatch {
	w.t.Helper()
	first := messages[0].Timestamp
	batch := &sarama.RecordBatch{
		Version: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		FirstTimestamp: first, MaxTimestamp: first, LastOffsetDelta: int32(len(messages) - 1),
	}
	for i, m := range messages {
		r := &sarama.Record{OffsetDelta: int64(i), TimestampDelta: m.Timestamp.Sub(first)}
		if m.Timestamp.After(batch.MaxTimestamp) {
			batch.MaxTimestamp = m.Timestamp
		}
		r.Key, r.Value = w.encode(m.Key), w.encode(m.Value)
		for h := range m.Headers {
			r.Headers = append(r.Headers, &m.Headers[h])
		}
		batch.Records = append(batch.Records, r)
	}
	return batch
}

// encode returns what e stands for; nil stays null.
func (w *World) encode(e sarama.Encoder) []byte {
	w.t.Helper()
	if e == nil {
		return nil
	}
	b, err := e.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// produceBatch writes one batch. It returns an error where another try is due:
// the batch was refused, so that it cannot come to lie there twice.
func produceBatch(client sarama.Client, at topicPartition, batch *sarama.RecordBatch) error {
	leader, err := client.Leader(at.topic, at.partition)
	if err != nil {
		return err
	}
	request := &sarama.ProduceRequest{Version: 7, RequiredAcks: sarama.WaitForAll, Timeout: int32(time.Minute.Milliseconds())}
	request.AddBatch(at.topic, at.partition, batch)
	response, err := leader.Produce(request)
	if err != nil {
		return err
	}
	block := response.GetBlock(at.topic, at.partition)
	if block == nil {
		return errors.New("the answer does not name the partition")
	}
	if block.Err != sarama.ErrNoError {
		_ = client.RefreshMetadata(at.topic)
		return block.Err
	}
	return nil
}
