package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"joiner/internal/record"
)

func transactional(o *Options) { o.Transactional = true }

// transactions are those of a new id.
func (c *cluster) transactions(t *testing.T) (*Clients, *Transactions) {
	t.Helper()
	clients := c.connect(t, transactional)
	return clients, clients.Transactions(unique("txn"), 10*time.Second)
}

// write puts records into a transaction of p.
func (c *cluster) write(t *testing.T, x *Transactions, p Producer, topic string, partition, sequence int32, values ...string) {
	t.Helper()
	batch := &sarama.RecordBatch{
		Version: 2, ProducerID: p.ID, ProducerEpoch: p.Epoch, FirstSequence: sequence, IsTransactional: true,
		LastOffsetDelta: int32(len(values) - 1), FirstTimestamp: time.Now(), MaxTimestamp: time.Now(),
	}
	for i, v := range values {
		batch.Records = append(batch.Records, &sarama.Record{OffsetDelta: int64(i), Value: []byte(v)})
	}
	request := &sarama.ProduceRequest{Version: 7, TransactionalID: &x.id, RequiredAcks: sarama.WaitForAll, Timeout: 10_000}
	request.AddBatch(topic, partition, batch)
	leader, err := x.c.Producer.Leader(topic, partition)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := leader.Produce(request)
	if err != nil {
		t.Fatal(err)
	}
	if block := answer.GetBlock(topic, partition); block.Err != sarama.ErrNoError {
		t.Fatal(block.Err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin makes a transaction of records and an offset; its end is the caller's.
func (c *cluster) begin(t *testing.T, x *Transactions, p Producer, topic, input string, sequence int32, offset int64, values ...string) {
	t.Helper()
	ctx := deadline(t)
	must(t, x.AddPartitions(ctx, p, map[string][]int32{topic: {0}}))
	c.write(t, x, p, topic, 0, sequence, values...)
	must(t, x.AddOffsets(ctx, p, x.c.opts.GroupID))
	must(t, x.CommitOffsets(ctx, p, Generation{Group: x.c.opts.GroupID, Generation: -1}, map[string]map[int32]int64{input: {0: offset}}, nil))
}

// Our own transactions, as a reader and a group see them: what is committed,
// what is aborted, and the control records at the end of the partition, which
// hold up neither.
func TestTransactions(t *testing.T) {
	k := anyCluster(t)
	topic, input := k.topic(t, 1, nil), k.topic(t, 1, nil)
	c, x := k.transactions(t)
	ctx := deadline(t)
	must(t, x.Check(ctx))
	p, err := x.Init(ctx)
	must(t, err)
	end := func(commit bool) {
		t.Helper()
		if lost, err := x.End(ctx, p, commit); err != nil || lost {
			t.Fatalf("end: %v, lost %v", err, lost)
		}
	}
	k.begin(t, x, p, topic, input, 0, 5, "a", "b")
	end(true)
	k.begin(t, x, p, topic, input, 2, 9, "no")
	end(false)
	k.begin(t, x, p, topic, input, 3, 7, "c")
	end(true)
	have, err := c.CommittedOffsets(ctx, map[string][]int32{input: {0}})
	must(t, err)
	if have[input][0] != 7 {
		t.Errorf("%d committed, want 7", have[input][0])
	}
	var values []string
	eventually(t, "the last marker", func() bool {
		_, end, err := c.Reader.Bounds(ctx, topic, 0)
		must(t, err)
		return end == 7 // four records and three markers
	})
	must(t, c.Reader.Read(ctx, topic, 0, 0, 7, func(recs []record.Record) error {
		for i := range recs {
			values = append(values, string(recs[i].Value))
		}
		return nil
	}, func(int64) {}))
	if diff := cmp.Diff([]string{"a", "b", "c"}, values); diff != "" {
		t.Error(diff)
	}
}

// A producer that died leaves offsets pending; whoever fences it ends that at
// once, unless it has come back.
func TestFence(t *testing.T) {
	k := anyCluster(t)
	topic, input := k.topic(t, 1, nil), k.topic(t, 1, nil)
	c, x := k.transactions(t)
	ctx := deadline(t)
	// A group that exists: kfake has nothing pending for others.
	_, err := c.CommitOffsets(ctx, Generation{Group: c.opts.GroupID, Generation: -1}, map[string]map[int32]int64{input: {0: 3}}, nil)
	must(t, err)
	p, err := x.Init(ctx)
	must(t, err)
	k.begin(t, x, p, topic, input, 0, 5, "no")

	pending := func() error {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := c.CommittedOffsets(short, map[string][]int32{input: {0}})
		return err
	}
	other := c.Transactions(unique("txn"), 10*time.Second)
	must(t, other.Fence(ctx, x.id, func() bool { return false }))
	if err := pending(); !errors.Is(err, sarama.ErrUnstableOffsetCommit) {
		t.Errorf("offsets of a producer that lives: %v", err)
	}
	began := time.Now()
	must(t, other.Fence(ctx, x.id, func() bool { return true }))
	t.Logf("fenced in %v", time.Since(began).Round(time.Millisecond))
	have, err := c.CommittedOffsets(ctx, map[string][]int32{input: {0}})
	must(t, err)
	if have[input][0] != 3 {
		t.Errorf("%d committed, want 3: that of a producer that was fenced does not count", have[input][0])
	}
	lost, err := x.End(ctx, p, true)
	if lost || !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
		t.Errorf("the fenced producer commits: %v, lost %v", err, lost)
	}
	err = x.AddPartitions(ctx, p, map[string][]int32{topic: {0}})
	var parts PartitionErrors
	if errors.As(err, &parts) || !errors.Is(err, sarama.ErrProducerFenced) && !errors.Is(err, sarama.ErrInvalidProducerEpoch) {
		t.Errorf("the fenced producer begins another: %v", err)
	}
}

// Partitions that cannot be written to are named, and the others are not added.
func TestAddPartitionsThatAreMissing(t *testing.T) {
	k := anyCluster(t)
	topic := k.topic(t, 2, nil)
	_, x := k.transactions(t)
	p, err := x.Init(deadline(t))
	must(t, err)
	err = x.AddPartitions(deadline(t), p, map[string][]int32{topic: {0, 7}, "missing": {1}})
	var parts PartitionErrors
	if !errors.As(err, &parts) {
		t.Fatal(err)
	}
	want := PartitionErrors{topic: {7: sarama.ErrUnknownTopicOrPartition}, "missing": {1: sarama.ErrUnknownTopicOrPartition}}
	if diff := cmp.Diff(fmt.Sprint(want[topic], want["missing"]), fmt.Sprint(parts[topic], parts["missing"])); diff != "" || len(parts) != 2 {
		t.Errorf("%v: %s", parts, diff)
	}
}

// A group's coordinator takes offsets only from a member of its generation.
func TestTransactionOfNobody(t *testing.T) {
	k := anyCluster(t)
	input := k.topic(t, 1, nil)
	c, x := k.transactions(t)
	ctx := deadline(t)
	p, err := x.Init(ctx)
	must(t, err)
	must(t, x.AddOffsets(ctx, p, c.opts.GroupID))
	err = x.CommitOffsets(ctx, p, Generation{Group: c.opts.GroupID, MemberID: "nobody", Generation: 3}, map[string]map[int32]int64{input: {0: 5}}, nil)
	if !errors.Is(err, sarama.ErrUnknownMemberId) && !errors.Is(err, sarama.ErrIllegalGeneration) {
		t.Errorf("offsets of nobody: %v", err)
	}
}

// What passes is asked again, what does not is the caller's.
func TestTransactionRetries(t *testing.T) {
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("faults are made by the embedded broker")
	}
	k := fakeCluster(t, 3)
	topic, input := k.topic(t, 1, nil), k.topic(t, 1, nil)
	_, x := k.transactions(t)
	ctx := deadline(t)
	for _, e := range []*kerr.Error{
		kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions, kerr.RequestTimedOut,
	} {
		fake := k.fake.Fake()
		h := fake.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: e, Count: 2},
			kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: e, Count: 2},
			kfake.Fault{Keys: []kmsg.Key{kmsg.AddOffsetsToTxn}, Err: e, Count: 2},
			kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: e, Count: 2},
			kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: e, Count: 2},
		)
		p, err := x.Init(ctx)
		must(t, err)
		k.begin(t, x, p, topic, input, 0, 5, "a")
		if lost, err := x.End(ctx, p, true); err != nil || lost {
			t.Errorf("%v: %v, lost %v", e, err, lost)
		}
		h.Remove()
	}
}

