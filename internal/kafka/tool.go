package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// ToolConfig is a configuration for a client that is no part of the service,
// such as joiner load's: the protocol version as Options.Version has it,
// connections as security says, and nothing else decided. Refused connections
// are logged to log, nil: nowhere, and are errors of the client as well.
//
// Connections are not replaced before their sessions end (KIP-368): the broker
// closes one that is used longer than it allows, and sarama opens another.
func ToolConfig(clientID, version string, security Security, log *zap.Logger) (*sarama.Config, error) {
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	access, err := NewAccess(security, clientID, log)
	if err != nil {
		return nil, fmt.Errorf("kafka options: %w", err)
	}
	conf := sarama.NewConfig()
	conf.ClientID = clientID
	conf.Version = v
	conf.Metadata.AllowAutoTopicCreation = false
	conf.Net.Proxy.Enable = true // the only way to bring one's own dialer
	conf.Net.Proxy.Dialer = newConns(Options{Access: access}.withDefaults())
	return conf, nil
}
