package app

import (
	"fmt"
	"sync/atomic"

	"joiner/internal/assign"
	"joiner/internal/config"
	"joiner/internal/enrich"
	"joiner/internal/keys"
	"joiner/internal/placement"
	"joiner/internal/record"
	"joiner/internal/sampled"
)

// places knows where keys belong, under the partition counts of the last
// assignment.
type places struct {
	topics [record.Sides]string
	placer [record.Sides]*placement.Placer
	counts atomic.Pointer[counts]
}

// counts are the partition counts of both inputs, now and before they grew,
// newest first.
type counts struct {
	now    [record.Sides]int32
	former [record.Sides][]int32
}

func newPlaces(t config.Topics) (*places, error) {
	placer, err := Placers(t)
	if err != nil {
		return nil, err
	}
	p := &places{topics: [record.Sides]string{t.MarketUpdates, t.Notifications}, placer: placer}
	p.counts.Store(&counts{})
	return p, nil
}

// Placers tell where keys belong in each input, for the service and for the
// commands that judge what it reads. Their errors name the key.
func Placers(t config.Topics) (placers [record.Sides]*placement.Placer, err error) {
	reserved, err := Reserved(t)
	if err != nil {
		return placers, err
	}
	topics := [record.Sides]string{t.MarketUpdates, t.Notifications}
	partitioners := [record.Sides]string{t.MarketPartitioner(), t.NotificationPartitioner()}
	for side := range placers {
		placers[side], err = placement.New(placement.Options{
			Topic: topics[side], Partitioner: partitioners[side], Reserved: reserved,
		})
		if err != nil {
			return placers, fmt.Errorf("topics.partitioner: %w", err)
		}
	}
	return placers, nil
}

// Reserved reads the partitions that the configuration sets aside.
func Reserved(t config.Topics) ([]placement.Reserved, error) {
	reserved := make([]placement.Reserved, 0, len(t.Reserved))
	for _, r := range t.Reserved {
		symbols, err := r.Symbols()
		if err != nil {
			return nil, fmt.Errorf("topics.reserved: partition %d: %w", r.Partition, err)
		}
		reserved = append(reserved, placement.Reserved{Partition: r.Partition, Symbols: symbols})
	}
	return reserved, nil
}

// learn takes the partition counts that came with an assignment.
func (p *places) learn(d *assign.Directory) {
	if d == nil {
		return
	}
	c := &counts{}
	for side, topic := range p.topics {
		c.now[side] = d.Partitions[topic]
		c.former[side] = d.Former[topic]
	}
	p.counts.Store(c)
}

// Home implements task.Placement.
func (p *places) Home(symbol []byte) (int32, bool) {
	return p.placer[record.Market].Partition(symbol, p.counts.Load().now[record.Market])
}

// Former implements task.Placement.
func (p *places) Former(symbol []byte) (partitions []int32) {
	for _, n := range p.counts.Load().former[record.Market] {
		if partition, ok := p.placer[record.Market].Former(symbol, n); ok {
			partitions = append(partitions, partition)
		}
	}
	return partitions
}

// Expected implements keys.Places.
func (p *places) Expected(side record.Side, key []byte) (int32, bool) {
	return p.placer[side].Partition(key, p.Partitions(side))
}

// Partitions implements keys.Places.
func (p *places) Partitions(side record.Side) int32 { return p.counts.Load().now[side] }

// Detective implements keys.Places.
func (p *places) Detective(side record.Side) *placement.Detective {
	return p.placer[side].Detective(p.Partitions(side))
}

// newWatch makes the watch over the keys of a pod's tasks.
func newWatch(t config.Topics, ticks *enrich.MarketDecoder, p *places, faults *sampled.Log) *keys.Watch {
	return keys.New(keys.Options{
		BySymbol:     [record.Sides]bool{record.Market: !ticks.ByKey()},
		Topics:       p.topics,
		Partitioners: [record.Sides]string{t.MarketPartitioner(), t.NotificationPartitioner()},
		Settings:     [record.Sides]string{"topics.market_updates_partitioner", "topics.notifications_partitioner"},
		Places:       p, Faults: faults,
	})
}

// At returns the judge of one index's keys.
func (p *places) At(index int32) indexPlaces { return indexPlaces{p, index} }

// indexPlaces is places seen from one partition index.
type indexPlaces struct {
	*places
	index int32
}

// WellPlaced implements task.Placement. Records that lie where an earlier count
// put them are well placed: they were when they were written.
func (p indexPlaces) WellPlaced(side record.Side, key []byte) bool {
	c := p.counts.Load()
	if c.now[side] == 0 {
		return true // a foreign member leads: nobody has told the counts
	}
	return p.placer[side].WellPlaced(key, p.index, c.now[side], c.former[side])
}
