package mixin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
)

// The variables of the dashboard choose what every query is about. Their "all"
// matches an absent label too: a plain scrape has no namespace.
const selector = `namespace=~"$namespace", job=~"$job"`

// window is what Grafana makes as long as some scrapes.
const window = "[$__rate_interval]"

// query is one query of a panel.
type query struct {
	expr    string
	legend  string
	instant bool // a table wants the newest values only
}

// panel is one panel; where it stands follows from its order and its width.
type panel struct {
	title, description string
	kind               string // Grafana's name of the visualization; empty: timeseries
	unit               string // Grafana's name of the unit
	width              int    // of 24
	height             int    // 0: 8
	stacked            bool
	max                float64 // of the axis; 0: as large as the values
	queries            []query
	transformations    []any
	mappings           []any
	steps              []any // thresholds; none: everything is green
}

// row is a row of panels under a heading.
type row struct {
	title  string
	panels []panel
}

// of is a metric with the dashboard's selector, and further matchers.
func of(metric string, matchers ...string) string {
	return metric + "{" + strings.Join(append([]string{selector}, matchers...), ", ") + "}"
}

func rate(metric string, matchers ...string) string {
	return "rate(" + of(metric, matchers...) + window + ")"
}

func increase(metric string) string {
	return "increase(" + of(metric) + window + ")"
}

func by(labels, aggregation, expr string) string {
	return fmt.Sprintf("%s by (%s) (%s)", aggregation, labels, expr)
}

// member is an expression by pod, with a label that tells the pod's name where
// the scrape gives one, else its address.
func member(labels, aggregation, expr string) string {
	if labels != "" {
		labels += ", "
	}
	return fmt.Sprintf(`label_replace(label_replace(%s, "member", "$1", "instance", "(.*)"), "member", "$1", "pod", "(.+)")`,
		by(labels+"pod, instance", aggregation, expr))
}

// quantile is of a histogram as it was scraped: classic, or else native.
func quantile(q, histogram, label string) string {
	labels, apart := "le", ""
	if label != "" {
		labels, apart = "le, "+label, " by ("+label+")"
	}
	return fmt.Sprintf("histogram_quantile(%s, sum by (%s) (%s)) or histogram_quantile(%s, sum%s (%s))",
		q, labels, rate(histogram+"_bucket"), q, apart, rate(histogram))
}

func quantiles(histogram string, qs ...string) (queries []query) {
	for _, q := range qs {
		queries = append(queries, query{expr: quantile(q, histogram, ""), legend: percentile(q)})
	}
	return queries
}

// percentile is what a quantile is called in legends: 0.5 is p50.
func percentile(q string) string {
	return "p" + (strings.TrimPrefix(q, "0.") + "0")[:2]
}

func one(expr, legend string) []query { return []query{{expr: expr, legend: legend}} }

const partition = "{{topic}}/{{partition}}"

// steps are thresholds: a colour from each value on.
func steps(base string, more ...any) []any {
	all := []any{map[string]any{"color": base, "value": nil}}
	for i := 0; i+1 < len(more); i += 2 {
		all = append(all, map[string]any{"value": more[i], "color": more[i+1]})
	}
	return all
}

func rows() []row {
	return []row{
		{"At a glance", glance()},
		{"Joins", joins()},
		{"Lag", lag()},
		{"CPU and memory beside lag", resources()},
		{"Partitions and their owners", partitions()},
		{"Group", group()},
		{"Restores and state", states()},
		{"Records that are not in order", troubles()},
		{"Delivery", deliveries()},
	}
}

