package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/assign"
	"joiner/internal/member"
	"joiner/internal/status"
)

// view asks a pod for its status over HTTP.
func (p *pod) view(scope string) status.View {
	p.t.Helper()
	code, body := p.get("/v1/status?scope=" + scope)
	var v status.View
	if err := json.Unmarshal([]byte(body), &v); err != nil || code != http.StatusOK {
		p.t.Fatalf("%d %s %v", code, body, err)
	}
	return v
}

// Each pod shows its own tasks with offsets and leaders, and those of the other
// by the directory.
func TestStatusOfAPod(t *testing.T) {
	s := newStage(t, allTopics()...)
	pods := []*pod{s.start(nil), s.start(nil)}
	for _, p := range pods {
		p.awaitReady()
	}
	at := time.Now().Add(-time.Minute)
	for _, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, `{"price":1}`, at)
		s.send("notifications", home(symbol), symbol, `{}`, at.Add(time.Second))
	}
	s.alerts("enriched-alerts", len(symbols))
	for _, p := range pods {
		await(t, func() string { return p.complaint(s, 2) })
	}
	var hits uint64
	for _, p := range pods {
		hits += p.view("pod").Joins["local"]["hit"]
	}
	if hits != uint64(len(symbols)) {
		t.Errorf("%d local hits in all, want %d", hits, len(symbols))
	}
}

// Any pod tells of the whole group, and of the price of any symbol.
func TestAnyPodAnswersForTheGroup(t *testing.T) {
	s := newStage(t, allTopics()...)
	pods := []*pod{s.start(nil), s.start(nil), s.start(nil)}
	for _, p := range pods {
		p.awaitReady()
	}
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for i, symbol := range symbols {
		s.send("market-updates", home(symbol), symbol, fmt.Sprintf(`{"price":"%d.500"}`, i), at)
		s.send("notifications", home(symbol), symbol, `{}`, at.Add(time.Second))
	}
	s.alerts("enriched-alerts", len(symbols))
	owners := map[int32]string{}
	for _, p := range pods {
		await(t, func() string { return groupComplaint(p.view("group"), len(pods)) })
		for _, task := range p.view("pod").Tasks {
			if other := owners[task.Partition]; other != "" && other != task.Owner {
				t.Errorf("partition %d is owned by %s and %s", task.Partition, other, task.Owner)
			}
			owners[task.Partition] = task.Owner
		}
	}
	for _, p := range pods {
		for i, symbol := range symbols {
			p.askPrice(symbol, fmt.Sprintf("%d.500", i), owners[home(symbol)], at)
		}
		p.askSeveral()
	}
	code, body := pods[0].get("/v1/prices/NOSUCH")
	if want := fmt.Sprintf(`{"error":"the symbol has no price","owner":%q,"reason":"no_price"}`+"\n", owners[home("NOSUCH")]); code != http.StatusNotFound || body != want {
		t.Errorf("%d %s, want %s", code, body, want)
	}
}

func groupComplaint(v status.View, members int) string {
	if v.Scope != status.ScopeGroup || len(v.Members) != members || len(v.Tasks) != partitions {
		return fmt.Sprintf("%+v", v)
	}
	for _, m := range v.Members {
		if m.Reachable == nil || !*m.Reachable || m.Ready == nil || !*m.Ready || len(m.Tasks) != partitions/members {
			return fmt.Sprintf("member %+v", m)
		}
	}
	for _, task := range v.Tasks {
		if task.State != status.StateRunning || !task.Colocated || task.Symbols == nil {
			return fmt.Sprintf("task %+v", task)
		}
		for topic, half := range task.Topics {
			if half.Owner != task.Owner || half.Leader == nil || half.Lag == nil || *half.Lag != 0 {
				return fmt.Sprintf("%s/%d: %+v", topic, task.Partition, half)
			}
		}
	}
	if n := v.Joins["local"]["hit"]; n != uint64(len(symbols)) {
		return fmt.Sprintf("%d local hits", n)
	}
	if len(v.Hottest) != len(symbols) {
		return fmt.Sprintf("hottest %v", v.Hottest)
	}
	return ""
}

