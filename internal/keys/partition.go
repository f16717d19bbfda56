package keys

import (
	"math/rand/v2"
	"sync"
	"time"

	"joiner/internal/hot"
	"joiner/internal/record"
)

const (
	// capacity is how many symbols a window of a side keeps: what a symbol's
	// share may be too low by is 1/capacity at most.
	capacity = 128
	// exactly is how many records of a window are looked at one by one, so that
	// a quiet partition has its shares too.
	exactly = 1024
	// every is of how many later ones one is looked at, on the average. A look
	// costs about 150 ns where nearly each brings another symbol.
	every = 64
	// span is how old a window must be to be followed by the next.
	span = time.Minute
	// stale is how old the newest record may be.
	stale = 10 * time.Minute
	// enough is how many records a share needs to be shown for a partition.
	enough = 100
	// maxSymbol is how many bytes of a symbol are kept.
	maxSymbol = 256
)

// Partition watches the keys of one task. Took and Judged are called by its
// merge alone, the rest by any goroutine.
type Partition struct {
	watch *Watch
	index int32
	sides [record.Sides]side
}

// side is one input of a task.
type side struct {
	skip int // records until the next that is looked at; the merge's own
	gap  int // how many records that one stands for; the merge's own
	rnd  *rand.Rand

	mu     sync.Mutex
	recent *hot.Recent
	began  time.Time // the present window
	last   time.Time // the newest record looked at
}

// Partition begins to watch a partition number, until Close. One that is made
// while an older one of the same number is open takes its place.
func (w *Watch) Partition(index int32) *Partition {
	p := &Partition{watch: w, index: index}
	for i := range p.sides {
		p.sides[i] = side{
			skip: 1, gap: 1,
			// Seeded by its place: what is sampled is the same whenever the
			// records are. Gaps at random keep out of step with producers that
			// send their symbols in turn.
			rnd:    rand.New(rand.NewPCG(uint64(index), uint64(i))),
			recent: hot.NewRecent(capacity),
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[index] = p
	return p
}

// Close takes the partition's symbols out of Hottest. It may be called again.
func (p *Partition) Close() {
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	if p.watch.open[p.index] == p {
		delete(p.watch.open, p.index)
	}
}

// Took is told of every good record of the side: the symbol that it is joined
// by and what its placement is judged by, its own key most often. Neither is kept.
func (p *Partition) Took(which record.Side, symbol, placed []byte) {
	if p.sides[which].skip--; p.sides[which].skip <= 0 {
		p.look(which, symbol, placed)
	}
}

// look counts a sampled record for those that were passed over before it.
func (p *Partition) look(which record.Side, symbol, placed []byte) {
	now := p.watch.o.Now()
	p.sides[which].count(symbol[:min(len(symbol), maxSymbol)], now)
	p.watch.topics[which].sampled(placed, p.index)
}

func (s *side) count(symbol []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent.AddN(symbol, uint64(s.gap))
	if s.last.IsZero() {
		s.began = now
	}
	s.last = now
	s.gap = s.next(now)
	s.skip = s.gap
}

// next is how many records further the next look is.
func (s *side) next(now time.Time) int {
	if s.recent.Window() < exactly {
		return 1
	}
	if now.Sub(s.began) >= span {
		s.recent.Rotate()
		s.began = now
		return 1
	}
	return 1 + s.rnd.IntN(2*every-1)
}

// Share is the hottest symbol's share of the side's latest records; ok is false
// where these are too few, or too old, to say.
func (p *Partition) Share(which record.Side) (share float64, ok bool) {
	sums := make(map[string]uint64)
	total := p.sides[which].addTo(sums, p.watch.o.Now())
	if total < enough {
		return 0, false
	}
	most := uint64(0)
	for _, count := range sums {
		most = max(most, count)
	}
	return float64(most) / float64(total), true
}

// addTo adds what each symbol surely has of the side's latest records, and
// returns their number.
func (s *side) addTo(sums map[string]uint64, now time.Time) (total uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.last) > stale {
		return 0
	}
	for _, k := range s.recent.Top(2 * capacity) {
		if n := k.Sure(); n > 0 {
			sums[k.Name] += n
		}
	}
	return s.recent.Total()
}