// A right that is taken away while transactions go on is named for readiness, and
// not because another's producer could not be fenced.
func TestTransactionRightsThatAreMissing(t *testing.T) {
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("faults are made by the embedded broker")
	}
	k := fakeCluster(t, 1)
	topic, input := k.topic(t, 1, nil), k.topic(t, 1, nil)
	c, x := k.transactions(t)
	ctx := deadline(t)
	fails := func(key kmsg.Key, e *kerr.Error, request func() error, want ...Right) {
		t.Helper()
		c.rights.mu.Lock()
		clear(c.rights.missing)
		c.rights.mu.Unlock()
		k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: e, Count: 1})
		if err := request(); !strings.Contains(fmt.Sprint(err), "uthoriz") {
			t.Errorf("%v: %v", e, err)
		}
		if diff := cmp.Diff(want, c.MissingRights()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", e, diff)
		}
	}
	writes := Right{"Write", "transactional_id", x.id}
	_ = c.rights.missed(writes, sarama.ErrTransactionalIDAuthorizationFailed)
	p, err := x.Init(ctx)
	if err != nil || len(c.MissingRights()) > 0 {
		t.Errorf("%v; missing although it is there: %v", err, c.MissingRights())
	}
	write, read := Right{"Write", "transactional_id", x.id}, Right{"Read", "group", c.opts.GroupID}
	init := func() error { _, err := x.Init(ctx); return err }
	partitions := func() error { return x.AddPartitions(ctx, p, map[string][]int32{topic: {0}}) }
	offsets := func() error { return x.AddOffsets(ctx, p, c.opts.GroupID) }
	commit := func() error {
		g := Generation{Group: c.opts.GroupID, Generation: -1}
		return x.CommitOffsets(ctx, p, g, map[string]map[int32]int64{input: {0: 1}}, nil)
	}
	end := func() error { _, err := x.End(ctx, p, true); return err }
	fails(kmsg.InitProducerID, kerr.TransactionalIDAuthorizationFailed, init, write)
	fails(kmsg.AddPartitionsToTxn, kerr.TransactionalIDAuthorizationFailed, partitions, write)
	fails(kmsg.AddOffsetsToTxn, kerr.TransactionalIDAuthorizationFailed, offsets, write)
	fails(kmsg.AddOffsetsToTxn, kerr.GroupAuthorizationFailed, offsets, read)
	fails(kmsg.TxnOffsetCommit, kerr.GroupAuthorizationFailed, commit, read)
	fails(kmsg.EndTxn, kerr.TransactionalIDAuthorizationFailed, end, write)
	fence := func() error { return x.Fence(ctx, "another", func() bool { return true }) }
	fails(kmsg.InitProducerID, kerr.TransactionalIDAuthorizationFailed, fence)
}

