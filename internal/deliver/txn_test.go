package deliver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/record"
)

// The requests that a test may have fail.
const (
	onInit          = "Init"
	onAddPartitions = "AddPartitions"
	onAddOffsets    = "AddOffsets"
	onCommitOffsets = "CommitOffsets"
	onEnd           = "End"
	onCommitted     = "Committed"
)

// trouble is what becomes of a request: it is carried out or not, and then
// answered with err. A lost one is answered by nobody, as far as its caller
// knows.
type trouble struct {
	err      error
	done     bool
	lost     bool
	happened func()
}

// coordinator makes the requests of transactions, as package kafka does but
// without its patience, and fails as a test wants.
type coordinator struct {
	t      testing.TB
	client sarama.Client
	id     string
	group  string

	mu      sync.Mutex
	trouble map[string]trouble
	calls   map[string]int
	until   map[string]time.Time // the newest call's deadline
}

// timed notes until when a request may take.
func (c *coordinator) timed(ctx context.Context, request string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until[request], _ = ctx.Deadline()
}

func newCoordinator(t testing.TB, client sarama.Client) *coordinator {
	return &coordinator{t: t, client: client, id: "joiner-1", group: "joiner", trouble: map[string]trouble{}, calls: map[string]int{}, until: map[string]time.Time{}}
}

func (c *coordinator) next(request string, what trouble) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble[request] = what
}

func (c *coordinator) count(request string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[request]
}

// do carries a request out, unless it is in for trouble.
func (c *coordinator) do(request string, f func(*sarama.Broker) error) (lost bool, err error) {
	c.mu.Lock()
	c.calls[request]++
	what, any := c.trouble[request]
	delete(c.trouble, request)
	c.mu.Unlock()
	if any && what.happened != nil {
		what.happened()
	}
	if any && !what.done {
		return what.lost, what.err
	}
	find := func() (*sarama.Broker, error) { return c.client.TransactionCoordinator(c.id) }
	if request == onCommitOffsets || request == onCommitted {
		find = func() (*sarama.Broker, error) { return c.client.Coordinator(c.group) }
	}
	b, err := find()
	if err == nil {
		err = f(b)
	}
	if any {
		return what.lost, what.err
	}
	return false, err
}

func coded(code sarama.KError, err error) error {
	if err == nil && code != sarama.ErrNoError {
		return code
	}
	return err
}

func (c *coordinator) Init(context.Context) (p Producer, err error) {
	_, err = c.do(onInit, func(b *sarama.Broker) error {
		r, err := b.InitProducerID(&sarama.InitProducerIDRequest{
			Version: 4, TransactionalID: &c.id, TransactionTimeout: 10 * time.Second, ProducerID: -1, ProducerEpoch: -1,
		})
		if err != nil {
			return err
		}
		p = Producer{r.ProducerID, r.ProducerEpoch}
		return coded(r.Err, nil)
	})
	return p, err
}

func (c *coordinator) AddPartitions(_ context.Context, p Producer, partitions map[string][]int32) error {
	_, err := c.do(onAddPartitions, func(b *sarama.Broker) error {
		r, err := b.AddPartitionsToTxn(&sarama.AddPartitionsToTxnRequest{
			Version: 3, TransactionalID: c.id, ProducerID: p.ID, ProducerEpoch: p.Epoch, TopicPartitions: partitions,
		})
		if err != nil {
			return err
		}
		var faults []Fault
		for topic, list := range r.Errors {
			for _, e := range list {
				switch e.Err {
				case sarama.ErrNoError, sarama.ErrOperationNotAttempted:
				case sarama.ErrUnknownTopicOrPartition:
					faults = append(faults, Fault{topic, e.Partition, errorName(e.Err)})
				default:
					return e.Err
				}
			}
		}
		if faults != nil {
			return &PartitionFaults{faults, sarama.ErrUnknownTopicOrPartition}
		}
		return nil
	})
	return err
}

func (c *coordinator) AddOffsets(_ context.Context, p Producer, group string) error {
	_, err := c.do(onAddOffsets, func(b *sarama.Broker) error {
		r, err := b.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
			Version: 3, TransactionalID: c.id, ProducerID: p.ID, ProducerEpoch: p.Epoch, GroupID: group,
		})
		if err != nil {
			return err
		}
		return coded(r.Err, nil)
	})
	return err
}

