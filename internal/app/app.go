package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"joiner/internal/assign"
	"joiner/internal/checkpoint"
	"joiner/internal/config"
	"joiner/internal/deliver"
	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/keys"
	"joiner/internal/kube"
	"joiner/internal/member"
	"joiner/internal/metrics"
	"joiner/internal/record"
	"joiner/internal/remote"
	"joiner/internal/resume"
	"joiner/internal/sampled"
	"joiner/internal/server"
	"joiner/internal/stall"
	"joiner/internal/status"
	"joiner/internal/task"
)

// Options is what a joiner is made of.
type Options struct {
	Config   config.Config
	Registry *prometheus.Registry // nil: one of its own
	Logger   *zap.Logger          // nil: nothing is logged
	Build    Build
	// Identity is the member's stable name; empty: group.instance_id, or made
	// at random where there is none.
	Identity string
	// Kubernetes is where group.leave: auto asks whether the pod comes back; the
	// zero value: not in Kubernetes.
	Kubernetes kube.Options
}

// Build is what joiner_build_info says.
type Build struct{ Version, Commit, Go, Sarama string }

// App is one joiner. Make it with New, run it once with Run.
type App struct {
	o       Options
	log     *zap.Logger
	reg     *prometheus.Registry
	metrics *metrics.Metrics
	topics  [record.Sides]string
	market  *enrich.MarketDecoder
	note    *enrich.NoteDecoder
	places  *places
	keys    *keys.Watch
	waiting *task.Waiting
	faults  *sampled.Log
	access  *kafka.Access
	member  *member.Member
	resumer *resumer
	outputs outputs
	addr    atomic.Value // net.Addr
	views   *status.Source
	peer    atomic.Value // net.Addr
	peering peerAccess
	strats  []sarama.BalanceStrategy
	remote  atomic.Pointer[remote.Client] // nil before Run
	stalls  *stall.Watch

	connected atomic.Bool
	stopping  atomic.Bool
	left      leftovers
	static    static
	fateLimit time.Duration // see fatePatience
	host      string        // this machine's name

	// Set once connected, before the group is joined.
	clients  *kafka.Clients
	fetcher  *kafka.Fetcher
	writer   *deliver.Writer
	delivery delivery
	fencer   *fencer
	// checkpoints is nil without state.dir.
	checkpoints *checkpoint.Dir
}

// New makes a joiner; it opens nothing and talks to nobody yet.
func New(o Options) (*App, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	c := o.Config
	if o.Identity == "" {
		o.Identity = c.Group.InstanceID
	}
	if o.Identity == "" {
		o.Identity = assign.RandomID()
	}
	host, _ := os.Hostname() // unknown: nobody's
	a := &App{
		o:       o,
		log:     o.Logger.With(zap.String("group", c.Group.ID), zap.String("pod", o.Identity)),
		reg:     o.Registry,
		topics:  [record.Sides]string{c.Topics.MarketUpdates, c.Topics.Notifications},
		waiting: task.NewWaiting(c.Join.MaxWaiting),

		fateLimit: fatePatience,
		host:      host,
	}
	a.faults = sampled.New(a.log, nil)
	a.fencer = newFencer(o.Identity, a.log)
	a.static = static{
		instance: c.Group.InstanceID, self: o.Identity, log: a.log,
		mine:       func() assign.Identity { return a.identity() },
		partitions: func(topic string) int32 { t, _ := a.outputs.topic(topic); return t.Partitions },
		rejoin:     func() { a.member.Rejoin() },
	}
	a.metrics = metrics.New(a.reg, metrics.Options{
		Topics:  a.topics,
		Version: o.Build.Version, Commit: o.Build.Commit, Go: o.Build.Go, Sarama: o.Build.Sarama,
	})
	a.views = status.NewSource(a.standing, peers{a})
	a.metrics.SetReady(func() bool { return a.Ready().Ready })
	var err error
	if a.market, a.note, err = Decoders(c); err != nil {
		return nil, err
	}
	if a.places, err = newPlaces(c.Topics); err != nil {
		return nil, err
	}
	if a.peering, err = newPeerAccess(c.Peer, a.faults); err != nil {
		return nil, err
	}
	a.keys = newWatch(c.Topics, a.market, a.places, a.faults)
	if a.access, err = kafka.NewAccess(KafkaSecurity(c.Kafka), c.Kafka.ClientID, o.Logger); err != nil {
		return nil, err
	}
	a.metrics.SetCertificates("kafka", func() time.Time { cert, _ := a.access.NotAfter(); return cert })
	a.metrics.SetCertificates("kafka_ca", func() time.Time { _, ca := a.access.NotAfter(); return ca })
	a.metrics.SetCertificates("peer", func() time.Time { cert, _ := a.peering.notAfter(); return cert })
	a.metrics.SetCertificates("peer_ca", func() time.Time { _, ca := a.peering.notAfter(); return ca })
	a.resumer = newResumer(a.topics, a.log, a.faults)
	a.resumer.clients = func() *kafka.Clients { return a.clients }
	a.resumer.reset = func(index int32) { a.member.Reset(index) }
	a.resumer.count = a.metrics.OffsetReset
	a.member = member.New(member.Options{
		Topics: a.topics, ID: o.Identity, InstanceID: c.Group.InstanceID, SessionTimeout: c.Group.SessionTimeout,
		Handover: handover(c), Enforce: func() { a.clients.EnforceRebalance() },
		NewTask: a.newTask, Begin: a.resumer.begin, Interrupt: a.interruptJoin,
		Fetcher: func() member.Fetcher { return fetcher{a.fetcher} },
		Metrics: &a.metrics.Group, Logger: a.log,
	})
	a.stalls, err = stall.New(stall.Options{
		Timeout: c.Group.StallTimeout, Samples: a.samples, Log: a.log,
		OnStalls: func(all []stall.Stall) {
			// Where it would have to wait, the next look tells.
			_ = a.member.CountStalled(func(index int32) bool { return stall.Stalled(all, index) })
		},
	})
	if err != nil {
		return nil, err
	}
	a.outputs = outputs{
		conf: c.Topics, metrics: a.metrics, log: a.log, faults: a.faults,
		writer: func() []deliver.Fault {
			if !a.connected.Load() {
				return nil
			}
			return a.delivery.Faults()
		},
	}
	return a, nil
}

