package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"joiner/test/cluster"
)

// TestMain lets the test binary be the contenders: the bare loop, and as
// "joiner run" the bare loop again, told what to do by the joiner's environment.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case bareCommand:
			exit(bare(os.Args[2:]))
		case "run":
			exit(bare(standIn()))
		}
	}
	goleak.VerifyTestMain(m,
		// sarama's meters have one goroutine for ever.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func standIn() []string {
	return []string{
		"-brokers", os.Getenv("JOINER_KAFKA_BROKERS"),
		"-group", os.Getenv("JOINER_GROUP_ID"),
		"-market", os.Getenv("JOINER_TOPICS_MARKET_UPDATES"),
		"-notifications", os.Getenv("JOINER_TOPICS_NOTIFICATIONS"),
		"-output", os.Getenv("JOINER_TOPICS_ENRICHED_ALERTS"),
	}
}

func TestKafkaBench(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Brokers: 1})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := parse([]string{
		"-ticks", "3000", "-rounds", "2", "-latency-rounds", "1", "-latency-warm", "500ms", "-latency-for", "1s", "-joiner", self,
	})
	if err != nil {
		t.Fatal(err)
	}
	contenders, err := contendersOf(opts)
	if err != nil {
		t.Fatal(err)
	}
	known, err := connect(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := known.close(); err != nil {
			t.Error(err)
		}
	}()
	// Both fail by themselves where outputs are missing or doubled, inputs are
	// not committed, or a contender does not end in order.
	if err := throughput(context.Background(), opts, known, contenders); err != nil {
		t.Fatal(err)
	}
	if err := latency(context.Background(), opts, known, contenders); err != nil {
		t.Fatal(err)
	}
}

func TestKafkaBenchTellsOfAContenderThatFails(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Brokers: 1})
	known, err := connect(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = known.close() }()
	opts, err := parse([]string{"-ticks", "100", "-rounds", "1"})
	if err != nil {
		t.Fatal(err)
	}
	broken := bareContender("/bin/false")
	err = throughput(context.Background(), opts, known, []contender{broken})
	if err == nil || !strings.Contains(err.Error(), "before complete") {
		t.Errorf("a contender that ends at once: error %v", err)
	}
}

func TestValuesHaveTheirSizeAndAreJSON(t *testing.T) {
	s := newSource(1000, 200)
	for range 1000 {
		_, tick := s.tick()
		sent := time.UnixMicro(1_767_582_000_123_456)
		_, note := s.note(sent)
		for _, value := range [][]byte{tick, note} {
			if len(value) != 200 || !json.Valid(value) {
				t.Fatalf("%d bytes, valid %v: %s", len(value), json.Valid(value), value)
			}
		}
		alert := fmt.Appendf(nil, `{"notification":%s,"market":null}`, note)
		if got, err := sentAt(alert); err != nil || !got.Equal(sent) {
			t.Fatalf("sent at %v, %v: want %v", got, err, sent)
		}
	}
	if _, err := sentAt([]byte(`{"notification":{}}`)); err == nil {
		t.Error("found a time of sending where there is none")
	}
}

func TestStatistics(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{0: 1, 50: 3, 80: 4, 99: 5, 100: 5} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
	if got := median(values); got != 3 {
		t.Errorf("median of five is %v, want 3", got)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four is %v, want 2.5", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
	if got := spread("%.0f", values); got != "3 (1–5)" {
		t.Errorf("spread is %q", got)
	}
}

func TestReportTellsTheRatioOfTheSameRounds(t *testing.T) {
	opts, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	contenders := []contender{{name: "bare"}, {name: "joiner"}}
	reportThroughput(&out, opts, contenders, [][]round{
		{{rate: 100, cpu: 1, memory: 10}, {rate: 200, cpu: 2, memory: 10}, {rate: 400, cpu: 4, memory: 10}},
		{{rate: 200, cpu: 0.5, memory: 20}, {rate: 200, cpu: 1.8, memory: 20}, {rate: 400, cpu: 4.8, memory: 20}},
	})
	text := strings.Join(strings.Fields(out.String()), " ")
	if want := "joiner / bare 1.00 (1.00–2.00) 0.90 (0.50–1.20) 2.00 (2.00–2.00)"; !strings.Contains(text, want) {
		t.Errorf("report lacks %q: %s", want, out.String())
	}
}

func TestParseRefusesWhatCannotBeMeasured(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-value-bytes", "20"}, {"-latency-for", "10ms"}, {"more"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