// CommitOffsets commits in nobody's name, which a group without members takes.
func (c *coordinator) CommitOffsets(ctx context.Context, p Producer, g Generation, offsets map[string]map[int32]int64) error {
	c.timed(ctx, onCommitOffsets)
	_, err := c.do(onCommitOffsets, func(b *sarama.Broker) error {
		request := &sarama.TxnOffsetCommitRequest{
			Version: 3, TransactionalID: c.id, ProducerID: p.ID, ProducerEpoch: p.Epoch, GroupID: g.Group, GenerationID: -1,
			Topics: map[string][]*sarama.PartitionOffsetMetadata{},
		}
		for topic, byID := range offsets {
			for id, offset := range byID {
				request.Topics[topic] = append(request.Topics[topic], &sarama.PartitionOffsetMetadata{Partition: id, Offset: offset, LeaderEpoch: -1})
			}
		}
		r, err := b.TxnOffsetCommit(request)
		if err != nil {
			return err
		}
		for _, list := range r.Topics {
			for _, e := range list {
				if e.Err != sarama.ErrNoError {
					return e.Err
				}
			}
		}
		return nil
	})
	return err
}

func (c *coordinator) End(ctx context.Context, p Producer, commit bool) (lost bool, err error) {
	c.timed(ctx, onEnd)
	return c.do(onEnd, func(b *sarama.Broker) error {
		r, err := b.EndTxn(&sarama.EndTxnRequest{
			Version: 3, TransactionalID: c.id, ProducerID: p.ID, ProducerEpoch: p.Epoch, TransactionResult: commit,
		})
		if err != nil {
			return err
		}
		return coded(r.Err, nil)
	})
}

func (c *coordinator) Committed(_ context.Context, partitions map[string][]int32) (have map[string]map[int32]int64, err error) {
	_, err = c.do(onCommitted, func(b *sarama.Broker) error {
		request := sarama.NewOffsetFetchRequest(sarama.V2_8_0_0, c.group, partitions)
		request.RequireStable = true
		r, err := b.FetchOffset(request)
		if err != nil {
			return err
		}
		have = map[string]map[int32]int64{}
		for topic, ids := range partitions {
			have[topic] = map[int32]int64{}
			for _, id := range ids {
				block := r.GetBlock(topic, id)
				if block == nil {
					have[topic][id] = -1
					continue
				}
				if block.Err != sarama.ErrNoError {
					return block.Err
				}
				have[topic][id] = block.Offset
			}
		}
		return nil
	})
	return have, err
}

// joined is a task as the transactor sees it: output n of it comes from
// notification n, so that offset n+1 passes it.
type joined struct {
	t     testing.TB
	index int32

	mu        sync.Mutex
	first     int // offset of outs[0]
	outs      []*record.Output
	open      int // notification that waits; -1 none
	barred    map[int]bool
	settled   map[int]int
	committed record.Offsets
}

func newJoined(t testing.TB, index int32, from int) *joined {
	return &joined{t: t, index: index, first: from, open: -1, barred: map[int]bool{}, settled: map[int]int{}, committed: record.Offsets{-1, -1}}
}

func (j *joined) Index() int32 { return j.index }

// join makes outputs for the notifications up to n; bad ones are refused by
// their topic.
func (j *joined) join(to int, bad func(n int) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n := j.first + len(j.outs); n < to; n++ {
		value := fmt.Sprintf("%d", n)
		if bad(n) {
			value += " bad"
		}
		j.outs = append(j.outs, &record.Output{
			Topic: "alerts", Partition: j.index, Owner: j, Tag: n, Timestamp: record.MillisOf(time.Now()), Value: []byte(value),
		})
	}
}

func (j *joined) Sendable(outs []*record.Output, limit int) (ready []*record.Output, cut record.Offsets, halves [record.Sides]bool, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := j.first + len(j.outs)
	size := 0
	for i, o := range j.outs {
		n := j.first + i
		if j.settled[n] > 0 {
			continue
		}
		if n == j.open || j.barred[n] {
			at = n
			break
		}
		if size >= limit {
			more, at = true, n
			break
		}
		outs = append(outs, o)
		size += len(o.Value)
	}
	return outs, record.Offsets{int64(10 * at), int64(at)}, [record.Sides]bool{true, true}, more
}

