package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// histogram describes one that is classic and native at once: who scrapes
// classic buckets gets these, who scrapes native ones gets a resolution of
// 10 %. The number of native buckets is bounded, since a pod that sees every
// magnitude must not grow for ever.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name:                            name,
		Help:                            help,
		Buckets:                         buckets,
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// The classic buckets, in seconds. Every bucket is a series: the counts keep
// a pod within its 250.
var (
	joinBuckets = []float64{
		1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1,
	}
	latencyBuckets = []float64{
		0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300,
	}
	// A price may be newer than its notification: its age is then negative.
	ageBuckets = []float64{
		-10, -1, -0.1, 0, 0.001, 0.01, 0.1, 1, 10, 60, 600, 3600,
	}
	rebalanceBuckets = []float64{
		0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
	}
	pauseBuckets = []float64{
		0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60,
	}
	restoreBuckets = []float64{
		0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600,
	}
)