// Check reports what New would refuse in a configuration that is valid key by
// key: a path that leads nowhere, a symbols file with a symbol twice. Its
// errors name the key.
func Check(c config.Config) error {
	_, _, decoded := Decoders(c)
	_, placed := Placers(c.Topics)
	// Files that can be read may still hold no certificate, or two that do not
	// belong together.
	_, secured := kafka.NewAccess(KafkaSecurity(c.Kafka), c.Kafka.ClientID, nil)
	_, peered := newPeerAccess(c.Peer, sampled.New(zap.NewNop(), nil))
	return errors.Join(decoded, placed, secured, peered)
}

// Decoders makes the decoders of both inputs, for the service and for the
// commands that read what it reads. Their errors name the key.
func Decoders(c config.Config) (*enrich.MarketDecoder, *enrich.NoteDecoder, error) {
	market, err := enrich.NewMarketDecoder(enrich.MarketOptions{
		Symbol: c.Market.Symbol, Price: c.Market.Price,
		EventTime: c.Market.EventTime, EventTimeUnit: c.Market.EventTimeUnit,
	})
	if err != nil {
		return nil, nil, err
	}
	notes, err := enrich.NewNoteDecoder(enrich.NoteOptions{
		Symbol: c.Notification.Symbol, EventTime: c.Notification.EventTime, EventTimeUnit: c.Notification.EventTimeUnit,
	})
	if err != nil {
		return nil, nil, err
	}
	return market, notes, nil
}

// Addr is where the probes listen, with the real port; nil before Run has
// opened it.
func (a *App) Addr() net.Addr {
	addr, _ := a.addr.Load().(net.Addr)
	return addr
}

// Registry is where the metrics are registered.
func (a *App) Registry() *prometheus.Registry { return a.reg }

// Member is the pod's standing in its group, for the demo and for tests.
func (a *App) Member() *member.Member { return a.member }

// Hottest returns the n symbols that this pod consumed most of lately, and how
// many records there were of all.
func (a *App) Hottest(n int) (hottest []keys.Hot, records uint64) { return a.keys.Hottest(n) }

// Run joins the group and works until ctx ends, then stops gracefully within
// shutdown.timeout. It returns nil after a clean stop, and an error that says
// what was left where the stop was cut short.
func (a *App) Run(ctx context.Context) error {
	var s stack
	defer s.abandon()
	if err := a.listen(ctx, &s); err != nil {
		return err
	}
	if err := a.listenPeers(ctx, &s); err != nil {
		return errors.Join(err, a.stop(&s))
	}
	if err := a.connect(ctx, &s); err != nil {
		if ctx.Err() != nil {
			return a.stop(&s)
		}
		return errors.Join(err, a.stop(&s))
	}
	err := a.consume(ctx, &s)
	return errors.Join(err, a.stop(&s))
}