func (j *joined) Cut() (cut record.Offsets, halves [record.Sides]bool) {
	_, cut, halves, _ = j.Sendable(nil, 1<<30)
	return cut, halves
}

func (j *joined) Settled(o *record.Output, err error) {
	n := o.Tag.(int)
	j.mu.Lock()
	defer j.mu.Unlock()
	var refused *record.Refused
	switch {
	case err == nil:
		if j.settled[n]++; j.settled[n] > 1 {
			j.t.Errorf("output %d of task %d is settled %d times", n, j.index, j.settled[n])
		}
	case errors.As(err, &refused):
		j.barred[n] = true
	default:
		j.t.Errorf("output %d of task %d: %v", n, j.index, err)
	}
}

// mend makes dead letters of what was refused.
func (j *joined) mend() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n := range j.barred {
		o := *j.outs[n-j.first]
		o.Topic, o.Value = "dead", []byte(strings.TrimSuffix(string(o.Value), " bad"))
		j.outs[n-j.first] = &o
		delete(j.barred, n)
	}
}

func (j *joined) Committed(o record.Offsets) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.committed = o
}

func (j *joined) settledAll() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.settled)
}

func (j *joined) hold(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = n
}

// transacting is a transactor whose rounds a test makes.
type transacting struct {
	*Transactor
	t     testing.TB
	fake  *kfake.Cluster
	coord *coordinator
	read  sarama.Client
	tasks []*joined

	mu         sync.Mutex
	generation int32
	member     string
	out        bool // not in the group
	fencedNow  bool
	outcomes   map[Outcome]int
}

const txnTasks = 3

func newTransacting(t testing.TB) *transacting {
	t.Helper()
	fake := newCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(txnTasks, "alerts", "dead", "market", "notes"))
	conf := producerConfig()
	conf.Net.ReadTimeout = 3 * time.Second
	w := runWriter(t, Options{Client: newClient(t, fake.ListenAddrs(), conf), TransactionalID: "joiner-1"})
	x := &transacting{t: t, fake: fake, generation: 1, member: "me", outcomes: map[Outcome]int{}}
	x.read = newClient(t, fake.ListenAddrs(), producerConfig())
	x.coord = newCoordinator(t, newClient(t, fake.ListenAddrs(), producerConfig()))
	var err error
	x.Transactor, err = NewTransactor(TransactorOptions{
		Interval: time.Millisecond, Timeout: 10 * time.Second, Writer: w.Writer, Coordinator: x.coord,
		Topics: [record.Sides]string{"market", "notes"},
		Member: func() (Generation, bool) {
			x.mu.Lock()
			defer x.mu.Unlock()
			return Generation{Group: "joiner", MemberID: x.member, Generation: x.generation}, !x.out
		},
		OnFenced: func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.fencedNow = true
		},
		OnOutcome: func(o Outcome) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.outcomes[o]++
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Init(context.Background()); err != nil {
		t.Fatal(err)
	}
	for p := range int32(txnTasks) {
		x.tasks = append(x.tasks, newJoined(t, p, 0))
		x.Register(x.tasks[p])
	}
	return x
}

func (x *transacting) is() map[Outcome]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	got := map[Outcome]int{}
	for o, n := range x.outcomes {
		got[o] = n
	}
	return got
}

func (x *transacting) nextGeneration() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.generation++
}

// rejoin begins the tasks anew where the group stands, if they were given up.
func (x *transacting) rejoin() bool {
	x.mu.Lock()
	fenced := x.fencedNow
	x.fencedNow = false
	x.mu.Unlock()
	if !fenced {
		return false
	}
	x.nextGeneration()
	have := x.offsets()
	for p, old := range x.tasks {
		x.Unregister(old)
		made := old.first + len(old.outs)
		x.tasks[p] = newJoined(x.t, old.index, int(max(have[int32(p)], 0)))
		x.tasks[p].join(made, never)
		x.Register(x.tasks[p])
	}
	return true
}

