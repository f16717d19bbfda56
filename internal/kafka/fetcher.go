package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"joiner/internal/record"
)

// Sink takes the records of one partition. Its methods are called by one
// goroutine at a time, never after Feed.Remove has returned, and must not
// block. They may take locks of the sink's own, so nobody may call
// Fetcher.Add, Feed.Remove or Fetcher.Close while holding such a lock.
type Sink interface {
	// Deliver takes visible records in offset order and the position behind
	// them, the next offset to be read. end is the partition's end for the
	// clients' isolation level (the last stable offset under read committed,
	// else the high watermark) as the leader saw it when it answered: at some
	// moment after the last call of Full. It is -1 where a follower answered
	// (KIP-392), whose end lags: ask Ends. highWatermark is that of whoever
	// answered.
	//
	// Every response brings at least one call, without records where nothing
	// came or only control, aborted or compacted records were passed, and
	// several where it brings more than Batch holds. The slice belongs to the
	// sink from then on; keys, values and headers alias the response.
	Deliver(recs []record.Record, position, end, highWatermark int64)
	// Batch returns an empty slice whose capacity is how many records a
	// Deliver brings at most.
	Batch() []record.Record
	// Full is asked before each request; true leaves the partition out of it.
	// After false the sink must take one more response: up to
	// FetcherOptions.PartitionBytes, or one larger batch.
	Full() bool
}

// FetcherOptions says how a Fetcher asks. Zero values mean the defaults.
type FetcherOptions struct {
	// MinBytes and MaxWait decide when a broker answers: with so many bytes,
	// or after so long. The defaults are Options.FetchMin and FetchMaxWait.
	MinBytes int32
	MaxWait  time.Duration

	PartitionBytes int32 // 256 KiB: a partition's share of a response; grows for larger batches
	ResponseBytes  int32 // 16 MiB: a response's size, but for a single larger batch

	// OutOfRange hears that the offset at is not in the log, which reaches
	// from start to end (the high watermark), and returns where to go on: by
	// default at start. It is
	// called between two calls of the partition's sink, must not block, and is
	// the only thing that can move a position backwards. at < start means that
	// retention or DeleteRecords has overtaken the reader, at > end that the
	// log was truncated or the topic made anew.
	OutOfRange func(topic string, partition int32, at, start, end int64) (resume int64)

	// Remade hears that a partition belongs to another topic than AddOf was told,
	// one of the same name that was made since; at was the next offset to read.
	// Nothing more is read for its feed. It is called as OutOfRange is. Nil:
	// nobody hears of it.
	Remade func(topic string, partition int32, at int64)
}

const (
	defaultPartitionBytes = 256 << 10
	defaultResponseBytes  = 16 << 20

	// fullPoll is how often a broker's goroutine looks whether sinks that were
	// all full have room again; Wake is quicker.
	fullPoll = 25 * time.Millisecond
	// slow is the pause after what only somebody else can mend: a missing
	// right, a topic that is gone, a batch that is broken.
	slow = time.Second
	// A request under way for longer than hung has its partitions' leaders
	// looked up every watchEvery: a broker that is silent and has lost them
	// would otherwise hold them until the read timeout.
	watchEvery = 500 * time.Millisecond
	hung       = time.Second
	// lapse is how long a partition may not have been asked for before its topic
	// is looked at again: a topic can be deleted, made anew and filled in no
	// less, while nothing shows it to whoever asks all the time.
	lapse = 2 * time.Second
)

func (o FetcherOptions) withDefaults(c Options) FetcherOptions {
	setDefault(&o.MinBytes, c.FetchMin)
	setDefault(&o.MaxWait, c.FetchMaxWait)
	setDefault(&o.PartitionBytes, defaultPartitionBytes)
	setDefault(&o.ResponseBytes, defaultResponseBytes)
	if o.OutOfRange == nil {
		o.OutOfRange = func(_ string, _ int32, _, start, _ int64) int64 { return start }
	}
	if o.Remade == nil {
		o.Remade = func(string, int32, int64) {}
	}
	return o
}

