package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"joiner/test/cluster"
	"joiner/test/proc"
)

const (
	chart = "../../deploy/helm"
	// hostAddress is the host's on the bridge that pods are plugged into.
	hostAddress = "10.244.0.1"
	partitions  = 6
	// sessionTimeout outlasts whatever a busy machine does to a restart, and tells
	// what a shutdown hands over from what a session's end does.
	sessionTimeout = 45 * time.Second
	// commandPatience bounds one command, patience what is waited for; both are
	// there against hanging only.
	commandPatience = 5 * time.Minute
	patience        = 5 * time.Minute
)

// stage is what all scenarios share: the node, brokers, and the joiner as a
// command on the host.
type stage struct {
	*cluster.Cluster
	image  string // repository:tag
	joiner string
}

// newStage skips the test where no node was made for it.
func newStage(t *testing.T) *stage {
	t.Helper()
	image := os.Getenv("JOINER_K8S_IMAGE")
	if testing.Short() || image == "" {
		t.Skip("needs a Kubernetes node and an image in it: make test-k8s")
	}
	binary, err := proc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Start(t, cluster.Options{Address: hostAddress, Settings: []string{
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	return &stage{Cluster: c, image: image, joiner: binary}
}

// command runs a program and returns both of its outputs.
func command(t testing.TB, stdin io.Reader, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	// Not the test's own context, which is over when things are cleaned up.
	ctx, cancel := context.WithTimeout(context.Background(), commandPatience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	cmd.WaitDelay = 10 * time.Second
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), errs.String(), err
}

// release is an installation of the chart, in a namespace and with topics of its
// own.
type release struct {
	*stage
	t         *testing.T
	name      string // of the release, its namespace and its objects
	topics    map[string]string
	values    string            // file
	settings  map[string]string // of joiner as a command on the host
	installed bool
}

// release prepares one; more are values over its own, as for --set.
func (s *stage) release(t *testing.T, name string) *release {
	t.Helper()
	name = "joiner-" + name
	r := &release{stage: s, t: t, name: name, topics: make(map[string]string)}
	for key, role := range map[string]string{
		"market_updates": "market", "notifications": "notes", "enriched_alerts": "alerts", "dead_letters": "dead",
	} {
		r.topics[key] = s.Name(name + "-" + role)
		s.Topic(t, r.topics[key], partitions, nil)
	}
	repository, tag, _ := strings.Cut(s.image, ":")
	values, err := json.Marshal(map[string]any{
		"fullnameOverride": name,
		"image":            map[string]any{"repository": repository, "tag": tag, "pullPolicy": "Never"},
		"replicaCount":     2,
		"kafka":            map[string]any{"brokers": s.Outside},
		"config": map[string]any{
			"topics": r.topics,
			"group":  map[string]any{"session_timeout": sessionTimeout.String()},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.values = filepath.Join(t.TempDir(), "values.json")
	if err := os.WriteFile(r.values, values, 0o600); err != nil {
		t.Fatal(err)
	}
	r.settings = map[string]string{"kafka.brokers": strings.Join(s.Brokers, ","), "group.id": name}
	for key, topic := range r.topics {
		r.settings["topics."+key] = topic
	}
	r.kubectl("create", "namespace", name)
	t.Cleanup(r.cleanUp)
	return r
}

// cleanUp shows what pods say where the test has failed, and takes everything
// away.
func (r *release) cleanUp() {
	if r.t.Failed() {
		for _, args := range [][]string{
			{"get", "all", "--output", "wide"}, {"describe", "pods"},
			{"get", "events", "--sort-by", ".lastTimestamp"},
			{"logs", "--selector", "app.kubernetes.io/instance=" + r.name, "--tail", "40", "--prefix"},
		} {
			out, _, err := r.tryKubectl(args...)
			r.t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if r.installed {
		if _, _, err := r.tryHelm("uninstall", r.name); err != nil {
			r.t.Log(err)
		}
	}
	if _, _, err := command(r.t, nil, "kubectl", "delete", "namespace", r.name, "--timeout", "3m"); err != nil {
		r.t.Error(err)
	}
}

func (r *release) tryKubectl(args ...string) (stdout, stderr string, err error) {
	r.t.Helper()
	return command(r.t, nil, "kubectl", append([]string{"--namespace", r.name}, args...)...)
}

// kubectl runs it in the release's namespace.
func (r *release) kubectl(args ...string) string {
	r.t.Helper()
	out, _, err := r.tryKubectl(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *release) tryHelm(args ...string) (stdout, stderr string, err error) {
	r.t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		helm = "helm"
	}
	return command(r.t, nil, helm, append([]string{"--namespace", r.name}, args...)...)
}

func (r *release) helm(args ...string) string {
	r.t.Helper()
	out, _, err := r.tryHelm(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// install installs the chart; more are further arguments of Helm.
func (r *release) install(more ...string) {
	r.t.Helper()
	r.installed = true
	r.helm(append([]string{"install", r.name, chart, "--values", r.values}, more...)...)
}

// upgrade is of what is installed, with the arguments of the installation and
// these.
func (r *release) upgrade(args ...string) (stdout, stderr string, err error) {
	r.t.Helper()
	return r.tryHelm(append([]string{"upgrade", r.name, chart, "--values", r.values}, args...)...)
}

// pod is what Kubernetes says of one.
type pod struct {
	Metadata struct {
		Name, UID string
	}
	Status struct {
		PodIP             string
		Conditions        []struct{ Type, Status string }
		ContainerStatuses []struct {
			RestartCount int
		}
	}
}

func (p pod) name() string { return p.Metadata.Name }

func (p pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

func (p pod) restarts() (n int) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// pods are those of the StatefulSet, by name.
func (r *release) pods() []pod {
	r.t.Helper()
	var list struct{ Items []pod }
	out := r.kubectl("get", "pods", "--output", "json", "--sort-by", ".metadata.name",
		"--selector", "app.kubernetes.io/component=member,app.kubernetes.io/instance="+r.name)
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

// set is what Kubernetes says of the StatefulSet.
type set struct {
	Metadata struct{ Generation int64 }
	Spec     struct{ Replicas int }
	Status   struct {
		ObservedGeneration              int64
		Replicas, ReadyReplicas         int
		UpdatedReplicas                 int
		CurrentRevision, UpdateRevision string
	}
}

func (r *release) set() (s set) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.kubectl("get", "statefulset", r.name, "--output", "json")), &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// await polls until check returns nil.
func await(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s: %v", patience, what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// awaitReady waits until there are n pods of the newest revision and no others,
// all ready by their probes, and returns them.
func (r *release) awaitReady(n int) []pod {
	r.t.Helper()
	var pods []pod
	await(r.t, fmt.Sprintf("%d pods to be ready", n), func() error {
		s := r.set()
		if s.Status.ObservedGeneration != s.Metadata.Generation || s.Spec.Replicas != n || s.Status.ReadyReplicas != n ||
			s.Status.Replicas != n || (s.Status.UpdateRevision != s.Status.CurrentRevision && s.Status.UpdatedReplicas != n) {
			return fmt.Errorf("StatefulSet: %+v", s)
		}
		pods = r.pods()
		if len(pods) != n {
			return fmt.Errorf("%d pods", len(pods))
		}
		for _, p := range pods {
			if !p.ready() {
				return fmt.Errorf("%s is not ready", p.name())
			}
		}
		return nil
	})
	return pods
}

// get asks a pod's HTTP server.
func get(p pod, path string) (status int, body []byte, err error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + p.Status.PodIP + ":8080" + path)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", p.name(), err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// metrics scrapes pods.
func (r *release) metrics(pods ...pod) (all proc.Metrics) {
	r.t.Helper()
	for _, p := range pods {
		status, body, err := get(p, "/metrics")
		if err != nil || status != http.StatusOK {
			r.t.Fatalf("%s: /metrics: %d %v", p.name(), status, err)
		}
		m, err := proc.ParseMetrics(body)
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

// generation is the group's, which all pods must agree on.
func (r *release) generation(pods []pod) (generation float64) {
	r.t.Helper()
	await(r.t, "one generation", func() error {
		generation = r.metrics(pods[0]).Sum("joiner_group_generation")
		for _, p := range pods[1:] {
			if other := r.metrics(p).Sum("joiner_group_generation"); other != generation {
				return fmt.Errorf("%s is in %v, %s in %v", pods[0].name(), generation, p.name(), other)
			}
		}
		return nil
	})
	return generation
}

// awaitBalanced waits until every partition index has an owner for both topics,
// and the pods' shares differ by one at most.
func (r *release) awaitBalanced(pods []pod) {
	r.t.Helper()
	least, most := float64(partitions/len(pods)), float64((partitions+len(pods)-1)/len(pods))
	await(r.t, "balanced tasks", func() error {
		total := 0.0
		for _, p := range pods {
			n := r.metrics(p).Sum("joiner_colocated_partitions")
			if n < least || n > most {
				return fmt.Errorf("%s has %v tasks of %d", p.name(), n, partitions)
			}
			total += n
		}
		if total != partitions {
			return fmt.Errorf("%v of %d tasks are owned", total, partitions)
		}
		return nil
	})
}