// offsets are the notifications that the group has committed, once nothing is
// pending any more: a fencer has seen to that.
func (x *transacting) offsets() map[int32]int64 {
	x.t.Helper()
	fencer := newCoordinator(x.t, x.read)
	if _, err := fencer.Init(context.Background()); err != nil {
		x.t.Fatal(err)
	}
	have, err := fencer.Committed(context.Background(), map[string][]int32{"notes": {0, 1, 2}})
	if err != nil {
		x.t.Fatal(err)
	}
	return have["notes"]
}

// visible are the values that a read-committed consumer sees of a partition.
func (x *transacting) visible(topic string, partition int32) (values []string) {
	x.t.Helper()
	producer, err := sarama.NewSyncProducer(x.fake.ListenAddrs(), func() *sarama.Config {
		c := producerConfig()
		c.Producer.Return.Successes = true
		c.Producer.Partitioner = sarama.NewManualPartitioner
		return c
	}())
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = producer.Close() }()
	_, last, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder("last")})
	if err != nil {
		x.t.Fatal(err)
	}
	conf := producerConfig()
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	conf.Consumer.MaxWaitTime = 20 * time.Millisecond
	consumer, err := sarama.NewConsumer(x.fake.ListenAddrs(), conf)
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }()
	claim, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		x.t.Fatal(err)
	}
	defer func() { _ = claim.Close() }()
	deadline := time.After(patience)
	for {
		select {
		case m := <-claim.Messages():
			if m.Offset == last {
				return values
			}
			values = append(values, string(m.Value))
		case <-deadline:
			x.t.Fatalf("%s/%d: an open transaction hides the end", topic, partition)
		}
	}
}

// refusing makes a cluster refuse the batches with a bad record; what came in the
// same request may come again.
func refusing(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		request := r.(*kmsg.ProduceRequest)
		answer := request.ResponseKind().(*kmsg.ProduceResponse)
		any := false
		for _, t := range request.Topics {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic = t.Topic
			for _, p := range t.Partitions {
				one := kmsg.NewProduceResponseTopicPartition()
				one.Partition, one.ErrorCode = p.Partition, kerr.NotLeaderForPartition.Code
				for _, i := range badIn(p.Records) {
					re := kmsg.NewProduceResponseTopicPartitionErrorRecord()
					re.RelativeOffset = int32(i)
					one.ErrorCode, one.ErrorRecords = kerr.InvalidRecord.Code, append(one.ErrorRecords, re)
					any = true
				}
				topic.Partitions = append(topic.Partitions, one)
			}
			answer.Topics = append(answer.Topics, topic)
		}
		if !any {
			return nil, nil, false
		}
		return answer, nil, true
	})
}

func never(int) bool { return false }

// finish makes rounds until all outputs up to n of every task are committed.
func (x *transacting) finish(n int) {
	x.t.Helper()
	eventually(x.t, "everything is committed", func() bool {
		x.rejoin()
		for _, j := range x.tasks {
			j.hold(-1)
			j.mend()
			j.join(n, never)
		}
		x.round(context.Background())
		for _, j := range x.tasks {
			j.mu.Lock()
			done := j.committed == record.Offsets{int64(10 * n), int64(n)}
			j.mu.Unlock()
			if !done {
				return false
			}
		}
		return true
	})
}

// prove checks that outputs 0 to n of each task are there once and in order,
// those of dead apart.
func (x *transacting) prove(n int) {
	x.t.Helper()
	for p := range int32(txnTasks) {
		dead := x.visible("dead", p)
		isDead := map[string]bool{}
		for _, v := range dead {
			if isDead[v] {
				x.t.Errorf("dead letter %s of partition %d is doubled", v, p)
			}
			isDead[v] = true
		}
		var want []string
		for i := range n {
			if v := fmt.Sprint(i); !isDead[v] {
				want = append(want, v)
			}
		}
		if diff := cmp.Diff(want, x.visible("alerts", p)); diff != "" {
			x.t.Errorf("partition %d (-want +got):\n%s", p, diff)
		}
	}
	for p, have := range x.offsets() {
		if have != int64(n) {
			x.t.Errorf("partition %d: %d committed, want %d", p, have, n)
		}
	}
}

