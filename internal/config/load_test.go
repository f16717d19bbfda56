package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite config.yaml from the struct")

// write puts text into a file of its own and returns its name.
func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// parsed returns the flags of AddFlags with args parsed.
func parsed(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags
}

// faultsOf returns the faults in err, none where there is no error.
func faultsOf(t testing.TB, err error) Faults {
	t.Helper()
	var faults Faults
	if err != nil && !errors.As(err, &faults) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return faults
}

// source says where key was set, or "default".
func (l *Loaded) source(key string) string {
	if s, ok := l.sources[key]; ok {
		return s
	}
	return "default"
}

func load(t *testing.T, o Options) *Loaded {
	t.Helper()
	loaded, err := Load(o)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return loaded
}

func TestDefaultIsValid(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if w := c.warnings(); w != nil {
		t.Errorf("warnings on the defaults: %q", w)
	}
}

func TestDefaultIsFresh(t *testing.T) {
	Default().Kafka.Brokers[0] = "elsewhere:1"
	if got := Default().Kafka.Brokers[0]; got != "localhost:9092" {
		t.Errorf("a change reached the next Default: %s", got)
	}
}

func TestDocumentedFile(t *testing.T) {
	const name = "../../config.yaml"
	if *update {
		if err := os.WriteFile(name, []byte(DefaultFile()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultFile(), string(got)); diff != "" {
		t.Errorf("config.yaml differs from the struct; run go test ./internal/config -update\n%s", diff)
	}
	loaded := load(t, Options{Path: name, Explicit: true})
	if diff := cmp.Diff(Default(), loaded.Config); diff != "" {
		t.Errorf("config.yaml is not the default configuration (-want +got):\n%s", diff)
	}
	byKey := newSchema(&loaded.Config).byKey
	for _, key := range Keys() {
		if set := loaded.source(key) != "default"; set == byKey[key].derived {
			t.Errorf("config.yaml sets %s: %t", key, set)
		}
		if line := byKey[key].name() + ": "; !strings.Contains(string(got), line) {
			t.Errorf("config.yaml does not show %s", key)
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	c := Default()
	for _, f := range fields(&c) {
		if f.name() == "" || f.doc == "" || !strings.HasSuffix(f.doc, ".") || strings.Contains(f.doc, "\n") {
			t.Errorf("%q: meaning %q is not one sentence", f.key, f.doc)
		}
	}
}

func TestEnvironmentNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, key := range Keys() {
		if other, twice := seen[EnvName(key)]; twice {
			t.Errorf("%s and %s share %s", other, key, EnvName(key))
		}
		seen[EnvName(key)] = key
	}
}

// other returns a text for f and the value that it means, which is not the
// default.
func other(t *testing.T, f field) (text string, want any) {
	t.Helper()
	switch v := f.value.Interface().(type) {
	case string:
		for _, word := range f.words {
			if word != v {
				return word, word
			}
		}
		return "elsewhere:1", "elsewhere:1"
	case Secret:
		return "s3cret", Secret("s3cret")
	case bool:
		if v {
			return "false", false
		}
		return "true", true
	case time.Duration:
		return "1h1m1s", time.Hour + time.Minute + time.Second
	case int:
		return "42", 42
	case int16:
		return "42", int16(42)
	case []string:
		if len(f.words) > 0 {
			return f.words[1] + "," + f.words[2], []string{f.words[1], f.words[2]}
		}
		return "a:1, b:2", []string{"a:1", "b:2"}
	case []Reserved:
		return "3=/tier/one,0=/tier/two", []Reserved{{3, "/tier/one"}, {0, "/tier/two"}}
	}
	t.Fatalf("%s: no other value for a %s", f.key, f.value.Type())
	return "", nil
}

// TestEveryKeyBySource walks the struct and sets each key through each source
// alone. Some values are faults of their own in this version, which does not
// matter here: what counts is that they arrive.
func TestEveryKeyBySource(t *testing.T) {
	full := write(t, DefaultFile())
	empty := write(t, "")
	sources := map[string]func(key, text string) Options{
		"environment, no file": func(key, text string) Options { return Options{Environ: []string{EnvName(key) + "=" + text}} },
		"environment, empty file": func(key, text string) Options {
			return Options{Path: empty, Environ: []string{EnvName(key) + "=" + text}}
		},
		"environment, full file": func(key, text string) Options {
			return Options{Path: full, Environ: []string{EnvName(key) + "=" + text}}
		},
		"--set":         func(key, text string) Options { return Options{Path: full, Flags: parsed(t, "--set", key+"="+text)} },
		"file, as text": func(key, text string) Options { return Options{Path: write(t, nested(key, quoted(text)))} },
	}
	defaults := Default()
	byKey := newSchema(&defaults).byKey
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			for _, f := range leaves(&defaults) {
				text, want := other(t, f)
				loaded, err := Load(source(f.key, text))
				_ = faultsOf(t, err) // faults between keys are no matter here
				for _, got := range leaves(&loaded.Config) {
					expected := byKey[got.key].value.Interface()
					if got.key == f.key {
						expected = want
					}
					if got.key == "delivery.commit_interval" && f.key == "delivery.guarantee" {
						expected = exactlyOnceCommitInterval
					}
					if !reflect.DeepEqual(got.value.Interface(), expected) {
						t.Errorf("%s=%s: %s is %v, want %v", f.key, text, got.key, got.value, expected)
					}
				}
				if loaded.source(f.key) == "default" {
					t.Errorf("%s: no source", f.key)
				}
			}
		})
	}
}

