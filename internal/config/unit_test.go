package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestDurationsReadBack(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 5 * time.Millisecond: "5ms", 1500 * time.Millisecond: "1500ms", time.Second: "1s",
		60 * time.Second: "60s", 90 * time.Second: "90s", 2 * time.Minute: "2m", time.Hour: "1h",
		-30 * time.Second: "-30s", 7: "7ns", 3 * time.Microsecond: "3us", time.Hour + time.Second: "3601s",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "d"))
		got, wrong := parseDuration(formatDuration(d))
		if wrong != nil || got != d {
			t.Fatalf("%d is written %s and read %v %v", d, formatDuration(d), got, wrong)
		}
	})
}

func TestEveryNumberHasABound(t *testing.T) {
	bounded := map[string]bool{}
	for _, b := range numberBounds() {
		bounded[b.key] = true
	}
	c := Default()
	for _, f := range leaves(&c) {
		if f.value.CanInt() != bounded[f.key] {
			t.Errorf("%s: a number %v, bounded %v", f.key, f.value.CanInt(), bounded[f.key])
		}
	}
}

func TestNilListsAreEmptyLists(t *testing.T) {
	c := Default()
	c.Peer.AllowedNames = nil
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestSecretShowsItselfToNobody(t *testing.T) {
	const text = "hunter2"
	holder := struct {
		S Secret
		P *Secret
		M map[string]Secret
	}{text, nil, map[string]Secret{"k": text}}
	var shown []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10.3s"} {
		shown = append(shown, fmt.Sprintf(verb, Secret(text)), fmt.Sprintf(verb, holder))
	}
	j, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	shown = append(shown, string(j), string(y), Secret(text).String())
	for _, s := range shown {
		if strings.Contains(s, text) || strings.Contains(strings.ToLower(s), fmt.Sprintf("%x", text)) {
			t.Errorf("the secret is in %s", s)
		}
	}
	if Secret(text).Reveal() != text || fmt.Sprint(Secret("")) != "" {
		t.Error("Reveal must return it, and an empty one show as empty")
	}
}

func TestPrintingRedacts(t *testing.T) {
	c := Default()
	c.Kafka.SASL.Password, c.Kafka.SASL.ClientSecret, c.Peer.Token = "hunter2", "hunter2", "hunter2"
	j, err := c.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{c.YAML(), string(j)} {
		if strings.Contains(text, "hunter2") || strings.Count(text, "redacted") != 3 {
			t.Errorf("shown:\n%s", text)
		}
	}
}

func TestJSONHoldsEveryKey(t *testing.T) {
	j, err := Default().JSON()
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(j, &object); err != nil {
		t.Fatal(err)
	}
	for _, key := range Keys() {
		value := any(object)
		for part := range strings.SplitSeq(key, ".") {
			value = value.(map[string]any)[part]
		}
		if value == nil {
			t.Errorf("%s is missing or null", key)
		}
	}
	if got := object["group"].(map[string]any)["session_timeout"]; got != "10s" {
		t.Errorf("group.session_timeout is %v", got)
	}
}

