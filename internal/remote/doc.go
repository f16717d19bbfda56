// Package remote carries price look-ups between the pods of one group: a
// Client asks the owner of a market partition, a Server answers for the
// partitions of this pod.
//
// A look-up must bring what the owner's own join would have found, a miss that
// only the owner may call one, or nothing. So the answerer checks, when a
// request arrives and again right before it answers, that both sides speak of
// the same cluster, group, topic and generation, that the partition is its own
// in that generation, and that the group's coordinator has not been silent for
// so long that somebody else may own it. Where any of this fails it says
// `moved`, and names the owner if its directory knows one; it never forwards.
// The asker asks again through the newest directory until its patience ends,
// which it does wherever the question is: waiting for another try, for its turn
// to be sent, or for a table of this pod. With an attempt that the owner could
// not answer in time comes a ticket, by which the next goes on where it ended.
//
// This package must never answer from a table that is not asked about, guess a
// price or a miss where nobody answered, follow a redirect or a proxy, send a
// token over a connection that is not verified, dial an address that is not
// allowed, hold up the merge that asks, or keep a goroutine or an unbounded list
// for what waits. It knows no Kafka client and no configuration.
package remote
