package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Validate reports everything that is wrong with the configuration as Faults,
// nil where nothing is. It reads the files that the configuration names, and
// talks to nobody.
func (c *Config) Validate() error {
	faults := c.faults()
	faults.sortByKey(newSchema(c).order)
	return faults.err()
}

func (c *Config) faults() Faults {
	f := checker{config: c, schema: newSchema(c)}
	f.words()
	f.bounds()
	f.addresses()
	f.names()
	f.paths()
	f.files()
	f.relations()
	return f.faults
}

// checker gathers faults.
type checker struct {
	config *Config
	schema schema
	faults Faults
}

func (f *checker) add(key, what, cure string) {
	f.faults = append(f.faults, Fault{Key: key, Problem: what, Cure: cure})
}

// words checks every key, or element of a list, that accepts certain words
// only. A key whose default is empty may be empty.
func (f *checker) words() {
	defaults := Default()
	empty := newSchema(&defaults)
	for _, leaf := range leaves(f.config) {
		if len(leaf.words) == 0 {
			continue
		}
		values, ok := leaf.value.Interface().([]string)
		if !ok {
			values = []string{leaf.value.String()}
		}
		for _, word := range values {
			optional := word == "" && empty.byKey[leaf.key].value.Kind() == reflect.String && empty.byKey[leaf.key].value.String() == ""
			if !optional && !slices.Contains(leaf.words, word) {
				f.add(leaf.key, fmt.Sprintf("%q is not known", word), "write "+either(leaf.words))
			}
		}
	}
}

// either lists words for people: a, b or c.
func either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// bound limits a number or a duration, with the reason.
type bound struct {
	key         string
	least, most int64
	why         string
}

const unlimited = math.MaxInt64

// protocolMillis is the longest time that Kafka's protocol can say: 32 bits of
// milliseconds.
const protocolMillis = int64(math.MaxInt32) * int64(time.Millisecond)

// maxRequestBytes is what a broker takes in one request unless it is told
// otherwise (socket.request.max.bytes).
const maxRequestBytes = 100 << 20

// numberBounds has a line for every number and duration of the configuration.
func numberBounds() []bound {
	ms := int64(time.Millisecond)
	return []bound{
		{"kafka.metadata_refresh", 100 * ms, unlimited, "each refresh asks the brokers"},
		{"topics.replication_factor", -1, math.MaxInt16, "-1 is the broker's default"},
		{"group.heartbeat_interval", ms, protocolMillis, "Kafka counts in milliseconds"},
		{"group.session_timeout", 3 * ms, protocolMillis, "Kafka counts in milliseconds, in 32 bits"},
		{"group.rebalance_timeout", 2 * ms, protocolMillis, "Kafka counts in milliseconds, in 32 bits"},
		{"group.stall_timeout", 3000 * ms, unlimited, "a task that waits looks up once a second, and is to be looked at more often than once"},
		{"join.wait", 0, unlimited, "0s does not wait"},
		{"join.max_waiting", 0, unlimited, "0 lets none wait"},
		{"join.history", 0, unlimited, "0s keeps the newest price only"},
		{"join.max_idle", 0, unlimited, "0s does not wait"},
		{"join.remote_timeout", ms, unlimited, "another pod needs some time to answer"},
		{"join.remote_patience", 0, unlimited, "0s asks once"},
		{"delivery.commit_interval", 10 * ms, unlimited, "each commit is a request to the coordinator"},
		{"delivery.linger", 0, unlimited, "0s sends at once"},
		{"delivery.max_message_bytes", 0, maxRequestBytes, "0 is what the topic takes, and brokers take no larger request"},
		{"state.checkpoint_interval", 100 * ms, unlimited, "each checkpoint is a write to the disk for every partition"},
		{"shutdown.timeout", ms, unlimited, "draining and committing take some time"},
	}
}

func (f *checker) bounds() {
	for _, b := range numberBounds() {
		leaf := f.schema.byKey[b.key]
		n := leaf.value.Int()
		show := func(n int64) string {
			v := reflect.New(leaf.value.Type()).Elem()
			v.SetInt(n)
			return inline(field{value: v})
		}
		switch {
		case n < b.least:
			f.add(b.key, fmt.Sprintf("%s is too little", show(n)), fmt.Sprintf("write %s or more: %s", show(b.least), b.why))
		case n > b.most:
			f.add(b.key, fmt.Sprintf("%s is too much", show(n)), fmt.Sprintf("write %s or less: %s", show(b.most), b.why))
		}
	}
	if f.config.Topics.ReplicationFactor == 0 {
		f.add("topics.replication_factor", "a topic has at least one replica", "write 1 or more, or -1 for the broker's default")
	}
}

// paths checks where the parts of a record are. A path is names divided by
// dots; a backslash takes the character behind it literally.
func (f *checker) paths() {
	m, n := f.config.Market, f.config.Notification
	f.path("market.symbol", m.Symbol, FromKey)
	f.path("market.price", m.Price, "")
	f.path("market.event_time", m.EventTime, FromRecord)
	f.path("notification.symbol", n.Symbol, FromKey)
	f.path("notification.event_time", n.EventTime, FromRecord)
}

// path accepts the word or a path. The other words mean parts of the record
// that cannot hold what is asked for.
func (f *checker) path(key, path, word string) {
	cure := "write a path into the value, such as price or quote.last"
	if word != "" {
		cure = fmt.Sprintf("write %s, or a path into the value, such as quote.at", word)
	}
	switch {
	case path == word && word != "":
	case path == FromKey || path == FromRecord:
		f.add(key, fmt.Sprintf("the record's own %s cannot hold it", path), fmt.Sprintf(`%s; a member of that name is written \%s`, cure, path))
	case !wellFormedPath(path):
		f.add(key, fmt.Sprintf("%q is not a path", path), cure)
	}
}

func wellFormedPath(path string) bool {
	length := 0 // of the name under way
	for i := 0; i < len(path); i++ {
		switch path[i] {
		case '.':
			if length == 0 {
				return false
			}
			length = 0
			continue
		case '\\':
			if i++; i == len(path) {
				return false
			}
		}
		length++
	}
	return length > 0
}
