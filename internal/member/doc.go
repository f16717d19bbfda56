// Package member is the pod in its consumer group: the Consume loop, the
// handler of claims, and the tasks by partition index. It turns what the group
// says into calls on tasks: an assignment that lacks an index freezes its
// task, a claim that begins starts one half of it, a claim that closes ends
// it.
//
// It must never know prices or what a task does with its records, and it must
// never wait inside OnAssigned, which runs under sarama's locks.
package member

import (
	"joiner/internal/assign"
	"joiner/internal/record"
	"joiner/internal/task"
)

// Factory makes the task of an index. halves are the inputs that this pod
// owns, flow holds their claims back.
type Factory func(index int32, halves [record.Sides]bool, flow task.Flow) *task.Task

// Session is the member's standing in its group.
type Session struct {
	MemberID   string
	Generation int32
}

// Status is a snapshot of the member for readiness and metrics.
type Status struct {
	Assigned  bool // an assignment came, and its session has not ended
	Session   Session
	Owned     [record.Sides][]int32 // partitions of the last assignment, ascending
	Starting  []int32               // owned indices whose task has not begun yet
	Tasks     []task.Status         // ascending by index
	Directory *assign.Directory     // nil before the first assignment, or where a foreign member leads
	LastError error                 // of the last Consume; nil once an assignment came
}
