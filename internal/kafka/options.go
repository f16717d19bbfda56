package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Options says which cluster to talk to and how. Where a field has a default,
// its zero value means that.
type Options struct {
	Brokers  []string // bootstrap servers, host:port; at least one
	ClientID string   // "joiner"
	Rack     string   // where set, claims fetch from the closest replica (KIP-392)
	Version  string   // "auto" (the default) or x.y.z, at least 2.8.0

	// Topics are those whose metadata every client needs from the start: the
	// inputs and the outputs. Without them, Connect asks for all topics.
	Topics []string

	ReadCommitted   bool          // hides open and aborted transactions from claims, ends and logs
	MetadataRefresh time.Duration // 10s; how soon new partitions are seen

	// Transactional makes the client that Transactions need, and has the group
	// wait for offsets that are pending whatever ReadCommitted says.
	Transactional bool

	GroupID          string
	InstanceID       string                   // static membership (KIP-345); empty: dynamic
	Heartbeat        time.Duration            // 500ms
	SessionTimeout   time.Duration            // 10s, at least three heartbeats
	RebalanceTimeout time.Duration            // 30s
	Strategies       []sarama.BalanceStrategy // needed for Group only

	// FetchMin (bytes) and FetchMaxWait decide when a broker answers a claim's
	// fetch: with so many bytes, or after so long. The defaults, 64 KiB and
	// 10ms, bound the number of fetches, which is what costs at moderate
	// rates: at 200 notifications and 2,000 ticks a second they took a quarter
	// off the CPU of 1 byte and 100ms at the same latency, because with 1 byte
	// nearly every record is a fetch of its own. A short wait also makes Pause,
	// Resume and a revocation quick, which take effect when the fetch under way
	// returns. The price is 100 empty fetches a second and broker when idle.
	FetchMin     int32
	FetchMaxWait time.Duration

	// Security encrypts and authenticates connections. Access, where set, is
	// made of it already, so that its Refusals can be asked for before Connect
	// returns; nil: Connect makes one.
	Security Security
	Access   *Access

	// Dial replaces the TCP dialer, for tests that count or break connections.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Log *zap.Logger // nil: silent
}

// Defaults of Options and the numbers that are not options. Each has its
// reason where it is used.
const (
	defaultClientID         = "joiner"
	defaultMetadataRefresh  = 10 * time.Second
	defaultHeartbeat        = 500 * time.Millisecond
	defaultSessionTimeout   = 10 * time.Second
	defaultRebalanceTimeout = 30 * time.Second
	defaultFetchMin         = 64 << 10
	defaultFetchMaxWait     = 10 * time.Millisecond

	backoff     = 100 * time.Millisecond // between tries of anything
	dialTimeout = 5 * time.Second
	// secureTimeout bounds TLS, token and SASL together, so that a token
	// endpoint that is slow to fail is named by its own time-out.
	secureTimeout = 8 * time.Second
)

func (o Options) withDefaults() Options {
	setDefault(&o.ClientID, defaultClientID)
	setDefault(&o.Version, versionAuto)
	setDefault(&o.MetadataRefresh, defaultMetadataRefresh)
	setDefault(&o.Heartbeat, defaultHeartbeat)
	setDefault(&o.SessionTimeout, defaultSessionTimeout)
	setDefault(&o.RebalanceTimeout, defaultRebalanceTimeout)
	setDefault(&o.FetchMin, defaultFetchMin)
	setDefault(&o.FetchMaxWait, defaultFetchMaxWait)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// complete fills in what is not given, the access among it. The error is about
// the options alone.
func (o Options) complete() (Options, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return o, fmt.Errorf("kafka options: %w", err)
	}
	if o.Access != nil {
		return o, nil
	}
	access, err := NewAccess(o.Security, o.ClientID, o.Log)
	if err != nil {
		return o, fmt.Errorf("kafka options: %w", err)
	}
	o.Access = access
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) validate() error {
	var errs []error
	if len(o.Brokers) == 0 {
		errs = append(errs, errors.New("brokers: none given"))
	}
	if _, err := parseVersion(o.Version); err != nil {
		errs = append(errs, err)
	}
	for name, d := range map[string]time.Duration{
		"metadata refresh": o.MetadataRefresh, "heartbeat": o.Heartbeat,
		"session timeout": o.SessionTimeout, "rebalance timeout": o.RebalanceTimeout,
		"fetch wait": o.FetchMaxWait,
	} {
		if d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s: %v is below 1ms", name, d))
		}
	}
	if o.SessionTimeout < 3*o.Heartbeat {
		errs = append(errs, fmt.Errorf("session timeout: %v is under three heartbeats of %v", o.SessionTimeout, o.Heartbeat))
	}
	if o.FetchMin < 1 {
		errs = append(errs, fmt.Errorf("fetch min: %d is below 1 byte", o.FetchMin))
	}
	return errors.Join(errs...)
}

const versionAuto = "auto"

// autoVersion is what "auto" speaks. sarama asks each broker at connection
// for the versions that it knows (ApiVersions, KIP-35) and sends the lower of
// that and what its Config.Version allows, request by request; so the version
// only caps. 3.6 allows all that joiner sends: generations in the subscription
// (KIP-792, from 3.2), reasons in JoinGroup and LeaveGroup (KIP-800, from 3.2),
// offset fetches with RequireStable. From 3.9 on sarama would open each
// connection with ApiVersions v4, which brokers before 3.9 refuse first. Works
// with Kafka 2.8 to 4.4 and kfake.
func autoVersion() sarama.KafkaVersion { return sarama.V3_6_0_0 }

func parseVersion(s string) (sarama.KafkaVersion, error) {
	if s == versionAuto {
		return autoVersion(), nil
	}
	v, err := sarama.ParseKafkaVersion(s)
	if err != nil {
		return v, fmt.Errorf("version: %q is neither auto nor x.y.z: %w", s, err)
	}
	if !v.IsAtLeast(sarama.V2_8_0_0) {
		return v, fmt.Errorf("version: %s is older than 2.8.0", s)
	}
	return v, nil
}
