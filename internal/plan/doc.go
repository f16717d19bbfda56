// Package plan shows what an assignment would look like before there is a
// group: which member would own what, what a change of the members would move,
// how much of a load would be joined locally, and how many partitions a rate
// needs.
//
// It plays a consumer group in memory, with the strategies that run in
// production (package assign, and through it sarama's own): each member is a
// set of strategies of its own, and what it tells the leader and hears from it
// goes through the bytes that would go over the network. Nothing about any
// strategy is known here, so nothing can be told here that a group would not
// do.
//
// This package must never talk to Kafka, nor work an assignment out by itself.
package plan
