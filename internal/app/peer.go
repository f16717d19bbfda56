package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"joiner/internal/assign"
	"joiner/internal/config"
	"joiner/internal/record"
	"joiner/internal/remote"
	"joiner/internal/task"
)

// listenPeers opens the listener for other pods, which must be open before the
// group is told its address, and makes what asks them.
func (a *App) listenPeers(ctx context.Context, s *stack) error {
	c := a.o.Config
	peer, err := remote.Listen(ctx, remote.ServerOptions{
		Listen: c.Peer.Listen, Group: self{a}, Status: http.HandlerFunc(a.part),
		TLS: a.peering.server(), Token: a.peering.token, Log: a.log,
	})
	if err != nil {
		return err
	}
	s.push("peer listener", peer.Close)
	if tokens := a.peering.token; tokens != nil {
		s.goRun("peer token", func(ctx context.Context) error { tokens.Watch(ctx); return nil })
	}
	s.goRun("certificates of peer.tls", func(ctx context.Context) error { a.peering.watch(ctx); return nil })
	s.goRun("certificates of kafka.tls", func(ctx context.Context) error { a.access.WatchTLS(ctx); return nil })
	a.peer.Store(peer.Addr())
	client, err := remote.NewClient(remote.ClientOptions{
		Group: self{a}, Timeout: c.Join.RemoteTimeout,
		Patience: lookupPatience(c.Join),
		TLS:      a.peering.client(), Token: a.peering.token, AllowedNames: c.Peer.AllowedNames,
		Metrics: &a.metrics.Remote, Log: a.log,
	})
	if err != nil {
		return err
	}
	s.push("peer requests", func(ctx context.Context) error {
		return within(ctx, func() error { client.Close(); return nil })
	})
	a.remote.Store(client)
	mine := a.identity()
	a.strats, err = assign.New(assign.Options{
		Strategy: c.Group.Strategy, UpgradeFrom: c.Group.UpgradeFrom, Topics: a.topics[:],
		Identity:     mine,
		OnAssignment: a.assigned, OnJoin: a.member.Joining, Asks: a.member.Asks, Log: a.log,
	})
	if err != nil {
		return fmt.Errorf("group.strategy: %w", err)
	}
	a.log.Info("listening for other pods", zap.Stringer("peer", peer.Addr()), zap.String("advertised", mine.Address))
	return nil
}

// identity is how this pod makes itself known in the group.
func (a *App) identity() assign.Identity {
	return assign.Identity{
		ID: a.o.Identity, Instance: a.o.Config.Group.InstanceID,
		Address: a.address(), Transactional: a.transactionalID(),
	}
}

// lookupPatience is how long all attempts for one notification may take, whomever
// they ask: one at least, and an owner that lets join.max_idle pass is there, and is
// no reason to give up.
func lookupPatience(j config.Join) time.Duration {
	return max(j.RemotePatience, j.RemoteTimeout) + j.MaxIdle
}

// withPort puts the port that was really opened into peer.listen.
func withPort(p config.Peer, addr net.Addr) config.Peer {
	host, _, err := net.SplitHostPort(p.Listen)
	_, port, errAddr := net.SplitHostPort(addr.String())
	if err == nil && errAddr == nil {
		p.Listen = net.JoinHostPort(host, port)
	}
	return p
}

// PeerAddr is where other pods ask this one, with the real port; nil before Run
// has opened it.
func (a *App) PeerAddr() net.Addr {
	addr, _ := a.peer.Load().(net.Addr)
	return addr
}

// self is this pod as remote sees it.
type self struct{ a *App }

// Standing implements remote.Group.
func (p self) Standing() (remote.Standing, bool) {
	a := p.a
	generation, assigned := a.member.Generation()
	if !assigned || !a.connected.Load() {
		return remote.Standing{}, false
	}
	market := a.topics[record.Market]
	topic, ok := a.outputs.topic(market)
	return remote.Standing{
		Cluster: a.clients.Facts.Cluster(), Group: a.o.Config.Group.ID, Topic: market, TopicID: topic.ID,
		Generation: generation, Self: a.o.Identity,
	}, ok
}

// Alive implements remote.Group.
func (p self) Alive() bool {
	return p.a.connected.Load() && p.a.clients.Silence() < p.a.o.Config.Group.SessionTimeout
}

// Owns implements remote.Group.
func (p self) Owns(partition int32) bool { return p.a.member.Owns(partition) }

