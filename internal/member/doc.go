// Package member is the pod in its consumer group: the Consume loop, the
// handler of claims, and the tasks by partition index. It turns what the group
// says into calls on tasks: an assignment that lacks an index freezes its
// task, a claim that begins starts one half of it and its reading, a claim that
// closes ends both.
//
// It must never know prices or what a task does with its records, and it must
// never wait inside OnAssigned, which runs under sarama's locks.
package member

import (
	"context"
	"time"

	"joiner/internal/assign"
	"joiner/internal/kafka"
	"joiner/internal/record"
	"joiner/internal/task"
)

// Factory makes the task of an index. halves are the inputs that this pod
// owns; flow wakes their readers.
type Factory func(index int32, halves [record.Sides]bool, flow task.Flow) *task.Task

// Begin says where a claimed partition is read on. It may wait for brokers until
// ctx ends, which makes it report false. claimed is where the claim itself
// begins, which is not to be relied on where the log does not have what the group
// has committed.
type Begin func(ctx context.Context, side record.Side, index int32, claimed int64) (at Start, ok bool)

// Fetcher reads partitions. What it delivers for a partition ends with the
// Remove of its Feed.
type Fetcher interface {
	// Add begins where at says.
	Add(topic string, partition int32, at Start, sink kafka.Sink) Feed
}

// Start is where a partition is read on.
type Start struct {
	Offset  int64  // the next to read; below 0 is the log's start, with nothing committed
	TopicID string // that the offset belongs to; empty: unknown
}

// Feed is a partition that is being read.
type Feed interface {
	Wake()   // the sink was full and has room again
	Remove() // nothing is delivered after it
}

// Session is the member's standing in its group.
type Session struct {
	MemberID   string
	Generation int32
}

// Status is a snapshot of the member for readiness and metrics.
type Status struct {
	Assigned    bool // an assignment came, and its session has not ended
	Session     Session
	Owned       [record.Sides][]int32 // partitions of the last assignment, ascending
	Starting    []int32               // owned indices whose task has not begun yet
	Coming      []int32               // indices that a member which owns none gets next
	Vacant      []int32               // indices without an owner for longer than a handover takes, ascending
	VacantSince time.Time             // of the first of them
	Tasks       []task.Status         // ascending by index
	Directory   *assign.Directory     // nil before the first assignment, or where a foreign member leads
	LastError   error                 // of the last Consume; nil once an assignment came
}