func (p *pod) get(path string) (int, string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.Addr().String() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// askPrice asks for one symbol both ways.
func (p *pod) askPrice(symbol, price, owner string, at time.Time) {
	p.t.Helper()
	paths := []string{"/v1/prices?symbol=" + url.QueryEscape(symbol)}
	if symbol != ".." { // clients resolve it
		paths = append(paths, "/v1/prices/"+url.PathEscape(symbol))
	}
	for _, path := range paths {
		code, body := p.get(path)
		var got struct {
			Symbol    string      `json:"symbol"`
			Base64    []byte      `json:"symbol_base64"`
			Price     json.Number `json:"price"`
			EventTime time.Time   `json:"event_time"`
			AgeMS     int64       `json:"age_ms"`
			Partition int32       `json:"partition"`
			Owner     string      `json:"owner"`
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			p.t.Fatalf("%s: %d %s %v", path, code, body, err)
		}
		if code != http.StatusOK || got.Symbol+string(got.Base64) != symbol || got.Price.String() != price ||
			!got.EventTime.Equal(at) || got.AgeMS < 60_000 || got.Partition != home(symbol) || got.Owner != owner {
			p.t.Errorf("%s: %d %s, want %s by %s at %s", path, code, body, price, owner, at)
		}
	}
}

func (p *pod) askSeveral() {
	p.t.Helper()
	code, body := p.get("/v1/prices?symbol=MSFT&symbol=NOSUCH&symbol=BBCA")
	var got struct {
		Prices []struct {
			Symbol string      `json:"symbol"`
			Price  json.Number `json:"price"`
			Reason string      `json:"reason"`
		} `json:"prices"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		p.t.Fatal(err)
	}
	if want := "[{MSFT 8.500 } {NOSUCH  no_price} {BBCA 0.500 }]"; code != http.StatusOK || fmt.Sprint(got.Prices) != want {
		p.t.Errorf("%d %s, want %s", code, body, want)
	}
}

// complaint says what is wrong with a pod's view of a group of so many members
// of equal shares.
func (p *pod) complaint(s *stage, members int) string {
	v := p.view("pod")
	if len(v.Members) != members || len(v.Tasks) != partitions || v.Pod == "" || v.Generation == 0 {
		return fmt.Sprintf("%+v", v)
	}
	for _, m := range v.Members {
		if self := m.ID == v.Pod; (m.Reachable != nil) != self || len(m.Tasks) != partitions/members {
			return fmt.Sprintf("member %+v", m)
		}
	}
	for _, task := range v.Tasks {
		if task.Owner != v.Pod {
			if task.State != status.StateUnknown || !task.Colocated || task.Symbols != nil {
				return fmt.Sprintf("another's task: %+v", task)
			}
			continue
		}
		if task.State != status.StateRunning || !*task.CaughtUp || !task.Colocated {
			return fmt.Sprintf("own task: %+v", task)
		}
		for topic, half := range task.Topics {
			leader, err := s.client.Leader(topic, task.Partition)
			if err != nil {
				return err.Error()
			}
			if half.Leader == nil || *half.Leader != leader.ID() || half.Lag == nil || *half.Lag != 0 || *half.Position != *half.HighWatermark {
				return fmt.Sprintf("%s/%d: %+v, leader %d", topic, task.Partition, half, leader.ID())
			}
		}
	}
	return ""
}

// A pod that has lost its instance id does not call itself the owner of what its
// last directory gave it.
func TestFencedPodOwnsNothing(t *testing.T) {
	d := &assign.Directory{
		Generation: 7,
		Members:    []assign.Member{{Identity: assign.Identity{ID: "u-0"}}, {Identity: assign.Identity{ID: "u-1"}}},
		Owners:     map[string][]string{"notifications": {"u-1", "u-0", ""}},
	}
	s := member.Status{Directory: d}
	if got := goesBy(&s, "u-0"); got != d {
		t.Errorf("a pod that is well goes by %+v", got)
	}
	s.LastError = fmt.Errorf("session: %w", sarama.ErrFencedInstancedId)
	got := goesBy(&s, "u-0")
	if len(got.Members) != 1 || got.Members[0].ID != "u-1" || !slices.Equal(got.Owners["notifications"], []string{"u-1", "", ""}) {
		t.Errorf("a fenced pod goes by %+v", got)
	}
	if len(d.Members) != 2 || d.Owners["notifications"][1] != "u-0" {
		t.Errorf("the directory itself was changed: %+v", d)
	}
	s.Directory = nil
	if goesBy(&s, "u-0") != nil {
		t.Error("a directory out of nothing")
	}
}