// Fetcher reads partitions that the group has claimed, past sarama's consumer,
// which allocates a message, makes a channel send and a select for each record.
// A claim is then for ownership only: paused at its start, and drained.
//
// One goroutine a broker asks it for all partitions that it leads (or serves as
// the closest replica, KIP-392), one request at a time, without a fetch session
// (KIP-227). Its connection is its own and no client's: sarama's metadata
// requests wait for every connection of their client, holding the client's
// lock. Only the Fetch client's metadata is used.
//
// Each Feed is held by one party at any time: a broker's goroutine, or the
// search for its topic's leaders, or the look at its log's bounds. A broker's
// goroutine lets go of a feed only between two requests, so no late response
// can reach a partition that has moved on: order and exactness need no counter.
//
// Whatever time may heal is tried again for ever: 100ms apart, and a second
// apart where only somebody else can mend it, with a sampled line in the log.
type Fetcher struct {
	client    sarama.Client // for metadata
	reader    *Reader       // for bounds
	clients   Options
	o         FetcherOptions
	isolation sarama.IsolationLevel
	codec     kgo.Decompressor
	faults    *sampler
	rights    *rights
	// readTimeout ends a request that a broker does not answer.
	readTimeout time.Duration

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	made   time.Time

	// mu is a leaf: no sink is called and no other lock taken while it is held.
	mu      sync.Mutex
	closed  bool
	feeds   map[partition]*Feed
	sources map[int32]*source    // by broker
	astray  map[string][]*Feed   // by topic, whose leader is looked for
	finding map[string]bool      // topics with a goroutine that looks
	asking  map[string]time.Time // since when the metadata of one of them is being asked for
}

// NewFetcher returns a Fetcher, which Clients.Close closes too.
func (c *Clients) NewFetcher(o FetcherOptions) *Fetcher {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Fetcher{
		client:      c.Fetch,
		reader:      c.Reader,
		clients:     c.opts,
		o:           o.withDefaults(c.opts),
		isolation:   isolation(c.opts.ReadCommitted),
		codec:       newDecompressor(maxBatchBytes),
		faults:      c.faults,
		rights:      c.rights,
		readTimeout: fetchReadTimeout(c.opts),
		ctx:         ctx,
		cancel:      cancel,
		made:        time.Now(),
		feeds:       make(map[partition]*Feed),
		sources:     make(map[int32]*source),
		astray:      make(map[string][]*Feed),
		finding:     make(map[string]bool),
		asking:      make(map[string]time.Time),
	}
	f.wg.Go(f.watch)
	if !c.keep(f) {
		f.Close()
	}
	return f
}

// Add begins to read a partition at the offset from; below 0 means the log's
// start. It returns at once. A feed of the same partition that is still there
// is removed first. After Close nothing is read.
func (f *Fetcher) Add(topic string, id int32, from int64, sink Sink) *Feed {
	return f.AddOf("", topic, id, from, sink)
}

// AddOf is Add of the topic with that id, see Topic.ID, and of no other that
// gets its name: an offset of one means nothing in the other, though it may be
// in its range. Fetches by topic id (KIP-516) would see to that, but only with
// brokers of 3.1; so the leader is asked for the topic's id over the connection
// that the partition is fetched over, right before the first fetch after
// whatever may have hidden a change, and every Options.MetadataRefresh. An empty
// id is not looked at.
func (f *Fetcher) AddOf(topicID, topic string, id int32, from int64, sink Sink) *Feed {
	fd := f.newFeed(partition{topic, id}, from, sink)
	fd.topicID = topicID
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			fd.Remove()
			return fd
		}
		old := f.feeds[fd.partition]
		if old == nil {
			break
		}
		f.mu.Unlock()
		old.Remove()
	}
	f.feeds[fd.partition] = fd
	f.wg.Go(func() {
		if from < 0 {
			f.findStart(fd)
			return
		}
		f.place(fd)
	})
	f.mu.Unlock()
	return fd
}

