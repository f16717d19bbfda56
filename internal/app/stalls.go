package app

import (
	"fmt"

	"joiner/internal/record"
	"joiner/internal/stall"
	"joiner/internal/task"
)

// samples shows everything in this pod that can have work and do none of it. It
// waits for nobody: what is watched may be stuck with its lock held.
func (a *App) samples() []stall.Sample {
	if !a.connected.Load() {
		return nil // the brokers are waited for
	}
	tasks, ok := a.member.Tasks()
	if !ok {
		return []stall.Sample{{Key: stall.Key{Partition: stall.Pod, Part: "member"}, Work: "somebody holds the member's lock"}}
	}
	var samples []stall.Sample
	for _, t := range tasks {
		for _, p := range t.Pulses() {
			samples = append(samples, sample(t.Index(), p))
		}
	}
	samples = append(samples, a.readingSamples()...)
	samples = append(samples, a.groupSample())
	for _, p := range a.clients.Ends.Pulses() {
		samples = append(samples, sample(stall.Pod, p))
	}
	for _, p := range a.delivery.Pulses() {
		partition := stall.Pod
		if t, ok := p.Owner.(*task.Task); ok {
			partition = t.Index()
		}
		samples = append(samples, sample(partition, p.Pulse))
	}
	return samples
}

func sample(partition int32, p record.Pulse) stall.Sample {
	return stall.Sample{Key: stall.Key{Partition: partition, Part: p.Part}, Work: p.Work, Done: p.Done}
}

// groupSample shows the group's loop. What makes a stop last is known otherwise.
func (a *App) groupSample() stall.Sample {
	turns, quiet := a.clients.GroupPulse()
	s := stall.Sample{Key: stall.Key{Partition: stall.Pod, Part: "group"}, Done: turns}
	if quiet && a.member.Running() {
		s.Work = "the group has to be kept or joined, and nobody sees to it"
	}
	return s
}

// readingSamples shows the partitions that are being read.
func (a *App) readingSamples() []stall.Sample {
	pulses, ok := a.fetcher.Pulses()
	if !ok {
		return []stall.Sample{{Key: stall.Key{Partition: stall.Pod, Part: "fetcher"}, Work: "somebody holds the fetcher's lock"}}
	}
	samples := make([]stall.Sample, 0, len(pulses))
	for _, p := range pulses {
		s := stall.Sample{Key: stall.Key{Partition: p.Partition, Part: "reading " + p.Topic}, Done: p.Turns}
		if !p.Waiting {
			s.Work = fmt.Sprintf("%s/%d is to be read and nobody sees to it", p.Topic, p.Partition)
		}
		samples = append(samples, s)
	}
	return samples
}

// Stalled implements server.Status.
func (a *App) Stalled() (reasons []string) {
	for _, s := range a.stalls.Stalls() {
		reasons = append(reasons, s.String())
	}
	return reasons
}