// Every request may end a transaction with every error that there is for it;
// the outputs come out once, and what becomes of the transaction and of the
// tasks is what the error says.
func TestTransactionErrors(t *testing.T) {
	type happens struct {
		request string
		trouble trouble
		outcome Outcome
		fenced  bool
	}
	cases := map[string]happens{
		"partitions: no answer":           {onAddPartitions, trouble{err: context.DeadlineExceeded}, Aborted, false},
		"partitions: answer lost":         {onAddPartitions, trouble{err: context.DeadlineExceeded, done: true}, Aborted, false},
		"partitions: mapping expired":     {onAddPartitions, trouble{err: sarama.ErrInvalidProducerIDMapping}, Aborted, false},
		"partitions: state":               {onAddPartitions, trouble{err: sarama.ErrInvalidTxnState}, Aborted, false},
		"partitions: fenced":              {onAddPartitions, trouble{err: sarama.ErrProducerFenced}, Fenced, true},
		"partitions: epoch":               {onAddPartitions, trouble{err: sarama.ErrInvalidProducerEpoch}, Fenced, true},
		"offsets: no answer":              {onAddOffsets, trouble{err: context.DeadlineExceeded}, Aborted, false},
		"offsets: answer lost":            {onAddOffsets, trouble{err: context.DeadlineExceeded, done: true}, Aborted, false},
		"offsets: fenced":                 {onAddOffsets, trouble{err: sarama.ErrProducerFenced}, Fenced, true},
		"commit: generation":              {onCommitOffsets, trouble{err: sarama.ErrIllegalGeneration}, Aborted, false},
		"commit: generation after":        {onCommitOffsets, trouble{err: sarama.ErrIllegalGeneration, done: true}, Aborted, false},
		"commit: rebalance":               {onCommitOffsets, trouble{err: sarama.ErrRebalanceInProgress}, Aborted, false},
		"commit: unknown member":          {onCommitOffsets, trouble{err: sarama.ErrUnknownMemberId}, Fenced, true},
		"commit: instance":                {onCommitOffsets, trouble{err: sarama.ErrFencedInstancedId}, Fenced, true},
		"commit: no right":                {onCommitOffsets, trouble{err: sarama.ErrTopicAuthorizationFailed}, Aborted, false},
		"commit: epoch":                   {onCommitOffsets, trouble{err: sarama.ErrInvalidProducerEpoch}, Fenced, true},
		"end: lost, not committed":        {onEnd, trouble{err: context.DeadlineExceeded, lost: true}, Unknown, false},
		"end: lost, committed":            {onEnd, trouble{err: context.DeadlineExceeded, lost: true, done: true}, Unknown, false},
		"end: lost, committed and fenced": {onEnd, trouble{err: sarama.ErrProducerFenced, lost: true, done: true}, Unknown, false},
		"end: fenced":                     {onEnd, trouble{err: sarama.ErrProducerFenced}, Fenced, true},
		"end: state":                      {onEnd, trouble{err: sarama.ErrInvalidTxnState}, Aborted, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newTransacting(t)
			for _, j := range x.tasks {
				j.join(20, never)
			}
			x.round(context.Background())
			for _, j := range x.tasks {
				j.join(40, never)
			}
			c.trouble.happened = x.nextGeneration // the next one is there at once
			x.coord.next(c.request, c.trouble)
			x.round(context.Background())
			if diff := cmp.Diff(map[Outcome]int{Committed: 1, c.outcome: 1}, x.is()); diff != "" {
				t.Error(diff)
			}
			if err := x.wantDropped(c.fenced); err != nil {
				t.Error(err)
			}
			x.finish(60)
			x.prove(60)
			if n := x.is()[Committed]; n < 2 {
				t.Errorf("%d transactions committed", n)
			}
		})
	}
}

// wantDropped checks whether the tasks are given up.
func (x *transacting) wantDropped(want bool) error {
	for _, p := range x.registered() {
		if p.dropped != want {
			return fmt.Errorf("task %d given up: %v, want %v", p.task.Index(), p.dropped, want)
		}
	}
	return nil
}