// Table implements remote.Group.
func (p self) Table(partition int32) remote.Table {
	t := p.a.member.Task(partition)
	if t == nil {
		return nil // an interface around nil would be none
	}
	return t
}

// Directory implements remote.Group.
func (p self) Directory() *assign.Directory { return p.a.member.Directory() }

// Partitions implements remote.Group.
func (p self) Partitions() int32 {
	if n := p.a.places.counts.Load().now[record.Market]; n > 0 {
		return n
	}
	topic, _ := p.a.outputs.topic(p.a.topics[record.Market])
	return topic.Partitions
}

// PriceNow is the newest price of a symbol, as its owner's table stands.
type PriceNow struct {
	Found     bool
	Price     record.Price // with Found
	Partition int32        // that answered: with Found the price's own
	Next      int64        // one above the last record of Partition that the owner has read
	Owner     string       // stable identity of the pod that owns Partition; "" where no directory names it
}

// NoPriceError says why nobody could say what the price is.
type NoPriceError struct {
	// Reason is one of the reasons of a remote.Failure.
	Reason string
	// Owner is the stable identity of the pod that was asked last, if any.
	Owner string
}

func (e *NoPriceError) Error() string {
	if e.Owner == "" {
		return "price not known: " + e.Reason
	}
	return fmt.Sprintf("price not known: %s (%s)", e.Reason, e.Owner)
}

// PriceNow looks the newest price of a symbol up, in this pod or in another,
// whatever join.remote_lookup says. ctx bounds how long an owner that is away
// or restoring is asked again. The error is a *NoPriceError.
func (a *App) PriceNow(ctx context.Context, symbol []byte) (PriceNow, error) {
	if len(symbol) == 0 {
		return PriceNow{}, nil // no tick has it, and it is at home nowhere: every owner would be asked
	}
	if !a.connected.Load() {
		return PriceNow{}, &NoPriceError{Reason: remote.NoDirectory}
	}
	ctx, cancel := context.WithTimeout(ctx, lookupPatience(a.o.Config.Join)) // for all of its homes
	defer cancel()
	var first PriceNow
	for i, partition := range a.homes(symbol) {
		answer, failure := a.remote.Load().Newest(ctx, partition, symbol)
		if err := notKnown(answer, failure); err != nil {
			return PriceNow{}, err
		}
		now := a.priceNow(answer)
		if i == 0 {
			first = now
		}
		if now.Found || answer.Held {
			return now, nil
		}
	}
	return first, nil
}

// notKnown is the error where nobody said what the price is; nil where somebody
// did.
func notKnown(answer task.Answer, failure remote.Failure) error {
	switch answer.Outcome {
	case task.Unanswered:
		return &NoPriceError{Reason: failure.Reason, Owner: failure.Owner}
	case task.NotAsked: // by nobody who may ask everywhere
		return &NoPriceError{Reason: remote.NoOwner}
	}
	return nil
}

// homes lists the market partitions that may hold the symbol, in the order of
// asking.
func (a *App) homes(symbol []byte) []int32 {
	home, known := a.places.Home(symbol)
	if !known {
		return []int32{task.AnyPartition}
	}
	homes := []int32{home}
	for _, former := range a.places.Former(symbol) {
		if !slices.Contains(homes, former) {
			homes = append(homes, former)
		}
	}
	return homes
}

func (a *App) priceNow(answer task.Answer) PriceNow {
	now := PriceNow{Found: answer.Outcome == task.Found, Price: answer.Price, Partition: answer.Partition, Next: answer.Next}
	switch owner, ok := a.member.Directory().Owner(a.topics[record.Market], answer.Partition); {
	case ok:
		now.Owner = owner.ID
	case a.member.Owns(answer.Partition):
		now.Owner = a.o.Identity
	}
	return now
}

// peers asks other pods for their part of the group's status.
type peers struct{ a *App }

// Status implements status.Peers.
func (p peers) Status(ctx context.Context, address string, w io.Writer) error {
	client := p.a.remote.Load()
	if client == nil {
		return errNotStarted
	}
	return client.Status(ctx, address, w)
}

// errNotStarted reports a pod that has not opened its listener for others.
var errNotStarted = errors.New("this pod is still starting")

// part answers other pods with this pod's part of the group's status.
func (a *App) part(w http.ResponseWriter, _ *http.Request) {
	b, err := a.views.Part()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b)
}
