package kafka

import (
	"time"

	"joiner/internal/record"
)

// callLimit is what no call to a broker takes that is bounded by its time-outs,
// as fetches are, whatever state the broker is in.
const callLimit = 10 * time.Minute

// Pulse is how often a partition that is read has been looked after: that it was
// asked for, or found to have to wait, or its leader was looked for. Waiting tells
// that a broker is waited for.
type Pulse struct {
	Topic     string
	Partition int32
	Turns     uint64
	Waiting   bool
}

// Pulses shows all partitions that are read. A partition that is not waited for
// has a turn every second, whatever state brokers and sinks are in. ok is false
// where the fetcher's lock is held by somebody who does not give it back: Pulses
// waits for nobody.
func (f *Fetcher) Pulses() (pulses []Pulse, ok bool) {
	if !record.TryLock(&f.mu) {
		return nil, false
	}
	defer f.mu.Unlock()
	pulses = make([]Pulse, 0, len(f.feeds))
	for _, fd := range f.feeds {
		pulses = append(pulses, Pulse{fd.topic, fd.id, fd.turns.Load(), f.waits(fd)})
	}
	return pulses, true
}

// waits tells whether the feed's holder waits for a broker. f.mu is held.
func (f *Fetcher) waits(fd *Feed) bool {
	if fd.given.Load() {
		return true // for its task, which is watched while it closes
	}
	if s := fd.source; s != nil {
		began := s.called.Load()
		return began != 0 && time.Since(f.made)-time.Duration(began) < callLimit
	}
	if began := fd.asking.Load(); began != 0 {
		return time.Since(f.made)-time.Duration(began) < backstop
	}
	since, asking := f.asking[fd.topic]
	return asking && time.Since(since) < backstop
}

func (f *Fetcher) setAsking(topic string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is {
		f.asking[topic] = time.Now()
		return
	}
	delete(f.asking, topic)
}
