// Package resume says where a partition is read on: from the offset that the
// group has committed, or, where the log does not have that offset any more,
// from where the rule for offsets that are gone says.
//
// It is pure: it must never ask a broker, read a clock or log. What it judges
// is gathered by its caller.
package resume

import "joiner/internal/record"

// None is the offset of a group that has committed none.
const None int64 = -1

// Commit is what the group has committed for a partition.
type Commit struct {
	Offset int64 // the next to read, or None
	Label  Label // zero where the offset came without one, or with a foreign one
}

// Log is a partition as its leader shows it.
type Log struct {
	TopicID string // empty where the broker is older than 2.8
	Start   int64  // of the log
	End     int64  // for the reader's isolation level: the last stable offset under read committed
	High    int64  // the high watermark, at least End
}

// Why is the reason for going on elsewhere than at the committed offset.
type Why string

// The reasons.
const (
	Kept       Why = ""            // the committed offset holds, or there is none
	BelowStart Why = "below_start" // retention or DeleteRecords went past it
	Truncated  Why = "truncated"   // the log ends below it
	Recreated  Why = "recreated"   // it belongs to a topic of the same name that is gone
)

// Start is where a partition is read on.
type Start struct {
	// Offset is the next to read, None for the log's start without anything
	// committed.
	Offset int64
	Why    Why
	// From is the offset that had been reached, None where nobody knows it.
	From int64
	// Skipped counts the offsets in [From, Offset) that nobody will read.
	Skipped int64
}

// At decides where a side's partition is read on. other is what the group has
// committed for the other side's partition of the same number: Kafka deletes a
// topic's committed offsets together with the topic, and then only the other
// side's label still tells that there were any.
func At(side record.Side, own, other Commit, log Log) Start {
	switch {
	case own.Offset < 0:
		if anotherTopic(other.Label.OtherID, log.TopicID) {
			return Start{Offset: log.Start, Why: Recreated, From: other.Label.OtherOffset}
		}
		return Start{Offset: None, From: None}
	case anotherTopic(own.Label.TopicID, log.TopicID):
		return Start{Offset: log.Start, Why: Recreated, From: own.Offset}
	case own.Offset < log.Start:
		return Start{Offset: log.Start, Why: BelowStart, From: own.Offset, Skipped: log.Start - own.Offset}
	case own.Offset > log.High:
		return Start{Offset: afterTruncation(side, log), Why: Truncated, From: own.Offset}
	}
	return Start{Offset: own.Offset, From: own.Offset}
}

// afterTruncation is the start for market-updates, whose table is filled anew,
// and the end of what exists for notifications, which had been joined up to
// somewhere above it. What an open transaction holds had not, so the end is the
// reader's.
func afterTruncation(side record.Side, log Log) int64 {
	if side == record.Market {
		return log.Start
	}
	return max(log.Start, log.End)
}

// anotherTopic reports whether two ids are known and differ.
func anotherTopic(was, is string) bool { return was != "" && is != "" && was != is }
