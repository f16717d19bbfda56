package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// ToolOptions are what ToolConfig decides.
type ToolOptions struct {
	ClientID string
	Version  string // as Options.Version
	Security Security
	// ReadCommitted hides open and aborted transactions, as Options.ReadCommitted
	// does: a tool must see what the service and its readers see.
	ReadCommitted bool
	// Log hears of refused connections, which are errors of the client as well;
	// nil: nobody does.
	Log *zap.Logger
}

// ToolConfig is a configuration for a client that is no part of the service,
// such as joiner load's: what o says, and nothing else decided. An error is of
// the version or of the security.
//
// Connections are not replaced before their sessions end (KIP-368): the broker
// closes one that is used longer than it allows, and sarama opens another.
func ToolConfig(o ToolOptions) (*sarama.Config, error) {
	v, err := parseVersion(o.Version)
	if err != nil {
		return nil, err
	}
	access, err := NewAccess(o.Security, o.ClientID, o.Log)
	if err != nil {
		return nil, fmt.Errorf("kafka options: %w", err)
	}
	conf := sarama.NewConfig()
	conf.ClientID = o.ClientID
	conf.Version = v
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Consumer.IsolationLevel = isolation(o.ReadCommitted)
	conf.Net.Proxy.Enable = true // the only way to bring one's own dialer
	conf.Net.Proxy.Dialer = newConns(Options{Access: access}.withDefaults())
	return conf, nil
}
