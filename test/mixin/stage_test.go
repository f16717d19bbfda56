package mixin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"joiner/internal/embedded"
	"joiner/test/pki"
	"joiner/test/proc"
)

// stage is what is watched: two groups of joiners as people run them, one a
// guarantee, and a load that goes on.
type stage struct {
	t       *testing.T
	cluster *embedded.Cluster
	pods    []pod
}

// pod is a process, and the release that it belongs to.
type pod struct {
	*proc.Proc
	job string
}

const stagePartitions = 4

func newStage(t *testing.T) *stage {
	t.Helper()
	topics := []embedded.Topic{}
	for _, name := range []string{"market-updates", "notifications", "enriched-alerts", "enriched-alerts-dlq", "twins", "twins-dlq"} {
		topics = append(topics, embedded.Topic{Name: name, Partitions: stagePartitions})
	}
	cluster, err := embedded.Start(embedded.Options{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	s := &stage{t: t, cluster: cluster}
	certificates := s.certificates()
	s.join("joiner", "joiner-0", certificates, s.checkpoints())
	s.join("joiner", "joiner-1", certificates, s.checkpoints())
	s.join("twins", "twins-0", map[string]string{
		"group.id": "twins", "delivery.guarantee": "exactly_once",
		"topics.enriched_alerts": "twins", "topics.dead_letters": "twins-dlq",
	})
	for _, p := range s.pods {
		p.WaitReady()
	}
	s.load()
	return s
}

// join starts a pod.
func (s *stage) join(job, name string, settings ...map[string]string) {
	s.t.Helper()
	all := s.settings()
	for _, some := range settings {
		maps.Copy(all, some)
	}
	s.pods = append(s.pods, pod{proc.Start(s.t, name, s.t.TempDir(), all), job})
}

func (s *stage) settings() map[string]string {
	return map[string]string{
		"kafka.brokers": strings.Join(s.cluster.Addrs(), ","),
		"http.listen":   "127.0.0.1:0", "peer.listen": "127.0.0.1:0",
	}
}

// checkpoints are settings of a pod that writes some, where this version does.
func (s *stage) checkpoints() map[string]string {
	if !checkpoints(s.t) {
		return nil
	}
	return map[string]string{"state.dir": s.t.TempDir(), "state.checkpoint_interval": "1s"}
}

// certificates are settings of pods that encrypt what they ask each other.
func (s *stage) certificates() map[string]string {
	dir := s.t.TempDir()
	authority, err := pki.NewAuthority("pods")
	if err != nil {
		s.t.Fatal(err)
	}
	// It ends within a day: an alert that fires for what a pod really says.
	pair, err := authority.Issue(pki.Request{Name: "pod", Hosts: []string{"127.0.0.1"}, Validity: 12 * time.Hour})
	if err != nil {
		s.t.Fatal(err)
	}
	cert, key, ca := filepath.Join(dir, "pod.pem"), filepath.Join(dir, "pod.key"), filepath.Join(dir, "ca.pem")
	if err := errors.Join(pair.Write(cert, key), pki.Replace(ca, authority.PEM())); err != nil {
		s.t.Fatal(err)
	}
	return map[string]string{
		"peer.tls.enabled": "true", "peer.tls.cert_file": cert, "peer.tls.key_file": key, "peer.tls.ca_file": ca,
	}
}

// load has ticks and notifications come for as long as the test lasts.
func (s *stage) load() {
	s.t.Helper()
	binary, err := proc.Binary()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), binary, "load",
		"--rate", "100", "--duration", "0s", "--symbols", "40", "--skew", "hot:0.5")
	cmd.Dir = s.t.TempDir() // where no config.yaml lies
	cmd.Env = proc.Environment(s.settings())
	background(s.t, cmd)
}

// background runs a command until the test ends, and shows the end of what it
// said where the test has failed by then.
func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = proc.DieWithTest()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // the test's context has ended, and with it the command
		if t.Failed() {
			t.Logf("%s said:\n%s", cmd, said.Bytes()[max(0, said.Len()-4000):])
		}
	})
}

// spoil makes what only faults make: a dead letter, and a batch that is refused.
func (s *stage) spoil() {
	s.t.Helper()
	s.cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "enriched-alerts", Err: kerr.NotEnoughReplicas})
	conf := sarama.NewConfig()
	conf.Version = sarama.V3_6_0_0
	conf.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(s.cluster.Addrs(), conf)
	if err != nil {
		s.t.Fatal(err)
	}
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{
		Topic: "notifications", Key: sarama.StringEncoder("BAD"), Value: sarama.StringEncoder("{"),
	})
	if err := errors.Join(err, producer.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// families are what all pods export now, by name.
func (s *stage) families() map[string]*dto.MetricFamily {
	s.t.Helper()
	all := map[string]*dto.MetricFamily{}
	for _, p := range s.pods {
		body, err := get(s.t.Context(), "http://"+p.Address()+"/metrics")
		if err != nil {
			s.t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		for name, f := range families {
			if known := all[name]; known != nil {
				known.Metric = append(known.Metric, f.Metric...)
				continue
			}
			all[name] = f
		}
	}
	return all
}

// get returns what is answered with 200, else an error that shows it.
func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var body bytes.Buffer
	if _, err := body.ReadFrom(answer.Body); err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d: %s", url, answer.StatusCode, body.Bytes())
	}
	return body.Bytes(), nil
}
