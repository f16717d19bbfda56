package app

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"joiner/internal/assign"
	"joiner/internal/config"
	"joiner/internal/kube"
	"joiner/internal/member"
)

// apiServer answers every request with the StatefulSet, and returns where it is
// for a pod, and how often it was asked.
func apiServer(t *testing.T, status int, set string) (kube.Options, *atomic.Int32) {
	t.Helper()
	asked := new(atomic.Int32)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(set))
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(at.Host)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"token": "token", "ca.crt": string(ca), "namespace": "prices"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return kube.Options{Host: host, Port: port, Dir: dir}, asked
}

const threeReplicas = `{"kind":"StatefulSet","spec":{"replicas":3}}`

func TestWhoLeaves(t *testing.T) {
	inside, asked := apiServer(t, http.StatusOK, threeReplicas)
	forbidden, _ := apiServer(t, http.StatusForbidden, `{}`)
	for _, c := range []struct {
		leave, instance string
		host            string
		kubernetes      kube.Options
		want, asks      bool
	}{
		{leave: "always", want: true},
		{leave: "never"},
		{leave: "auto", want: true},
		{leave: "always", instance: "joiner-0", want: true, kubernetes: inside},
		{leave: "never", instance: "joiner-3", kubernetes: inside},
		{leave: "auto", instance: "joiner-3"},
		{leave: "auto", instance: "joiner-2", kubernetes: inside, asks: true},
		{leave: "auto", instance: "joiner-3", kubernetes: inside, want: true, asks: true},
		{leave: "auto", instance: "", kubernetes: inside, want: true},
		{leave: "auto", instance: "joiner-3", kubernetes: forbidden},
		{leave: "auto", instance: "joiner-3", kubernetes: kube.Options{Host: "127.0.0.1", Dir: t.TempDir()}},
		{leave: "auto", instance: "no_ordinal", host: "vm", kubernetes: inside},
		{leave: "auto", instance: "no_ordinal", host: "joiner-3", kubernetes: inside, want: true, asks: true},
		{leave: "auto", instance: "joiner-3", host: "joiner-3", kubernetes: inside, want: true, asks: true},
		{leave: "auto", instance: "joiner-3", host: "joiner-2", kubernetes: inside},
	} {
		conf := config.Default()
		conf.Group.Leave, conf.Group.InstanceID = c.leave, c.instance
		a := &App{o: Options{Config: conf, Kubernetes: c.kubernetes}, log: zap.NewNop(), fateLimit: patience, host: c.host}
		before := asked.Load()
		if got := a.leaves(t.Context()); got != c.want {
			t.Errorf("%s of %q leaves: %t", c.leave, c.instance, got)
		}
		if asks := asked.Load() > before; asks != c.asks {
			t.Errorf("%s of %q asks Kubernetes: %t", c.leave, c.instance, asks)
		}
	}
}

// members are the group's in the coordinator's book, by instance id.
func (s *stage) members() (instances []string) {
	s.t.Helper()
	admin, err := sarama.NewClusterAdminFromClient(s.client)
	if err != nil {
		s.t.Fatal(err)
	}
	groups, err := admin.DescribeConsumerGroups([]string{"joiner"})
	if err != nil || len(groups) != 1 {
		s.t.Fatalf("groups %v, error %v", groups, err)
	}
	for _, m := range groups[0].Members {
		id := ""
		if m.GroupInstanceId != nil {
			id = *m.GroupInstanceId
		}
		instances = append(instances, id)
	}
	slices.Sort(instances)
	return instances
}

