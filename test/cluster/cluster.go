// Package cluster gives tests a real Apache Kafka cluster on loopback: the one
// that KAFKA_BROKERS names, else one of their own, started by test/kafka/up and
// stopped when the test ends. It also runs clients that are not ours, Kafka's
// own tools and kcat, so that tests see records as other people write them.
//
// It must never be imported by the service, and never stop a cluster that it
// did not start. Tests that use it are named TestKafka…, and are skipped under
// -short.
package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

// startPatience bounds a start that has to fetch the jars first.
const startPatience = 10 * time.Minute

// toolPatience bounds one run of a tool or of kcat, so that a hung one fails
// its test and not the whole run.
const toolPatience = 3 * time.Minute

// Options says what cluster a test needs. The zero value is three brokers,
// shared with other tests where KAFKA_BROKERS is set.
type Options struct {
	// Brokers is the number of nodes, 1 to 9; 0 is 3. It is not looked at
	// where a shared cluster is used.
	Brokers int
	// Settings are broker settings more, as key=value.
	Settings []string
	// Fronts is the number of ways to each broker that lead through a proxy of
	// the test's own, 0 to 9. It implies Private, and excludes Secure.
	Fronts int
	// Address is an IPv4 address of this machine on which each broker listens,
	// too, for clients that are elsewhere; under Secure those listeners are
	// there instead. It implies Private.
	Address string
	// Private asks for a cluster of one's own even where KAFKA_BROKERS is
	// set: for tests that stop brokers, or that need Settings.
	Private bool
	// Secure asks for the listeners, users and ACLs of test/kafka/up --secure.
	// It implies Private.
	Secure bool
	// TokenLifetime is how long the tokens of a secured cluster's endpoint are
	// valid; 0 is 5 minutes.
	TokenLifetime time.Duration
}

// Cluster is a running cluster.
type Cluster struct {
	// Brokers are the bootstrap addresses, host:port, in the order of the
	// brokers' numbers.
	Brokers []string
	// Dir is where the nodes' data, logs and pid files lie; empty for a
	// foreign cluster, whose brokers cannot be stopped.
	Dir string
	// Fronts are the ways through proxies, Options.Fronts of them, each with a
	// Front for every broker, in the order of their numbers.
	Fronts [][]Front
	// Outside are the bootstrap addresses for clients elsewhere, in the order of
	// the brokers' numbers; nil unless Options.Address was set.
	Outside []string
	// Secure is nil unless Options.Secure was set.
	Secure *Secure

	scripts string
	owned   bool
	env     []string // of the scripts, besides this process's own
	names   atomic.Int64
}

// Front is a way to one broker: a client that comes through it is told to go on
// through the same way to the others.
type Front struct {
	// Proxy is where a proxy has to listen, host:port, Broker where it has to
	// pass on to.
	Proxy, Broker string
}

// Start returns a cluster for the test, which is stopped when the test ends if
// it was started here. It skips the test under -short.
func Start(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Kafka cluster: not under -short")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	c, err := Launch(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("broker logs:\n%s", c.LogTails())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Launch is Start without a test, for TestMain and for programs: the caller
// calls Close.
func Launch(ctx context.Context, opts Options) (*Cluster, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	scripts := filepath.Join(root, "test", "kafka")
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" && !opts.private() {
		return &Cluster{Brokers: strings.Split(brokers, ","), Dir: os.Getenv("KAFKA_DIR"), scripts: scripts}, nil
	}

	dir, err := os.MkdirTemp("", "joiner-kafka.")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the cluster: %w", err)
	}
	c := &Cluster{Dir: dir, scripts: scripts, owned: true}
	env, err := c.up(ctx, opts)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.Brokers = strings.Split(env["KAFKA_BROKERS"], ",")
	if opts.Fronts > 0 {
		c.Fronts = frontsOf(env["KAFKA_FRONTS"], len(c.Brokers))
	}
	if opts.Address != "" && !opts.Secure {
		c.Outside = strings.Split(env["KAFKA_ADDRESS_BROKERS"], ",")
	}
	if opts.Secure {
		if c.Secure, err = newSecure(env); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// private tells whether a shared cluster will not do.
func (o Options) private() bool { return o.Private || o.Secure || o.Fronts > 0 || o.Address != "" }

func (c *Cluster) up(ctx context.Context, opts Options) (map[string]string, error) {
	// The watch ends the cluster when this process does, even by a signal.
	args := []string{"--dir", c.Dir, "--watch", strconv.Itoa(os.Getpid())}
	if opts.Brokers > 0 {
		args = append(args, "--brokers", strconv.Itoa(opts.Brokers))
	}
	if opts.Secure {
		args = append(args, "--secure")
		c.env = append(c.env, "KAFKA_TOKEN_LIFETIME="+cmp.Or(opts.TokenLifetime, 5*time.Minute).String())
	}
	if opts.Fronts > 0 {
		args = append(args, "--fronts", strconv.Itoa(opts.Fronts))
	}
	if opts.Address != "" {
		args = append(args, "--address", opts.Address)
	}
	for _, s := range opts.Settings {
		args = append(args, "--set", s)
	}
	out, err := c.script(ctx, nil, "up", args...)
	if err != nil {
		return nil, err
	}
	env := parseEnv(out)
	if env["KAFKA_BROKERS"] == "" {
		return nil, fmt.Errorf("test/kafka/up named no brokers: %q", out)
	}
	return env, nil
}

// frontsOf reads what test/kafka/up says of them.
func frontsOf(text string, brokers int) (fronts [][]Front) {
	for i, one := range strings.Fields(text) {
		if i%brokers == 0 {
			fronts = append(fronts, nil)
		}
		proxy, broker, _ := strings.Cut(one, ">")
		fronts[len(fronts)-1] = append(fronts[len(fronts)-1], Front{proxy, broker})
	}
	return fronts
}

// Close stops the cluster and removes its data if Launch started it.
func (c *Cluster) Close() error {
	if !c.owned {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), toolPatience)
	defer cancel()
	_, err := c.script(ctx, nil, "down")
	return errors.Join(err, os.RemoveAll(c.Dir))
}