func glance() []panel {
	share := func(matcher string) string {
		return fmt.Sprintf("sum(%s) / sum(%s)", rate("joiner_joins_total", matcher), rate("joiner_joins_total"))
	}
	return []panel{
		{title: "Pods ready", kind: "stat", unit: "none", width: 3, height: 4,
			description: "Pods whose /readyz says ready.",
			queries:     one("sum("+of("joiner_ready")+")", "ready"), steps: steps("red", 1, "green")},
		{title: "Pods scraped", kind: "stat", unit: "none", width: 3, height: 4,
			description: "Pods whose metrics are scraped, ready or not.",
			queries:     one("count("+of("joiner_build_info")+")", "pods")},
		{title: "Members of the group", kind: "stat", unit: "none", width: 3, height: 4,
			description: "Members of the Kafka group, as the last assignment says: more than pods scraped, and somebody is not seen.",
			queries:     one("max("+of("joiner_group_members")+")", "members")},
		{title: "Partitions without an owner", kind: "stat", unit: "none", width: 3, height: 4,
			description: "Partitions of both inputs that no scraped pod owns: nobody reads them, and they have no series of lag.",
			queries: one(fmt.Sprintf("sum(%s - %s)",
				by("namespace, job, topic", "max", of("joiner_topic_partitions")),
				by("namespace, job, topic", "sum", of("joiner_assigned_partitions"))), "unowned"),
			steps: steps("green", 1, "red")},
		{title: "Local joins", kind: "stat", unit: "percentunit", width: 3, height: 4,
			description: "Share of the joins whose price lies in the same pod. Under copartition it is 100 %.",
			queries:     one(share(`locality="local"`), "local"), steps: steps("orange", 0.999, "green")},
		{title: "Joins with a price", kind: "stat", unit: "percentunit", width: 3, height: 4,
			description: "Share of the joins that found a price, here or in another pod.",
			queries:     one(share(`result="hit"`), "hit"), steps: steps("orange", 0.99, "green")},
		{title: "Longest lag", kind: "stat", unit: "s", width: 3, height: 4,
			description: "How long the oldest unprocessed record of all partitions has been waiting.",
			queries:     one("max("+of("joiner_lag_seconds")+")", "lag")},
		{title: "Alerts firing", kind: "stat", unit: "none", width: 3, height: 4,
			description: "Alerts of the rules beside this dashboard that fire now; docs/runbook.md says what to do.",
			queries: one(`count(ALERTS{alertname=~"Joiner.+", alertstate="firing", `+selector+`}) or vector(0)`,
				"firing"),
			steps: steps("green", 1, "red")},
	}
}

func joins() []panel {
	return []panel{
		{title: "Joins by locality and result", unit: "ops", width: 12, stacked: true,
			description: "Notifications joined a second. Local or remote says in whose memory the price lies, hit, miss or unavailable what was found.",
			queries:     one(by("locality, result", "sum", rate("joiner_joins_total")), "{{locality}} {{result}}")},
		{title: "Alert latency", unit: "s", width: 12,
			description: "From a notification's record timestamp to its output being acknowledged.",
			queries:     quantiles("joiner_alert_latency_seconds", "0.5", "0.95", "0.99")},
		{title: "Price age", unit: "s", width: 8,
			description: "How much older than its notification the joined price is, by event time; negative where the price is newer.",
			queries:     quantiles("joiner_price_age_seconds", "0.5", "0.95")},
		{title: "Join duration, p99", unit: "s", width: 8,
			description: "From the merge taking a notification to its alert being encoded; remote ones ask another pod in between.",
			queries:     one(quantile("0.99", "joiner_join_duration_seconds", "locality"), "{{locality}}")},
		{title: "Look-ups in other pods", unit: "ops", width: 8, stacked: true,
			description: "One for each key and attempt. Moved and restoring belong to a rebalance; timeout, error and overload should be rare.",
			queries:     one(by("outcome", "sum", rate("joiner_remote_lookups_total")), "{{outcome}}")},
	}
}

func lag() []panel {
	each := func(aggregation, metric string) []query {
		return one(by("namespace, job, topic, partition", aggregation, of(metric)), partition)
	}
	return []panel{
		{title: "Lag in records", unit: "short", width: 12,
			description: "High watermark minus committed offset of each partition. Some is always there under load: it waits for the next commit.",
			queries:     each("max", "joiner_lag_records")},
		{title: "Lag in seconds", unit: "s", width: 12,
			description: "Now minus the timestamp of the next unprocessed record of each partition; 0 where there is none.",
			queries:     each("max", "joiner_lag_seconds")},
		{title: "Retention headroom", unit: "s", width: 12,
			description: "How long until retention may delete the next unprocessed record. Partitions of topics with unlimited retention have none.",
			queries:     each("min", "joiner_retention_headroom_seconds")},
		{title: "Records consumed", unit: "ops", width: 12, stacked: true,
			description: "Records a second, each counted once by what became of it.",
			queries:     one(by("topic, outcome", "sum", rate("joiner_records_total")), "{{topic}} {{outcome}}")},
	}
}

