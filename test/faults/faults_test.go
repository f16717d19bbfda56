package faults

import (
	"testing"

	"joiner/test/cluster"
)

// TestFaults is all that there is to see on one cluster: the mutants, the same
// alerts for groups of any size, and the rounds of faults under both guarantees;
// with -guarantee only the rounds under that one.
func TestFaults(t *testing.T) {
	guarantees := []string{atLeastOnce, exactlyOnce}
	if *flagGuarantee != "" {
		if *flagGuarantee != atLeastOnce && *flagGuarantee != exactlyOnce {
			t.Fatal(errUnknownGuarantee)
		}
		guarantees = []string{*flagGuarantee}
	}
	c := cluster.Start(t, cluster.Options{Brokers: brokers, Fronts: pods, Settings: []string{
		// A killed broker's leaders move once it is thought dead: after 9 s by
		// default, which is more than a session.
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500",
	}})
	st := &stage{Cluster: c, ways: openProxies(t, c.Fronts)}
	if *flagGuarantee == "" {
		t.Run("mutants", func(t *testing.T) { mutants(t, st) })
		t.Run("same_alerts", func(t *testing.T) { sameAlerts(t, st) })
	}
	for _, guarantee := range guarantees {
		t.Run(guarantee, func(t *testing.T) { faultRun(t, st, guarantee, *flagRounds) })
	}
}
