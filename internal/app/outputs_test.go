package app

import (
	"testing"

	"joiner/internal/config"
	"joiner/internal/kafka"
)

func TestDeadLetterPartition(t *testing.T) {
	for _, c := range [][3]int32{{3, 6, 3}, {5, 6, 5}, {6, 6, 0}, {11, 4, 3}, {11, 1, 0}, {7, 0, 7}} {
		o := outputs{
			conf:   config.Topics{DeadLetters: "dlq"},
			topics: map[string]kafka.Topic{"dlq": {Name: "dlq", Partitions: c[1]}},
		}
		if got := o.deadLetterPartition(c[0]); got != c[2] {
			t.Errorf("partition %d of %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
	var unknown outputs
	if got := unknown.deadLetterPartition(9); got != 9 {
		t.Errorf("before the topics are looked up: %d, want the same number", got)
	}
}
