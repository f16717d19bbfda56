package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// groupStatus is what a pod tells of its group.
type groupStatus struct {
	Generation int32 `json:"generation"`
	Members    []struct {
		ID        string  `json:"id"`
		Tasks     []int32 `json:"tasks"`
		Reachable *bool   `json:"reachable"`
		Error     string  `json:"error"`
	} `json:"members"`
	Tasks []struct {
		Partition int32  `json:"partition"`
		State     string `json:"state"`
		Topics    map[string]struct {
			Owner     string `json:"owner"`
			Committed *int64 `json:"committed"`
			Leader    *int32 `json:"leader"`
		} `json:"topics"`
	} `json:"tasks"`
	Joins map[string]map[string]uint64 `json:"joins"`
}

// GroupStatus asks /v1/status for the whole group.
func (p *Proc) GroupStatus() groupStatus {
	p.t.Helper()
	status, body, err := p.Get("/v1/status?scope=group")
	var v groupStatus
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil || status != http.StatusOK {
		p.t.Fatalf("%s: /v1/status: %d %s %v", p.Name, status, body, err)
	}
	return v
}

// unreachable lists the members that did not answer.
func (v groupStatus) unreachable() (ids []string) {
	for _, m := range v.Members {
		if m.Reachable == nil || !*m.Reachable {
			ids = append(ids, fmt.Sprintf("%s with %v: %s", m.ID, m.Tasks, m.Error))
		}
	}
	return ids
}

// statusAgrees compares what each pod tells of the group with what the brokers
// say, and asks each for the price of every symbol.
func (g *roundRobin) statusAgrees() {
	g.t.Helper()
	topics, err := g.Admin().DescribeTopics([]string{g.Market, g.Notes})
	if err != nil {
		g.t.Fatal(err)
	}
	leaders := make(map[string]int32)
	for _, topic := range topics {
		for _, p := range topic.Partitions {
			leaders[fmt.Sprint(topic.Name, "/", p.ID)] = p.Leader
		}
	}
	for _, pod := range g.pods {
		await(g.t, pod.Name+" to tell of the whole group", func() error { return g.complaint(pod.GroupStatus(), leaders) })
		g.pricesOf(pod)
	}
}

func (g *roundRobin) complaint(v groupStatus, leaders map[string]int32) error {
	if away := v.unreachable(); len(away) > 0 || len(v.Members) != len(g.pods) || len(v.Tasks) != int(g.Partitions) {
		return fmt.Errorf("%d members, not reachable: %v, %d tasks", len(v.Members), away, len(v.Tasks))
	}
	for _, task := range v.Tasks {
		for _, topic := range []string{g.Market, g.Notes} {
			half := task.Topics[topic]
			want := leaders[fmt.Sprint(topic, "/", task.Partition)]
			if half.Owner == "" || half.Committed == nil || half.Leader == nil || *half.Leader != want {
				return fmt.Errorf("%s/%d: %+v, its leader is %d", topic, task.Partition, half, want)
			}
		}
	}
	if v.Joins["remote"]["hit"] == 0 {
		return fmt.Errorf("joins %v", v.Joins)
	}
	return nil
}

// pricesOf asks one pod for all symbols, most of which others own.
func (g *roundRobin) pricesOf(pod *Proc) {
	g.t.Helper()
	query := url.Values{"symbol": g.symbols}
	status, body, err := pod.Get("/v1/prices?" + query.Encode())
	var got struct {
		Prices []struct {
			Symbol    string      `json:"symbol"`
			Price     json.Number `json:"price"`
			Partition int32       `json:"partition"`
			Error     string      `json:"error"`
		} `json:"prices"`
	}
	if err == nil {
		err = json.Unmarshal(body, &got)
	}
	if err != nil || status != http.StatusOK || len(got.Prices) != len(g.symbols) {
		g.t.Fatalf("%s: /v1/prices: %d %s %v", pod.Name, status, body, err)
	}
	for i, p := range got.Prices {
		if p.Symbol != g.symbols[i] || p.Price == "" || p.Partition != g.Home(p.Symbol) {
			g.t.Errorf("%s: price of %s: %+v", pod.Name, g.symbols[i], p)
		}
	}
}

// killedIsSeen asks for the group right after one of its members was killed:
// until the group knows, that member alone does not answer, and what it owned
// is known all the same.
func (g *roundRobin) killedIsSeen(before groupStatus) {
	g.t.Helper()
	var after groupStatus
	await(g.t, "the kill to be seen", func() error { // an answer may be half a second old
		after = g.pods[0].GroupStatus()
		if after.Generation == before.Generation && len(after.unreachable()) == 0 {
			return errors.New("everybody is said to answer")
		}
		return nil
	})
	if after.Generation != before.Generation {
		g.t.Logf("the group knew of the kill before it was seen: generation %d after %d", after.Generation, before.Generation)
		return
	}
	away := after.unreachable()
	if len(away) != 1 || strings.Contains(away[0], "with []") || len(after.Tasks) != int(g.Partitions) {
		g.t.Errorf("not reachable: %v; %d tasks", away, len(after.Tasks))
	}
	g.t.Logf("not reachable: %v", away)
}