// Name returns a name that no other test on this cluster uses, for topics and
// groups; it begins with prefix.
func (c *Cluster) Name(prefix string) string {
	return fmt.Sprintf("%s-%d-%x-%d", prefix, os.Getpid(), time.Now().UnixNano()&0xffffff, c.names.Add(1))
}

// Topic creates a topic as CreateTopic does; it is removed when the test ends.
func (c *Cluster) Topic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	if err := c.CreateTopic(name, partitions, configs); err != nil {
		t.Fatal(err)
	}
	// Not the administrator of the creation: the test may have stopped the
	// broker that it was connected to.
	t.Cleanup(func() {
		admin, err := sarama.NewClusterAdmin(c.Brokers, c.Config())
		if err != nil {
			return // the cluster is gone already
		}
		defer func() { _ = admin.Close() }()
		if err := admin.DeleteTopic(name); err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			t.Logf("removing topic %s: %v", name, err)
		}
	})
}

// CreateTopic creates a topic and returns once every broker in Brokers knows a
// leader for each of its partitions. The replication factor is the cluster's
// default; configs may be nil.
func (c *Cluster) CreateTopic(name string, partitions int32, configs map[string]string) error {
	admin, err := sarama.NewClusterAdmin(c.Brokers, c.Config())
	if err != nil {
		return fmt.Errorf("connecting to %v: %w", c.Brokers, err)
	}
	defer func() { _ = admin.Close() }()
	entries := make(map[string]*string, len(configs))
	for k, v := range configs {
		entries[k] = &v
	}
	err = admin.CreateTopic(name, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: entries,
	}, false)
	if err != nil {
		return fmt.Errorf("creating topic %s: %w", name, err)
	}
	return c.AwaitTopic(name, partitions)
}