func resources() []panel {
	return []panel{
		{title: "Lag by pod", unit: "short", width: 8,
			description: "Lag in records of all partitions that a pod owns.",
			queries:     one(member("", "sum", of("joiner_lag_records")), "{{member}}")},
		{title: "CPU by pod", unit: "none", width: 8,
			description: "CPU seconds a second. Where the lag of a pod grows with its CPU at the limit, more pods or more CPU help; where it does not, look at the brokers.",
			queries:     one(member("", "sum", rate("process_cpu_seconds_total")), "{{member}}")},
		{title: "Memory by pod", unit: "bytes", width: 8,
			description: "Resident memory, the part of it that the price tables take, and Go's soft limit (GOMEMLIMIT).",
			queries: []query{
				{expr: member("", "sum", of("process_resident_memory_bytes")), legend: "{{member}}"},
				{expr: member("", "sum", of("joiner_state_bytes")), legend: "{{member}} price tables"},
				{expr: "min(" + of("go_gc_gomemlimit_bytes") + " < 1e15)", legend: "GOMEMLIMIT"},
			}},
	}
}

func partitions() []panel {
	return []panel{
		{title: "Who owns which partition", kind: "table", unit: "none", width: 12, height: 10,
			description: "A row for each partition number, a column for each pod: both topics' partitions, or one of the two.",
			queries: []query{{
				expr:    by("partition, member", "sum", member("topic, partition", "count", of("joiner_partition_records_total"))),
				instant: true,
			}},
			transformations: []any{
				transformation("convertFieldType", map[string]any{"conversions": []any{
					map[string]any{"targetField": "partition", "destinationType": "number"},
				}}),
				transformation("sortBy", map[string]any{"sort": []any{map[string]any{"field": "partition"}}}),
				transformation("groupingToMatrix", map[string]any{
					"columnField": "member", "rowField": "partition", "valueField": "Value", "emptyValue": "null",
				}),
			},
			mappings: []any{map[string]any{"type": "value", "options": map[string]any{
				"1": map[string]any{"text": "one topic", "color": "orange"},
				"2": map[string]any{"text": "both", "color": "green"},
			}}}},
		{title: "Partition numbers by owner", unit: "none", width: 12, height: 10, stacked: true,
			description: "Partition numbers of which a pod owns both topics' partitions, over time. The sum falls while some are between two owners.",
			queries:     one(member("", "sum", of("joiner_colocated_partitions")), "{{member}}")},
		{title: "Hot partitions", unit: "ops", width: 12,
			description: "Records a second of each partition: one far above the others makes its owner the bottleneck.",
			queries:     one(by("namespace, job, topic, partition", "sum", rate("joiner_partition_records_total")), partition)},
		{title: "Hottest key of each partition", unit: "percentunit", width: 12, max: 1,
			description: "Share of the hottest key among a partition's latest records: what no number of partitions spreads. Absent where there were too few records.",
			queries:     one(by("namespace, job, topic, partition", "max", of("joiner_hottest_key_share_ratio")), partition)},
	}
}

func group() []panel {
	return []panel{
		{title: "Rebalances", unit: "none", width: 8,
			description: "Rebalances within the interval. Each member counts each of them: the largest count is shown.",
			queries:     one(by("namespace, job", "max", increase("joiner_rebalances_total")), "{{job}}")},
		{title: "Duration of rebalances", unit: "s", width: 8,
			description: "From joining the group again to having the assignment. Tasks that stay go on meanwhile.",
			queries:     quantiles("joiner_rebalance_duration_seconds", "0.5", "0.99")},
		{title: "Pauses of tasks that moved", unit: "s", width: 8,
			description: "How long a partition went unprocessed because of a rebalance, restore included.",
			queries:     quantiles("joiner_task_pause_seconds", "0.5", "0.99")},
		{title: "Tasks that moved", unit: "none", width: 8, stacked: true,
			description: "Tasks that came to pods or left them within the interval.",
			queries:     one(by("direction", "sum", increase("joiner_task_moves_total")), "{{direction}}")},
		{title: "Tasks", unit: "none", width: 8, stacked: true,
			description: "What the tasks of all pods are at. A stalled one has work and makes no progress.",
			queries:     one(by("state", "sum", of("joiner_tasks")), "{{state}}")},
		{title: "Generation", unit: "none", width: 8,
			description: "Generation of the group that each pod is in. Lines that stay apart are members of two groups, or one that is left behind.",
			queries:     one(member("", "max", of("joiner_group_generation")), "{{member}}")},
		{title: "Ready", kind: "state-timeline", unit: "none", width: 24,
			description: "Whether /readyz of each pod says ready.",
			queries:     one(member("", "max", of("joiner_ready")), "{{member}}"),
			mappings: []any{map[string]any{"type": "value", "options": map[string]any{
				"0": map[string]any{"text": "not ready", "color": "red"},
				"1": map[string]any{"text": "ready", "color": "green"},
			}}}},
	}
}

