package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"joiner/internal/enrich"
	"joiner/internal/placement"
	"joiner/test/cluster"
)

// World is what a test has for itself on the cluster: topics, a group and the
// settings that name them.
type World struct {
	*cluster.Cluster
	Market, Notes, Alerts, Dead string // topics
	Group                       string
	Partitions                  int32
	Settings                    Settings

	t     testing.TB
	admin sarama.ClusterAdmin
	pods  int      // started so far, for their names
	used  Settings // of the pod started last
}

// NewWorld makes the four topics, all with this number of partitions.
// configs, by role (market, notes, alerts, dead), may be nil.
func NewWorld(t testing.TB, partitions int32, configs map[string]map[string]string) *World {
	t.Helper()
	return NewWorldOn(t, cluster.Start(t, cluster.Options{}), partitions, configs)
}

// NewWorldOn is NewWorld on a cluster of the test's own.
func NewWorldOn(t testing.TB, c *cluster.Cluster, partitions int32, configs map[string]map[string]string) *World {
	t.Helper()
	w := &World{
		Cluster: c, t: t, Partitions: partitions, Group: c.Name("group"),
		Market: c.Name("market"), Notes: c.Name("notes"), Alerts: c.Name("alerts"), Dead: c.Name("dead"),
	}
	for role, topic := range map[string]string{"market": w.Market, "notes": w.Notes, "alerts": w.Alerts, "dead": w.Dead} {
		c.Topic(t, topic, partitions, configs[role])
	}
	w.Settings = Settings{
		"kafka.brokers":         strings.Join(c.Brokers, ","),
		"topics.market_updates": w.Market, "topics.notifications": w.Notes,
		"topics.enriched_alerts": w.Alerts, "topics.dead_letters": w.Dead,
		"group.id":    w.Group,
		"http.listen": "127.0.0.1:0", "peer.listen": "127.0.0.1:0",
	}
	return w
}

// Beside is another group that reads the same inputs, with outputs of its own.
func (w *World) Beside() *World {
	w.t.Helper()
	other := *w
	other.Group, other.Alerts, other.Dead = w.Name("group"), w.Name("alerts"), w.Name("dead")
	for _, topic := range []string{other.Alerts, other.Dead} {
		w.Topic(w.t, topic, w.Partitions, nil)
	}
	other.Settings = maps.Clone(w.Settings)
	maps.Copy(other.Settings, Settings{
		"group.id": other.Group, "topics.enriched_alerts": other.Alerts, "topics.dead_letters": other.Dead,
	})
	other.pods = 10 * (w.pods + 1) // their names tell the groups apart
	return &other
}

// Start runs one more pod, with these settings over the world's (nil: none).
func (w *World) Start(settings Settings) *Proc {
	w.t.Helper()
	w.pods++
	w.used = settings
	all := maps.Clone(w.Settings)
	maps.Copy(all, settings)
	return Start(w.t, fmt.Sprintf("pod%d", w.pods), all)
}

// Pods runs n more pods; they are not ready yet.
func (w *World) Pods(n int, settings Settings) Pods {
	w.t.Helper()
	pods := make(Pods, n)
	for i := range pods {
		pods[i] = w.Start(settings)
	}
	return pods
}

// Admin returns an administrator that is closed when the test ends.
func (w *World) Admin() sarama.ClusterAdmin {
	w.t.Helper()
	if w.admin == nil {
		w.admin = w.Cluster.Admin(w.t)
	}
	return w.admin
}

// Record is a record to be produced.
type Record struct {
	Key     string
	Value   string
	Null    bool  // the value is null
	Time    int64 // record timestamp in milliseconds; 0: the time of sending
	Headers [][2]string
	// Partition wins over the key's placement where Placed is set.
	Partition int32
	Placed    bool
}

// At places the record in a partition whatever its key says.
func (r Record) At(partition int32) Record {
	r.Partition, r.Placed = partition, true
	return r
}

// Home is the partition in which Java clients put the key.
func (w *World) Home(key string) int32 { return Place(w.t, "murmur2", key, w.Partitions) }

// Place is the partition in which producers with this partitioner put the key.
func Place(t testing.TB, partitioner, key string, partitions int32) int32 {
	t.Helper()
	hash, err := placement.ByName(partitioner)
	if err != nil {
		t.Fatal(err)
	}
	return hash.Partition([]byte(key), partitions)
}

func (w *World) message(topic string, r Record) *sarama.ProducerMessage {
	m := &sarama.ProducerMessage{Topic: topic, Partition: r.Partition}
	if r.Key != "" {
		m.Key = sarama.StringEncoder(r.Key)
	}
	if !r.Null {
		m.Value = sarama.StringEncoder(r.Value)
	}
	if !r.Placed {
		m.Partition = w.Home(r.Key)
	}
	if r.Time != 0 {
		m.Timestamp = time.UnixMilli(r.Time)
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h[0]), Value: []byte(h[1])})
	}
	return m
}