// Leader returns the broker that led the partition when it was last looked up,
// NoLeader where that is not known or nobody reads the partition here. It asks
// nobody.
func (f *Fetcher) Leader(topic string, id int32) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fd := f.feeds[partition{topic, id}]; fd != nil {
		return fd.leader.Load()
	}
	return NoLeader
}

// Close removes all feeds and ends the connections. It may be called more than
// once.
func (f *Fetcher) Close() {
	f.mu.Lock()
	f.closed = true
	feeds := make([]*Feed, 0, len(f.feeds))
	for _, fd := range f.feeds {
		feeds = append(feeds, fd)
	}
	for _, s := range f.sources {
		s.link.cut()
	}
	f.mu.Unlock()
	f.cancel()
	for _, fd := range feeds {
		fd.Remove()
	}
	f.wg.Wait()
}

// place hands the feed, which the caller holds, to the broker that it is to be
// read from, or has that found.
func (f *Fetcher) place(fd *Feed) {
	if !f.tryPlace(fd) {
		f.search(fd)
	}
}

// tryPlace goes by the metadata at hand.
func (f *Fetcher) tryPlace(fd *Feed) bool {
	if fd.replica >= 0 {
		if b, err := f.client.Broker(fd.replica); err == nil {
			f.route(fd, b)
			return true
		}
		fd.replica = noReplica
	}
	// LeaderAndEpoch would refresh the metadata and wait for that; it also does
	// where the client has given up the brokers that it knew.
	if f.client.PartitionNotReadable(fd.topic, fd.id) || len(f.client.Brokers()) == 0 {
		return false
	}
	b, epoch, err := f.client.LeaderAndEpoch(fd.topic, fd.id)
	if err != nil {
		return false
	}
	fd.epoch = epoch
	fd.leader.Store(b.ID())
	f.route(fd, b)
	return true
}

// route gives the feed to the broker's goroutine.
func (f *Fetcher) route(fd *Feed, b *sarama.Broker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detach(fd)
	if !f.has(fd) {
		return
	}
	s := f.sources[b.ID()]
	if s == nil {
		s = newSource(f, b.ID())
		f.sources[b.ID()] = s
		f.wg.Go(s.run)
	}
	s.addr = b.Addr()
	fd.sure = time.Time{} // it comes from a failure, or from another broker
	s.feeds = append(s.feeds, fd)
	fd.source = s
	signal(s.wake)
}

// has tells whether the feed is still to be read. f.mu is held.
func (f *Fetcher) has(fd *Feed) bool { return !f.closed && f.feeds[fd.partition] == fd }

// detach takes the feed from its broker's goroutine. f.mu is held.
func (f *Fetcher) detach(fd *Feed) {
	s := fd.source
	if s == nil {
		return
	}
	fd.source = nil
	signal(s.wake) // it may have been the last
	for i, other := range s.feeds {
		if other == fd {
			last := len(s.feeds) - 1
			s.feeds[i], s.feeds[last] = s.feeds[last], nil
			s.feeds = s.feeds[:last]
			return
		}
	}
}

// leave takes the feed, which its broker's goroutine hands over, from it.
func (f *Fetcher) leave(fd *Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detach(fd)
}

// search has the feed's leader found, from fresh metadata.
func (f *Fetcher) search(fd *Feed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.detach(fd)
	fd.leader.Store(NoLeader)
	if !f.has(fd) {
		return
	}
	f.astray[fd.topic] = append(f.astray[fd.topic], fd)
	if f.finding[fd.topic] {
		return
	}
	f.finding[fd.topic] = true
	f.wg.Go(func() { f.find(fd.topic) })
}

// find looks for leaders of the topic's partitions until none is missing.
func (f *Fetcher) find(topic string) {
	wait := backoff
	for pause(f.ctx, wait) {
		batch := f.lost(topic)
		if batch == nil {
			return
		}
		// Until all of them are placed: that may wait for brokers as well.
		f.setAsking(topic, true)
		wait = f.refresh(topic)
		for _, fd := range batch {
			f.setAsking(topic, true) // each may take as long as all the calls of one
			fd.turns.Add(1)
			f.place(fd)
		}
		f.setAsking(topic, false)
	}
}