func states() []panel {
	return []panel{
		{title: "Restore progress", unit: "short", width: 8,
			description: "Records still to be read before a partition's notifications are joined: it counts down to 0.",
			queries:     one(by("namespace, job, partition", "max", of("joiner_restore_remaining_records")), "{{partition}}")},
		{title: "Duration of restores", unit: "s", width: 8,
			description: "How long tasks took to restore their prices.",
			queries:     quantiles("joiner_restore_duration_seconds", "0.5", "0.99")},
		{title: "Symbols with a price", unit: "short", width: 8, stacked: true,
			description: "Symbols in the price tables of each pod.",
			queries:     one(member("", "sum", of("joiner_state_symbols")), "{{member}}")},
		{title: "Checkpoints that failed", unit: "none", width: 8,
			description: "Checkpoints within the interval that could not be written: the next restore reads more of the log.",
			queries:     one(member("", "sum", increase("joiner_checkpoint_failures_total")), "{{member}}")},
		{title: "Checkpoints found", unit: "none", width: 8, stacked: true,
			description: "Tasks that began within the interval, by what became of the checkpoint that they found. One that is not used costs a longer restore.",
			queries:     one(by("outcome", "sum", increase("joiner_checkpoint_restores_total")), "{{outcome}}")},
		{title: "Age of the last checkpoint", unit: "s", width: 8,
			description: "Time since the oldest of a pod's checkpoints was written, or found to need no writing; nothing where there are none.",
			queries:     one("time() - "+member("", "max", of("joiner_checkpoint_last_success_timestamp_seconds")+" > 0"), "{{member}}")},
	}
}

func troubles() []panel {
	return []panel{
		{title: "Dead letters", unit: "none", width: 12, stacked: true,
			description: "Records within the interval that went to the dead-letter topic, by the topic they came from and why.",
			queries:     one(by("topic, kind", "sum", increase("joiner_dead_letters_total")), "{{topic}} {{kind}}")},
		{title: "Misplaced keys", unit: "ops", width: 12,
			description: "Records a second that lie where the topic's partitioner would not put their keys.",
			queries:     one(by("topic", "sum", rate("joiner_misplaced_keys_total")), "{{topic}}")},
		{title: "Notifications dropped", unit: "none", width: 8, stacked: true,
			description: "Notifications within the interval that got neither an alert nor a dead letter.",
			queries:     one(by("reason", "sum", increase("joiner_alerts_dropped_total")), "{{reason}}")},
		{title: "Out-of-order updates", unit: "ops", width: 8,
			description: "Market updates a second that are older than what the table holds for their symbol.",
			queries:     one(by("namespace, job", "sum", rate("joiner_out_of_order_updates_total")), "{{job}}")},
		{title: "Offsets that were gone", unit: "none", width: 8,
			description: "Positions within the interval that were moved because the committed offset was not in the log any more.",
			queries:     one(by("topic", "sum", increase("joiner_offset_resets_total")), "{{topic}}")},
	}
}

func deliveries() []panel {
	return []panel{
		{title: "Commits", unit: "ops", width: 8, stacked: true,
			description: "Commits a second, each of all partitions of a pod that came forward; a pod without work commits nothing.",
			queries:     one(by("outcome", "sum", rate("joiner_commits_total")), "{{outcome}}")},
		{title: "Transactions", unit: "ops", width: 8, stacked: true,
			description: "Transactions a second under exactly_once, by how they ended.",
			queries:     one(by("outcome", "sum", rate("joiner_transactions_total")), "{{outcome}}")},
		{title: "Failed attempts to produce", unit: "ops", width: 8,
			description: "Attempts a second that brokers refused, by topic and Kafka's name of the error; they are made again.",
			queries:     one(by("topic, error", "sum", rate("joiner_produce_errors_total")), "{{topic}} {{error}}")},
		{title: "Certificates expire in", kind: "stat", unit: "s", width: 12, height: 5,
			description: "Time until the certificate of each use ends; of authorities, the first to end. Nothing where there is no TLS.",
			queries:     one(by("use", "min", of("joiner_tls_certificate_not_after_timestamp_seconds"))+" - time()", "{{use}}"),
			steps:       steps("red", 86400, "orange", 14*86400, "green")},
		{title: "Versions", kind: "table", unit: "none", width: 12, height: 5,
			description: "How many pods run which build.",
			queries:     []query{{expr: by("version, commit, go, sarama", "count", of("joiner_build_info")), instant: true}}},
	}
}

func transformation(id string, options map[string]any) any {
	return map[string]any{"id": id, "options": options}
}

// source is the data source that the dashboard's variable chooses.
func source() map[string]any {
	return map[string]any{"type": "prometheus", "uid": "${datasource}"}
}