// An end that is not answered is asked for again; only where the answer then
// says no is it not known what happened.
func TestLostEnd(t *testing.T) {
	if os.Getenv("KAFKA_BROKERS") != "" {
		t.Skip("faults are made by the embedded broker")
	}
	k := fakeCluster(t, 1)
	topic, input := k.topic(t, 1, nil), k.topic(t, 1, nil)
	c, x := k.transactions(t)
	ctx := deadline(t)
	p, err := x.Init(ctx)
	must(t, err)
	cut := func(n int) {
		for range n {
			k.fake.Fake().ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
				return nil, errors.New("cut"), true
			})
		}
	}
	k.begin(t, x, p, topic, input, 0, 5, "a")
	cut(2)
	if lost, err := x.End(ctx, p, true); err != nil || lost {
		t.Errorf("answered at last: %v, lost %v", err, lost)
	}
	k.begin(t, x, p, topic, input, 1, 6, "b")
	cut(1)
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.ProducerFenced})
	if lost, err := x.End(ctx, p, true); !lost || !errors.Is(err, sarama.ErrProducerFenced) {
		t.Errorf("refused after a lost answer: %v, lost %v", err, lost)
	}
	_, err = x.Init(ctx)
	must(t, err)
	have, err := c.CommittedOffsets(ctx, map[string][]int32{input: {0}})
	must(t, err)
	t.Logf("%d committed", have[input][0])

	p, err = x.Init(ctx)
	must(t, err)
	k.begin(t, x, p, topic, input, 0, 8, "c")
	k.fake.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.NotCoordinator, Count: -1})
	// A deadline that falls upon a try under way leaves its answer lost; one between
	// two tries does not, and most of the time is between them.
	eventually(t, "an end that was refused up to its deadline", func() bool {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		lost, err := x.End(short, p, true)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("never taken: %v, lost %v", err, lost)
		}
		return !lost
	})
}

// A broker that cannot do it is named, with what it lacks.
func TestBrokersThatCannotDoTransactions(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.MaxVersions(kversion.V2_4_0()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	k := &cluster{addrs: fake.ListenAddrs()}
	c := k.connect(t, transactional)
	err = c.Transactions("id", time.Second).Check(deadline(t))
	if !errors.Is(err, sarama.ErrUnsupportedVersion) {
		t.Fatal(err)
	}
	for _, text := range []string{fake.ListenAddrs()[0], "OffsetFetch version 7", "2.5"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q lacks %q", err, text)
		}
	}
}
