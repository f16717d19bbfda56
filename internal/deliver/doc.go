// Package deliver brings outputs to their topics and progress to the group,
// for the whole pod: the Writer turns encoded outputs into acknowledgements,
// the Committer turns acknowledged cuts into committed pairs of offsets.
//
// The Writer sends idempotent record batches of its own (KIP-98) instead of
// using sarama's AsyncProducer: one request in flight a leader, one batch a
// partition in it, and the same bytes under the same sequence again after any
// failure that may pass. What it must never do:
//
//   - report an output as written before all in-sync replicas have it;
//   - give a batch that may have been appended another content under the same
//     sequence, since the broker would take it for the one it has and drop it;
//   - let two senders hold a partition's open batch, which is what a leader's
//     move invites;
//   - fail good outputs for a bad one beside them;
//   - block in Send, or call an owner while holding a lock.
//
// The Committer must never let an older pair overwrite a newer one, and never
// commit without a member and a generation that fence it.
//
// Under exactly_once the Transactor takes the place of both: it makes one
// transaction an interval of what all tasks have ready and of the offsets that
// belong to it, and has the Writer write it (txn.go and the files beside it;
// docs/design.md has the protocol). It must never
//
//   - put an output into a transaction whose offsets do not pass it;
//   - settle an output before its transaction has surely committed, or forget
//     one whose transaction may have failed;
//   - begin a transaction while it is not known how the one before ended;
//   - let what one transaction's requests bring late count for another.
//
// The package knows no joins. It imports no other room but record.
package deliver
