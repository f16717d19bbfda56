package deliver

import (
	"fmt"
	"maps"
	"slices"

	"github.com/IBM/sarama"

	"joiner/internal/record"
)

// This file is what a Writer does beside its work when its batches belong to
// transactions (Options.TransactionalID). The Transactor then gives it its
// identity and hears what becomes of outputs in the owners' stead; what the
// writer finds wrong with the identity ends the transaction instead of getting
// another identity.

// enter gives the writer a new identity. Every partition begins its sequence
// anew under it.
func (w *Writer) enter(p Producer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ident = identity{id: p.ID, epoch: p.Epoch, generation: w.ident.generation + 1, transactional: true}
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p != nil {
				p.renew = true
			}
		}
	}
}

// write hands a transaction's outputs over. They have passed refusals.
func (w *Writer) write(x *transaction) {
	w.mu.Lock()
	w.receiver = x
	w.mu.Unlock()
	w.Send(x.outputs)
}

// leave ends the writer's part in a transaction whose outputs are all settled.
func (w *Writer) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receiver = nobody{}
}

// nobody hears of outputs between transactions: their owners must not.
type nobody struct{}

func (nobody) Settled(*record.Output, error) {}

// refusals returns the outputs that no broker could take, in order.
func (w *Writer) refusals(outputs []*record.Output) (bad []outcome) {
	for len(outputs) > 0 {
		run := outputs[:sameTopic(outputs)]
		lim := w.limits(run[0].Topic)
		bad = append(bad, check(run, lim, w.most(lim), record.MillisOf(w.now()))...)
		outputs = outputs[len(run):]
	}
	return bad
}

// forget drops the outputs that are not written, those in requests under way
// among them, and returns the partitions that they were for, with what held
// them up. Nobody hears of them any more.
func (w *Writer) forget() (unwritten []Fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receiver = nobody{}
	dropped := 0
	for _, t := range w.topics {
		for _, p := range t.parts {
			if p == nil || p.empty() {
				continue
			}
			f := Fault{Topic: t.name, Partition: p.id, Reason: p.fault}
			if f.Reason == "" {
				f.Reason = "it could not be written to in time"
			}
			unwritten = append(unwritten, f)
			for _, owner := range p.owners() {
				dropped += p.drop(owner)
			}
			p.suspects, p.split = 0, 0
		}
	}
	w.settled(dropped)
	return unwritten
}

// leaderless fails with *PartitionFaults where fresh metadata says that outputs
// have nobody to go to. A transaction with such a partition could not even be
// aborted before there is somebody, and everybody would wait for that. Where
// nobody tells, nothing is said against the outputs.
func (w *Writer) leaderless(outputs []*record.Output) error {
	partitions := partitionsOf(outputs)
	if len(partitions) == 0 {
		return nil
	}
	fresh, err := w.leaders(slices.Sorted(maps.Keys(partitions)))
	if err != nil {
		return nil //nolint:nilerr // the transaction itself will tell
	}
	var faults []Fault
	for topic, ids := range partitions {
		for _, id := range ids {
			if _, fault, ok := fresh.of(topic, id); !ok {
				if fault == "" {
					fault = errorName(sarama.ErrLeaderNotAvailable)
				}
				faults = append(faults, Fault{Topic: topic, Partition: id, Reason: fault})
			}
		}
	}
	if faults == nil {
		return nil
	}
	return &PartitionFaults{Faults: faults, Err: fmt.Errorf("outputs to %s/%d: %s", faults[0].Topic, faults[0].Partition, faults[0].Reason)}
}

// owners lists whose outputs wait for the partition.
func (p *partition) owners() (owners []record.Owner) {
	seen := make(map[record.Owner]bool)
	add := func(e entry) {
		if !seen[e.out.Owner] {
			seen[e.out.Owner] = true
			owners = append(owners, e.out.Owner)
		}
	}
	for _, e := range p.batch.entries {
		add(e)
	}
	for _, e := range p.queue[p.head:] {
		add(e)
	}
	return owners
}

// lose ends the transaction that a batch belongs to, since the broker does not
// know its producer, its epoch, its sequence or its transaction any more. It
// holds the lock.
func (w *Writer) lose(p *partition, code sarama.KError, r *report) {
	err := fmt.Errorf("output to %s/%d: %w", p.topic.name, p.id, code)
	for i := range p.batch.entries {
		if o := p.batch.entries[i].out; p.batch.wanted(o) {
			r.outcomes = append(r.outcomes, outcome{o, err})
		}
	}
	p.batch.close()
	p.renew = true
	w.forward(p)
}
