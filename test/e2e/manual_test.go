package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"joiner/test/cluster"
)

// manual is what people are told to do, which is what the tests do.
const manual = "../../docs/operations.md"

// right is a row of the manual's tables of ACLs.
type right struct {
	kind      sarama.AclResourceType
	key       string // the configuration key that names the resource; empty for the cluster
	operation sarama.AclOperation
	where     string // "always", or the setting that it is needed for
	without   string
}

// always is where a right that every joiner needs is needed.
const always = "always"

// exactlyOnce is where a right is needed by a joiner that writes in
// transactions.
const exactlyOnce = "delivery.guarantee: exactly_once"

// warns is how the manual begins where a joiner goes on without the right, and
// ends where one does not start without it.
const (
	warns = "warning"
	ends  = "ends at its start"
)

func (r right) String() string {
	return fmt.Sprintf("%s on %s %s", r.operation.String(), strings.ToLower(r.kind.String()), r.key)
}

// section returns the manual's text under a heading, down to the next one.
func section(t testing.TB, heading string) string {
	t.Helper()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", manual, heading)
	}
	rest, _, _ = strings.Cut(rest, "\n#")
	return rest
}

// snippet is the first YAML under the heading.
func snippet(t testing.TB, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(section(t, heading), "```yaml\n")
	if !ok {
		t.Fatalf("%s has no YAML under %q", manual, heading)
	}
	text, _, _ := strings.Cut(rest, "```")
	return text
}

// rightsUnder reads the table of ACLs under the heading.
func rightsUnder(t testing.TB, heading string) (rights []right) {
	t.Helper()
	for line := range strings.Lines(section(t, heading)) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 {
			t.Fatalf("%s: %d cells in %q", manual, len(cells), line)
		}
		if cells[0] == "resource" || strings.HasPrefix(cells[0], "--") {
			continue
		}
		rights = append(rights, parseRight(t, cells))
	}
	if len(rights) == 0 {
		t.Fatalf("%s has no table under %q", manual, heading)
	}
	return rights
}

func parseRight(t testing.TB, cells []string) right {
	t.Helper()
	kind, key, _ := strings.Cut(cells[0], " ")
	r := right{key: strings.Trim(key, "`"), where: strings.Trim(cells[2], "`"), without: cells[4]}
	if err := r.kind.UnmarshalText([]byte(strings.ReplaceAll(kind, "-", ""))); err != nil {
		t.Fatalf("%s: %q: %v", manual, cells[0], err)
	}
	if err := r.operation.UnmarshalText([]byte(cells[1])); err != nil {
		t.Fatalf("%s: %q: %v", manual, cells[1], err)
	}
	return r
}

// name is what the resource is called in this world.
func (r right) name(w *World) string {
	switch r.kind {
	case sarama.AclResourceCluster:
		return "kafka-cluster"
	default:
		name := w.Settings[r.key]
		if name == "" {
			w.t.Fatalf("%s: the test has no setting %s", r, r.key)
		}
		return name
	}
}

func (r right) acl(w *World, principal string) cluster.ACL {
	w.t.Helper()
	return cluster.ACL{
		Principal: principal, Type: r.kind, Name: r.name(w), Operation: r.operation,
		Prefixed: r.kind == sarama.AclResourceTransactionalID, // its key is a prefix
	}
}
