// Package kafka is everything that joiner says to Kafka besides producing: the
// clients, the group's connection to its coordinator, end offsets, reading a
// log without a claim, committing and reading offsets, of transactions all but
// their records, and facts about topics.
//
// It must never know what a price or a notification is, keep an offset of its
// own, or decide what to do about a fault that time does not heal: those it
// reports. What time does heal (a leader that moved, a broker that is away) it
// tries again, with a sampled line in the log, until the caller's context ends.
//
// # Five clients, or six
//
// A broker answers one request of a connection at a time, and sarama holds a
// broker's lock from sending a request to its response. So whatever must not
// wait for the other has a client, and thereby connections, of its own:
//
//	Fetch        the claims, which are for ownership only; also the metadata
//	             that the group plans and a Fetcher reads with
//	Coordinator  JoinGroup (which waits for the whole group), SyncGroup,
//	             Heartbeat, and the group's first fetch of committed offsets
//	Producer     outputs
//	Admin        ListOffsets, OffsetCommit, OffsetFetch, topic facts
//	Log          restores
//	Transaction  the coordinators of transactions; under exactly_once only
//
// A [Fetcher] dials brokers itself, outside of any client, and so does a
// [Reader] for records: sarama's metadata requests look at every connection of
// their client, and wait for it, with the client's lock held; and it decodes
// more of a record than is needed here. See link and batch.
//
// # The group's client
//
// The group sees one sarama.Client, groupClient: it waits where sarama would
// end the session. See there.
package kafka
