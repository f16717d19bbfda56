package demo

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"joiner/internal/app"
)

// TestTheDemo plays the whole of it with real joiners.
func TestTheDemo(t *testing.T) {
	log := zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel))
	report, err := Run(t.Context(), Options{NewPod: Joiners(app.Build{Version: "test"}, log)})
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Text(t.Output()); err != nil {
		t.Fatal(err)
	}
	for _, s := range report.Strategies {
		if s.Local+s.Remote != 30 || s.Enriched != 30 || s.Miss != 0 || s.Unavailable != 0 {
			t.Errorf("%+v", s)
		}
		if s.JoinP50 <= 0 || s.JoinP99 < s.JoinP50 {
			t.Errorf("%s: join times %v and %v µs", s.Name, s.JoinP50, s.JoinP99)
		}
		if s.Moved < s.MovedMinimum {
			t.Errorf("%s: %d moved, fewer than the least of %d", s.Name, s.Moved, s.MovedMinimum)
		}
		switch {
		case s.Name == "copartition" && (s.Local != 30 || s.Moved != s.MovedMinimum):
			t.Errorf("copartition: %d local, %d moved of at least %d", s.Local, s.Moved, s.MovedMinimum)
		case s.Name == "roundrobin" && s.Remote != 30:
			t.Errorf("roundrobin: %d remote", s.Remote)
		}
	}
}

func TestJoinTimesComeFromTheMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: joinDuration, Help: "h", NativeHistogramBucketFactor: 1.1,
	}, []string{"locality"})
	reg.MustRegister(h)
	want := []time.Duration{time.Microsecond, 3 * time.Microsecond, 3 * time.Microsecond, 700 * time.Millisecond}
	for _, d := range want {
		h.WithLabelValues("local").Observe(d.Seconds())
	}
	h.WithLabelValues("remote").Observe(1)
	want = append(want, time.Second)
	got := (&joiner{reg: reg}).JoinTimes()
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if ratio := float64(got[i]) / float64(want[i]); math.Abs(ratio-1) > 0.05 {
			t.Errorf("%s, want %s", got[i], want[i])
		}
	}
}