// What the brokers say to records ends a transaction as well.
func TestTransactionsWhoseRecordsFail(t *testing.T) {
	for _, e := range []*kerr.Error{
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping,
	} {
		t.Run(kafkaName(e), func(t *testing.T) {
			x := newTransacting(t)
			for _, j := range x.tasks {
				j.join(20, never)
			}
			x.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: []int32{1}, Err: e})
			x.round(context.Background())
			if diff := cmp.Diff(map[Outcome]int{Aborted: 1}, x.is()); diff != "" {
				t.Error(diff)
			}
			x.finish(40)
			x.prove(40)
		})
	}
	t.Run("passing", func(t *testing.T) {
		x := newTransacting(t)
		x.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.NotLeaderForPartition, Count: 3})
		x.finish(40)
		x.prove(40)
		if n := x.is()[Aborted]; n > 0 {
			t.Errorf("%d transactions aborted", n)
		}
	})
	t.Run("fenced", func(t *testing.T) {
		x := newTransacting(t)
		x.tasks[1].join(5, never)
		x.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Err: kerr.InvalidProducerEpoch})
		x.round(context.Background())
		if diff := cmp.Diff(map[Outcome]int{Fenced: 1}, x.is()); diff != "" {
			t.Error(diff)
		}
		x.finish(10)
		x.prove(10)
	})
}

// A record that its topic never takes ends one transaction, and becomes a dead
// letter in the next: those around it are written once, and nothing is aborted
// for ever.
func TestTransactionWithAPoisonedRecord(t *testing.T) {
	x := newTransacting(t)
	refusing(x.fake)
	x.tasks[1].join(20, func(n int) bool { return n == 7 })
	x.tasks[2].join(5, never)
	x.round(context.Background())
	if diff := cmp.Diff(map[Outcome]int{Aborted: 1}, x.is()); diff != "" {
		t.Error(diff)
	}
	// Without its dead letter the task goes on up to it.
	x.round(context.Background())
	if n := x.tasks[1].settledAll(); n != 7 {
		t.Errorf("%d outputs before the bad one are committed, want 7", n)
	}
	if n := x.tasks[2].settledAll(); n != 5 {
		t.Errorf("%d outputs of another task are committed, want 5", n)
	}
	x.finish(30)
	x.prove(30)
	if dead := x.visible("dead", 1); len(dead) != 1 && len(dead) != 2 {
		t.Errorf("dead letters: %v", dead)
	}
	if n := x.is()[Aborted]; n != 1 {
		t.Errorf("%d transactions aborted", n)
	}
}

// What no broker would take is found before the transaction.
func TestTransactionChecksBefore(t *testing.T) {
	x := newTransacting(t)
	x.tasks[0].join(3, never)
	x.tasks[0].outs[1].Timestamp = -5
	x.round(context.Background())
	if n := x.tasks[0].settledAll(); n != 1 {
		t.Errorf("%d outputs committed, want the one before the bad one", n)
	}
	x.tasks[0].mend()
	x.tasks[0].outs[1].Timestamp = record.MillisOf(time.Now())
	x.finish(3)
	x.prove(3)
	if n := x.is()[Aborted]; n != 0 {
		t.Errorf("%d transactions aborted", n)
	}
}

// Outputs behind a place that is not filled wait for it; other tasks go on, and
// nothing is aborted or kept open meanwhile.
func TestTransactionsStopAtAnUnfilledPlace(t *testing.T) {
	x := newTransacting(t)
	x.tasks[0].hold(4)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	for range 3 {
		x.round(context.Background())
	}
	for p, want := range []int{4, 10, 10} {
		if got := len(x.visible("alerts", int32(p))); got != want {
			t.Errorf("partition %d: %d are visible, want %d", p, got, want)
		}
	}
	x.finish(10)
}

