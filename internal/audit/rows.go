package audit

import "encoding/binary"

// A row is a structure of fixed size, written field by field so that rows
// compare as bytes in the order of their fields: the first of them are its key.

// coder writes a row's fields, or reads them.
type coder struct {
	buf  []byte
	read bool
	at   int
}

const signBit = 1 << 63

func (c *coder) u64(v *uint64) {
	if c.read {
		*v = binary.BigEndian.Uint64(c.buf[c.at:])
		c.at += 8
		return
	}
	c.buf = binary.BigEndian.AppendUint64(c.buf, *v)
}

// i64 keeps the order of negative numbers.
func (c *coder) i64(v *int64) {
	u := uint64(*v) ^ signBit
	c.u64(&u)
	*v = int64(u ^ signBit)
}

func (c *coder) u8(v *uint8) {
	if c.read {
		*v = c.buf[c.at]
		c.at++
		return
	}
	c.buf = append(c.buf, *v)
}

func (c *coder) flag(v *bool) {
	b := uint8(0)
	if *v {
		b = 1
	}
	c.u8(&b)
	*v = b != 0
}

func (c *coder) i32(v *int32) {
	if c.read {
		*v = int32(binary.BigEndian.Uint32(c.buf[c.at:]) ^ 1<<31)
		c.at += 4
		return
	}
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(*v)^1<<31)
}

func (c *coder) symbol(v *symbol) {
	c.u64(&v[0])
	c.u64(&v[1])
}

// row is what the sorters hold.
type row interface{ code(c *coder) }

// sizeOf returns the bytes that rows like r take.
func sizeOf(r row) int {
	c := coder{}
	r.code(&c)
	return len(c.buf)
}

// place is where a record lies, in a topic that is clear.
type place struct {
	partition int32
	offset    int64
}

func (p *place) code(c *coder) {
	c.i32(&p.partition)
	c.i64(&p.offset)
}

// output is an alert or a dead letter, by the source that it names.
type output struct {
	side   uint8 // noteSide or marketSide
	source place
	dead   bool // a dead letter
	at     place

	flaw  flaw // what is wrong with it by itself
	kind  uint8
	meta  uint64 // key and headers
	value uint64 // the notification's value
	bytes int64  // of it; where shrunk, as the header says
	when  int64  // the record's timestamp
	// shrunk is set for a dead letter that was too large for its topic.
	shrunk bool
	claim  claim
}

const (
	noteSide uint8 = iota
	marketSide
)

// claim is what an alert says of the market.
type claim struct {
	result   uint8 // a record.Result
	remote   bool
	notAsOf  bool
	priced   bool // there is a market part: the fields below
	symbol   symbol
	price    uint64
	time     int64
	age      int64
	tick     place
	cited    bool
	citation place // of joiner-market
}

func (m *claim) code(c *coder) {
	c.u8(&m.result)
	c.flag(&m.remote)
	c.flag(&m.notAsOf)
	c.flag(&m.priced)
	c.symbol(&m.symbol)
	c.u64(&m.price)
	c.i64(&m.time)
	c.i64(&m.age)
	m.tick.code(c)
	c.flag(&m.cited)
	m.citation.code(c)
}

func (o *output) code(c *coder) {
	c.u8(&o.side)
	o.source.code(c)
	c.flag(&o.dead)
	o.at.code(c)
	c.u8((*uint8)(&o.flaw))
	c.u8(&o.kind)
	c.u64(&o.meta)
	c.u64(&o.value)
	c.i64(&o.bytes)
	c.i64(&o.when)
	c.flag(&o.shrunk)
	o.claim.code(c)
}

// question is asked of one market partition when its table has taken exactly
// the ticks below next.
type question struct {
	partition int32
	next      int64
	alert     place // what asks; for a drop, the notification
	kind      uint8
	last      bool // of the copies of its notification
	symbol    symbol
	time      int64 // the notification's event time
	tick      int64 // what the alert claims: offset
	tickTime  int64
	price     uint64
}

// The kinds of questions.
const (
	isHit  uint8 = iota // the alert names a tick
	isNone              // the alert says that there is no price
	isDrop              // there is no output, which is right only without a price
)

func (q *question) code(c *coder) {
	c.i32(&q.partition)
	c.i64(&q.next)
	q.alert.code(c)
	c.u8(&q.kind)
	c.flag(&q.last)
	c.symbol(&q.symbol)
	c.i64(&q.time)
	c.i64(&q.tick)
	c.i64(&q.tickTime)
	c.u64(&q.price)
}

// doubt is a question that the ticks seen do not answer as the alert does. It
// is settled by what lies at the offset that the alert names.
type doubt struct {
	partition int32
	tick      int64
	alert     place
	kind      uint8
	symbol    symbol
	tickTime  int64
	price     uint64
	found     bool // the ticks give a version, of this time and offset
	time      int64
	offset    int64
	gap       bool // offsets below the citation have no record
}

func (d *doubt) code(c *coder) {
	c.i32(&d.partition)
	c.i64(&d.tick)
	d.alert.code(c)
	c.u8(&d.kind)
	c.symbol(&d.symbol)
	c.i64(&d.tickTime)
	c.u64(&d.price)
	c.flag(&d.found)
	c.i64(&d.time)
	c.i64(&d.offset)
	c.flag(&d.gap)
}

// span is, by market partition, symbol and event time, either a tick that came
// later than a notification of its symbol with a later event time, or such a
// notification: which of the ticks between from and time, with an offset of at
// least offset, would have won.
type span struct {
	partition int32
	symbol    symbol
	time      int64
	asks      bool // a notification; at equal times behind the ticks
	offset    int64
	none      bool // the tick is a tombstone; the alert has no price
	kind      uint8
	from      int64
	alert     place
}

func (s *span) code(c *coder) {
	c.i32(&s.partition)
	c.symbol(&s.symbol)
	c.i64(&s.time)
	c.flag(&s.asks)
	c.i64(&s.offset)
	c.flag(&s.none)
	c.u8(&s.kind)
	c.i64(&s.from)
	s.alert.code(c)
}

// drop is what one market partition says to a notification without an output.
type drop struct {
	note   place
	priced bool // it had a price
}

func (d *drop) code(c *coder) {
	d.note.code(c)
	c.flag(&d.priced)
}
