package load

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// How often progress is written: a terminal's line is only overwritten, plain
// lines pile up in somebody's log.
const (
	onTerminal = 200 * time.Millisecond
	onPlain    = 5 * time.Second
)

// progress writes how the run goes until it is stopped.
type progress struct {
	quit chan struct{}
	done sync.WaitGroup
}

func (r *run) startProgress() *progress {
	p := &progress{quit: make(chan struct{})}
	if r.opts.Progress == nil {
		return p
	}
	p.done.Add(1)
	go func() {
		defer p.done.Done()
		r.writeProgress(p.quit)
	}()
	return p
}

func (p *progress) stop() {
	close(p.quit)
	p.done.Wait()
}

func (r *run) writeProgress(quit <-chan struct{}) {
	every := onPlain
	if r.opts.Terminal {
		every = onTerminal
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			writeProgress(r.opts.Progress, r.opts.Terminal, r.progressLine(time.Now()))
		case <-quit:
			writeProgress(r.opts.Progress, r.opts.Terminal, r.progressLine(time.Now()))
			if r.opts.Terminal {
				_, _ = fmt.Fprintln(r.opts.Progress)
			}
			return
		}
	}
}

// writeProgress writes one line. A terminal's ends without a line feed, so
// that the next one takes its place. Progress that cannot be written is no
// reason to stop.
func writeProgress(w io.Writer, terminal bool, line string) {
	if terminal {
		_, _ = fmt.Fprint(w, "\r\x1b[K"+line)
		return
	}
	_, _ = fmt.Fprintln(w, line)
}

func (r *run) progressLine(now time.Time) string {
	c := r.tracker.counts()
	elapsed := now.Sub(r.started).Seconds()
	return fmt.Sprintf("load: %.0f s, %d ticks, %d notifications (%.0f a second), %d alerts, %d missing, p50 %.1f ms, p99 %.1f ms",
		elapsed, r.producer.ticks.Load(), c.sent, perSecond(c.sent, elapsed), c.answered, c.sent-c.answered,
		c.latency.P50, c.latency.P99)
}
