package record

import (
	"sync"
	"time"
)

// Pulse is what one part of a task, or of the pod, shows of its work at one
// moment, to whoever watches that it does some. Part names it and stays the
// same; Done changes with whatever the part does.
type Pulse struct {
	Part string
	// Work says in words what the part could do by itself now. It is "" where
	// there is nothing to do, and where it waits for somebody else: a broker
	// that is away is no work.
	Work string
	Done uint64
}

// TryLock takes a lock that is held for moments only, for somebody who must not
// wait where it is held for ever. It reports false after some 20 ms.
func TryLock(mu *sync.Mutex) bool {
	for range 20 {
		if mu.TryLock() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}
