package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"joiner/internal/app"
	"joiner/internal/check"
	"joiner/internal/config"
	"joiner/internal/enrich"
	"joiner/internal/kafka"
	"joiner/internal/kube"
	"joiner/internal/record"
	"joiner/internal/remote"

	"github.com/spf13/cobra"
)

func newCheck(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the real cluster before running on it",
		Long: `check looks at the cluster as the service would use it, and changes nothing:
configuration, reachability, rights, topics, partition counts, cleanup and
retention, key placement and hottest keys by sampling, the group. A line each:
ok, warning or failure, with what to do; docs/check.md explains every one. What
could not be looked at is a warning. It exits with 1 if anything failed.`,
		Args: cobra.NoArgs,
	}
	out := addOutput(cmd, outputTable, outputJSON)
	replicas := cmd.Flags().Int("replicas", 0, "how many replicas are planned; 0: judge by the group's members")
	timeout := cmd.Flags().Duration("timeout", time.Minute, "how long it may take; what is not seen by then is a warning")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := loadConfig(cmd, p)
		if err != nil {
			return err
		}
		o, err := checkOptions(loaded)
		if err != nil {
			return wrongUsage(err)
		}
		o.Replicas, o.Timeout = *replicas, *timeout
		return runCheck(cmd, p, o, out)
	}
	return cmd
}

func runCheck(cmd *cobra.Command, p *process, o check.Options, out *output) error {
	o.Progress = func(what string) { fmt.Fprintln(p.stderr, "joiner: "+what) }
	report, err := interruptible(cmd, p, checkGrace, func(ctx context.Context) (check.Report, error) { return check.Run(ctx, o) })
	if errors.Is(err, check.ErrOptions) {
		return wrongUsage(err)
	}
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if err := printChecked(p.stdout, report, out); err != nil {
		return err
	}
	if report.Failed > 0 {
		return fmt.Errorf("check: %d of %d findings are failures", report.Failed, len(report.Findings))
	}
	return nil
}

func printChecked(w io.Writer, report check.Report, out *output) error {
	if out.json() {
		return json.NewEncoder(w).Encode(report)
	}
	return report.Text(w)
}

// checkOptions tells check what the service is configured to do.
func checkOptions(loaded *config.Loaded) (check.Options, error) {
	c := loaded.Config
	if err := app.Check(c); err != nil {
		return check.Options{}, err
	}
	inputs, err := checkInputs(c)
	if err != nil {
		return check.Options{}, err
	}
	o := check.Options{
		Kafka:  app.KafkaOptions(c),
		Inputs: inputs,
		Alerts: c.Topics.EnrichedAlerts, DeadLetters: c.Topics.DeadLetters,
		Create: c.Topics.Create, ReplicationFactor: c.Topics.ReplicationFactor,
		Strategy: c.Group.Strategy, UpgradeFrom: c.Group.UpgradeFrom,
		StartLatest:  c.Notification.Start == "latest",
		RemoteLookup: c.Join.RemoteLookup, History: c.Join.History,
		ExactlyOnce: c.Delivery.Guarantee == config.ExactlyOnce, TransactionalID: c.TransactionalIDPrefix(),
		Compression: c.Delivery.Compression, CommitInterval: c.Delivery.CommitInterval,
		MaxMessageBytes: c.Delivery.MaxMessageBytes,
		Leave:           c.Group.Leave,
		ComesBack:       comesBack(c),
		StateDir:        c.State.Dir,
		Advertised:      app.Advertised(c.Peer),
		AddressSet:      c.Peer.Advertise != "",
		Warnings:        slices.Clone(loaded.Warnings),
	}
	if err := checkSecurity(&o, c); err != nil {
		return check.Options{}, err
	}
	if o.Dialled, err = remote.Allows(c.Peer.AllowedNames); err != nil {
		return check.Options{}, fmt.Errorf("peer.allowed_names: %w", err)
	}
	for _, r := range c.Topics.Reserved {
		o.Reserved = append(o.Reserved, r.Partition)
	}
	return o, nil
}

// comesBack asks Kubernetes what the service will ask at its stop; nil where it
// will not.
func comesBack(c config.Config) func(context.Context) (string, error) {
	k := kube.FromEnvironment(os.Getenv)
	if !k.Inside() || !app.AsksKubernetes(c) {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		host, _ := os.Hostname()
		pod, err := app.PodName(c.Group.InstanceID, host)
		if err != nil {
			return "", err
		}
		fate, err := k.Fate(ctx, pod)
		return fate.Why, err
	}
}

// checkSecurity makes what connections are secured with, and notes until when
// this side's certificates are valid.
func checkSecurity(o *check.Options, c config.Config) (err error) {
	o.Certificates = make(map[string]time.Time)
	if o.Kafka.Access, err = kafka.NewAccess(o.Kafka.Security, c.Kafka.ClientID, nil); err != nil {
		return err // it names the key
	}
	o.Certificates["kafka"], o.Certificates["kafka_ca"] = o.Kafka.Access.NotAfter()
	peer, err := app.PeerTLS(c.Peer, nil)
	if err != nil || peer == nil {
		return err // it names the key
	}
	o.Certificates["peer"], o.Certificates["peer_ca"] = peer.NotAfter()
	return nil
}

func checkInputs(c config.Config) (inputs [record.Sides]check.Input, err error) {
	placers, err := app.Placers(c.Topics)
	if err != nil {
		return inputs, err
	}
	market, notes, err := app.Decoders(c)
	if err != nil {
		return inputs, err
	}
	inputs[record.Market] = check.Input{
		Topic: c.Topics.MarketUpdates, Partitioner: c.Topics.MarketPartitioner(),
		BySymbol: !market.ByKey(),
		OwnTime:  c.Market.EventTime == config.FromRecord,
		Decode: func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
			tick, bad := market.Decode(r)
			return tick.Symbol, tick.EventTime, bad
		},
	}
	inputs[record.Notification] = check.Input{
		Topic: c.Topics.Notifications, Partitioner: c.Topics.NotificationPartitioner(),
		OwnTime: c.Notification.EventTime == config.FromRecord,
		Decode: func(r *record.Record) ([]byte, record.Millis, *enrich.Bad) {
			note, bad := notes.Decode(r)
			return note.Symbol, note.EventTime, bad
		},
	}
	for side := range inputs {
		inputs[side].Placer = placers[side]
	}
	return inputs, nil
}
