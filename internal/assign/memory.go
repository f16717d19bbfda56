package assign

import (
	"maps"
	"slices"
	"sync"

	"joiner/internal/wire"
)

// memory is what a process remembers of its group between joins. All its
// strategies share it, so that a change of strategy moves as little as any
// other generation. sarama may ask from the goroutine of one join while
// another's is being given up, hence the lock.
type memory struct {
	joining func()        // Options.OnJoin
	asks    func() uint64 // Options.Asks

	identity Identity
	joined   []string // ascending; empty: whatever is subscribed
	eager    bool     // no strategy list with another than copartition is cooperative

	mu     sync.Mutex
	counts counts
	held   held
	last   int32             // the newest generation that brought an assignment
	inner  map[string][]byte // by strategy: what the one inside was last sent
}

// userData says what is known now. Inner is that of the named strategy.
func (m *memory) userData(strategy string, topics []string) userData {
	m.mu.Lock()
	defer m.mu.Unlock()
	return userData{
		Identity: m.identity,
		counts:   m.counts,
		held:     m.held,
		eager:    m.eager,
		joined:   m.unit(topics),
		inner:    m.inner[strategy],
		asks:     m.asks(),
	}
}

// unit returns the topics that make a whole index.
func (m *memory) unit(subscribed []string) []string {
	if len(m.joined) > 0 {
		return m.joined
	}
	return slices.Sorted(slices.Values(subscribed))
}

// innerData returns what the strategy inside was last sent.
func (m *memory) innerData(strategy string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inner[strategy]
}

// assigned takes note of a generation. Counts without an epoch are none.
func (m *memory) assigned(generation int32, claims map[string][]int32, c counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.epoch > 0 && !m.counts.newer(c) {
		m.counts = c
	}
	whole := wholeIndices(claims, m.unit(slices.Collect(maps.Keys(claims))))
	// Whoever missed a generation cannot know whose the indices were in it.
	missed := generation != m.last && generation != m.last+1
	m.last = generation
	if missed || !slices.Equal(whole, m.held.indices) {
		m.held = held{since: generation, indices: whole}
	}
}

func (m *memory) keepInner(strategy string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inner[strategy] = slices.Clone(data)
}

// wholeIndices returns, ascending, the indices claimed in all of the topics.
func wholeIndices(claims map[string][]int32, topics []string) []int32 {
	if len(topics) == 0 {
		return nil
	}
	in := make(map[int32]int)
	for _, topic := range topics {
		for _, p := range claims[topic] {
			in[p]++
		}
	}
	var whole []int32
	for p, n := range in {
		if n == len(topics) && p >= 0 && p < wire.MaxIndex {
			whole = append(whole, p)
		}
	}
	slices.Sort(whole)
	return whole
}
