package deliver

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"pgregory.net/rapid"

	"joiner/internal/record"
)

// broker is a partition's log with the rules of Apache Kafka for idempotent
// producers: a batch under the sequence of one that it has is a duplicate and
// not appended, whatever is in it; another sequence than the next is refused;
// a producer that it does not know may begin anywhere.
type broker struct {
	log  []string
	next map[int64]int32
	last map[int64][]appended
}

type appended struct {
	first int32
	n     int
}

// take returns what the broker answers to a batch. A value "bad" is refused,
// after the limits and before the sequence, as Apache Kafka does.
func (b *broker) take(rb *sarama.RecordBatch, tell bool) *sarama.ProduceResponseBlock {
	block := &sarama.ProduceResponseBlock{}
	for i, r := range rb.Records {
		if strings.HasPrefix(string(r.Value), "bad") {
			block.Err = sarama.ErrInvalidRecord
			if tell {
				block.RecordErrors = append(block.RecordErrors, sarama.ProduceResponseRecordError{BatchIndex: int32(i)})
			}
		}
	}
	if block.Err != sarama.ErrNoError {
		return block
	}
	id, n := rb.ProducerID, len(rb.Records)
	if slices.Contains(b.last[id], appended{rb.FirstSequence, n}) {
		return block
	}
	if next, known := b.next[id]; known && rb.FirstSequence != next {
		block.Err = sarama.ErrOutOfOrderSequenceNumber
		return block
	}
	b.next[id] = nextSequence(rb.FirstSequence, n)
	b.last[id] = append(b.last[id], appended{rb.FirstSequence, n})
	for _, r := range rb.Records {
		b.log = append(b.log, string(r.Value))
	}
	return block
}

// modelOwner is an owner that may be dropped. It must not be empty: owners
// are told apart by their addresses.
type modelOwner struct {
	told []outcome
}

func (m *modelOwner) Settled(o *record.Output, err error) { m.told = append(m.told, outcome{o, err}) }

