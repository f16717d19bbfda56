package remote

import (
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"joiner/internal/task"
	"joiner/internal/wire"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sampleRequest() *request {
	return &request{
		scope: scope{cluster: "MkU3OEVBNTcwNTJENDM2Qg", group: "joiner", topic: "market-updates", topicID: "t-1", generation: 7},
		to:    "pod-1", asker: "pod-0", hops: 1, budget: 175 * time.Millisecond,
		asked: []asked{{partition: 3, at: 1767582000123, symbol: "BBCA"}, {partition: 0, at: -1, symbol: "\xff\x00"}, {partition: 5, now: true, symbol: "BMRI"},
			{partition: 3, at: 1767582000123, symbol: "BBRI", age: 1500 * time.Millisecond, ticket: task.Ticket{Task: 1 << 63, Seq: 300}}},
	}
}

func sampleResponse() *response {
	return &response{
		answerer: "pod-1", refusal: "",
		replies: []reply{
			{outcome: outFound, partition: 3, next: 10423, asOf: true, eventTime: 1767582000123, offset: 10422, text: "9150.25"},
			{outcome: outNoPrice, partition: 0, next: 12, held: true},
			{outcome: outMoved, owner: pod{"pod-2", "pod-2.joiner:8081"}, since: 8},
			{outcome: outTimeout, ticket: task.Ticket{Task: 1 << 63, Seq: 300}},
		},
	}
}

// The bytes are relied upon during a rolling upgrade.
func TestGoldenBytes(t *testing.T) {
	for name, data := range map[string][]byte{"questions.v1.hex": sampleRequest().encode(), "answers.v1.hex": sampleResponse().encode()} {
		file := filepath.Join("testdata", name)
		got := strings.Join(chunks(hex.EncodeToString(data), 64), "\n") + "\n"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s:\n%swant\n%s", name, got, want)
		}
	}
}

func chunks(s string, n int) (list []string) {
	for len(s) > n {
		list, s = append(list, s[:n]), s[n:]
	}
	return append(list, s)
}

func TestRoundTrip(t *testing.T) {
	r := sampleRequest()
	data := wire.AppendField(r.encode(), 77, []byte("of a later version"))
	got, err := decodeRequest(data)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v, want %+v", got, err, r)
	}
	a := sampleResponse()
	if back, err := decodeResponse(wire.AppendField(a.encode(), 77, nil), r.asked); err != nil || !reflect.DeepEqual(back, a) {
		t.Errorf("%+v, %v, want %+v", back, err, a)
	}
}

// An earlier release says neither how long an answer has been wanted nor when a
// question first came.
func TestEarlierForms(t *testing.T) {
	q := []asked{{partition: 3, symbol: "BBCA"}}
	b := append(wire.Header(wire.KindAnswers), wire.AppendField(nil, tagAnswer, []byte{outTimeout})...)
	resp, err := decodeResponse(b, q)
	if err != nil || resp.replies[0] != (reply{outcome: outTimeout}) {
		t.Errorf("%+v, %v", resp, err)
	}
	b = append(wire.Header(wire.KindQuestions), wire.AppendField(nil, tagQuestion, []byte("\x03\x00\x02\x04BBCA"))...)
	r, err := decodeRequest(b)
	if err != nil || r.asked[0] != (asked{partition: 3, at: 1, symbol: "BBCA"}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// An answer that cannot be one is an error and nothing else.
func TestAnswersThatCannotBe(t *testing.T) {
	q := []asked{{partition: 3, symbol: "BBCA"}}
	found := reply{outcome: outFound, partition: 3, text: "1"}
	with := func(change func(*reply)) reply {
		r := found
		change(&r)
		return r
	}
	if _, err := decodeResponse((&response{replies: []reply{found}}).encode(), q); err != nil {
		t.Fatal(err)
	}
	for name, replies := range map[string][]reply{
		"none":                   nil,
		"two":                    {found, found},
		"another partition":      {with(func(r *reply) { r.partition = 4 })},
		"a word for a price":     {with(func(r *reply) { r.text = "abc" })},
		"no text":                {with(func(r *reply) { r.text = "" })},
		"an object for a price":  {with(func(r *reply) { r.text = `{"a":1}` })},
		"more than a number":     {with(func(r *reply) { r.text = `1,"x":2` })},
		"a space behind":         {with(func(r *reply) { r.text = "1 " })},
		"null":                   {with(func(r *reply) { r.text = "null" })},
		"no price of another":    {{outcome: outNoPrice, partition: 4}},
		"leading zero, not JSON": {with(func(r *reply) { r.text = "01" })},
	} {
		if resp, err := decodeResponse((&response{replies: replies}).encode(), q); err == nil {
			t.Errorf("%s: %+v", name, resp)
		}
	}
	later := append([]byte{wire.FormatVersion + 1}, (&response{replies: []reply{found}}).encode()[1:]...)
	var version wire.VersionError
	if _, err := decodeResponse(later, q); !errors.As(err, &version) {
		t.Errorf("a later version: %v", err)
	}
}

func TestTooManyKeys(t *testing.T) {
	r := sampleRequest()
	r.asked = make([]asked, MaxKeys+1)
	if _, err := decodeRequest(r.encode()); !errors.Is(err, errTooMany) {
		t.Errorf("%v", err)
	}
}

// Prices as long as records may be do not make a response without bounds: those
// left out are asked for again, and the first is always in.
func TestLongPrices(t *testing.T) {
	long := strings.Repeat("9", maxAnswerBytes-100)
	q := make([]asked, 3)
	resp, err := decodeResponse((&response{replies: []reply{
		{outcome: outFound, text: long}, {outcome: outFound, text: long}, {outcome: outNoPrice},
	}}).encode(), q)
	if err != nil || resp.replies[0].text != long || resp.replies[1].outcome != outOverload || resp.replies[2].outcome != outNoPrice {
		t.Errorf("%v, %d, %d", err, resp.replies[1].outcome, resp.replies[2].outcome)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(sampleRequest().encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRequest(data)
		if err != nil {
			return
		}
		if len(r.asked) > MaxKeys || r.budget > maxBudget {
			t.Fatalf("%d keys, budget %v", len(r.asked), r.budget)
		}
		again, err := decodeRequest(r.encode())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add(sampleResponse().encode(), int32(3))
	f.Fuzz(func(t *testing.T, data []byte, partition int32) {
		q := []asked{{partition: partition}, {partition: 0}, {partition: 5}}
		resp, err := decodeResponse(data, q)
		if err != nil {
			return
		}
		for i, r := range resp.replies {
			if r.outcome == outFound && (!isNumber([]byte(r.text)) || r.partition != q[i].partition) {
				t.Fatalf("%+v", r)
			}
		}
	})
}