// AwaitTopic returns once every broker in Brokers knows a leader for each of the
// topic's partitions: what one knows another may learn a moment later, and a
// client asks any of them.
func (c *Cluster) AwaitTopic(name string, partitions int32) error {
	deadline := time.Now().Add(time.Minute)
	for _, address := range c.Brokers {
		for !c.leads(address, name, partitions) {
			if time.Now().After(deadline) {
				return fmt.Errorf("topic %s: broker %s does not know leaders for its %d partitions", name, address, partitions)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

func (c *Cluster) leads(address, topic string, partitions int32) bool {
	broker := sarama.NewBroker(address)
	if err := broker.Open(c.Config()); err != nil {
		return false
	}
	defer func() { _ = broker.Close() }()
	answer, err := broker.GetMetadata(sarama.NewMetadataRequest(sarama.V2_8_0_0, []string{topic}))
	if err != nil || len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != int(partitions) {
		return false
	}
	for _, p := range answer.Topics[0].Partitions {
		if p.Err != sarama.ErrNoError || p.Leader < 0 {
			return false
		}
	}
	return true
}

// Config returns a sarama configuration for test clients of a cluster that asks
// nobody who he is.
func Config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = "joiner-test"
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

// Admin returns an administrator that is closed when the test ends.
func (c *Cluster) Admin(t testing.TB) sarama.ClusterAdmin {
	t.Helper()
	admin, err := sarama.NewClusterAdmin(c.Brokers, c.Config())
	if err != nil {
		t.Fatalf("connecting to %v: %v", c.Brokers, err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	return admin
}

// KeyValue is a record for the console producer. Neither part may hold a tab
// or a line feed.
type KeyValue struct {
	Key, Value string
}

// ConsoleProduce writes records with Kafka's own console producer, which
// places keys as Java clients do (murmur2). Properties are the producer's, as
// key=value.
func (c *Cluster) ConsoleProduce(t testing.TB, topic string, records []KeyValue, properties ...string) {
	t.Helper()
	args := []string{
		"--bootstrap-server", c.bootstrap(), "--topic", topic,
		"--reader-property", "parse.key=true", "--reader-property", "key.separator=\t",
	}
	for _, p := range properties {
		args = append(args, "--command-property", p)
	}
	if c.Secure != nil {
		args = append(args, "--command-config", c.Secure.File("admin.properties"))
	}
	c.Tool(t, lines(t, records), "ConsoleProducer", args...)
}

// KcatProduce writes records with kcat (librdkafka), whose default placement is
// crc32; settings are librdkafka's, such as partitioner=murmur2_random.
func (c *Cluster) KcatProduce(t testing.TB, topic string, records []KeyValue, settings ...string) {
	t.Helper()
	args := []string{"-P", "-t", topic, "-K", "\t"}
	for _, s := range settings {
		args = append(args, "-X", s)
	}
	c.Kcat(t, lines(t, records), args...)
}

func lines(t testing.TB, records []KeyValue) io.Reader {
	t.Helper()
	var b bytes.Buffer
	for _, r := range records {
		if strings.ContainsAny(r.Key+r.Value, "\t\n") {
			t.Fatalf("record %q cannot be written as a line: it holds a tab or a line feed", r)
		}
		fmt.Fprintf(&b, "%s\t%s\n", r.Key, r.Value)
	}
	return &b
}

// Tool runs one of Kafka's tools and returns its standard output. A class
// without a dot is one of org.apache.kafka.tools. stdin may be nil.
func (c *Cluster) Tool(t testing.TB, stdin io.Reader, class string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toolPatience)
	defer cancel()
	out, err := c.script(ctx, stdin, "tool", append([]string{class}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Kcat runs kcat against the cluster and returns its standard output,
// installing it first where it is missing. stdin may be nil.
func (c *Cluster) Kcat(t testing.TB, stdin io.Reader, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toolPatience)
	defer cancel()
	if _, err := exec.LookPath("kcat"); err != nil {
		if _, err := run(exec.CommandContext(ctx, filepath.Join(c.scripts, "..", "install"), "kcat"), nil); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", c.bootstrap()}, args...)...)
	if c.Secure != nil {
		cmd.Env = append(os.Environ(), "KCAT_CONFIG="+c.Secure.File("kcat.conf"))
	}
	out, err := run(cmd, stdin)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// StopBroker stops broker n (from 1) in order: its leaders move first.
func (c *Cluster) StopBroker(t testing.TB, n int) { t.Helper(); c.broker(t, n, "stop") }

// KillBroker ends broker n (from 1) at once.
func (c *Cluster) KillBroker(t testing.TB, n int) { t.Helper(); c.broker(t, n, "kill") }

// PauseBroker makes broker n (from 1) silent without closing its connections.
func (c *Cluster) PauseBroker(t testing.TB, n int) { t.Helper(); c.broker(t, n, "pause") }

// ResumeBroker ends what PauseBroker began.
func (c *Cluster) ResumeBroker(t testing.TB, n int) { t.Helper(); c.broker(t, n, "resume") }

// StartBroker starts broker n (from 1) again on its data and returns when it
// answers; it may still be catching up with the leaders then.
func (c *Cluster) StartBroker(t testing.TB, n int) { t.Helper(); c.broker(t, n, "start") }

func (c *Cluster) broker(t testing.TB, n int, action string) {
	t.Helper()
	if !c.owned {
		t.Fatalf("broker %d: a shared cluster's brokers are not to be touched: start one with Private", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), toolPatience)
	defer cancel()
	if _, err := c.script(ctx, nil, "broker", strconv.Itoa(n), action); err != nil {
		t.Fatal(err)
	}
}

// LogTails returns the last lines of each broker's log, warnings and worse.
func (c *Cluster) LogTails() string {
	const tail = 2048
	var b strings.Builder
	logs, _ := filepath.Glob(filepath.Join(c.Dir, "[1-9]", "log"))
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			text = []byte(err.Error())
		}
		if len(text) > tail {
			text = text[len(text)-tail:]
		}
		fmt.Fprintf(&b, "%s: %s\n", name, text)
	}
	return b.String()
}

func (c *Cluster) bootstrap() string { return strings.Join(c.Brokers, ",") }

// script runs one of test/kafka's scripts on this cluster's directory.
func (c *Cluster) script(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.scripts, name), args...)
	cmd.Env = append(append(os.Environ(), "KAFKA_DIR="+c.Dir), c.env...)
	return run(cmd, stdin)
}

func run(cmd *exec.Cmd, stdin io.Reader) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	// Brokers inherit nothing that would keep Wait from returning, but a
	// killed script may leave a child that holds the pipes.
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// parseEnv reads the lines KEY='value' that test/kafka/up prints.
func parseEnv(text string) map[string]string {
	env := make(map[string]string)
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		key, value, ok := strings.Cut(s.Text(), "=")
		if !ok {
			continue
		}
		env[key] = strings.Trim(value, "'")
	}
	return env
}

// moduleRoot finds the directory of go.mod above the working directory, which
// for a test is its package's.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the module: no go.mod above the working directory")
		}
		dir = parent
	}
}
