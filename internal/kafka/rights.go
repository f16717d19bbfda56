package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Right is an operation that a principal may be allowed on a resource, by the
// names that Kafka's own tools use.
type Right struct {
	Operation string // Read, Write, Create, Alter, DescribeConfigs …
	Resource  string // topic, group or transactional_id
	Name      string
}

func (r Right) String() string { return fmt.Sprintf("%s on %s %s", r.Operation, r.Resource, r.Name) }

// The rights whose lack a request here may show. A request that needs Describe
// only shows the lack of the one that implies it and is given.
func readTopic(name string) Right   { return Right{"Read", "topic", name} }
func readGroup(name string) Right   { return Right{"Read", "group", name} }
func createTopic(name string) Right { return Right{"Create", "topic", name} }
func alterTopic(name string) Right  { return Right{"Alter", "topic", name} }
func writeTxn(id string) Right      { return Right{"Write", "transactional_id", id} }

// Unauthorized tells whether err is a broker's word that a right is missing.
func Unauthorized(err error) bool {
	return errors.Is(err, sarama.ErrTopicAuthorizationFailed) ||
		errors.Is(err, sarama.ErrGroupAuthorizationFailed) ||
		errors.Is(err, sarama.ErrClusterAuthorizationFailed) ||
		errors.Is(err, sarama.ErrTransactionalIDAuthorizationFailed)
}

// rights remembers which are missing. Whoever was refused asks again and is
// refused again until somebody gives the right, so one that nobody has missed
// for a while is there again, or not needed any more.
type rights struct {
	faults *sampler
	counts time.Duration // how long a refusal is told of
	now    func() time.Time

	any     atomic.Bool // something is missing: spares the happy the lock
	mu      sync.Mutex
	missing map[Right]time.Time // when it was last missed
}

// rightCounts is the least time that a missing right is told of: everything
// that needs one asks again within 5s, but for what a look at the topics finds,
// which is repeated every kafka.metadata_refresh.
const rightCounts = 12 * time.Second

func newRights(o Options, faults *sampler) *rights {
	return &rights{
		faults: faults, counts: max(rightCounts, o.MetadataRefresh*5/2), now: time.Now,
		missing: make(map[Right]time.Time),
	}
}

// missed notes the right where err says that it is missing, and returns err.
func (r *rights) missed(right Right, err error) error {
	if !Unauthorized(err) {
		return err
	}
	r.mu.Lock()
	r.missing[right] = r.now()
	r.any.Store(true)
	r.mu.Unlock()
	r.faults.Error("right "+right.String(), "missing right: "+right.String()+"; trying again",
		zap.String("operation", right.Operation), zap.String(right.Resource, right.Name), zap.Error(err))
	return err
}

// seen says that the right is there.
func (r *rights) seen(right Right) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, right)
	r.any.Store(len(r.missing) > 0)
}

// MissingRights returns the rights that brokers have lately said are missing,
// in order. A heartbeat that was answered with success since shows that the group
// may be read: nobody else says so, and the pod would go on to be unready for the
// rest of the time that a refusal counts.
func (c *Clients) MissingRights() []Right {
	c.rights.seenAt(readGroup(c.opts.GroupID), c.lease.lastProven())
	return c.rights.lately()
}

// seenAt says that the right was there at that time.
func (r *rights) seenAt(right Right, at time.Time) {
	if !r.any.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if missed, ok := r.missing[right]; ok && at.After(missed) {
		delete(r.missing, right)
		r.any.Store(len(r.missing) > 0)
	}
}

// lately forgets what nobody has missed for a while: rights such as Create are
// asked for once, and nobody says later that they are there.
func (r *rights) lately() []Right {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	maps.DeleteFunc(r.missing, func(_ Right, at time.Time) bool { return now.Sub(at) >= r.counts })
	r.any.Store(len(r.missing) > 0)
	return slices.SortedFunc(maps.Keys(r.missing), func(a, b Right) int {
		return strings.Compare(a.String(), b.String())
	})
}
