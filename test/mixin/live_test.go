package mixin

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"joiner/test/proc"
)

// TestPrometheusWatches has a real Prometheus scrape real joiners, and asks it
// every query that the dashboard and the rules have.
func TestPrometheusWatches(t *testing.T) {
	installed(t, "prometheus")
	s := newStage(t)
	p := startPrometheus(t, s)
	proc.Await(t, "a first scrape of each pod", func() error {
		return seriesOf(t, p, `joiner_ready == 1`, len(s.pods)+2)
	})
	s.spoil()
	proc.Await(t, "what comes late to be there", func() error {
		return errors.Join(
			seriesOf(t, p, "count by (job) (joiner_produce_errors_total)", 2), // both ways of scraping those two pods
			seriesOf(t, p, "count by (job) (joiner_hottest_key_share_ratio)", 3),
			seriesOf(t, p, `sum by (job) (rate(joiner_commits_total{outcome="ok"}[30s])) > 0`, 3),
		)
	})
	families := s.families()

	t.Run("names", func(t *testing.T) { namesExist(t, families) })
	t.Run("selectors", func(t *testing.T) { selectorsSelect(t, p, families) })
	t.Run("dashboard", func(t *testing.T) { boardAnswers(t, p) })
	t.Run("variables", func(t *testing.T) { variablesOffer(t, p) })
	t.Run("rules", func(t *testing.T) { rulesAreHealthy(t, p) })
	t.Run("alerts", func(t *testing.T) { alertsFire(t, p) })
	t.Run("documented", func(t *testing.T) { metricsAreDocumented(t, families) })
	t.Run("native histograms", func(t *testing.T) {
		native := startPrometheus(t, s, "native-histograms")
		proc.Await(t, "a quantile of each histogram", func() error { return quantilesAnswer(t, native) })
	})
}

func seriesOf(t *testing.T, p *server, expr string, atLeast int) error {
	t.Helper()
	n, err := p.query(t.Context(), expr)
	if err == nil && n < atLeast {
		err = fmt.Errorf("%s has %d series, want %d", expr, n, atLeast)
	}
	return err
}

// ofPrometheus are the metrics that Prometheus itself makes.
func ofPrometheus(metric string) bool { return metric == "up" || metric == "ALERTS" }

type named struct{ where, expr string }

// expressions are those of the dashboard and of the rules.
func expressions(t *testing.T) (all []named) {
	t.Helper()
	for _, panel := range readBoard(t).Panels {
		for _, q := range panel.Targets {
			all = append(all, named{panel.Title + " " + q.RefID, q.Expr})
		}
	}
	for _, r := range readRules(t) {
		all = append(all, named{r.Alert, r.Expr})
	}
	return all
}

// familyOf is the family of which an exported series is.
func familyOf(families map[string]*dto.MetricFamily, metric string) *dto.MetricFamily {
	if f := families[metric]; f != nil {
		return f
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if f := families[strings.TrimSuffix(metric, suffix)]; f != nil && f.GetType() == dto.MetricType_HISTOGRAM {
			return f
		}
	}
	return nil
}

func labelsOf(f *dto.MetricFamily) (names []string) {
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			names = append(names, l.GetName())
		}
	}
	if f.GetType() == dto.MetricType_HISTOGRAM {
		names = append(names, "le")
	}
	return names
}

// namesExist looks that what is named is what the pods export: each metric, and
// each label by which is grouped.
func namesExist(t *testing.T, families map[string]*dto.MetricFamily) {
	later, documented := expected(t), documentedMetrics(t)
	for _, e := range expressions(t) {
		labels := []string{"namespace", "job", "pod", "instance", "member"} // of the target, or made by the query
		found := selectors(e.expr)
		if len(found) == 0 {
			t.Errorf("%s names no metric: %s", e.where, e.expr)
		}
		for _, s := range found {
			metric := metricOf(s)
			f := familyOf(families, metric)
			if f == nil && !ofPrometheus(metric) && !slices.Contains(later, metric) {
				t.Errorf("%s: no joiner exports %s", e.where, metric)
			}
			labels = append(labels, labelsOf(f)...)
			if slices.Contains(later, metric) {
				labels = append(labels, documented[metric].labels...)
			}
		}
		for _, label := range groupings(e.expr) {
			if !slices.Contains(labels, label) {
				t.Errorf("%s: groups by %s, which none of its metrics has: %s", e.where, label, e.expr)
			}
		}
	}
}

// bind puts values in the place of the dashboard's variables.
func bind(expr, namespace, job string) string {
	return strings.NewReplacer("$namespace", namespace, "$job", job, "$__rate_interval", "30s").Replace(expr)
}

// selectorsSelect looks that each selector finds a series, so that no label and
// no value is made up.
func selectorsSelect(t *testing.T, p *server, families map[string]*dto.MetricFamily) {
	later := expected(t)
	var wanted []named
	seen := map[string]bool{}
	for _, e := range expressions(t) {
		for _, s := range selectors(e.expr) {
			metric := metricOf(s)
			whole := families[metric] // a histogram has series of its own name where it is scraped as native
			if seen[s] || ofPrometheus(metric) || slices.Contains(later, metric) ||
				whole != nil && whole.GetType() == dto.MetricType_HISTOGRAM {
				continue
			}
			seen[s] = true
			wanted = append(wanted, named{e.where, bind(s, ".*", ".*")})
		}
	}
	if len(wanted) < 40 {
		t.Errorf("%d selectors: they are not found", len(wanted))
	}
	awaitAll(t, p, wanted)
}

