package k8s

import (
	"strings"
	"testing"
	"time"
)

// What the figures of a handover are made of, on a log of two pods that stay and
// one that goes.
func TestHandovers(t *testing.T) {
	const log = `
a-0 {"time":"2026-01-05T03:00:00.000Z","msg":"claim begins","topic":"notes","partition":0}
a-2 {"time":"2026-01-05T03:00:00.000Z","msg":"claim begins","topic":"notes","partition":2}
a-2 {"time":"2026-01-05T03:00:00.000Z","msg":"claim begins","topic":"market","partition":2}
a-2 {"time":"2026-01-05T03:00:10.000Z","msg":"stopping"}
a-2 {"time":"2026-01-05T03:00:10.100Z","msg":"claim ends","topic":"notes","partition":2}
a-2 {"time":"2026-01-05T03:00:10.200Z","msg":"claim ends","topic":"market","partition":2}
a-0 {"time":"2026-01-05T03:00:10.500Z","msg":"claim begins","topic":"notes","partition":2}
a-1 {"time":"2026-01-05T03:00:10.900Z","msg":"claim begins","topic":"notes","partition":2}
a-1 {"time":"2026-01-05T03:00:10.400Z","msg":"claim begins","topic":"notes","partition":1}`
	const last = `
a-1 {"time":"2026-01-05T03:00:11.000Z","msg":"claim begins","topic":"market","partition":2}`
	from := time.Date(2026, 1, 5, 3, 0, 5, 0, time.UTC)
	var gone pod
	gone.Metadata.Name = "a-2"

	if h, err := written(log).handovers(from, []pod{gone}); err == nil {
		t.Errorf("a half without a new owner goes unnoticed: %+v", h)
	}
	h, err := written(log+last).handovers(from, []pod{gone})
	if err != nil {
		t.Fatal(err)
	}
	if want := (handover{tasks: 2, sinceSignal: time.Second, sinceRelease: 800 * time.Millisecond}); h != want {
		t.Errorf("%+v, want %+v", h, want)
	}
	gone.Metadata.Name = "a-1"
	if h, err := written(log+last).handovers(from, []pod{gone}); err == nil {
		t.Errorf("a pod that was not told to stop goes unnoticed: %+v", h)
	}
}

func written(text string) *logs {
	l := new(logs)
	for one := range strings.Lines(strings.TrimSpace(text)) {
		pod, rest, _ := strings.Cut(one, " ")
		l.keep(pod, []byte(rest))
	}
	return l
}
