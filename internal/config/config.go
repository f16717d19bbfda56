package config

import (
	"strings"
	"time"
)

// Config is the whole configuration. Its tags are the documentation: the key,
// the line of meaning in config.yaml, and the words that a key accepts.
type Config struct {
	Kafka        Kafka        `mapstructure:"kafka" doc:"The Kafka cluster."`
	Topics       Topics       `mapstructure:"topics" doc:"The two inputs, the two outputs, and how producers place keys."`
	Group        Group        `mapstructure:"group" doc:"The consumer group that shares the work."`
	Market       Market       `mapstructure:"market" doc:"Where a market update holds what is needed."`
	Notification Notification `mapstructure:"notification" doc:"Where a notification holds what is needed."`
	Join         Join         `mapstructure:"join" doc:"How a notification meets its price."`
	Delivery     Delivery     `mapstructure:"delivery" doc:"How alerts go out and progress is committed."`
	State        State        `mapstructure:"state" doc:"Where price tables outlive a restart."`
	HTTP         HTTP         `mapstructure:"http" doc:"Probes, metrics and read-only pages."`
	Peer         Peer         `mapstructure:"peer" doc:"Requests between pods."`
	Log          Log          `mapstructure:"log" doc:"The log, on standard error."`
	Shutdown     Shutdown     `mapstructure:"shutdown" doc:"What happens after SIGTERM."`
}

// Kafka says how the cluster is reached.
type Kafka struct {
	Brokers         []string      `mapstructure:"brokers" doc:"Bootstrap servers, each host:port."`
	ClientID        string        `mapstructure:"client_id" doc:"The name that brokers see in their logs and quotas."`
	Rack            string        `mapstructure:"rack" doc:"The rack or zone of this pod; set, it fetches from the closest replica."`
	Version         string        `mapstructure:"version" doc:"The protocol version spoken: auto, or a version such as 3.9.0 (2.8.0 or newer)."`
	IsolationLevel  string        `mapstructure:"isolation_level" enum:"read_committed read_uncommitted" doc:"Which records are read: read_committed or read_uncommitted."`
	MetadataRefresh time.Duration `mapstructure:"metadata_refresh" doc:"How soon new partitions are seen (100ms or more)."`
	TLS             KafkaTLS      `mapstructure:"tls" doc:"Encryption of the connections to brokers; files are read again when they rotate."`
	SASL            SASL          `mapstructure:"sasl" doc:"Authentication to brokers; *_file values are read again for each new connection."`
}

// KafkaTLS encrypts the connections to brokers.
type KafkaTLS struct {
	Enabled            bool   `mapstructure:"enabled" doc:"Whether connections to brokers are encrypted."`
	CAFile             string `mapstructure:"ca_file" doc:"PEM file of the authorities trusted; empty: those of the system."`
	CertFile           string `mapstructure:"cert_file" doc:"PEM file of the client's certificate; together with key_file."`
	KeyFile            string `mapstructure:"key_file" doc:"PEM file of the client's key; together with cert_file."`
	ServerName         string `mapstructure:"server_name" doc:"The name expected in brokers' certificates; empty: the broker's host."`
	InsecureSkipVerify bool   `mapstructure:"insecure_skip_verify" doc:"Whether brokers' certificates go unchecked; only for experiments."`
}

// SASL authenticates to brokers.
type SASL struct {
	Mechanism        string   `mapstructure:"mechanism" enum:"PLAIN SCRAM-SHA-256 SCRAM-SHA-512 OAUTHBEARER" doc:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty: none."`
	Username         string   `mapstructure:"username" doc:"User name for PLAIN and SCRAM."`
	Password         Secret   `mapstructure:"password" doc:"Password for PLAIN and SCRAM; better given by password_file."`
	PasswordFile     string   `mapstructure:"password_file" doc:"File that holds the password, instead of password."`
	TokenURL         string   `mapstructure:"token_url" doc:"Token endpoint for OAUTHBEARER (client credentials)."`
	ClientID         string   `mapstructure:"client_id" doc:"Client id at the token endpoint."`
	ClientSecret     Secret   `mapstructure:"client_secret" doc:"Client secret at the token endpoint; better given by client_secret_file."`
	ClientSecretFile string   `mapstructure:"client_secret_file" doc:"File that holds the client secret, instead of client_secret."`
	Scopes           []string `mapstructure:"scopes" doc:"Scopes asked for at the token endpoint."`
}