// dashboard is the dashboard as Grafana reads it.
func dashboard() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(map[string]any{
		"uid": "joiner", "title": "joiner", "tags": []string{"joiner", "kafka"},
		"description":   "Joins, lag, ownership and health of a group of joiners. Made by test/mixin: change it there.",
		"schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1,
		"refresh": "30s", "timezone": "browser",
		"time":        map[string]any{"from": "now-1h", "to": "now"},
		"annotations": map[string]any{"list": []any{}},
		"links":       []any{},
		"templating":  map[string]any{"list": variables()},
		"panels":      layOut(rows()),
	})
	return out.Bytes(), err
}

const (
	wide          = 24 // columns of Grafana's grid
	defaultHeight = 8
)

// layOut gives each panel its id and its place: from left to right, and on the
// next line where the width is used up.
func layOut(all []row) (panels []any) {
	y := 0
	add := func(p map[string]any, x, w, h int) {
		p["id"] = len(panels) + 1
		p["gridPos"] = map[string]any{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, r := range all {
		add(map[string]any{"type": "row", "title": r.title, "collapsed": false, "panels": []any{}}, 0, wide, 1)
		y++
		x, tallest := 0, 0
		for _, p := range r.panels {
			height := cmp.Or(p.height, defaultHeight)
			if x+p.width > wide {
				x, y, tallest = 0, y+tallest, 0
			}
			add(p.json(), x, p.width, height)
			x, tallest = x+p.width, max(tallest, height)
		}
		y += tallest
	}
	return panels
}

func variables() []any {
	return []any{
		map[string]any{
			"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
			"refresh": 1, "multi": false, "includeAll": false,
		},
		variable("namespace", "Namespace", "label_values(joiner_build_info, namespace)"),
		variable("job", "Release", `label_values(joiner_build_info{namespace=~"$namespace"}, job)`),
	}
}

func variable(name, label, values string) any {
	return map[string]any{
		"name": name, "label": label, "type": "query", "datasource": source(),
		"query":      map[string]any{"query": values, "refId": name},
		"definition": values, "refresh": 2, "sort": 1,
		"multi": true, "includeAll": true, "allValue": ".*",
		"current": map[string]any{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
	}
}

func (p panel) json() map[string]any {
	targets := make([]any, len(p.queries))
	for i, q := range p.queries {
		targets[i] = q.json(string(rune('A' + i)))
	}
	defaults := map[string]any{
		"unit":       p.unit,
		"thresholds": map[string]any{"mode": "absolute", "steps": p.thresholds()},
	}
	if p.mappings != nil {
		defaults["mappings"] = p.mappings
	}
	if p.max > 0 {
		defaults["max"] = p.max
	}
	out := map[string]any{
		"type": cmp.Or(p.kind, "timeseries"), "title": p.title, "description": p.description,
		"datasource": source(), "targets": targets,
		"fieldConfig": map[string]any{"defaults": defaults, "overrides": []any{}},
	}
	if p.transformations != nil {
		out["transformations"] = p.transformations
	}
	out["options"], defaults["custom"] = p.look()
	return out
}

func (p panel) thresholds() []any {
	if p.steps == nil {
		return steps("green")
	}
	return p.steps
}

func (q query) json(id string) any {
	target := map[string]any{
		"refId": id, "datasource": source(), "editorMode": "code",
		"expr": q.expr, "range": !q.instant, "instant": q.instant,
	}
	if q.instant {
		target["format"] = "table"
	} else {
		target["legendFormat"] = q.legend
	}
	return target
}

// look is what depends on the visualization: its options, and those of its
// fields.
func (p panel) look() (options, custom map[string]any) {
	switch p.kind {
	case "stat":
		return map[string]any{
			"colorMode": "value", "graphMode": "area", "textMode": "auto",
			"reduceOptions": map[string]any{"calcs": []any{"lastNotNull"}, "fields": "", "values": false},
		}, map[string]any{}
	case "state-timeline":
		return map[string]any{
			"mergeValues": true, "showValue": "never", "rowHeight": 0.9,
			"legend": map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": false},
		}, map[string]any{}
	case "table":
		return map[string]any{"showHeader": true},
			map[string]any{"align": "center", "cellOptions": map[string]any{"type": "color-text"}}
	}
	custom = map[string]any{"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "axisSoftMin": 0}
	if p.stacked {
		custom["fillOpacity"] = 30
		custom["stacking"] = map[string]any{"mode": "normal", "group": "A"}
	}
	return map[string]any{
		"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []any{}},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}, custom
}