// Producer writes records, each topic's partitions in the order given.
type Producer struct {
	w    *World
	sync sarama.SyncProducer
}

// producerConfig is of an idempotent producer: what it sends lies in order and
// once.
func (w *World) producerConfig() *sarama.Config {
	config := w.Config()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Retry.Max = 50
	config.Producer.MaxMessageBytes = 16 << 20
	return config
}

// Producer returns a producer that is closed when the test ends.
func (w *World) Producer() *Producer {
	w.t.Helper()
	return w.newProducer(w.producerConfig())
}

// TxnProducer returns a transactional producer that is closed when the test
// ends. A transaction that it leaves open is aborted by the broker after the
// timeout (at least 1 s).
func (w *World) TxnProducer(timeout time.Duration) *Producer {
	w.t.Helper()
	config := w.producerConfig()
	config.Producer.Transaction.ID = w.Name("txn")
	config.Producer.Transaction.Timeout = timeout
	// The next transaction cannot begin before the markers of the one before
	// are written: the default of 100 ms is most of a small one's time.
	config.Producer.Transaction.Retry.Backoff = 5 * time.Millisecond
	config.Producer.Transaction.Retry.Max = 10_000
	return w.newProducer(config)
}

func (w *World) newProducer(config *sarama.Config) *Producer {
	w.t.Helper()
	p, err := sarama.NewSyncProducer(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("producer: %v", err)
	}
	w.t.Cleanup(func() { _ = p.Close() }) // an open transaction is an error of its own
	return &Producer{w: w, sync: p}
}

// Send writes the records and returns when all are acknowledged.
func (p *Producer) Send(topic string, records ...Record) {
	p.w.t.Helper()
	const chunk = 20_000 // bounds what waits in memory
	for part := range slices.Chunk(records, chunk) {
		messages := make([]*sarama.ProducerMessage, len(part))
		for i, r := range part {
			messages[i] = p.w.message(topic, r)
		}
		p.SendMessages(messages)
	}
}

// SendMessages writes messages for any topics; each then knows its offset.
func (p *Producer) SendMessages(messages []*sarama.ProducerMessage) {
	p.w.t.Helper()
	if err := p.sync.SendMessages(messages); err != nil {
		var failed sarama.ProducerErrors
		if errors.As(err, &failed) && len(failed) > 0 {
			err = failed[0]
		}
		p.w.t.Fatalf("producing: %v", err)
	}
}

// Begin begins a transaction.
func (p *Producer) Begin() { p.w.t.Helper(); p.must("beginning", p.sync.BeginTxn) }

// Commit commits the transaction.
func (p *Producer) Commit() { p.w.t.Helper(); p.must("committing", p.sync.CommitTxn) }

// Abort aborts the transaction.
func (p *Producer) Abort() { p.w.t.Helper(); p.must("aborting", p.sync.AbortTxn) }

func (p *Producer) must(what string, f func() error) {
	p.w.t.Helper()
	if err := f(); err != nil {
		p.w.t.Fatalf("%s a transaction: %v", what, err)
	}
}

// Send writes records with a producer of its own.
func (w *World) Send(topic string, records ...Record) {
	w.t.Helper()
	w.Producer().Send(topic, records...)
}

// Ends returns where each partition of the topic ends for a read-committed
// reader (its last stable offset).
func (w *World) Ends(topic string) map[int32]int64 {
	w.t.Helper()
	ends, err := w.ends(topic)
	if err != nil {
		w.t.Fatal(err)
	}
	return ends
}

// ends asks again, with the leaders of now, where a leader is one no more.
func (w *World) ends(topic string) (map[int32]int64, error) {
	ends, err := w.askEnds(topic)
	if errors.Is(err, sarama.ErrNotLeaderForPartition) {
		return w.askEnds(topic)
	}
	return ends, err
}

