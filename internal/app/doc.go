// Package app puts the rooms together: it makes one joiner from a
// configuration, runs it and stops it. Several may run in one process, each
// with its own registry and listeners; the demo and the tests do that.
//
// It must never hold logic that a room could hold: what is here is wiring,
// the order of starting and stopping, and the sentence that says why a pod is
// not ready.
package app