// A partition that is missing stops its own task only, and is named.
func TestTransactionsGoOnWithoutAMissingPartition(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	missing := x.tasks[1]
	for _, o := range missing.outs {
		o.Partition = 77
	}
	eventually(t, "the others go on", func() bool {
		x.round(context.Background())
		return x.tasks[0].settledAll() == 10 && x.tasks[2].settledAll() == 10
	})
	if n := missing.settledAll(); n > 0 {
		t.Errorf("%d outputs of the missing partition are settled", n)
	}
	if f := x.Faults(); len(f) != 1 || f[0].Partition != 77 || f[0].Reason != "UNKNOWN_TOPIC_OR_PARTITION" {
		t.Errorf("faults: %v", f)
	}
	if n := x.is()[Aborted]; n > 0 {
		t.Errorf("%d transactions aborted: none had begun", n)
	}
	for _, o := range missing.outs {
		o.Partition = 1
	}
	x.finish(10)
	x.prove(10)
	if f := x.Faults(); len(f) > 0 {
		t.Errorf("faults: %v", f)
	}
}

// A leader that takes nothing stops the tasks behind it only, which then have
// transactions of their own until it does.
func TestTransactionsGoOnWithoutAStuckPartition(t *testing.T) {
	x := newTransacting(t)
	for _, j := range x.tasks {
		j.join(10, never)
	}
	stuck := x.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "alerts", Partitions: []int32{1}, Err: kerr.NotEnoughReplicas, Count: -1})
	eventually(t, "the others go on", func() bool {
		x.round(context.Background())
		return x.tasks[0].settledAll() == 10 && x.tasks[2].settledAll() == 10
	})
	if n := x.tasks[1].settledAll(); n > 0 {
		t.Errorf("%d outputs of the stuck partition are settled", n)
	}
	if f := x.Faults(); len(f) != 1 || f[0].Partition != 1 {
		t.Errorf("faults: %v", f)
	}
	eventually(t, "a trial of the task alone", func() bool {
		x.tasks[0].join(20, never)
		x.round(context.Background())
		return x.is()[Aborted] >= 2
	})
	stuck.Remove()
	x.finish(30)
	x.prove(30)
}

// Random faults, a random load, tasks given up and begun anew: in the end every
// output is there once, in order, and the offsets pass all of them.
func TestTransactionsModel(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	x := newTransacting(t)
	refusing(x.fake)
	codes := []error{
		sarama.ErrProducerFenced, sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrInvalidTxnState,
		sarama.ErrIllegalGeneration, sarama.ErrUnknownMemberId, sarama.ErrFencedInstancedId, context.DeadlineExceeded,
	}
	requests := []string{onInit, onAddPartitions, onAddOffsets, onCommitOffsets, onEnd, onEnd, onCommitted}
	made := 0
	for range 120 {
		made += rng.IntN(10)
		for _, j := range x.tasks {
			j.mend()
			j.hold(-1)
			j.join(made, func(n int) bool { return n%37 == 11 })
			if rng.IntN(4) == 0 {
				j.hold(made - rng.IntN(5) - 1)
			}
		}
		if rng.IntN(3) == 0 {
			what := trouble{err: codes[rng.IntN(len(codes))], done: rng.IntN(2) == 0, happened: x.nextGeneration}
			request := requests[rng.IntN(len(requests))]
			// Only where it is known that nothing was committed may an end
			// be answered without doubt.
			what.lost = request == onEnd && (what.done || rng.IntN(2) == 0)
			x.coord.next(request, what)
		}
		if rng.IntN(8) == 0 {
			x.fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.OutOfOrderSequenceNumber})
		}
		x.round(context.Background())
		x.rejoin()
	}
	x.finish(made)
	x.prove(made)
	t.Logf("%d outputs a task, transactions %v", made, x.is())
}

