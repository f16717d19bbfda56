package app

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A pod whose outputs and offsets nobody takes stays ready, and says in its notes
// what stands still, until it goes on.
func TestNotesNameWhatStandsStill(t *testing.T) {
	s := newStage(t, allTopics()...)
	p := s.start(nil)
	p.awaitReady()
	stuck := home("BBCA")
	outputs := s.cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "enriched-alerts", Partitions: []int32{stuck}, Err: kerr.NotEnoughReplicas, Count: -1})
	commits := s.cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	at := time.Now().Add(-time.Minute)
	for _, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, `{"price":1}`, at)
		s.send("notifications", home(symbol), symbol, `{}`, at)
	}
	await(t, func() string {
		r := p.Ready()
		notes := strings.Join(r.Notes, "\n")
		for _, want := range []string{
			fmt.Sprintf("enriched-alerts/%d: ", stuck), " outputs have not been acknowledged since 2", ": NOT_ENOUGH_REPLICAS (broker ",
			"offsets have not been committed since 2",
		} {
			if !strings.Contains(notes, want) {
				return fmt.Sprintf("notes %q do not say %q", r.Notes, want)
			}
		}
		if !r.Ready {
			t.Fatalf("not ready: %v", r.Reasons)
		}
		return ""
	})
	outputs.Remove()
	commits.Remove()
	s.alerts("enriched-alerts", len(symbols))
	await(t, func() string {
		if r := p.Ready(); len(r.Notes) > 0 || !r.Ready {
			return fmt.Sprintf("all goes on: %+v", r)
		}
		return ""
	})
}

func TestNotesAreBounded(t *testing.T) {
	for text, want := range map[string]string{
		"short": "short", "日経225日経": "日経2…", "abcdefg": "abcdefg", "abcdefgh": "abcdefg…", "abcdef h": "abcdef…",
	} {
		got := bounded(text, 7)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
