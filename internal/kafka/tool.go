package kafka

import "github.com/IBM/sarama"

// ToolConfig is a configuration for a client that is no part of the service,
// such as joiner load's: the protocol version as Options.Version has it, and
// nothing else decided.
func ToolConfig(clientID, version string) (*sarama.Config, error) {
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	conf := sarama.NewConfig()
	conf.ClientID = clientID
	conf.Version = v
	conf.Metadata.AllowAutoTopicCreation = false
	return conf, nil
}