// Topics names the topics and says how keys are placed in them.
type Topics struct {
	MarketUpdates            string     `mapstructure:"market_updates" doc:"The topic of ticks."`
	Notifications            string     `mapstructure:"notifications" doc:"The topic of notifications."`
	EnrichedAlerts           string     `mapstructure:"enriched_alerts" doc:"The topic that enriched alerts are written to."`
	DeadLetters              string     `mapstructure:"dead_letters" doc:"The topic that bad records are written to; empty: they are counted and skipped."`
	Create                   bool       `mapstructure:"create" doc:"Whether missing output topics are created, and grown when the inputs grow."`
	ReplicationFactor        int16      `mapstructure:"replication_factor" doc:"Replication factor of topics created here; -1: the broker's default."`
	Partitioner              string     `mapstructure:"partitioner" enum:"murmur2 crc32 fnv1a custom" doc:"How producers place keys: murmur2 (Java), crc32 (librdkafka), fnv1a (sarama), custom (unknown, not judged)."`
	MarketUpdatesPartitioner string     `mapstructure:"market_updates_partitioner" enum:"murmur2 crc32 fnv1a custom" doc:"As partitioner, for market_updates only; empty: as partitioner."`
	NotificationsPartitioner string     `mapstructure:"notifications_partitioner" enum:"murmur2 crc32 fnv1a custom" doc:"As partitioner, for notifications only; empty: as partitioner."`
	Reserved                 []Reserved `mapstructure:"reserved" doc:"Partitions kept for the symbols of a file, one a line: a list of {partition, symbols_file}; as text PARTITION=FILE."`
}

// Reserved keeps a partition for the symbols of a file; all other keys hash
// over the rest.
type Reserved struct {
	Partition   int32  `mapstructure:"partition"`    // 0 or more
	SymbolsFile string `mapstructure:"symbols_file"` // one symbol a line
}

// Group is the consumer group.
type Group struct {
	ID                string        `mapstructure:"id" doc:"The consumer group's id."`
	InstanceID        string        `mapstructure:"instance_id" doc:"Static membership: a name that this pod, and no other, keeps over restarts (in Kubernetes the pod's name); empty: dynamic."`
	Leave             string        `mapstructure:"leave" enum:"auto always never" doc:"Whether the member leaves the group when it stops: always, never, or auto: dynamic members leave, static ones only when Kubernetes says that they do not come back."`
	Strategy          string        `mapstructure:"strategy" enum:"copartition range roundrobin sticky" doc:"Who gets which partition: copartition; or range, roundrobin, sticky to compare or migrate."`
	UpgradeFrom       []string      `mapstructure:"upgrade_from" enum:"copartition range roundrobin sticky" doc:"Strategies still in the group during a rolling change."`
	HeartbeatInterval time.Duration `mapstructure:"heartbeat_interval" doc:"How often the member shows that it lives, and hears of rebalances."`
	SessionTimeout    time.Duration `mapstructure:"session_timeout" doc:"How long a silent member keeps its partitions; three heartbeats or more."`
	RebalanceTimeout  time.Duration `mapstructure:"rebalance_timeout" doc:"How long a rebalance waits for a member to join again."`
	StallTimeout      time.Duration `mapstructure:"stall_timeout" doc:"A task with work that makes no progress for this long fails liveness."`
}

// Market says where a market update holds its parts.
type Market struct {
	Symbol        string `mapstructure:"symbol" doc:"Where the symbol is: key, or a path into the value."`
	Price         string `mapstructure:"price" doc:"Where the price is: a path into the value, such as price or quote.last."`
	EventTime     string `mapstructure:"event_time" doc:"Where the event time is: record (the record's own timestamp), or a path into the value."`
	EventTimeUnit string `mapstructure:"event_time_unit" enum:"auto s ms us ns rfc3339" doc:"Unit of an event time in the value: auto, s, ms, us, ns or rfc3339."`
}

// Notification says where a notification holds its parts, and where a new
// group begins.
type Notification struct {
	Symbol        string `mapstructure:"symbol" doc:"Where the symbol is: key, or a path into the value."`
	EventTime     string `mapstructure:"event_time" doc:"Where the event time is: record (the record's own timestamp), or a path into the value."`
	EventTimeUnit string `mapstructure:"event_time_unit" enum:"auto s ms us ns rfc3339" doc:"Unit of an event time in the value: auto, s, ms, us, ns or rfc3339."`
	Start         string `mapstructure:"start" enum:"earliest latest" doc:"Where a group without any commit begins: earliest or latest."`
}

