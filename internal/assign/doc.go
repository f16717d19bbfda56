// Package assign decides which member of the group owns which partitions, and
// carries the directory that tells everybody who does.
//
// The copartition strategy hands out partition indices, never single
// partitions: who owns index p owns partition p of every joined topic, so that
// a notification meets its price in one process. Indices are balanced to
// within one, as few as possible change hands, and equal inputs give equal
// plans. Under cooperative rebalancing (KIP-429) an index that changes hands is
// given to nobody until its old owner has let go, in a second generation that
// the old owner starts by joining again.
//
// Around sarama's range, roundrobin and sticky there is a wrapper that carries
// the same directory under sarama's own protocol name, to compare and to
// migrate.
//
// Everything a member tells the leader, and the leader the members, begins with
// a format version; unknown fields are skipped. Whatever cannot be read costs
// its sender at most its share, never the plan: an error from Plan would end
// the leader's session before anybody has got anything, and the next attempt
// would meet the same data.
//
// This package must never talk to Kafka, read a clock, or wait: sarama calls it
// in the middle of a join, under its locks.
package assign
