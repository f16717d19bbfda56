package mixin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"joiner/test/proc"
)

// server is a Prometheus that scrapes a stage every second.
type server struct{ url string }

// startPrometheus runs one that scrapes the stage twice: as from Kubernetes, a
// job a release with namespace and pod, and plainly as from static_configs, all
// in one job without either.
func startPrometheus(t *testing.T, s *stage, features ...string) *server {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(filepath.Join(rulesDir, rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	static := func(p pod, labels map[string]string) any {
		return map[string]any{"targets": []string{p.Address()}, "labels": labels}
	}
	releases := map[string][]any{}
	var plain []any
	for _, p := range s.pods {
		releases[p.job] = append(releases[p.job], static(p, map[string]string{"namespace": "shop", "pod": p.Name}))
		if p.job == "joiner" {
			plain = append(plain, static(p, nil))
		}
	}
	jobs := []any{map[string]any{"job_name": "compose", "static_configs": plain}}
	for name, targets := range releases {
		jobs = append(jobs, map[string]any{"job_name": name, "static_configs": targets})
	}
	conf, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &server{url: "http://" + freeAddress(t)}
	cmd := exec.CommandContext(t.Context(), installed(t, "prometheus"),
		"--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(p.url, "http://"), "--log.level=warn",
		"--enable-feature="+strings.Join(features, ","))
	background(t, cmd)
	proc.Await(t, "Prometheus to be ready", func() error {
		_, err := get(t.Context(), p.url+"/-/ready")
		return err
	})
	return p
}

// freeAddress is one of loopback that nobody listens at. Prometheus does not
// say which port it was given.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// ask returns what the API answers as data.
func (p *server) ask(ctx context.Context, path string, query url.Values, data any) error {
	body, err := get(ctx, p.url+path+"?"+query.Encode())
	if err != nil {
		return err
	}
	var answer struct {
		Status   string
		Data     json.RawMessage
		Warnings []string
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		return fmt.Errorf("%s: %s, %v", path, answer.Status, answer.Warnings)
	}
	return json.Unmarshal(answer.Data, data)
}

// query evaluates an expression now and returns how many series it has.
func (p *server) query(ctx context.Context, expr string) (series int, err error) {
	var data struct {
		ResultType string
		Result     []json.RawMessage
	}
	if err := p.ask(ctx, "/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, err
	}
	if data.ResultType != "vector" {
		return 0, fmt.Errorf("a %s, not a vector", data.ResultType)
	}
	return len(data.Result), nil
}

// ruleState is what Prometheus says of an alerting rule.
type ruleState struct {
	Name, Health, LastError, State, LastEvaluation string
	Alerts                                         []struct {
		Labels map[string]string
		State  string
	}
}

func (p *server) rules(ctx context.Context) (states []ruleState, err error) {
	var data struct {
		Groups []struct{ Rules []ruleState }
	}
	if err := p.ask(ctx, "/api/v1/rules", url.Values{"type": {"alert"}}, &data); err != nil {
		return nil, err
	}
	for _, g := range data.Groups {
		states = append(states, g.Rules...)
	}
	return states, nil
}