// Whatever the broker answers, whatever answers get lost and whoever is
// dropped: what is settled is in the log, in order, and each output that is not
// dropped is settled once.
func TestPartitionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &Writer{
			topics: map[string]*topic{}, kick: make(chan struct{}, 1), drained: make(chan struct{}),
			limits: func(string) Limits { return Limits{MaxMessageBytes: 400} }, now: time.Now,
			conf: producerConfig(),
		}
		s := &sender{w: w, wake: make(chan struct{}, 1), full: make(chan struct{}, 1)}
		b := &broker{next: map[int64]int32{}, last: map[int64][]appended{}}
		tell := rapid.Bool().Draw(t, "tell")
		owners := []*modelOwner{{}, {}, {}}
		var live [3][]string // sent since the owner was last dropped, by owner
		var from [3]int      // of told, likewise
		n := 0

		// route is the router's work with one leader.
		route := func() {
			for _, p := range w.waiting {
				if p.empty() {
					p.at = idle
					continue
				}
				if p.stale(w.ident) {
					w.ident = identity{id: w.ident.id + 1, generation: w.ident.generation + 1}
				}
				if p.renew {
					p.ident, p.seq, p.renew = w.ident, 0, false
				}
				p.leader = s
				w.forward(p)
			}
			w.waiting = nil
		}
		exchange := func(dropDuring int, lose bool, pass sarama.KError) {
			route()
			s.take()
			if len(s.batch) == 0 {
				return
			}
			p := s.batch[0]
			w.request(s.batch)
			var block *sarama.ProduceResponseBlock
			if pass == sarama.ErrNoError {
				block = b.take(p.batch.rb, tell)
			} else {
				block = &sarama.ProduceResponseBlock{Err: pass}
			}
			if dropDuring >= 0 {
				w.Drop(owners[dropDuring])
				live[dropDuring], from[dropDuring] = nil, len(owners[dropDuring].told)
			}
			var response *sarama.ProduceResponse
			err := errors.New("connection lost")
			if !lose {
				err = nil
				response = &sarama.ProduceResponse{Blocks: map[string]map[int32]*sarama.ProduceResponseBlock{"alerts": {0: block}}}
			}
			s.conclude(s.batch, response, err)
			for _, o := range s.report.outcomes {
				o.out.Owner.Settled(o.out, o.err)
			}
		}
		check := func() {
			p := w.topic("alerts").partition(0)
			bytes := 0
			for _, e := range p.queue[p.head:] {
				bytes += e.size
			}
			if bytes != p.bytes {
				t.Fatalf("%d bytes are queued, %d counted", bytes, p.bytes)
			}
			for i, o := range owners {
				told := o.told[from[i]:]
				if len(told) > len(live[i]) {
					t.Fatalf("owner %d was told of %d outputs, sent %d", i, len(told), len(live[i]))
				}
				var good []string
				for _, f := range told {
					value := string(f.out.Value)
					if bad := strings.HasPrefix(value, "bad"); bad != (f.err != nil) {
						t.Fatalf("%s settled with %v", value, f.err)
					}
					if f.err == nil {
						good = append(good, value)
					}
				}
				if !subsequence(good, live[i]) {
					t.Fatalf("owner %d was told of %v, in this order; sent %v", i, good, live[i])
				}
				for _, v := range good {
					if !slices.Contains(b.log, v) {
						t.Fatalf("%s is settled and not in the log %v", v, b.log)
					}
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "do") {
			case 0, 1:
				i := rapid.IntRange(0, 2).Draw(t, "owner")
				var send []*record.Output
				for range rapid.IntRange(1, 6).Draw(t, "outputs") {
					n++
					value := "v" + string(rune('0'+i)) + strings.Repeat(".", rapid.IntRange(0, 90).Draw(t, "size")) + strconv.Itoa(n)
					if rapid.IntRange(0, 9).Draw(t, "bad") == 0 {
						value = "bad" + strconv.Itoa(n)
					}
					live[i] = append(live[i], value)
					send = append(send, &record.Output{Topic: "alerts", Value: []byte(value), Owner: owners[i]})
				}
				w.Send(send)
			case 2:
				i := rapid.IntRange(0, 2).Draw(t, "drop")
				w.Drop(owners[i])
				live[i], from[i] = nil, len(owners[i].told)
			case 3:
				exchange(rapid.IntRange(-3, 2).Draw(t, "drop"), false, sarama.ErrNoError)
			case 4:
				exchange(rapid.IntRange(-3, 2).Draw(t, "drop"), true, sarama.ErrNoError)
			case 5:
				exchange(rapid.IntRange(-3, 2).Draw(t, "drop"), false, rapid.SampledFrom([]sarama.KError{
					sarama.ErrNotLeaderForPartition, sarama.ErrRequestTimedOut, sarama.ErrOutOfOrderSequenceNumber,
					sarama.ErrUnknown, sarama.ErrTopicAuthorizationFailed,
				}).Draw(t, "code"))
			}
			check()
		}
		for range 10 * (n + 1) {
			exchange(-1, false, sarama.ErrNoError)
		}
		check()
		for i, o := range owners {
			if got := len(o.told) - from[i]; got != len(live[i]) {
				t.Fatalf("owner %d: %d of %d settled", i, got, len(live[i]))
			}
		}
		if w.pending != 0 {
			t.Fatalf("%d pending", w.pending)
		}
	})
}

func subsequence(short, long []string) bool {
	for _, v := range long {
		if len(short) > 0 && short[0] == v {
			short = short[1:]
		}
	}
	return len(short) == 0
}

func TestQueueKeepsItsMemory(t *testing.T) {
	p := &partition{topic: &topic{name: "alerts", max: maxBatchBytes}}
	for i := range 100_000 {
		p.push(entry{out: &record.Output{}, size: 10})
		if i%3 == 2 {
			p.fill()
			p.batch.close()
		}
	}
	if c := cap(p.queue); c > 64 {
		t.Errorf("a queue of at most 3 holds room for %d", c)
	}
}