func (w *World) askEnds(topic string) (map[int32]int64, error) {
	topics, err := w.Admin().DescribeTopics([]string{topic})
	if err != nil {
		return nil, fmt.Errorf("describing topic %s: %w", topic, err)
	}
	if len(topics) != 1 || topics[0].Err != sarama.ErrNoError {
		return nil, fmt.Errorf("describing topic %s: %v", topic, topics)
	}
	ask := make(map[int32]int64)
	for _, p := range topics[0].Partitions {
		ask[p.ID] = sarama.OffsetNewest
	}
	answer, err := w.Admin().ListOffsets(map[string]map[int32]int64{topic: ask}, &sarama.ListOffsetsOptions{IsolationLevel: sarama.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("asking for the ends of %s: %w", topic, err)
	}
	ends := make(map[int32]int64)
	for p, o := range answer[topic] {
		if o.Err != nil && !errors.Is(o.Err, sarama.ErrNoError) {
			// An administrator keeps the leaders that a topic of this name had
			// before it was made anew: whoever asks again does so with another.
			w.admin = nil
			return nil, fmt.Errorf("asking for the end of %s/%d: %w", topic, p, o.Err)
		}
		ends[p] = o.Offset
	}
	return ends, nil
}

// Count is the number of offsets up to the topic's ends: of records where
// nothing was written in transactions, compacted or deleted.
func (w *World) Count(topic string) int64 {
	w.t.Helper()
	n, err := w.count(topic)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *World) count(topic string) (n int64, err error) {
	ends, err := w.ends(topic)
	for _, end := range ends {
		n += end
	}
	return n, err
}

// AwaitCount waits until the topic holds at least n records. Every pod must
// live meanwhile.
func (w *World) AwaitCount(topic string, n int64, pods Pods) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("%d records in %s", n, topic), func() error {
		for _, p := range pods {
			if code, ended := p.Ended(); ended {
				w.t.Fatalf("%s ended with %d", p.Name, code)
			}
		}
		have, err := w.count(topic)
		if err == nil && have < n {
			err = fmt.Errorf("%d of %d are there", have, n)
		}
		return err
	})
}

// Read returns every record of a topic that nobody has written to in
// transactions, by partition.
func (w *World) Read(topic string) map[int32][]*sarama.ConsumerMessage {
	w.t.Helper()
	return w.read(topic, -1)
}

// ReadCommitted returns the records of a topic's committed transactions, of
// which there must be want.
func (w *World) ReadCommitted(topic string, want int) map[int32][]*sarama.ConsumerMessage {
	w.t.Helper()
	return w.read(topic, want)
}

// ReadVisible returns all records of a topic that a consumer sees who reads what
// is committed, whoever wrote them and how. A record of its own, behind
// everything, tells it in each partition where that ends: what cannot be seen
// behind an open transaction would keep it from coming.
func (w *World) ReadVisible(topic string) map[int32][]*sarama.ConsumerMessage {
	w.t.Helper()
	const mark = "the test's last record "
	last := mark + w.Name("")
	producer := w.Producer()
	marks := make([]Record, w.Partitions)
	for p := range marks {
		marks[p] = Record{Key: last}.At(int32(p))
	}
	producer.Send(topic, marks...)
	config := w.Config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Fetch.Default = 4 << 20
	config.Consumer.MaxWaitTime = 50 * time.Millisecond
	consumer, err := sarama.NewConsumer(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("consumer: %v", err)
	}
	defer func() { _ = consumer.Close() }()
	all := make(map[int32][]*sarama.ConsumerMessage)
	limit := time.After(patience)
	for p := range w.Partitions {
		claim, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		if err != nil {
			w.t.Fatalf("reading %s/%d: %v", topic, p, err)
		}
		for done := false; !done; {
			select {
			case m := <-claim.Messages():
				done = string(m.Key) == last
				if !strings.HasPrefix(string(m.Key), mark) {
					all[p] = append(all[p], m)
				}
			case <-limit:
				w.t.Fatalf("reading %s/%d: %d records, and the end has not come", topic, p, len(all[p]))
			}
		}
		_ = claim.Close()
	}
	return all
}

// read reads up to the ends or, where want is not negative, until that many
// visible records have come: behind the last one there may be control records
// and aborted ones, which no consumer shows.
func (w *World) read(topic string, want int) map[int32][]*sarama.ConsumerMessage {
	w.t.Helper()
	config := w.Config()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Fetch.Default = 4 << 20
	config.Consumer.MaxWaitTime = 50 * time.Millisecond // closing waits for a fetch under way
	config.Consumer.MaxProcessingTime = time.Minute     // the loop below takes one partition after the other
	consumer, err := sarama.NewConsumer(w.Brokers, config)
	if err != nil {
		w.t.Fatalf("consumer: %v", err)
	}
	defer func() { _ = consumer.Close() }()

	all := make(map[int32][]*sarama.ConsumerMessage)
	left := int64(want)
	ends := w.Ends(topic)
	if want < 0 {
		left = 0
		for _, end := range ends {
			left += end
		}
	}
	merged := make(chan *sarama.ConsumerMessage, 4096)
	stop := make(chan struct{})
	var closers []func()
	for partition, end := range ends {
		all[partition] = nil
		if end == 0 {
			continue
		}
		claim, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			w.t.Fatalf("reading %s/%d: %v", topic, partition, err)
		}
		gone := make(chan struct{})
		closers = append(closers, func() { claim.AsyncClose(); <-gone })
		go func() {
			defer close(gone)
			for m := range claim.Messages() {
				select {
				case merged <- m:
				case <-stop: // drained, or the claim would not close
				}
			}
		}()
	}
	defer func() {
		close(stop)
		for _, c := range closers {
			c()
		}
	}()
	limit := time.After(patience)
	for left > 0 {
		select {
		case m := <-merged:
			if want < 0 && m.Offset >= ends[m.Partition] {
				continue // written since
			}
			all[m.Partition] = append(all[m.Partition], m)
			left--
		case <-limit:
			w.t.Fatalf("reading %s: %d records have not come", topic, left)
		}
	}
	return all
}

