package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"joiner/internal/status"
)

// view asks a pod for its status over HTTP.
func (p *pod) view(scope string) status.View {
	p.t.Helper()
	resp, err := http.Get("http://" + p.Addr().String() + "/v1/status?scope=" + scope)
	if err != nil {
		p.t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var v status.View
	if err := json.Unmarshal(body, &v); err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%d %s %v", resp.StatusCode, body, err)
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