// CommitNow commits all that a task has ready, also beyond one transaction's
// size, and tells when nothing can be done.
func TestCommitNowInTransactions(t *testing.T) {
	x := newTransacting(t)
	x.most = 64
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	x.tasks[0].join(50, never)
	if err := x.CommitNow(context.Background(), x.tasks[0]); err != nil {
		t.Error(err)
	}
	if n := x.tasks[0].settledAll(); n != 50 {
		t.Errorf("%d of 50 outputs committed", n)
	}
	if n := x.Drop(x.tasks[0]); n != 0 {
		t.Errorf("%d outputs left", n)
	}
	eventually(t, "the others' first offsets are committed", func() bool {
		for _, j := range x.tasks[1:] {
			j.mu.Lock()
			first := j.committed
			j.mu.Unlock()
			if first == (record.Offsets{-1, -1}) {
				return false
			}
		}
		return true
	})
	calls := x.coord.count(onAddOffsets)
	if err := x.CommitNow(context.Background(), x.tasks[0]); err != nil {
		t.Error(err)
	}
	if n := x.coord.count(onAddOffsets); n != calls {
		t.Errorf("%d transactions for nothing", n-calls)
	}

	x.mu.Lock()
	x.out = true
	x.mu.Unlock()
	// A round under way may still be of the member: the next one is not.
	if err := x.CommitNow(context.Background(), x.tasks[0]); !errors.Is(err, ErrNoMember) {
		t.Errorf("outside the group, with nothing to commit: %v", err)
	}
	x.tasks[0].join(60, never)
	if err := x.CommitNow(context.Background(), x.tasks[0]); !errors.Is(err, ErrNoMember) {
		t.Errorf("outside the group: %v", err)
	}
	if n := x.Drop(x.tasks[0]); n != 10 {
		t.Errorf("%d outputs left, want 10", n)
	}
	x.coord.next(onCommitOffsets, trouble{err: sarama.ErrUnknownMemberId}) // before a round is made
	x.mu.Lock()
	x.out = false
	x.mu.Unlock()
	if err := x.CommitNow(context.Background(), x.tasks[0]); !errors.Is(err, ErrDropped) {
		t.Errorf("a member that the group does not know: %v", err)
	}
	if err := x.CommitNow(context.Background(), x.tasks[0]); !errors.Is(err, ErrDropped) {
		t.Errorf("a task that was given up: %v", err)
	}
	if err := x.CommitNow(context.Background(), newJoined(t, 9, 0)); !errors.Is(err, ErrDropped) {
		t.Errorf("a task that is not registered: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	over, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	if err := x.CommitNow(over, x.tasks[0]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after Run has ended: %v", err)
	}
}

// A task that the group has given on is not committed in a generation that is
// not its own any more.
func TestTransactionsLeaveOutWhatTheGroupHasGivenOn(t *testing.T) {
	x := newTransacting(t)
	x.o.May = func(p Participant, g Generation) bool { return p.Index() != 1 }
	for _, j := range x.tasks {
		j.join(10, never)
	}
	x.round(context.Background())
	if n := len(x.visible("alerts", 1)); n != 0 {
		t.Errorf("%d outputs of the task are visible", n)
	}
	if n := len(x.visible("alerts", 2)); n != 10 {
		t.Errorf("%d outputs of another are visible", n)
	}
}

// A generation that the group refused is not tried again.
func TestTransactionsWaitForTheNextGeneration(t *testing.T) {
	x := newTransacting(t)
	x.tasks[0].join(10, never)
	x.coord.next(onCommitOffsets, trouble{err: sarama.ErrIllegalGeneration})
	for range 4 {
		x.round(context.Background())
	}
	if n := x.coord.count(onCommitOffsets); n != 1 {
		t.Errorf("%d attempts in a generation that is over", n)
	}
	x.nextGeneration()
	x.round(context.Background())
	if n := x.tasks[0].settledAll(); n != 10 {
		t.Errorf("%d outputs committed in the next", n)
	}
	x.finish(10)
	x.prove(10)
}

func TestTransactorOptionsAreChecked(t *testing.T) {
	w, err := NewWriter(Options{Client: newTransacting(t).read})
	if err != nil {
		t.Fatal(err)
	}
	good := func() TransactorOptions {
		x := newTransacting(t)
		return x.o
	}
	for name, change := range map[string]func(*TransactorOptions){
		"no interval":      func(o *TransactorOptions) { o.Interval = 0 },
		"no timeout":       func(o *TransactorOptions) { o.Timeout = 0 },
		"no writer":        func(o *TransactorOptions) { o.Writer = nil },
		"a writer without": func(o *TransactorOptions) { o.Writer = w },
		"no coordinator":   func(o *TransactorOptions) { o.Coordinator = nil },
		"no member":        func(o *TransactorOptions) { o.Member = nil },
		"one topic":        func(o *TransactorOptions) { o.Topics = [2]string{"a", "a"} },
	} {
		o := good()
		change(&o)
		if _, err := NewTransactor(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