// boardAnswers looks that every panel shows something, of all releases and of
// some.
func boardAnswers(t *testing.T, p *server) {
	later := expected(t)
	var wanted []named
	for _, panel := range readBoard(t).Panels {
		for _, q := range panel.Targets {
			// No memory limit is set here, nor are there checkpoints before that version.
			empty := strings.Contains(q.Expr, "gomemlimit") ||
				slices.ContainsFunc(later, func(m string) bool { return strings.Contains(q.Expr, m) })
			for _, of := range []struct{ namespace, job string }{{".*", ".*"}, {"shop", "joiner|twins"}, {".*", "compose"}} {
				expr := bind(q.Expr, of.namespace, of.job)
				if !empty {
					wanted = append(wanted, named{panel.Title, expr})
				} else if err := seriesOf(t, p, expr, 0); err != nil {
					t.Errorf("%s: %v", panel.Title, err)
				}
			}
		}
	}
	awaitAll(t, p, wanted)
}

// awaitAll waits until each expression has series: rates need two scrapes.
func awaitAll(t *testing.T, p *server, wanted []named) {
	t.Helper()
	proc.Await(t, "series of every expression", func() error {
		wanted = slices.DeleteFunc(wanted, func(e named) bool { return seriesOf(t, p, e.expr, 1) == nil })
		var errs []error
		for _, e := range wanted {
			errs = append(errs, fmt.Errorf("%s: %w", e.where, seriesOf(t, p, e.expr, 1)))
		}
		return errors.Join(errs...)
	})
}

// variablesOffer asks as Grafana does for what one can choose.
func variablesOffer(t *testing.T, p *server) {
	want := map[string][]string{"namespace": {"shop"}, "job": {"joiner", "twins"}}
	for _, v := range readBoard(t).Templating.List {
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		if m == nil {
			continue
		}
		var values []string
		err := p.ask(t.Context(), "/api/v1/label/"+m[2]+"/values", url.Values{"match[]": {bind(m[1], "shop", "")}}, &values)
		if err != nil || !slices.Equal(values, want[v.Name]) {
			t.Errorf("%s offers %v, %v, want %v", v.Name, values, err, want[v.Name])
		}
		delete(want, v.Name)
	}
	for name := range want {
		t.Errorf("no query makes the variable %s", name)
	}
}

// rulesAreHealthy looks that Prometheus has evaluated each rule without error.
func rulesAreHealthy(t *testing.T, p *server) {
	proc.Await(t, "each rule to be evaluated", func() error {
		states, err := p.rules(t.Context())
		if err != nil {
			return err
		}
		if want := len(readRules(t)); len(states) != want {
			return fmt.Errorf("%d rules are loaded, want %d", len(states), want)
		}
		for _, r := range states {
			if r.LastError != "" {
				t.Fatalf("%s: %s", r.Name, r.LastError)
			}
			if r.Health != "ok" {
				err = errors.Join(err, fmt.Errorf("%s is %s", r.Name, r.Health))
			}
		}
		return err
	})
	for _, r := range readRules(t) {
		if _, err := p.query(t.Context(), r.Expr); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
	}
}

// alertsFire looks that what was done to the pods is what is alerted of, for
// each way of scraping by itself.
func alertsFire(t *testing.T, p *server) {
	for alert, want := range map[string][]string{
		"JoinerDeadLetters":        {"compose notifications invalid_json", "joiner notifications invalid_json", "twins notifications invalid_json"},
		"JoinerCertificateExpires": {"compose peer", "joiner peer"},
		"JoinerAbsent":             nil,
		"JoinerOffsetsReset":       nil,
	} {
		proc.Await(t, alert, func() error {
			states, err := p.rules(t.Context())
			if err != nil {
				return err
			}
			var got []string
			for _, r := range states {
				if r.Name != alert {
					continue
				}
				for _, a := range r.Alerts {
					words := []string{a.Labels["job"], a.Labels["topic"], a.Labels["kind"], a.Labels["use"]}
					got = append(got, strings.Join(strings.Fields(strings.Join(words, " ")), " "))
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fmt.Errorf("it fires for %v, want %v", got, want)
			}
			return nil
		})
	}
}

// quantilesAnswer asks for the quantiles of a server that has native histograms
// alone.
func quantilesAnswer(t *testing.T, p *server) error {
	t.Helper()
	var errs []error
	asked := 0
	for _, panel := range readBoard(t).Panels {
		for _, q := range panel.Targets {
			if strings.Contains(q.Expr, "histogram_quantile") {
				asked++
				errs = append(errs, seriesOf(t, p, bind(q.Expr, ".*", ".*"), 1))
			}
		}
	}
	if n, err := p.query(t.Context(), "joiner_alert_latency_seconds_bucket"); err != nil || n > 0 {
		errs = append(errs, fmt.Errorf("classic buckets are scraped as well: %d, %w", n, err))
	}
	if asked == 0 {
		t.Fatal("no panel shows a quantile")
	}
	return errors.Join(errs...)
}

// metricsAreDocumented looks that the table of docs/operations.md has the
// metrics that the pods export, all of them and no others.
func metricsAreDocumented(t *testing.T, families map[string]*dto.MetricFamily) {
	documented := documentedMetrics(t)
	later := expected(t)
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if !strings.HasPrefix(name, "joiner_") {
			continue
		}
		row, ok := documented[name]
		if !ok {
			t.Errorf("%s does not tell what %s says", operationsPage, name)
			continue
		}
		own := labelsOf(families[name])
		slices.Sort(own)
		own = slices.DeleteFunc(slices.Compact(own), func(l string) bool { return l == "le" })
		if !slices.Equal(own, row.labels) {
			t.Errorf("%s gives %s the labels %v, it has %v", operationsPage, name, row.labels, own)
		}
		delete(documented, name)
	}
	for name := range documented {
		if !slices.Contains(later, name) {
			t.Errorf("%s tells what %s says, which no joiner exports", operationsPage, name)
		}
	}
}