// Join says what happens between a notification and its price.
type Join struct {
	OnMiss         string        `mapstructure:"on_miss" enum:"emit dead_letter drop" doc:"What becomes of a notification without a price: emit (market: null), dead_letter or drop."`
	OnUnavailable  string        `mapstructure:"on_unavailable" enum:"emit dead_letter drop" doc:"What becomes of it when no owner answered: emit, dead_letter or drop."`
	Wait           time.Duration `mapstructure:"wait" doc:"How long a notification waits for its symbol's first price."`
	MaxWaiting     int           `mapstructure:"max_waiting" doc:"How many notifications of a pod may wait; one more is a miss at once."`
	History        time.Duration `mapstructure:"history" doc:"How far behind a symbol's newest event time its older prices are kept."`
	MaxIdle        time.Duration `mapstructure:"max_idle" doc:"How long to wait for the other input once it is known to be caught up, in this pod or in the one that owns the price."`
	RemoteLookup   bool          `mapstructure:"remote_lookup" doc:"Whether the owning pod is asked for a price that is not here; if not, it is a miss."`
	RemoteTimeout  time.Duration `mapstructure:"remote_timeout" doc:"How long one such attempt may take."`
	RemotePatience time.Duration `mapstructure:"remote_patience" doc:"How long all attempts for one notification may take, beyond join.max_idle; 0s asks once."`
}

// Delivery says how outputs leave and progress is committed.
type Delivery struct {
	Guarantee             string        `mapstructure:"guarantee" enum:"at_least_once exactly_once" doc:"at_least_once or exactly_once."`
	CommitInterval        time.Duration `mapstructure:"commit_interval" derived:"true" doc:"How often progress is committed (10ms or more): 1s, or 100ms under exactly_once, where this is not set."`
	TransactionalIDPrefix string        `mapstructure:"transactional_id_prefix" doc:"What transactional ids begin with under exactly_once; {group.id} stands for the group's id."`
	Compression           string        `mapstructure:"compression" enum:"none gzip snappy lz4 zstd" doc:"Of outputs: none, gzip, snappy, lz4 or zstd."`
	Linger                time.Duration `mapstructure:"linger" doc:"How long an output may wait for company in its batch."`
	MaxMessageBytes       int           `mapstructure:"max_message_bytes" doc:"Largest output written, in bytes; 0: what its topic takes."`
}

// State says where price tables outlive a restart.
type State struct {
	Dir                string        `mapstructure:"dir" doc:"Directory for checkpoints; empty: state is kept in memory only."`
	CheckpointInterval time.Duration `mapstructure:"checkpoint_interval" doc:"How often a checkpoint is written."`
}

// HTTP says where probes and metrics are served.
type HTTP struct {
	Listen      string `mapstructure:"listen" doc:"Address of probes, metrics and pages: host:port or :port."`
	PprofListen string `mapstructure:"pprof_listen" doc:"Address of Go's profiler; empty: off."`
}

// Peer says how pods talk to each other.
type Peer struct {
	Listen       string   `mapstructure:"listen" doc:"Address of requests between pods: host:port or :port."`
	Advertise    string   `mapstructure:"advertise" doc:"Host, or host:port, under which others reach this pod; empty: the host in listen, else the first non-loopback address."`
	TLS          PeerTLS  `mapstructure:"tls" doc:"Encryption between pods; files are read again when they rotate."`
	Token        Secret   `mapstructure:"token" doc:"Token that pods show each other, only with TLS, and best with peer.tls.ca_file or peer.allowed_names; better given by token_file."`
	TokenFile    string   `mapstructure:"token_file" doc:"File that holds the token, instead of token."`
	AllowedNames []string `mapstructure:"allowed_names" doc:"Hosts that may be dialled: names, *.names below one, addresses, ranges such as 10.0.0.0/8; empty: all."`
}

// PeerTLS encrypts requests between pods.
type PeerTLS struct {
	Enabled    bool   `mapstructure:"enabled" doc:"Whether requests between pods are encrypted."`
	CAFile     string `mapstructure:"ca_file" doc:"PEM file of the authorities trusted; empty: those of the system."`
	CertFile   string `mapstructure:"cert_file" doc:"PEM file of this pod's certificate; together with key_file."`
	KeyFile    string `mapstructure:"key_file" doc:"PEM file of this pod's key; together with cert_file."`
	ClientAuth bool   `mapstructure:"client_auth" doc:"Whether a pod that asks must show a certificate signed by ca_file."`
}

