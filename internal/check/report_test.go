package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"joiner/internal/kafka"
)

// The list in docs/check.md and the one in the code are the same, in the same
// order, and each entry says what it means, its statuses and the remedy.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|(.*)\\|(.*)\\|(.*)\\|$").FindAllStringSubmatch(string(text), -1)
	var documented []string
	for _, row := range rows {
		documented = append(documented, row[1])
		for _, cell := range row[2:] {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("%s: an empty cell", row[1])
			}
		}
	}
	if diff := cmp.Diff(IDs(), documented); diff != "" {
		t.Errorf("docs/check.md lists other ids than the code (-code +doc):\n%s", diff)
	}
}

// TestReport: the text has the worst last, the object keeps the order of the ids.
func TestReport(t *testing.T) {
	r := reportOf([]Finding{
		{ID: "input_topics", Status: Failure, Subject: "market-updates", Message: "does not exist", Remedy: "create it"},
		{ID: "config", Status: OK, Subject: "configuration", Message: "valid"},
		{ID: "hot_keys", Status: Warning, Subject: "notifications", Message: "hot", Remedy: "split it"},
	})
	if r.Failed != 1 || r.Warned != 1 {
		t.Errorf("failed %d, warned %d", r.Failed, r.Warned)
	}
	var text bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	const want = `ok       config        configuration   valid
warning  hot_keys      notifications   hot
         → split it
failure  input_topics  market-updates  does not exist
         → create it
1 failure, 1 warning, 1 ok
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	object, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const wantObject = `{"findings":[{"id":"input_topics","status":"failure","subject":"market-updates","message":"does not exist","remedy":"create it"},` +
		`{"id":"config","status":"ok","subject":"configuration","message":"valid","remedy":""},` +
		`{"id":"hot_keys","status":"warning","subject":"notifications","message":"hot","remedy":"split it"}],"failed":1,"warned":1}`
	if string(object) != wantObject {
		t.Errorf("got %s", object)
	}
}

// The four lines that matter are the last ones of a cluster without topics; what
// follows from them is a line a topic, and a warning of its own in the object.
func TestReportWithoutTopics(t *testing.T) {
	o, f := healthyOptions(t), healthyFacts()
	for _, topic := range []string{marketTopic, noteTopic, alertTopic, deadTopic} {
		f.Layouts[topic] = kafka.Layout{Topic: kafka.Topic{Name: topic}}
	}
	r := reportOf(judge(o, f))
	var text bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	var status []string
	for line := range strings.Lines(text.String()) {
		if !strings.HasPrefix(line, " ") {
			status = append(status, strings.Fields(line)[0])
		}
	}
	status = status[:len(status)-1] // the sum
	if got := slices.Compact(slices.DeleteFunc(slices.Clone(status), func(s string) bool { return s == "ok" })); !slices.Equal(got, []string{"skipped", "failure"}) {
		t.Errorf("the worst are not last: %q\n%s", got, text.String())
	}
	many := func(what string) (n int) {
		for _, s := range status {
			if s == what {
				n++
			}
		}
		return n
	}
	if many("skipped") != 4 || many("failure") != 4 || r.Failed != 4 {
		t.Errorf("%d skipped, %d failures, %d failed; want 4 of each\n%s", many("skipped"), many("failure"), r.Failed, text.String())
	}
	for _, id := range []string{"replication", "retention", "market_cleanup", "key_placement", "message_size", "rights"} {
		if !strings.Contains(text.String(), " "+id+",") && !strings.Contains(text.String(), " "+id+"\n") {
			t.Errorf("%s is not said to have been skipped\n%s", id, text.String())
		}
	}
	if sum := fmt.Sprintf("4 failures, 0 warnings, %d ok, %d skipped\n", many("ok"), r.Warned); !strings.HasSuffix(text.String(), sum) {
		t.Errorf("does not end with %q\n%s", sum, text.String())
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", time.Second: "1s", 1500 * time.Millisecond: "1.5s", time.Minute: "1m",
		90 * time.Minute: "1.5h", time.Hour: "1h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 7 * 24 * time.Hour: "7d",
		-2 * time.Hour: "-2h", unlimited: "unlimited",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%d): got %q, want %q", int64(d), got, want)
		}
	}
}

func TestNumbered(t *testing.T) {
	for want, ids := range map[string][]int32{
		"partition 3":                                  {3},
		"partitions 1, 2":                              {2, 1},
		"partitions 0, 1, 2, 3, 4, 5, 6, 7":            {0, 1, 2, 3, 4, 5, 6, 7},
		"partitions 0, 1, 2, 3, 4, 5, 6, 7 and 2 more": {9, 8, 7, 6, 5, 4, 3, 2, 1, 0},
	} {
		if got := numbered("partition", ids); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