// listen opens the probes first: liveness answers from then on.
func (a *App) listen(ctx context.Context, s *stack) error {
	c := a.o.Config.HTTP
	srv, err := server.Start(ctx, server.Options{
		Listen: c.Listen, PprofListen: c.PprofListen, Status: a, Gatherer: a.reg, Views: a.views, Prices: quotes{a}, Log: a.log,
	})
	if err != nil {
		return err
	}
	s.push("http server", srv.Close)
	a.addr.Store(srv.Addr())
	s.goRun("stall watch", a.stalls.Run)
	a.log.Info("listening", zap.String("http", srv.Addr().String()))
	return nil
}

// stop runs the stop stack within shutdown.timeout.
func (a *App) stop(s *stack) error {
	a.stopping.Store(true)
	limit := a.o.Config.Shutdown.Timeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	told := make(chan struct{})
	go func() {
		defer close(told)
		a.tellWaits(ctx)
	}()
	err := s.unwind(ctx, a.log)
	cancel()
	<-told
	if err := errors.Join(a.left.err(), err); err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	a.log.Info("stopped")
	return nil
}

// connect reaches the brokers and makes what needs them.
func (a *App) connect(ctx context.Context, s *stack) error {
	clients, err := kafka.Connect(ctx, a.kafkaOptions())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	a.clients = clients
	s.push("kafka clients", func(ctx context.Context) error { return within(ctx, clients.Close) })
	a.fetcher = clients.NewFetcher(kafka.FetcherOptions{OutOfRange: a.resumer.outOfRange, Remade: a.resumer.remade})
	s.push("fetcher", func(ctx context.Context) error {
		return within(ctx, func() error { a.fetcher.Close(); return nil })
	})
	if err := a.openCheckpoints(ctx, s); err != nil {
		return err
	}
	if err := a.startDelivery(ctx, s); err != nil {
		return err
	}
	a.connected.Store(true)
	a.outputs.facts = clients.Facts
	every := a.o.Config.Kafka.MetadataRefresh
	a.outputs.look(ctx, every) // before the first record: limits are to be known by then
	s.goRun("topic watch", func(ctx context.Context) error { return a.outputs.run(ctx, every, a.static.grown) })
	return a.startLatest(ctx)
}

// KafkaOptions is how a configuration reaches its cluster; strategies and the
// log are the caller's.
func KafkaOptions(c config.Config) kafka.Options {
	topics := []string{c.Topics.MarketUpdates, c.Topics.Notifications, c.Topics.EnrichedAlerts}
	if c.Topics.DeadLetters != "" {
		topics = append(topics, c.Topics.DeadLetters)
	}
	return kafka.Options{
		Brokers: c.Kafka.Brokers, ClientID: c.Kafka.ClientID, Rack: c.Kafka.Rack, Version: c.Kafka.Version,
		Topics:          topics,
		ReadCommitted:   c.Kafka.IsolationLevel == "read_committed",
		MetadataRefresh: c.Kafka.MetadataRefresh,
		GroupID:         c.Group.ID,
		InstanceID:      c.Group.InstanceID,
		Heartbeat:       c.Group.HeartbeatInterval, SessionTimeout: c.Group.SessionTimeout,
		RebalanceTimeout: c.Group.RebalanceTimeout,
		Transactional:    c.Delivery.Guarantee == config.ExactlyOnce,
		Security:         KafkaSecurity(c.Kafka),
	}
}

// KafkaSecurity is how connections to brokers are encrypted and authenticated.
// Secrets are read again for each connection.
func KafkaSecurity(c config.Kafka) kafka.Security {
	return kafka.Security{
		TLS: kafka.TLS{
			Enabled: c.TLS.Enabled, CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile,
			ServerName: c.TLS.ServerName, Insecure: c.TLS.InsecureSkipVerify,
		},
		SASL: kafka.SASL{
			Mechanism: c.SASL.Mechanism, Username: c.SASL.Username, Password: revealed(c.SASL.ReadPassword),
			TokenURL: c.SASL.TokenURL, ClientID: c.SASL.ClientID, ClientSecret: revealed(c.SASL.ReadClientSecret),
			Scopes: c.SASL.Scopes,
		},
	}
}

func revealed(read func() (config.Secret, error)) func() (string, error) {
	return func() (string, error) {
		secret, err := read()
		return secret.Reveal(), err
	}
}

func (a *App) kafkaOptions() kafka.Options {
	o := KafkaOptions(a.o.Config)
	o.Access = a.access
	o.Strategies = a.strats
	o.Log = a.o.Logger // it names the group itself where one is meant
	return o
}

