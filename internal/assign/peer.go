package assign

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"joiner/internal/wire"
)

// peer is a member as the leader sees it.
type peer struct {
	Member
	topics []string // subscribed
	data   userData // zero where there was none to read
	meta   sarama.ConsumerGroupMemberMetadata

	// joiner is set where the member sent user data of ours, whatever its
	// version: it will understand, or at least recognise, a directory.
	joiner bool
	// fault says why its data could not be read; nil where it could, or where
	// there was none. Such a member keeps what it has and gains nothing: what
	// cannot be read may say that it must not.
	fault error
}

func compareMembers(a, b Member) int {
	return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.MemberID, b.MemberID))
}

// peersOf reads the members, ordered by stable identity so that a plan does not
// depend on the ids that the coordinator happens to give.
func peersOf(members map[string]sarama.ConsumerGroupMemberMetadata) []peer {
	peers := make([]peer, 0, len(members))
	for id, meta := range members {
		peers = append(peers, peerOf(id, meta))
	}
	slices.SortFunc(peers, func(a, b peer) int { return compareMembers(a.Member, b.Member) })
	return peers
}

func peerOf(memberID string, meta sarama.ConsumerGroupMemberMetadata) peer {
	p := peer{topics: meta.Topics, meta: meta}
	p.MemberID, p.ID = memberID, memberID
	if len(meta.UserData) == 0 {
		return p
	}
	data, err := decodeUserData(meta.UserData)
	p.joiner = !errors.Is(err, wire.ErrForeign)
	if err != nil {
		p.fault = err
		return p
	}
	p.data = data
	if data.ID != "" {
		p.Identity = data.Identity
	}
	return p
}

// joined are the topics of which the member must own all or nothing.
func (p *peer) joined() []string {
	if len(p.data.joined) > 0 {
		return p.data.joined
	}
	return p.topics
}

// subscribes reports whether the member is subscribed to all of the topics.
func (p *peer) subscribes(topics []string) bool {
	for _, t := range topics {
		if !slices.Contains(p.topics, t) {
			return false
		}
	}
	return true
}

// generation is the one in which the member's owned partitions were its own;
// before version 2 of the protocol (KIP-792) nobody says.
func (p *peer) generation() int32 {
	if p.meta.Version < 2 {
		return -1
	}
	return p.meta.GenerationID
}

// newestCounts returns the newest that any of the members knows.
func newestCounts(peers []peer) counts {
	var newest counts
	for i := range peers {
		if c := peers[i].data.counts; c.newer(newest) {
			newest = c
		}
	}
	return newest
}

// partitionCounts turns lists of partitions into their number. Kafka numbers a
// topic's partitions from 0 without gaps.
func partitionCounts(topics map[string][]int32) map[string]int32 {
	n := make(map[string]int32, len(topics))
	for topic, partitions := range topics {
		n[topic] = int32(len(partitions))
	}
	return n
}

// logFaults names the members whose data could not be read.
func logFaults(log *zap.Logger, strategy string, peers []peer) {
	for i := range peers {
		if peers[i].fault == nil {
			continue
		}
		log.Warn("cannot read what a member says of itself",
			zap.String("strategy", strategy),
			zap.String("member_id", peers[i].MemberID),
			zap.Int("bytes", len(peers[i].meta.UserData)),
			zap.Error(peers[i].fault))
	}
}
