// Package checkpoint keeps the price tables of a pod in a directory, so that
// one that restarts reads only what it missed.
//
// Each partition has a store of its own (Pebble, an LSM tree whose blocks and
// logs carry checksums), so that what is wrong with one is wrong with no other.
// What changed since the last checkpoint goes into it in one atomic batch
// together with the head that says what the whole stands for; it is written
// once the group has committed all that it was made of, from a goroutine that
// nobody waits for.
//
// The package must never serve what it cannot prove: a checkpoint that is
// damaged, somebody else's, from the future, or so old that the topic may have
// forgotten what contradicts it is set aside. And it must never hold up a join:
// where the disk takes nothing, checkpoints wait and everybody else goes on. It
// knows no client of Kafka and no configuration.
package checkpoint
