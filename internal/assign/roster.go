package assign

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"joiner/internal/wire"
)

// The fields of a directory. tagMember and tagOwners repeat.
const (
	tagGeneration = 1
	tagMember     = 2
	tagTopics     = 3 // a counts
	tagOwners     = 4
	tagProblem    = 5
	tagTruncated  = 6
	tagLeader     = 7 // one above the leader's place among the members
	tagInnerDown  = 8
	tagEarlier    = 9 // former counts before the one that tagTopics has
	tagMovingTo   = 10
)

// The fields of a member in a directory.
const (
	tagMemberID     = 1
	tagMemberStable = 2
	tagMemberAddr   = 3
	tagMemberInst   = 4
	tagMemberTxn    = 5
	tagMemberAlien  = 6
)

// Owners are numbers: three for the ways to have none, then the members by
// their place in the list.
const (
	ownerNone    = 0
	ownerMoving  = 1
	ownerUnowned = 2
	ownerFirst   = 3
)

// roster is a directory on the leader, on its way to the bytes.
type roster struct {
	members []Member
	owners  []ownerList
	moving  []move
	counts  counts
	problem string
	leader  string // its ID
	budget  int

	// sarama asks once per member, and all get the same.
	generation int32
	encoded    []byte
}

// move is an index that its owner has to let go first, and who it is for, by the
// place among the members.
type move struct{ index, to int32 }

// ownerList gives the owners of topics whose partitions are owned alike, so
// that a co-partitioned group writes them once.
type ownerList struct {
	topics []string
	codes  []uint32
}

// add groups the topic with one that is owned alike.
func (r *roster) add(topic string, codes []uint32) {
	for i := range r.owners {
		if slices.Equal(r.owners[i].codes, codes) {
			r.owners[i].topics = append(r.owners[i].topics, topic)
			return
		}
	}
	r.owners = append(r.owners, ownerList{topics: []string{topic}, codes: codes})
}

// data returns the directory's bytes for one generation. The caller must not
// write to them, and appends only to a clipped copy.
func (r *roster) data(generation int32) []byte {
	if r.encoded != nil && r.generation == generation {
		return r.encoded
	}
	r.generation, r.encoded = generation, r.encodeWithin(generation)
	return r.encoded
}

func (r *roster) encodeWithin(generation int32) []byte {
	each := r.budget / max(len(r.members), 1)
	for _, detail := range []detail{everything, noMemberIDs} {
		if b := compact(r.encode(generation, detail)); len(b) <= each {
			return b
		}
	}
	return compact(r.encode(generation, noOwners))
}

// detail is how much a directory tells.
type detail uint8

const (
	everything detail = iota
	noMemberIDs
	noOwners
)

func (r *roster) encode(generation int32, d detail) []byte {
	b := wire.Header(wire.KindDirectory)
	b = wire.AppendNumber(b, tagGeneration, uint64(max(generation, 0)))
	b = wire.AppendField(b, tagTopics, r.counts.append(nil))
	if r.counts.earlier() {
		b = wire.AppendField(b, tagEarlier, r.counts.appendEarlier(nil))
	}
	b = wire.AppendText(b, tagProblem, r.problem)
	if d == noOwners {
		return wire.AppendNumber(b, tagTruncated, 1)
	}
	if i := slices.IndexFunc(r.members, func(m Member) bool { return m.ID == r.leader }); i >= 0 {
		b = wire.AppendNumber(b, tagLeader, uint64(i)+1)
	}
	for _, m := range r.members {
		if d == noMemberIDs && m.MemberID != m.ID {
			m.MemberID = ""
		}
		b = wire.AppendField(b, tagMember, appendMember(nil, m))
	}
	for _, o := range r.owners {
		body := wire.AppendTexts(nil, o.topics)
		body = binary.AppendUvarint(body, uint64(len(o.codes)))
		for _, code := range o.codes {
			body = binary.AppendUvarint(body, uint64(code))
		}
		b = wire.AppendField(b, tagOwners, body)
	}
	if len(r.moving) > 0 {
		body := binary.AppendUvarint(nil, uint64(len(r.moving)))
		for _, m := range r.moving {
			body = binary.AppendUvarint(body, uint64(m.index))
			body = binary.AppendUvarint(body, uint64(m.to))
		}
		b = wire.AppendField(b, tagMovingTo, body)
	}
	return b
}

func appendMember(b []byte, m Member) []byte {
	b = wire.AppendText(b, tagMemberID, m.MemberID)
	b = wire.AppendText(b, tagMemberStable, m.ID)
	b = wire.AppendText(b, tagMemberAddr, m.Address)
	b = wire.AppendText(b, tagMemberInst, m.Instance)
	b = wire.AppendText(b, tagMemberTxn, m.Transactional)
	if m.Foreign {
		b = wire.AppendNumber(b, tagMemberAlien, 1)
	}
	return b
}

// compactAbove is the size in bytes from which compression is worth its field.
const compactAbove = 512

// compact compresses what is large. It returns what it was given where that
// does not help.
func compact(data []byte) []byte {
	if len(data) < compactAbove || len(data) > wire.MaxInflated {
		return data
	}
	body, err := wire.Deflate(data[wire.HeaderSize:])
	if err != nil || len(body) >= len(data) {
		return data
	}
	return wire.AppendField(wire.Header(wire.KindDirectory), wire.TagDeflated, body)
}

// received is what comes down to a member.
type received struct {
	directory Directory
	counts    counts
	inner     []byte // the bytes of the strategy inside, under the wrapper
}