// What is in the group once the pods have stopped.
func TestLeavingTheGroup(t *testing.T) {
	scaledDown, asked := apiServer(t, http.StatusOK, threeReplicas)
	s := newStage(t, allTopics()...)
	core, logs := observer.New(zap.InfoLevel)
	s.log = zap.New(core)
	in := func(instance, leave string) func(*config.Config) {
		return func(c *config.Config) {
			c.Group.InstanceID, c.Group.Leave = instance, leave
			c.Group.SessionTimeout = 5 * time.Minute // the longest that the embedded broker takes: nobody goes by himself
		}
	}
	s.kubernetes = scaledDown
	pods := []*pod{
		s.start(in("joiner-1", "auto")), // stays: one of three
		s.start(in("joiner-3", "auto")), // is one too many
		s.start(in("joiner-0", "always")),
		s.start(in("joiner-4", "never")),
		s.start(in("", "never")),
		s.start(in("", "auto")),
	}
	for _, p := range pods {
		p.awaitReady()
	}
	if got := s.members(); len(got) != len(pods) {
		t.Fatalf("members %q", got)
	}
	for _, p := range pods {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
	if got, want := s.members(), []string{"", "joiner-1", "joiner-4"}; !slices.Equal(got, want) {
		t.Errorf("members %q, want %q", got, want)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("Kubernetes was asked %d times, by two pods", n)
	}
	if all := logs.FilterMessage("the member has left the group").FilterField(zap.String("instance_id", "joiner-3")).Len(); all != 1 {
		t.Errorf("%d lines say that joiner-3 has left", all)
	}
}

// statics are a static and what it has asked for.
func statics(instance string) (*static, *int) {
	rejoined := new(int)
	return &static{
		instance: instance, self: instance, log: zap.NewNop(),
		mine:       func() assign.Identity { return assign.Identity{ID: instance, Address: "b:1", Transactional: "g-b"} },
		partitions: func(topic string) int32 { return map[string]int32{"ticks": 8}[topic] },
		rejoin:     func() { *rejoined++ },
	}, rejoined
}

func directoryOf(address, transactional string) *assign.Directory {
	return &assign.Directory{
		Members:    []assign.Member{{Identity: assign.Identity{ID: "pod-1", Address: address, Transactional: transactional}}},
		Partitions: map[string]int32{"ticks": 6, "unknown": 6},
	}
}

// What the others know of a member that was started again is mended once.
func TestStaleDirectory(t *testing.T) {
	truncated := directoryOf("a:1", "g-b")
	truncated.Truncated = true
	for name, c := range map[string]struct {
		instance string
		d        *assign.Directory
		want     int
	}{
		"as it is":                    {"pod-1", directoryOf("b:1", "g-b"), 0},
		"another address":             {"pod-1", directoryOf("a:1", "g-b"), 1},
		"another transactional id":    {"pod-1", directoryOf("b:1", ""), 1},
		"not listed":                  {"pod-2", directoryOf("a:1", "g-b"), 0},
		"too large a group":           {"pod-1", truncated, 0},
		"a foreign leader":            {"pod-1", nil, 0},
		"a dynamic member has no ago": {"", directoryOf("a:1", "g-b"), 0},
	} {
		s, rejoined := statics(c.instance)
		s.self = max(c.instance, "pod-1")
		for range 3 { // a leader that cannot be told is not told for ever
			s.learn(assign.Assignment{Directory: c.d})
		}
		if *rejoined != c.want {
			t.Errorf("%s: joined again %d times, want %d", name, *rejoined, c.want)
		}
	}
}

// A leader that was started again looks for new partitions itself, and only it.
func TestInheritedGrowth(t *testing.T) {
	s, rejoined := statics("pod-1")
	d := directoryOf("b:1", "g-b")
	s.learn(assign.Assignment{Directory: d})
	if s.grown(); *rejoined != 0 {
		t.Error("a member that sarama looks for does it too")
	}
	s.learn(assign.Assignment{Directory: d, Inherited: true})
	if s.grown(); *rejoined != 1 {
		t.Errorf("joined again %d times after the topic grew", *rejoined)
	}
	d.Partitions["ticks"] = 8
	if s.grown(); *rejoined != 1 {
		t.Error("joined again although the counts are those of the plan")
	}
	d.Partitions["ticks"] = 6
	s.learn(assign.Assignment{Directory: d}) // planned anew
	if s.grown(); *rejoined != 1 {
		t.Error("joined again although it has planned")
	}
}

func TestFencedMemberSaysSo(t *testing.T) {
	conf := config.Default()
	conf.Group.InstanceID = "joiner-7"
	a := &App{o: Options{Config: conf}}
	reasons := a.groupReasons(member.Status{LastError: sarama.ErrFencedInstancedId})
	if len(reasons) != 1 || !strings.Contains(reasons[0], "group.instance_id joiner-7") {
		t.Errorf("reasons %q", reasons)
	}
}

func TestIdentityIsTheInstance(t *testing.T) {
	conf := config.Default()
	conf.Group.InstanceID = "joiner-7"
	a, err := New(Options{Config: conf})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.identity(); got.ID != "joiner-7" || got.Instance != "joiner-7" {
		t.Errorf("identity %+v", got)
	}
	if got := KafkaOptions(conf).InstanceID; got != "joiner-7" {
		t.Errorf("instance id for Kafka %q", got)
	}
}
