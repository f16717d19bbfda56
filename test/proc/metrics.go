package proc

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Sample is one value of a scrape. Histograms show as NAME_bucket, NAME_sum
// and NAME_count, as in the text format.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Metrics is a scrape.
type Metrics []Sample

// ParseMetrics reads the text format.
func ParseMetrics(text []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	var all Metrics
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := make(map[string]string, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			add := func(name string, value float64, more ...string) {
				with := maps.Clone(labels)
				for i := 0; i < len(more); i += 2 {
					with[more[i]] = more[i+1]
				}
				all = append(all, Sample{name, with, value})
			}
			switch {
			case m.GetHistogram() != nil:
				h := m.GetHistogram()
				add(name+"_sum", h.GetSampleSum())
				add(name+"_count", float64(h.GetSampleCount()))
				for _, b := range h.GetBucket() {
					add(name+"_bucket", float64(b.GetCumulativeCount()), "le", fmt.Sprint(b.GetUpperBound()))
				}
			case m.GetCounter() != nil:
				add(name, m.GetCounter().GetValue())
			case m.GetGauge() != nil:
				add(name, m.GetGauge().GetValue())
			case m.GetUntyped() != nil:
				add(name, m.GetUntyped().GetValue())
			}
		}
	}
	return all, nil
}

// Find returns the samples of this name with these labels, given as pairs.
func (m Metrics) Find(name string, labels ...string) Metrics {
	var found Metrics
	for _, s := range m {
		if s.Name == name && s.has(labels) {
			found = append(found, s)
		}
	}
	return found
}

func (s Sample) has(labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if s.Labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// Sum adds up the samples of this name with these labels, given as pairs; 0
// where there is none.
func (m Metrics) Sum(name string, labels ...string) float64 {
	sum := 0.0
	for _, s := range m.Find(name, labels...) {
		sum += s.Value
	}
	return sum
}

// Quantile estimates a quantile of a histogram of seconds over all samples with
// these labels, as Prometheus does: linearly within its bucket. It is 0 where
// nothing was observed.
func (m Metrics) Quantile(q float64, name string, labels ...string) time.Duration {
	upTo := make(map[float64]float64) // counts, cumulative, by upper bound
	for _, s := range m.Find(name+"_bucket", labels...) {
		bound, err := strconv.ParseFloat(s.Labels["le"], 64)
		if err != nil {
			continue
		}
		upTo[bound] += s.Value
	}
	rank := q * m.Sum(name+"_count", labels...)
	lower, below := 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(upTo)) {
		if upTo[bound] >= rank && upTo[bound] > below {
			if math.IsInf(bound, 1) {
				break
			}
			lower += (bound - lower) * (rank - below) / (upTo[bound] - below)
			break
		}
		lower, below = bound, upTo[bound]
	}
	return time.Duration(lower * float64(time.Second))
}
