package app

import (
	"sync"

	"go.uber.org/zap"

	"joiner/internal/assign"
)

// static mends what a static member that was started again finds amiss. The
// coordinator gives it back what it had, without a rebalance, and nobody is told
// (KIP-345); two things then need a rebalance all the same, which is cooperative:
// no task of another pod stops for it.
//
//   - The others know the pod by what it told before: its address may be
//     another one now.
//   - Where the pod leads the group, sarama does not know it, since the
//     coordinator says so in a version of JoinGroup that sarama does not speak
//     (KIP-814). Nobody would notice a topic that grows.
type static struct {
	instance   string // group.instance_id; empty: a dynamic member, which none of this concerns
	self       string // our stable identity
	log        *zap.Logger
	mine       func() assign.Identity   // what we tell the group
	partitions func(topic string) int32 // how many a topic has, as last looked up; 0: not known
	rejoin     func()                   // joins again, and returns at once

	mu        sync.Mutex
	told      bool              // the first directory has been looked at
	inherited *assign.Directory // of a group that we lead without having planned it; else nil
}

// learn takes in an assignment, under sarama's locks: it waits for nothing.
func (s *static) learn(as assign.Assignment) {
	if s.instance == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherited = nil
	if as.Inherited {
		s.inherited = as.Directory
		s.log.Info("this member leads the group as it did before it was started again: it looks for new partitions itself",
			zap.Int32("generation", as.Generation))
	}
	if s.told || as.Directory == nil || as.Directory.Truncated {
		return
	}
	s.told = true // a second time would help no more than the first
	known, listed := as.Directory.Member(s.self)
	mine := s.mine()
	if !listed || known.Address == mine.Address && known.Transactional == mine.Transactional {
		return
	}
	s.log.Warn("the group knows this member by what it was before it was started again, and is told by a rebalance: set peer.advertise to a name that stays",
		zap.String("instance_id", s.instance),
		zap.String("address_before", known.Address), zap.String("address", mine.Address),
		zap.String("transactional_id_before", known.Transactional), zap.String("transactional_id", mine.Transactional))
	s.rejoin()
}

// grown joins the group again, as whose leader it plans anew, where its topics
// have other partitions than they had when it last planned.
func (s *static) grown() {
	s.mu.Lock()
	inherited := s.inherited
	s.mu.Unlock()
	if inherited == nil {
		return
	}
	for topic, had := range inherited.Partitions {
		if has := s.partitions(topic); has > 0 && has != had {
			s.log.Info("a topic has other partitions than when this member planned: it joins the group again",
				zap.String("topic", topic), zap.Int32("had", had), zap.Int32("has", has))
			s.rejoin()
			return
		}
	}
}