// decodeDirectory reads a directory of this major version. Errors: wire.ErrForeign,
// a wire.VersionError, or what is wrong with it.
func decodeDirectory(data []byte) (received, error) {
	fields, err := wire.Open(data, wire.KindDirectory)
	if err != nil {
		return received{}, err
	}
	var (
		r       received
		d       = &r.directory
		owners  []ownerList
		moving  []move
		leader  int32
		earlier earlierCounts
	)
	err = wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case tagGeneration:
			d.Generation = c.Int32()
		case tagTopics:
			r.counts = readCounts(c)
		case tagEarlier:
			earlier = readEarlier(c)
		case tagProblem:
			d.Problem = string(c.Rest())
		case tagTruncated:
			d.Truncated = c.Uvarint() != 0
		case tagInnerDown:
			r.inner = c.Rest()
		case tagLeader:
			leader = c.Int32()
		case tagMember:
			m, err := decodeMember(c.Rest())
			d.Members = append(d.Members, m)
			return err
		case tagOwners:
			owners = append(owners, readOwners(c))
		case tagMovingTo:
			moving = readMoving(c)
		}
		return nil
	})
	if err != nil {
		return received{}, err
	}
	if at := int(leader) - 1; at >= 0 && at < len(d.Members) {
		d.Leader = d.Members[at].ID
	}
	d.fillMoving(moving)
	if err := d.fill(owners); err != nil {
		return received{}, err
	}
	r.counts = r.counts.with(earlier)
	d.fillCounts(r.counts)
	return r, nil
}

func decodeMember(fields []byte) (Member, error) {
	var m Member
	err := wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case tagMemberID:
			m.MemberID = string(c.Rest())
		case tagMemberStable:
			m.ID = string(c.Rest())
		case tagMemberAddr:
			m.Address = string(c.Rest())
		case tagMemberInst:
			m.Instance = string(c.Rest())
		case tagMemberTxn:
			m.Transactional = string(c.Rest())
		case tagMemberAlien:
			m.Foreign = c.Uvarint() != 0
		}
		return nil
	})
	return m, err
}

func readOwners(c *wire.Cursor) ownerList {
	o := ownerList{topics: c.Texts()}
	n := c.Length()
	o.codes = make([]uint32, 0, n)
	for range n {
		o.codes = append(o.codes, uint32(c.Int32()))
	}
	return o
}

func readMoving(c *wire.Cursor) (moving []move) {
	for range c.Length() {
		moving = append(moving, move{index: c.Int32(), to: c.Int32()})
	}
	return moving
}

// fillMoving leaves out members that are not there. It refers to them by place,
// so it comes before they are moved.
func (d *Directory) fillMoving(moving []move) {
	for _, m := range moving {
		if int(m.to) >= len(d.Members) {
			continue
		}
		if d.MovingTo == nil {
			d.MovingTo = make(map[int32]string)
		}
		d.MovingTo[m.index] = d.Members[m.to].ID
	}
}

// fill turns numbers into the owners' IDs, and orders the members.
func (d *Directory) fill(lists []ownerList) error {
	d.Owners = make(map[string][]string)
	d.Moving = make(map[string][]int32)
	d.Unowned = make(map[string][]int32)
	cells := 0
	for _, list := range lists {
		// A list is written once for all its topics: a short one could ask for
		// any amount of memory.
		if cells += len(list.topics) * len(list.codes); cells > wire.MaxInflated {
			return fmt.Errorf("owners of more than %d partitions", wire.MaxInflated)
		}
		for _, topic := range list.topics {
			if err := d.fillTopic(topic, list.codes); err != nil {
				return err
			}
		}
	}
	// Owners refer to members by place: only now may they be moved.
	slices.SortStableFunc(d.Members, compareMembers)
	return nil
}

func (d *Directory) fillTopic(topic string, codes []uint32) error {
	owners := make([]string, len(codes))
	for p, code := range codes {
		switch code {
		case ownerNone:
		case ownerMoving:
			d.Moving[topic] = append(d.Moving[topic], int32(p))
		case ownerUnowned:
			d.Unowned[topic] = append(d.Unowned[topic], int32(p))
		default:
			i := int(code) - ownerFirst
			if i >= len(d.Members) {
				return fmt.Errorf("topic %q partition %d: owner %d of %d members", topic, p, i, len(d.Members))
			}
			owners[p] = d.Members[i].ID
		}
	}
	d.Owners[topic] = owners
	return nil
}

func (d *Directory) fillCounts(c counts) {
	d.Partitions = make(map[string]int32, len(c.topics))
	d.Former = make(map[string][]int32)
	for _, t := range c.topics {
		d.Partitions[t.name] = t.now
		if len(t.was) > 0 {
			d.Former[t.name] = t.was
		}
	}
}

// rosterOf writes down what a plan gives to whom, for strategies that hand out
// single partitions.
func rosterOf(peers []peer, plan map[string]map[string][]int32, seen map[string]int32) roster {
	var r roster
	byTopic := make(map[string][]uint32, len(seen))
	for topic, n := range seen {
		codes := make([]uint32, n)
		for p := range codes {
			codes[p] = ownerUnowned
		}
		byTopic[topic] = codes
	}
	for i := range peers {
		r.members = append(r.members, peers[i].Member)
		for topic, partitions := range plan[peers[i].MemberID] {
			for _, p := range partitions {
				if codes := byTopic[topic]; p >= 0 && int(p) < len(codes) {
					codes[p] = ownerFirst + uint32(i)
				}
			}
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		r.add(topic, byTopic[topic])
	}
	return r
}
