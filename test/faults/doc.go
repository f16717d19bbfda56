// Package faults breaks what a group of joiners lives on while load runs, and has
// `joiner audit` say what became of the join.
//
// A run is a number of rounds, and a round is one fault of every kind, each at an
// instant and on a victim that a seed alone decides: pods are killed, stopped and
// continued, terminated; brokers are killed and started again; connections are cut,
// cut in the middle of an answer, delayed, narrowed and left half-open by a proxy
// between the pods and the brokers; topics grow; producers are fenced. A fault
// that touched nothing fails the run, and so does a run in which no rebalance, no
// retry or no fence was counted.
//
// Mutants are joiners with a fault of their own, built from the source as it is
// with one passage replaced. Each has a run that the joiner passes and the mutant
// must not.
//
// The tests judge by what lies in the topics and by what the processes say of
// themselves. They must never reach into the service, and never assert how long
// something took.
package faults