// Alert is an enriched alert as it lies in its topic.
type Alert struct {
	*sarama.ConsumerMessage
	enrich.Alert
	Source enrich.Source
	Cited  *enrich.Citation // nil where the alert cites nothing
}

// ReadAlerts returns every alert, in the order of each partition. One that
// cannot be parsed, or that lies elsewhere than its notification did, fails
// the test.
func (w *World) ReadAlerts() []Alert { w.t.Helper(); return w.alerts(w.Read(w.Alerts)) }

// ReadCommittedAlerts is ReadAlerts of alerts that were written in
// transactions, of which there must be want.
func (w *World) ReadCommittedAlerts(want int) []Alert {
	w.t.Helper()
	return w.alerts(w.ReadCommitted(w.Alerts, want))
}

func (w *World) alerts(byPartition map[int32][]*sarama.ConsumerMessage) []Alert {
	w.t.Helper()
	var alerts []Alert
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		for _, m := range byPartition[p] {
			alerts = append(alerts, w.alert(m))
		}
	}
	return alerts
}

func (w *World) alert(m *sarama.ConsumerMessage) Alert {
	w.t.Helper()
	where := fmt.Sprintf("alert %s/%d offset %d", m.Topic, m.Partition, m.Offset)
	parsed, err := enrich.ParseAlert(m.Value)
	if err != nil {
		w.t.Fatalf("%s: %v: %s", where, err, m.Value)
	}
	a := Alert{ConsumerMessage: m, Alert: parsed}
	source, ok := Header(m, enrich.HeaderSource)
	if !ok {
		w.t.Fatalf("%s has no %s", where, enrich.HeaderSource)
	}
	if a.Source, err = enrich.ParseSource([]byte(source)); err != nil {
		w.t.Fatalf("%s: %v", where, err)
	}
	if a.Source.Topic != w.Notes || a.Source.Partition != m.Partition {
		w.t.Fatalf("%s is of %s", where, source)
	}
	if cited, ok := Header(m, enrich.HeaderMarket); ok {
		c, err := enrich.ParseCitation([]byte(cited))
		if err != nil {
			w.t.Fatalf("%s: %v", where, err)
		}
		a.Cited = &c
	}
	return a
}

// Header returns the last header of that name.
func Header(m *sarama.ConsumerMessage, name string) (value string, ok bool) {
	for _, h := range slices.Backward(m.Headers) {
		if string(h.Key) == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Committed returns what the group has committed of the topic; -1 for a
// partition without a commit.
func (w *World) Committed(topic string) map[int32]int64 {
	w.t.Helper()
	committed, err := w.committed(topic)
	if err != nil {
		w.t.Fatal(err)
	}
	return committed
}

func (w *World) committed(topic string) (map[int32]int64, error) {
	ends, err := w.ends(topic)
	if err != nil {
		return nil, err
	}
	partitions := slices.Sorted(maps.Keys(ends))
	answer, err := w.Admin().ListConsumerGroupOffsets(w.Group, map[string][]int32{topic: partitions})
	if err != nil {
		return nil, fmt.Errorf("offsets of group %s: %w", w.Group, err)
	}
	committed := make(map[int32]int64)
	for _, p := range partitions {
		committed[p] = -1
		if b := answer.GetBlock(topic, p); b != nil {
			committed[p] = b.Offset
		}
	}
	return committed, nil
}

// Lag is how many offsets of the topic, up to its last stable ones, the group
// has not committed.
func (w *World) Lag(topic string) int64 {
	w.t.Helper()
	lag, err := w.lag(topic)
	if err != nil {
		w.t.Fatal(err)
	}
	return lag
}

func (w *World) lag(topic string) (lag int64, err error) {
	committed, err := w.committed(topic)
	if err != nil {
		return 0, err
	}
	ends, err := w.ends(topic)
	for p, end := range ends {
		lag += end - max(committed[p], 0)
	}
	return lag, err
}

// AwaitNoLag waits until both inputs are committed up to their ends.
func (w *World) AwaitNoLag() {
	w.t.Helper()
	await(w.t, "both inputs to be committed up to their ends", func() error {
		market, err := w.lag(w.Market)
		if err != nil {
			return err
		}
		notes, err := w.lag(w.Notes)
		if err != nil {
			return err
		}
		if market+notes > 0 {
			return fmt.Errorf("the lag is %d and %d", market, notes)
		}
		return nil
	})
}