// TestTextsSurvivePrinting covers texts that YAML would take for something
// else.
func TestTextsSurvivePrinting(t *testing.T) {
	for _, text := range []string{"", " ", "~", "null", "yes", "007", "4.0", "1e3", "a: b", "# c", "a #b", "[x", "{y}", "&z", "*w", "!t", "'", `"`, `\`, "a\nb", "a\n", "\t", "<redacted>", "日経225", "\u0085", "\x00", "-", "- a", "|", "2026-01-05", "a,b"} {
		c := Default()
		c.Group.ID = text
		c.Kafka.SASL.Scopes = []string{text, "x"}
		got, err := Load(Options{Path: write(t, c.YAML())})
		faults := faultsOf(t, err)
		if len(faults) > 0 && !reflect.DeepEqual(faults.Keys(), []string{"group.id"}) { // "" is no group
			t.Errorf("%q: %v", text, faults)
		}
		if got.Group.ID != text || !reflect.DeepEqual(got.Kafka.SASL.Scopes, c.Kafka.SASL.Scopes) {
			t.Errorf("%q came back as %q and %q", text, got.Group.ID, got.Kafka.SASL.Scopes)
		}
	}
}

func TestSecretFilesAreReadAtEachCall(t *testing.T) {
	name := write(t, "one\n")
	sasl := SASL{PasswordFile: name, ClientSecretFile: name}
	peer := Peer{TokenFile: name}
	for text, want := range map[string]Secret{
		"one\n": "one", "two": "two", "three\n\n": "three\n", "four\r\n": "four", "\x20five\x20": " five ",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for which, read := range map[string]func() (Secret, error){
			"password": sasl.ReadPassword, "client secret": sasl.ReadClientSecret, "token": peer.ReadToken,
		} {
			got, err := read()
			if err != nil || got != want {
				t.Errorf("%s of %q: %q, %v", which, text, got.Reveal(), err)
			}
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := sasl.ReadPassword(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if got, err := (SASL{Password: "given"}).ReadPassword(); err != nil || got != "given" {
		t.Errorf("%q, %v", got.Reveal(), err)
	}
}

func TestLargeSecretFileIsRefused(t *testing.T) {
	name := write(t, strings.Repeat("x", maxSecretBytes+1))
	if _, err := (Peer{TokenFile: name}).ReadToken(); err == nil {
		t.Error("read")
	}
}

func TestSymbols(t *testing.T) {
	got, err := Reserved{SymbolsFile: write(t, "BRK.B\r\n\n\xff\xfe\n a \n日経225")}.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]byte{[]byte("BRK.B"), {0xff, 0xfe}, []byte(" a "), []byte("日経225")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestUnknownIsSuggested(t *testing.T) {
	c := Default()
	s := newSchema(&c)
	for key, want := range map[string]string{
		"kafka.brokrs": "kafka.brokers", "kafka.clientId": "kafka.client_id", "session_timeout": "group.session_timeout",
		"kafak": "kafka", "Kafka": "kafka", "group.session-timeout": "group.session_timeout", "peer.tls.client_aut": "peer.tls.client_auth",
		"entirely.different": "",
	} {
		if got := s.nearest(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

func TestFlagFaults(t *testing.T) {
	_, err := Load(Options{Flags: parsed(t, "--set", "group.id", "--set", "kafka.tls=on", "--set", "grop.id=x", "--set", "group.session_timeout=5", "--log-level=loud")})
	got := faultsOf(t, err).Error()
	for _, want := range []string{
		"group.id: --set without a value; write --set group.id=VALUE (--set)",
		"kafka.tls: is a section; set one of the keys in it (--set)",
		"grop.id: unknown key; did you mean group.id? (--set)",
		`group.session_timeout: "5" has no unit; write 5s or 5ms, whichever is meant (--set)`,
		`log.level: "loud" is not known; write debug, info, warn or error (--log-level)`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing: %s\nin:\n%s", want, got)
		}
	}
}

func TestWarnings(t *testing.T) {
	c := Default()
	c.Kafka.TLS.CAFile, c.Kafka.SASL.Username, c.Peer.TLS.ClientAuth = "f", "u", true
	c.Topics.ReplicationFactor, c.Topics.Partitioner, c.Topics.Reserved = 3, "custom", []Reserved{{}}
	if got := c.warnings(); len(got) != 5 {
		t.Errorf("%q", got)
	}
	c.Topics.NotificationsPartitioner = "crc32" // placement of one is judged
	if got := c.warnings(); len(got) != 4 {
		t.Errorf("%q", got)
	}
	c.Topics.DeadLetters, c.Join.OnMiss = "", "dead_letter"
	if got := c.warnings(); len(got) != 5 {
		t.Errorf("%q", got)
	}
}

func TestPerTopicPartitioners(t *testing.T) {
	topics := Topics{Partitioner: "murmur2", NotificationsPartitioner: "crc32"}
	if topics.MarketPartitioner() != "murmur2" || topics.NotificationPartitioner() != "crc32" {
		t.Errorf("%s, %s", topics.MarketPartitioner(), topics.NotificationPartitioner())
	}
	topics.MarketUpdatesPartitioner = "fnv1a"
	if topics.MarketPartitioner() != "fnv1a" {
		t.Error(topics.MarketPartitioner())
	}
}

func TestTransactionalIDPrefix(t *testing.T) {
	c := Default()
	c.Group.ID = "tier-1"
	if got := c.TransactionalIDPrefix(); got != "tier-1-" {
		t.Error(got)
	}
}

// TestValidateOrder keeps faults in the order of the file, unknown keys first.
func TestValidateOrder(t *testing.T) {
	c := Default()
	c.Shutdown.Timeout, c.Kafka.Brokers, c.Group.ID = 0, nil, ""
	var faults Faults
	if err := c.Validate(); !errors.As(err, &faults) {
		t.Fatal(err)
	}
	if want := []string{"kafka.brokers", "group.id", "shutdown.timeout"}; !reflect.DeepEqual(faults.Keys(), want) {
		t.Errorf("%v", faults.Keys())
	}
}