// assigned hears of a new assignment, under sarama's locks. Tasks go on joining
// meanwhile. The counts come after the directory: a symbol must not be asked for
// in a partition that the directory of the generation before does not have,
// where it would be a miss.
func (a *App) assigned(as assign.Assignment) {
	a.member.OnAssigned(as)
	a.static.learn(as)
	a.places.learn(as.Directory)
	a.fencer.learn(as.Directory)
	if foreign := status.ForeignOwners(as.Directory, a.topics); len(foreign) > 0 {
		a.log.Warn("members of the group are no joiners: give every application a group.id of its own", zap.Strings("members", foreign))
	}
	a.remote.Load().DirectoryChanged()
}

// fetcher is the clients' fetcher as the member sees it.
type fetcher struct{ *kafka.Fetcher }

// Add implements member.Fetcher.
func (f fetcher) Add(topic string, partition int32, at member.Start, sink kafka.Sink) member.Feed {
	return f.AddOf(at.TopicID, topic, partition, at.Offset, sink)
}

// interruptJoin ends a JoinGroup under way; before there are clients there is
// none.
func (a *App) interruptJoin() {
	if a.connected.Load() {
		a.clients.InterruptJoin()
	}
}

// consume is the member's life in the group.
func (a *App) consume(ctx context.Context, s *stack) error {
	group, err := a.clients.Group()
	if err != nil {
		return err
	}
	leaves := make(chan bool, 1)
	s.push("consumer group", func(ctx context.Context) error { return a.leave(ctx, group, <-leaves) })
	// Only the stop stack ends it: what its tasks leave is noted as the stop's.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	result := make(chan error, 1)
	go func() { result <- a.member.Run(running, group) }()
	s.push("member", func(ctx context.Context) error {
		go func() { leaves <- a.leaves(ctx) }() // while the tasks are being committed
		cancel()
		select {
		case err := <-result:
			return err
		case <-ctx.Done():
			for _, t := range a.member.Status().Tasks {
				a.left.add(func() task.Status { return t }, fmt.Sprintf("%d notifications unsettled", t.Unsettled))
			}
			return fmt.Errorf("the session did not end in time: %w", ctx.Err())
		}
	})
	select {
	case <-ctx.Done():
		return nil
	case err := <-result:
		result <- nil
		return err
	}
}

// drain bounds what a closing task waits for its outputs, and then for its last
// commit.
func drain(c config.Config) time.Duration {
	return min(c.Group.RebalanceTimeout/3, c.Shutdown.Timeout/2)
}

// handover is how long a partition may be without an owner where all is well: its
// old owner drains and commits, and everybody hears of the next generation by a
// heartbeat.
func handover(c config.Config) time.Duration { return 2*drain(c) + 4*c.Group.HeartbeatInterval }

// newTask makes the task of an index; the member calls it.
func (a *App) newTask(index int32, halves [record.Sides]bool, flow task.Flow) *task.Task {
	c := a.o.Config
	t := task.New(task.Options{
		Index: index, Mine: halves, Topics: a.topics, Alerts: c.Topics.EnrichedAlerts,
		DeadLetters:         c.Topics.DeadLetters,
		DeadLetterPartition: func() int32 { return a.outputs.deadLetterPartition(index) },
		Market:              a.market, Note: a.note, Placement: a.places.At(index),
		History: c.Join.History, MaxIdle: c.Join.MaxIdle, Wait: c.Join.Wait, Waiting: a.waiting,
		OnMiss: task.Policy(c.Join.OnMiss), OnUnavailable: task.Policy(c.Join.OnUnavailable),
		Ends: a.clients.Ends, Log: source{a.clients.Reader, a.resumer}, Sink: a.delivery, Flow: flow,
		Gone:       func(t *task.Task, side record.Side, at int64) { a.resumer.lose(side, t.Index(), at, resume.Truncated) },
		Prices:     prices{owner: a.member, remote: a.remote.Load(), scope: remote.Scope(c.Join.RemoteLookup)},
		Checkpoint: a.checkpointOf(index),
		Commit: func(ctx context.Context, t *task.Task) error {
			defer a.delivery.unregister(t)
			err := a.delivery.commit(ctx, t)
			if a.stopping.Load() {
				a.left.ended(t, err)
			}
			return err
		},
		Settle:   a.delivery.settle(),
		Patience: lookupPatience(c.Join),
		Drain:    drain(c),
		Metrics:  a.metrics.Partition(index, halves),
		Keys:     a.keys.Partition(index),
		Logger:   a.log,
		Faults:   a.faults,
	})
	a.delivery.register(t)
	return t
}
