package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificates collects until when TLS files are valid. What has no such file
// has no series: a 0 would say that it expired in 1970.
type certificates struct {
	desc *prometheus.Desc

	mu       sync.Mutex
	notAfter map[string]func() time.Time // by use
}

func newCertificates() *certificates {
	return &certificates{
		desc: prometheus.NewDesc("joiner_tls_certificate_not_after_timestamp_seconds",
			"Until when the certificate is valid; of authorities, the first to expire.", []string{"use"}, nil),
		notAfter: make(map[string]func() time.Time),
	}
}

// Describe implements prometheus.Collector.
func (c *certificates) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *certificates) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for use, notAfter := range c.notAfter {
		if at := notAfter(); !at.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(at.Unix()), use)
		}
	}
}

// SetCertificates says what a scrape asks for the expiry of the certificates
// of that use: kafka, kafka_ca, peer or peer_ca. notAfter is called from any
// goroutine and must be quick, but may read a file; its zero time means that
// there is none, and there is then no series.
func (m *Metrics) SetCertificates(use string, notAfter func() time.Time) {
	m.certificates.mu.Lock()
	defer m.certificates.mu.Unlock()
	m.certificates.notAfter[use] = notAfter
}
