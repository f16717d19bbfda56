package cluster_test

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"joiner/test/cluster"
)

// The clients that are not ours must place keys as the design says they do:
// everything that the end-to-end tests show about placement rests on it.
func TestKafkaForeignClientsPlaceKeys(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	records := []cluster.KeyValue{{Key: "BRK.B", Value: "1"}, {Key: "MSFT", Value: "2"}, {Key: "AAPL", Value: "3"}, {Key: "BTC-USD", Value: "4"}}
	// The values are the vectors of librdkafka and of Java's client, 12 partitions.
	murmur2 := "AAPL 9, BRK.B 3, BTC-USD 9, MSFT 6"
	crc32 := "AAPL 0, BRK.B 0, BTC-USD 8, MSFT 7"

	tests := []struct {
		name    string
		produce func(topic string)
		want    string
	}{
		{"console producer", func(topic string) { c.ConsoleProduce(t, topic, records) }, murmur2},
		{"kcat, murmur2_random", func(topic string) { c.KcatProduce(t, topic, records, "partitioner=murmur2_random") }, murmur2},
		{"kcat, its default", func(topic string) { c.KcatProduce(t, topic, records) }, crc32},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			topic := c.Name("placement")
			c.Topic(t, topic, 12, nil)
			test.produce(topic)
			out := c.Kcat(t, nil, "-C", "-t", topic, "-e", "-q", "-f", `%k %p\n`)
			got := strings.Split(strings.TrimSpace(out), "\n")
			sort.Strings(got)
			if s := strings.Join(got, ", "); s != test.want {
				t.Errorf("placed %s, want %s", s, test.want)
			}
		})
	}
}

func TestKafkaBrokerStopsAndStarts(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Private: true, Brokers: 1, Settings: []string{"log.retention.ms=86400000"}})
	topic := c.Name("restart")
	c.Topic(t, topic, 2, map[string]string{"max.message.bytes": "2000000"})
	c.ConsoleProduce(t, topic, []cluster.KeyValue{{Key: "a", Value: "before"}})
	c.KillBroker(t, 1)
	c.StartBroker(t, 1)
	c.KcatProduce(t, topic, []cluster.KeyValue{{Key: "a", Value: "after"}}, "partitioner=murmur2_random")
	if got := c.Kcat(t, nil, "-C", "-t", topic, "-e", "-q", "-f", `%s\n`); got != "before\nafter\n" {
		t.Errorf("read %q from the restarted broker", got)
	}
	out := c.Tool(t, nil, "TopicCommand", "--bootstrap-server", c.Brokers[0], "--describe", "--topic", topic)
	if !strings.Contains(out, "max.message.bytes=2000000") {
		t.Errorf("the topic's setting is missing: %s", out)
	}

	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if pids := running(t, c.Dir); len(pids) > 0 {
		t.Errorf("processes %v are still running", pids)
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("data is still there: %v", err)
	}
}

// running lists the processes whose command line names the directory.
func running(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, e := range entries {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%s/cmdline", e.Name()))
		if err == nil && strings.Contains(string(line), dir+"/1/server.properties") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
