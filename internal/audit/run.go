package audit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/IBM/sarama"

	"joiner/internal/kafka"
)

// Run audits a cluster's topics. Errors: those that wrap ErrOptions, a topic
// that is missing, rights that are, ctx's, and the disk's.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	clients, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = clients.Close() }()
	return runOn(ctx, o, clients)
}

// connect gives up where the service would not: somebody waits for the answer.
func connect(ctx context.Context, o Options) (*kafka.Clients, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Connect)
	defer cancel()
	return kafka.Connect(ctx, o.Kafka)
}

func runOn(ctx context.Context, o Options, clients *kafka.Clients) (*Report, error) {
	topics, unknown, err := look(ctx, &o, clients.Facts)
	if err != nil {
		return nil, err
	}
	report, err := Audit(ctx, o, clients.Reader, topics)
	if err != nil {
		return nil, err
	}
	for _, name := range unknown {
		report.Notes = append(report.Notes, fmt.Sprintf("the configuration of topic %s could not be read: %s", name, assumption(name == o.Market)))
	}
	return report, nil
}

func assumption(market bool) string {
	if market {
		return "it is taken for compacted, so a tick that is not there is unverifiable and not wrong"
	}
	return "it is taken for not compacted, and its timestamps are not judged"
}

// look finds out what the topics are like. unknown are those whose
// configuration nobody would tell.
func look(ctx context.Context, o *Options, facts *kafka.Facts) (t Topics, unknown []string, err error) {
	names := []string{o.Market, o.Notifications, o.Alerts}
	if o.DeadLetters != "" {
		names = append(names, o.DeadLetters)
	}
	found, err := facts.Topics(ctx, names...)
	if err != nil {
		return t, nil, err
	}
	settings, err := facts.TopicSettings(ctx, names...)
	if err != nil {
		return t, nil, err
	}
	for _, one := range []struct {
		name  string
		topic *Topic
	}{{o.Market, &t.Market}, {o.Notifications, &t.Notifications}, {o.Alerts, &t.Alerts}, {o.DeadLetters, &t.DeadLetters}} {
		if one.name == "" {
			continue
		}
		if err := found[one.name].Err; err != nil {
			return t, nil, fmt.Errorf("%s: %w", missingRight(one.name, err), err)
		}
		*one.topic = Topic{Name: one.name, Partitions: found[one.name].Partitions}
		s := settings[one.name]
		if one.topic.Partitions > 0 && s.Err != nil {
			unknown = append(unknown, one.name)
			one.topic.Compacted, one.topic.AppendTime = one.name == o.Market, true
			continue
		}
		one.topic.Compacted = strings.Contains(s.Values["cleanup.policy"], "compact")
		one.topic.AppendTime = s.Values["message.timestamp.type"] == "LogAppendTime"
		one.topic.Before = limit(s.Values["message.timestamp.before.max.ms"])
		one.topic.MaxBytes, _ = strconv.ParseInt(s.Values["max.message.bytes"], 10, 64)
		one.topic.After = limit(s.Values["message.timestamp.after.max.ms"])
	}
	return t, unknown, nil
}

// missingRight says what an error about a topic calls for.
func missingRight(topic string, err error) string {
	if errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
		return "missing right: Read on topic " + topic
	}
	return "topic " + topic
}

// limit reads how far a timestamp may be off; 0 where it may be by any amount.
func limit(text string) int64 {
	const century = 100 * 365 * 24 * 3600 * 1000
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > century {
		return 0
	}
	return n
}
