package assign

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// The strategies, as the configuration names them.
const (
	Copartition = "copartition"
	Range       = "range"
	RoundRobin  = "roundrobin"
	Sticky      = "sticky"
)

// ProtocolName is the name under which copartition is spoken in the group.
const ProtocolName = "joiner-copartition"

// Strategies lists every strategy.
func Strategies() []string { return []string{Copartition, Range, RoundRobin, Sticky} }

// Identity is who a member is, apart from the id that the group coordinator
// gives it anew at every start.
type Identity struct {
	// ID is the stable identity: the instance id, or a random one that lives
	// as long as the process.
	ID string
	// Address is the advertised peer address, host:port; it may be empty.
	Address string
	// Instance is the group.instance_id (KIP-345), empty for dynamic members.
	Instance string
	// Transactional is the id of the member's transactional producer, by which
	// whoever takes over from a member that died ends its transaction; empty
	// where it has none.
	Transactional string
}

// Member is one member of the group.
type Member struct {
	MemberID string // the coordinator's; empty where a large group left it out
	Identity        // ID is the MemberID where the member's data could not be read
	// Foreign is set where the member is no joiner: it said nothing of itself that a
	// joiner of any version says. Leaders of older releases do not tell.
	Foreign bool
}

// Options say how a process takes part in its group.
type Options struct {
	// Strategy is one of Strategies.
	Strategy string
	// UpgradeFrom lists the strategies still in the group during a rolling
	// change, most preferred first. It makes the whole list eager, since
	// sarama takes the protocol that all of it can do.
	UpgradeFrom []string
	// Identity is this member's. An empty ID becomes a random one.
	Identity Identity
	// Topics are the topics that this process joins: owning an index without
	// all of them would be half an index. Empty means whatever is subscribed.
	Topics []string
	// OnAssignment hears of every assignment, before any claim starts. sarama
	// calls it under its locks, with the old claims still running: it must
	// return at once and must neither commit, nor wait, nor call the group.
	OnAssignment func(Assignment)
	// OnJoin hears that the member is about to join the group, or to join it
	// again; once a strategy of the list. It must return at once, as
	// OnAssignment must. It may be nil.
	OnJoin func()
	// Asks is how often the process has asked for a rebalance by itself. The
	// coordinator takes the join of a follower that says what it said before for
	// a question about its assignment, so what it says has this number in it. It
	// may be nil.
	Asks func() uint64
	// DirectoryBudget bounds what one generation's directories may take
	// together, in bytes; 0 means DefaultDirectoryBudget. A leader whose
	// directories would be larger leaves out member ids, then everything about
	// owners.
	DirectoryBudget int
	// Log may be nil.
	Log *zap.Logger
}

// DefaultDirectoryBudget keeps a group's record in __consumer_offsets, which
// holds every member's assignment, well below the broker's default limit of
// 1 MiB a record: beyond it no generation would ever form.
const DefaultDirectoryBudget = 512 << 10

// Assignment is what one generation brings a member.
type Assignment struct {
	// Strategy is the strategy that the group agreed on.
	Strategy string
	// Generation is the group's.
	Generation int32
	// Claims are this member's partitions by topic, ascending. The receiver
	// may keep and change them.
	Claims map[string][]int32
	// Directory is nil where a member that is not a joiner leads the group, or
	// one whose format this version cannot read. It must not be changed.
	Directory *Directory
	// Inherited is set where this member leads the group and has not planned
	// the generation: it is a static member (KIP-345) that was started again,
	// and got what the process before it had planned. The coordinator takes it
	// for the leader, while sarama, told of no such thing before version 9 of
	// JoinGroup (KIP-814), does not look for new partitions.
	Inherited bool
}

// New returns the strategies for sarama's
// Consumer.Group.Rebalance.GroupStrategies, most preferred first. They share
// what the process remembers between joins; use them for one group only.
//
// The error names an unknown strategy, or one that is listed twice.
func New(opts Options) ([]sarama.BalanceStrategy, error) {
	names := append([]string{opts.Strategy}, opts.UpgradeFrom...)
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.DirectoryBudget == 0 {
		opts.DirectoryBudget = DefaultDirectoryBudget
	}
	if opts.Identity.ID == "" {
		opts.Identity.ID = RandomID()
	}
	mem := &memory{
		identity: opts.Identity,
		joined:   slices.Sorted(slices.Values(opts.Topics)),
		eager:    slices.ContainsFunc(names, func(n string) bool { return n != Copartition }),
		inner:    make(map[string][]byte),
		joining:  opts.OnJoin,
		asks:     opts.Asks,
	}
	if mem.asks == nil {
		mem.asks = func() uint64 { return 0 }
	}
	if mem.joining == nil {
		mem.joining = func() {}
	}
	strategies := make([]sarama.BalanceStrategy, 0, len(names))
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("strategy %q is listed twice", name)
		}
		s, err := newStrategy(name, i > 0, mem, opts)
		if err != nil {
			return nil, err
		}
		strategies = append(strategies, s)
	}
	return strategies, nil
}

func newStrategy(name string, upgrading bool, mem *memory, opts Options) (sarama.BalanceStrategy, error) {
	common := &member{name: name, mem: mem, report: opts.OnAssignment, budget: opts.DirectoryBudget, log: opts.Log}
	switch name {
	case Copartition:
		return &copartition{member: common}, nil
	case Range:
		return &wrapper{member: common, inner: sarama.NewBalanceStrategyRange()}, nil
	case RoundRobin:
		return &wrapper{member: common, inner: sarama.NewBalanceStrategyRoundRobin()}, nil
	case Sticky:
		return &wrapper{member: common, inner: sarama.NewBalanceStrategySticky(), bare: upgrading}, nil
	default:
		return nil, fmt.Errorf("unknown strategy %q: use one of %q", name, Strategies())
	}
}

// RandomID returns an Identity's ID for a process that has no name of its own:
// 16 hexadecimal digits.
func RandomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return hex.EncodeToString(b[:])
}
