package assign

import (
	"encoding/binary"

	"joiner/internal/wire"
)

// The fields of user data.
const (
	tagID       = 1
	tagAddress  = 2
	tagInstance = 3
	tagCounts   = 4
	tagHeld     = 5
	tagFlags    = 6
	tagJoined   = 7
	tagInner    = 8
	tagTxn      = 9
	tagBefore   = 10 // former counts before the one that tagCounts has
	tagAsks     = 11 // nobody reads it
)

const flagEager = 1 << 0

// userData is what a member tells the leader. Equal knowledge gives equal
// bytes: a follower whose bytes changed while the group is stable would set off
// a rebalance by asking for its assignment again.
type userData struct {
	Identity
	counts counts
	held   held
	// eager says that the member gives up everything before it joins, so that
	// held is what it had until now. Otherwise the coordinator's protocol
	// carries what it owns, and held is only where it would like to be again.
	eager bool
	// joined are the topics that make a whole index for this member.
	joined []string
	// inner are the bytes of the strategy inside, under the wrapper.
	inner []byte
	// asks makes a difference where the member wants one: see Options.Asks.
	asks uint64
}

// held are the indices that a member last had in whole.
type held struct {
	// since is the first of the unbroken row of generations in which they were
	// the member's. Such rows of one index cannot overlap, so of two members
	// that remember it, the one with the higher number had it last. Unlike the
	// current generation, it stays put while nothing changes.
	since   int32
	indices []int32 // ascending
}

func (u *userData) encode() []byte {
	b := wire.Header(wire.KindUserData)
	b = wire.AppendText(b, tagID, u.ID)
	b = wire.AppendText(b, tagAddress, u.Address)
	b = wire.AppendText(b, tagInstance, u.Instance)
	b = wire.AppendText(b, tagTxn, u.Transactional)
	if u.counts.epoch > 0 {
		b = wire.AppendField(b, tagCounts, u.counts.append(nil))
		if u.counts.earlier() {
			b = wire.AppendField(b, tagBefore, u.counts.appendEarlier(nil))
		}
	}
	if len(u.held.indices) > 0 {
		body := binary.AppendUvarint(nil, uint64(max(u.held.since, 0)))
		b = wire.AppendField(b, tagHeld, wire.AppendRuns(body, u.held.indices))
	}
	if u.eager {
		b = wire.AppendNumber(b, tagFlags, flagEager)
	}
	if len(u.joined) > 0 {
		b = wire.AppendField(b, tagJoined, wire.AppendTexts(nil, u.joined))
	}
	if u.asks > 0 {
		b = wire.AppendNumber(b, tagAsks, u.asks)
	}
	if len(u.inner) > 0 {
		b = wire.AppendField(b, tagInner, u.inner)
	}
	return b
}

// decodeUserData reads user data of this major version. Errors: wire.ErrForeign,
// a wire.VersionError, or what is wrong with it.
func decodeUserData(data []byte) (userData, error) {
	fields, err := wire.Open(data, wire.KindUserData)
	if err != nil {
		return userData{}, err
	}
	var (
		u       userData
		earlier earlierCounts
	)
	err = wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case tagID:
			u.ID = string(c.Rest())
		case tagAddress:
			u.Address = string(c.Rest())
		case tagInstance:
			u.Instance = string(c.Rest())
		case tagTxn:
			u.Transactional = string(c.Rest())
		case tagCounts:
			u.counts = readCounts(c)
		case tagBefore:
			earlier = readEarlier(c)
		case tagHeld:
			u.held = held{since: c.Int32(), indices: c.Runs()}
		case tagFlags:
			u.eager = c.Uvarint()&flagEager != 0
		case tagJoined:
			u.joined = c.Texts()
		case tagInner:
			u.inner = c.Rest()
		}
		return nil
	})
	if err != nil {
		return userData{}, err
	}
	u.counts = u.counts.with(earlier)
	return u, nil
}