// Log says what is logged and how.
type Log struct {
	Level  string `mapstructure:"level" enum:"debug info warn error" doc:"debug, info, warn or error."`
	Format string `mapstructure:"format" enum:"json console" doc:"json, or console for people."`
}

// Shutdown bounds the graceful stop.
type Shutdown struct {
	Timeout time.Duration `mapstructure:"timeout" doc:"How long a graceful stop may take before it is cut short."`
}

// Default returns the documented defaults. Every call returns a fresh value,
// lists included.
func Default() Config {
	return Config{
		Kafka: Kafka{
			Brokers:         []string{"localhost:9092"},
			ClientID:        "joiner",
			Version:         VersionAuto,
			IsolationLevel:  "read_committed",
			MetadataRefresh: 10 * time.Second,
			SASL:            SASL{Scopes: []string{}},
		},
		Topics: Topics{
			MarketUpdates:     "market-updates",
			Notifications:     "notifications",
			EnrichedAlerts:    "enriched-alerts",
			DeadLetters:       "enriched-alerts-dlq",
			ReplicationFactor: -1,
			Partitioner:       "murmur2",
			Reserved:          []Reserved{},
		},
		Group: Group{
			ID:                "joiner",
			Leave:             "auto",
			Strategy:          "copartition",
			UpgradeFrom:       []string{},
			HeartbeatInterval: 500 * time.Millisecond,
			SessionTimeout:    10 * time.Second,
			RebalanceTimeout:  30 * time.Second,
			StallTimeout:      60 * time.Second,
		},
		Market: Market{
			Symbol:        FromKey,
			Price:         "price",
			EventTime:     FromRecord,
			EventTimeUnit: "auto",
		},
		Notification: Notification{
			Symbol:        FromKey,
			EventTime:     FromRecord,
			EventTimeUnit: "auto",
			Start:         "earliest",
		},
		Join: Join{
			OnMiss:         "emit",
			OnUnavailable:  "emit",
			MaxWaiting:     10_000,
			RemoteLookup:   true,
			RemoteTimeout:  200 * time.Millisecond,
			RemotePatience: 30 * time.Second,
		},
		Delivery: Delivery{
			Guarantee:             AtLeastOnce,
			CommitInterval:        time.Second,
			TransactionalIDPrefix: groupIDPlaceholder + "-",
			Compression:           "none",
			Linger:                5 * time.Millisecond,
		},
		State: State{CheckpointInterval: 10 * time.Second},
		HTTP:  HTTP{Listen: ":8080"},
		Peer: Peer{
			Listen:       ":8081",
			AllowedNames: []string{},
		},
		Log:      Log{Level: "info", Format: "json"},
		Shutdown: Shutdown{Timeout: 25 * time.Second},
	}
}

// Words with a meaning of their own.
const (
	VersionAuto = "auto"          // kafka.version: find out what the brokers speak
	FromKey     = "key"           // market.symbol and the like: the record's key
	FromRecord  = "record"        // market.event_time and the like: the record's own timestamp
	AtLeastOnce = "at_least_once" // delivery.guarantee
	ExactlyOnce = "exactly_once"  // delivery.guarantee
	LeaveAuto   = "auto"          // group.leave
	LeaveNever  = "never"         // group.leave

	partitionerCustom  = "custom"
	groupIDPlaceholder = "{group.id}"
)

// exactlyOnceCommitInterval is the default of delivery.commit_interval under
// exactly_once: alerts become visible only with their transaction, so the
// interval is most of their latency.
const exactlyOnceCommitInterval = 100 * time.Millisecond

// MarketPartitioner is how the producers of market updates place keys.
func (t Topics) MarketPartitioner() string {
	if t.MarketUpdatesPartitioner != "" {
		return t.MarketUpdatesPartitioner
	}
	return t.Partitioner
}

// NotificationPartitioner is how the producers of notifications place keys.
func (t Topics) NotificationPartitioner() string {
	if t.NotificationsPartitioner != "" {
		return t.NotificationsPartitioner
	}
	return t.Partitioner
}

// TransactionalIDPrefix is what transactional ids begin with, the group's id
// filled in.
func (c Config) TransactionalIDPrefix() string {
	return strings.ReplaceAll(c.Delivery.TransactionalIDPrefix, groupIDPlaceholder, c.Group.ID)
}