// lost takes the topic's feeds without a leader, or ends the search.
func (f *Fetcher) lost(topic string) []*Feed {
	f.mu.Lock()
	defer f.mu.Unlock()
	batch := f.astray[topic]
	delete(f.astray, topic)
	if len(batch) == 0 {
		delete(f.finding, topic)
		return nil
	}
	return batch
}

// refresh asks for the topic's metadata and returns how long to wait before
// the next time.
func (f *Fetcher) refresh(topic string) time.Duration {
	_, err := within(f.ctx, func() (struct{}, error) {
		return struct{}{}, f.client.RefreshMetadata(topic)
	})
	if err == nil || f.ctx.Err() != nil {
		return backoff
	}
	f.faults.Warn("fetch metadata", "leaders are looked for again",
		zap.String("topic", topic), zap.Error(err))
	if lastingOrGone(err) {
		return slow
	}
	return backoff
}

// findStart places a feed that is to begin at its log's start.
func (f *Fetcher) findStart(fd *Feed) {
	e, ok := f.extent(fd)
	if !ok {
		return
	}
	fd.position = e.Start
	f.place(fd)
}

// backInRange finds out why the feed's position is not in the log, and where
// to go on.
func (f *Fetcher) backInRange(fd *Feed) {
	e, ok := f.extent(fd)
	if !ok {
		return
	}
	if e.Start <= fd.position && fd.position <= e.High {
		f.search(fd) // back in range meanwhile, or another leader's word
		return
	}
	at := fd.position
	if !fd.reset(e.Start, e.High) {
		return
	}
	f.clients.Log.Debug("the next offset to read is not in the log, going on elsewhere",
		zap.String("topic", fd.topic), zap.Int32("partition", fd.id), zap.Int64("offset", at),
		zap.Int64("resume", fd.position), zap.Int64("log_start", e.Start), zap.Int64("log_end", e.High))
	f.place(fd)
}

// extent asks until there is an answer, or the feed is removed.
func (f *Fetcher) extent(fd *Feed) (e Extent, ok bool) {
	for {
		fd.turns.Add(1)
		fd.asking.Store(max(int64(time.Since(f.made)), 1))
		e, err := f.reader.Extent(fd.ctx, fd.topic, fd.id)
		fd.asking.Store(0)
		if err == nil {
			return e, true
		}
		if fd.ctx.Err() != nil {
			return e, false
		}
		f.faults.Warn("fetch bounds", "log bounds are asked for again",
			zap.String("topic", fd.topic), zap.Int32("partition", fd.id), zap.Error(err))
		if !pause(fd.ctx, slow) {
			return e, false
		}
	}
}

// watch cuts connections to brokers that are silent and no longer lead what
// they are asked for.
func (f *Fetcher) watch() {
	for pause(f.ctx, watchEvery) {
		for _, h := range f.hanging() {
			if f.deserted(h) {
				h.link.cut()
			}
		}
	}
}

// hanging is a request that has been under way for long.
type hanging struct {
	broker     int32
	link       *link
	partitions []partition
}

func (f *Fetcher) hanging() []hanging {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []hanging
	for _, s := range f.sources {
		if s.since.IsZero() || time.Since(s.since) < hung+f.o.MaxWait {
			continue
		}
		h := hanging{broker: s.id, link: s.link}
		for _, fd := range s.feeds {
			h.partitions = append(h.partitions, fd.partition)
		}
		all = append(all, h)
	}
	return all
}

// deserted tells whether a partition that the broker is asked for has another
// leader by now. One that is read from a follower counts too: it goes back to
// its leader, which is right after such a silence.
func (f *Fetcher) deserted(h hanging) bool {
	fresh := make(map[string]bool)
	for _, p := range h.partitions {
		if !fresh[p.topic] {
			f.refresh(p.topic)
			fresh[p.topic] = true
		}
		if f.client.PartitionNotReadable(p.topic, p.id) {
			continue
		}
		leader, err := f.client.Leader(p.topic, p.id)
		if err == nil && leader.ID() != h.broker {
			return true
		}
	}
	return false
}
