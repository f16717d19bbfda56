// Package wire is the form of everything that one joiner tells another: user
// data and directories inside the group's records, look-ups between pods.
//
// Each begins with a major version and what it is, and goes on in tagged
// fields. A reader skips what it does not know, so that a format grows within
// its version and a rolling upgrade needs no order; another version it refuses.
// What is read was written by somebody else: this package must never panic on
// it, allocate more than a small multiple of its size (compressed fields up to
// MaxInflated), or know what the fields mean.
package wire