// nested writes a dotted key as sections.
func nested(key, value string) string {
	var b strings.Builder
	parts := strings.Split(key, ".")
	for i, part := range parts {
		b.WriteString(strings.Repeat("  ", i) + part + ":")
		if i < len(parts)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestPrecedence(t *testing.T) {
	path := write(t, "group:\n  id: of-file\nlog:\n  level: warn\nkafka:\n  brokers: [f:1, g:2, h:3]\n")
	env := []string{"JOINER_GROUP_ID=of-env", "JOINER_LOG_LEVEL=error", "JOINER_KAFKA_BROKERS=e:1"}
	for _, c := range []struct {
		name    string
		o       Options
		id      string
		source  string
		level   string
		brokers []string
	}{
		{"defaults", Options{}, "joiner", "default", "info", []string{"localhost:9092"}},
		{"file", Options{Path: path}, "of-file", path + ":2", "warn", []string{"f:1", "g:2", "h:3"}},
		{"environment over file", Options{Path: path, Environ: env}, "of-env", "JOINER_GROUP_ID", "error", []string{"e:1"}},
		{"flag over environment", Options{Path: path, Environ: env, Flags: parsed(t, "--group-id=of-flag", "--brokers=a:1,b:2")}, "of-flag", "--group-id", "error", []string{"a:1", "b:2"}},
		{"--set over environment", Options{Path: path, Environ: env, Flags: parsed(t, "--set", "group.id=of-set")}, "of-set", "--set", "error", []string{"e:1"}},
		{"the last --set", Options{Flags: parsed(t, "--set", "group.id=one", "--set", "group.id=two")}, "two", "--set", "info", []string{"localhost:9092"}},
		{"named flag over --set", Options{Flags: parsed(t, "--group-id=named", "--set", "group.id=set")}, "named", "--group-id", "info", []string{"localhost:9092"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := load(t, c.o)
			if got.Group.ID != c.id || got.source("group.id") != c.source || got.Log.Level != c.level || !reflect.DeepEqual(got.Kafka.Brokers, c.brokers) {
				t.Errorf("group %s from %s, level %s, brokers %v", got.Group.ID, got.source("group.id"), got.Log.Level, got.Kafka.Brokers)
			}
		})
	}
}

func TestNamedFlagsNameKeys(t *testing.T) {
	c := Default()
	s := newSchema(&c)
	for _, f := range namedFlags() {
		if _, ok := s.byKey[f.key]; !ok {
			t.Errorf("--%s sets %s, which does not exist", f.name, f.key)
		}
	}
}

func TestEmptyVariableEmptiesItsKey(t *testing.T) {
	got := load(t, Options{Environ: []string{"JOINER_TOPICS_DEAD_LETTERS="}})
	if got.Topics.DeadLetters != "" {
		t.Errorf("dead letters go to %q", got.Topics.DeadLetters)
	}
}

func TestUnknownVariablesAreWarnings(t *testing.T) {
	got := load(t, Options{Environ: []string{
		"JOINER_GRUOP_ID=x", "JOINER_NONSENSE=y", "OTHER_GROUP_ID=z",
		// What Kubernetes adds for services named joiner and joiner-peers.
		"JOINER_SERVICE_HOST=10.0.0.1", "JOINER_PORT=tcp://10.0.0.1:8080", "JOINER_SERVICE_PORT_HTTP=8080",
		"JOINER_PEERS_PORT_8081_TCP_ADDR=10.0.0.2", "JOINER_PORT_8080_TCP=tcp://10.0.0.1:8080",
	}})
	want := []string{
		"environment variable JOINER_GRUOP_ID names no configuration key and is ignored; did you mean JOINER_GROUP_ID?",
		"environment variable JOINER_NONSENSE names no configuration key and is ignored",
	}
	if diff := cmp.Diff(want, got.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

// TestScalarsAreTakenAsWritten covers what a YAML decoder would have changed.
func TestScalarsAreTakenAsWritten(t *testing.T) {
	got := load(t, Options{Path: write(t, `
kafka:
  client_id: 007
  version: 4.0.0
  rack: 1.10
group:
  id: yes
join:
  max_waiting: "12"
  remote_lookup: "true"
topics:
  notifications: 2026-01-05
  market_updates: &name 1e3
  enriched_alerts: null.1
`)})
	if got.Kafka.ClientID != "007" || got.Kafka.Version != "4.0.0" || got.Kafka.Rack != "1.10" || got.Group.ID != "yes" ||
		got.Join.MaxWaiting != 12 || got.Topics.Notifications != "2026-01-05" || got.Topics.MarketUpdates != "1e3" {
		t.Errorf("changed on the way: %+v %+v", got.Kafka, got.Topics)
	}
}

func TestAnchorsWork(t *testing.T) {
	got := load(t, Options{Path: write(t, "kafka:\n  client_id: &n shared\ngroup:\n  id: *n\n")})
	if got.Group.ID != "shared" {
		t.Errorf("group.id is %q", got.Group.ID)
	}
}

func TestReservedForms(t *testing.T) {
	tier := write(t, "BBCA\nTLKM\n")
	want := []Reserved{{Partition: 0, SymbolsFile: tier}}
	file := load(t, Options{Path: write(t, "topics:\n  reserved:\n    - partition: 0\n      symbols_file: "+quoted(tier)+"\n")})
	env := load(t, Options{Environ: []string{"JOINER_TOPICS_RESERVED=0=" + tier}})
	for name, got := range map[string]*Loaded{"file": file, "environment": env} {
		if !reflect.DeepEqual(got.Topics.Reserved, want) {
			t.Errorf("%s: %v", name, got.Topics.Reserved)
		}
	}
}

func TestExplicitFileMustExist(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent.yaml")
	if got := load(t, Options{Path: absent}); got.Path != "" {
		t.Errorf("read %s", got.Path)
	}
	_, err := Load(Options{Path: absent, Explicit: true})
	if faults := faultsOf(t, err); len(faults) != 1 || !strings.Contains(faults[0].Problem, absent) {
		t.Errorf("faults %v", faults)
	}
	_, err = Load(Options{Path: t.TempDir()}) // a directory is no file, asked for or not
	if faults := faultsOf(t, err); len(faults) != 1 {
		t.Errorf("faults %v", faults)
	}
}

func TestCommitIntervalFollowsTheGuarantee(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"delivery:\n  guarantee: at_least_once\n":                        time.Second,
		"delivery:\n  guarantee: exactly_once\n":                         100 * time.Millisecond,
		"delivery:\n  guarantee: exactly_once\n  commit_interval: 300ms": 300 * time.Millisecond,
		"delivery:\n  guarantee: exactly_once\n  commit_interval: 1s":    time.Second,
		DefaultFile(): time.Second,
		strings.Replace(DefaultFile(), "guarantee: at_least_once", "guarantee: exactly_once", 1): 100 * time.Millisecond,
	} {
		got := load(t, Options{Path: write(t, text)})
		if got.Delivery.CommitInterval != want {
			t.Errorf("%q: %s, want %s", text, got.Delivery.CommitInterval, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(DefaultFile()))
	f.Add([]byte("kafka: &a\n  tls: *a\n"))
	f.Add([]byte("group:\n  id: \"\\x00<redacted>, [\"\n"))
	f.Add([]byte("topics:\n  reserved: [{partition: 1, symbols_file: '['}]\n"))
	f.Add([]byte("kafka:\n  brokers:\n  - a:1\n  - 'b,c:2'\n---\nx: 1\n"))
	cases, err := filepath.Glob("testdata/conf.*.yml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range cases {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := Load(Options{Path: write(t, string(text)), Explicit: true})
		if err != nil {
			if len(faultsOf(t, err)) == 0 {
				t.Fatal("an error without a fault")
			}
			return
		}
		// What loads must print as a file that loads to the same values.
		second, err := Load(Options{Path: write(t, first.YAML()), Explicit: true})
		if faults := faultsOf(t, err); len(faults) > 0 {
			t.Fatalf("printed:\n%s\nfaults: %v", first.YAML(), faults)
		}
		if diff := cmp.Diff(unsecret(first.Config), unsecret(second.Config)); diff != "" {
			t.Fatalf("changed by printing:\n%s", diff)
		}
	})
}

// unsecret takes away what does not survive printing.
func unsecret(c Config) Config {
	c.Kafka.SASL.Password, c.Kafka.SASL.ClientSecret, c.Peer.Token = "", "", ""
	return c
}

func TestSecretsInTheClearAreWarnings(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string // of one warning; empty: none
	}{
		{func(c *Config) { c.Kafka.SASL.Mechanism = "PLAIN" }, "sends the password in the clear"},
		{func(c *Config) { c.Kafka.SASL.Mechanism = "OAUTHBEARER" }, "sends tokens in the clear"},
		{func(c *Config) { c.Kafka.SASL.Mechanism = "SCRAM-SHA-256" }, ""},
		{func(c *Config) { c.Kafka.SASL.Mechanism = "PLAIN"; c.Kafka.TLS.Enabled = true }, ""},
		{func(c *Config) {
			c.Kafka.SASL.Mechanism, c.Kafka.TLS.Enabled = "OAUTHBEARER", true
			c.Kafka.SASL.TokenURL = "HTTP://login.example.com"
		}, "client secret in the clear"},
		{func(c *Config) { c.Kafka.TLS.Enabled, c.Kafka.TLS.InsecureSkipVerify = true, true }, "pose as a broker"},
		{func(c *Config) { c.Peer.Token, c.Peer.TLS.Enabled = "t", true }, "peer.token is shown to whatever address"},
		{func(c *Config) { c.Peer.TokenFile, c.Peer.TLS.Enabled = "f", true }, "peer.token is shown to whatever address"},
		{func(c *Config) { c.Peer.TLS.Enabled = true }, ""},
		{func(c *Config) { c.Peer.Token, c.Peer.TLS.Enabled, c.Peer.TLS.CAFile = "t", true, "f" }, ""},
		{func(c *Config) {
			c.Peer.Token, c.Peer.TLS.Enabled, c.Peer.AllowedNames = "t", true, []string{"*.joiner.svc"}
		}, ""},
	} {
		conf := Default()
		c.change(&conf)
		got := conf.warnings()
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("warnings %q, want one with %q", got, c.want)
		}
	}
}
