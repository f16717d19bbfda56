package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/placement"
	"joiner/internal/record"
)

// Options say what the service is configured to do, and how to look.
type Options struct {
	Kafka kafka.Options // the brokers, the group and its times

	Inputs      [record.Sides]Input
	Alerts      string // topic
	DeadLetters string // topic; empty: off

	Create            bool  // outputs are made where they are missing
	ReplicationFactor int16 // of those; -1: the broker's default
	Reserved          []int32

	Strategy     string // group.strategy
	UpgradeFrom  []string
	StartLatest  bool // where a group without commits begins
	RemoteLookup bool
	History      time.Duration // join.history

	ExactlyOnce     bool
	TransactionalID string // prefix
	Compression     string
	CommitInterval  time.Duration
	MaxMessageBytes int // of outputs; 0: the topic's

	// Leave is group.leave; Kafka has the instance id.
	Leave string
	// ComesBack asks whether a pod that stops is started again, as the service
	// will at its stop, and says why; nil where it will not ask.
	ComesBack func(context.Context) (why string, err error)

	StateDir string // state.dir; empty: none

	Advertised string                 // peer address, host:port
	AddressSet bool                   // it is configured, and not what this machine happens to have
	Dialled    func(host string) bool // peer.allowed_names; nil: every host
	Warnings   []string               // of the configuration
	// Certificates are this side's own, by what they are for, with when they
	// expire; zero: none.
	Certificates map[string]time.Time

	Replicas int           // that are planned; 0: nobody said
	Timeout  time.Duration // of everything; 1s or more

	Progress func(what string) // hears what is looked at; may be nil
	Log      *zap.Logger       // may be nil
}

// Input is one of the two inputs.
type Input struct {
	Topic       string
	Partitioner string // as configured
	Placer      *placement.Placer
	// Decode returns a record's symbol and event time, or why it cannot be
	// joined.
	Decode func(*record.Record) (symbol []byte, at record.Millis, bad *enrich.Bad)
	// BySymbol is set where a record's place is judged by its symbol, and not by
	// its key: prices are looked for where the symbol belongs.
	BySymbol bool
	// OwnTime is set where the event time is the record's own timestamp.
	OwnTime bool
}

func (o Options) withDefaults() Options {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// ErrOptions is wrapped by errors about options that make no sense.
var ErrOptions = errors.New("wrong options")

func (o Options) validate() error {
	switch {
	case o.Timeout < time.Second:
		return fmt.Errorf("%w: --timeout: %v is too short, give it 1s or more", ErrOptions, o.Timeout)
	case o.Replicas < 0:
		return fmt.Errorf("%w: --replicas: %d is negative", ErrOptions, o.Replicas)
	}
	return nil
}

// topics are all that the service touches, inputs first.
func (o *Options) topics() []string {
	return append(o.inputs(), o.outputs()...)
}

func (o *Options) inputs() []string {
	return []string{o.Inputs[record.Market].Topic, o.Inputs[record.Notification].Topic}
}

func (o *Options) outputs() []string {
	if o.DeadLetters == "" {
		return []string{o.Alerts}
	}
	return []string{o.Alerts, o.DeadLetters}
}

func (o *Options) market() string        { return o.Inputs[record.Market].Topic }
func (o *Options) notifications() string { return o.Inputs[record.Notification].Topic }
