package remote

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"joiner/internal/record"
	"joiner/internal/task"
	"joiner/internal/wire"
)

// What one request may carry.
const (
	MaxKeys  = 1000
	MaxBytes = 1 << 20 // of its body
	// maxAnswerBytes ends the adding of prices to a response; the first price is
	// always in it, however long, and those left out are asked for again.
	maxAnswerBytes = 1 << 20
	// maxResponse is what an asker reads: maxAnswerBytes and a price as long as a
	// record of Kafka may ever be set to be.
	maxResponse = 32 << 20
	// largeResponse is what is longer than all others: maxAnswerBytes, and as much
	// for what is no price. Only one of those is read at a time.
	largeResponse = 2 << 20
	// maxBudget bounds how long an answerer works on one request.
	maxBudget = 10 * time.Second
)

// MaxHops is how often an asker follows a hint before it goes back to its own
// directory: two directories that point at each other end here.
const MaxHops = 2

// The fields of a request. tagQuestion repeats.
const (
	tagCluster    = 1
	tagGroup      = 2
	tagTopic      = 3
	tagTopicID    = 4
	tagGeneration = 5
	tagHops       = 6
	tagAsker      = 7
	tagBudget     = 8 // milliseconds
	tagQuestion   = 9
	tagTo         = 10
)

// The fields of a response. tagAnswer repeats, in the order of the questions.
// Tag 15 is wire's.
const (
	tagAnswerer = 1
	tagRefusal  = 2
	tagAnswer   = 3
)

// scope is what both sides must agree about.
type scope struct {
	cluster, group, topic, topicID string
	generation                     int32
}

// request is a batch of questions to one pod.
type request struct {
	scope
	to     string // the identity of the pod that is meant
	asker  string
	hops   int32
	budget time.Duration
	asked  []asked
}

// asked is one question.
type asked struct {
	partition int32
	now       bool // the newest price, as the table stands
	at        record.Millis
	symbol    string
	age       time.Duration // for how long the answer has been wanted, in whole milliseconds
	ticket    task.Ticket   // that an earlier attempt brought
}

const (
	kindAtTime = 0
	kindNow    = 1
)

// The outcomes on the wire. A reader takes one that it does not know for an
// error.
const (
	outFound     = 1
	outNoPrice   = 2
	outMoved     = 3
	outRestoring = 4
	outTimeout   = 5
	outOverload  = 6
)

// reply is the answer to one question.
type reply struct {
	outcome   uint64
	text      string
	eventTime record.Millis
	offset    int64
	asOf      bool
	held      bool // with outNoPrice: the symbol is known to have none any more
	partition int32
	next      int64

	owner pod   // with outMoved: who owns the partition, if it is known
	since int32 // and the generation in which it does

	ticket task.Ticket // with outTimeout: to be shown when asking again
}

// pod is a member as it is dialled.
type pod struct{ id, address string }

// response is what comes back.
type response struct {
	answerer string
	refusal  string // why all of it was refused, for the log
	replies  []reply
}

// appendHead begins a request; the questions follow.
func appendHead(b []byte, r *request) []byte {
	b = append(b, wire.Header(wire.KindQuestions)...)
	b = wire.AppendText(b, tagCluster, r.cluster)
	b = wire.AppendText(b, tagGroup, r.group)
	b = wire.AppendText(b, tagTopic, r.topic)
	b = wire.AppendText(b, tagTopicID, r.topicID)
	b = wire.AppendNumber(b, tagGeneration, uint64(max(r.generation, 0)))
	b = wire.AppendNumber(b, tagHops, uint64(max(r.hops, 0)))
	b = wire.AppendText(b, tagAsker, r.asker)
	b = wire.AppendText(b, tagTo, r.to)
	return wire.AppendNumber(b, tagBudget, uint64(max(r.budget.Milliseconds(), 0)))
}

// questionOverhead is at least what a question takes beside its symbol, in
// bytes.
const questionOverhead = 64

// maxAge bounds for how long an answer may have been wanted.
const maxAge = 24 * time.Hour

// headBytes is at least what the head of a request takes, names of ordinary
// length included.
const headBytes = 4 << 10

func (r *request) encode() []byte {
	size := headBytes
	for i := range r.asked {
		size += questionOverhead + len(r.asked[i].symbol)
	}
	b := appendHead(make([]byte, 0, size), r)
	var body []byte
	for i := range r.asked {
		q := &r.asked[i]
		kind := uint64(kindAtTime)
		if q.now {
			kind = kindNow
		}
		body = binary.AppendUvarint(body[:0], uint64(q.partition))
		body = binary.AppendUvarint(body, kind)
		body = binary.AppendVarint(body, int64(q.at))
		body = wire.AppendBytes(body, q.symbol)
		if q.age >= time.Millisecond || q.ticket != (task.Ticket{}) {
			body = binary.AppendUvarint(body, uint64(q.age.Milliseconds()))
			body = appendTicket(body, q.ticket)
		}
		b = wire.AppendField(b, tagQuestion, body)
	}
	return b
}

// errTooMany reports more than MaxKeys questions.
var errTooMany = fmt.Errorf("more than %d keys", MaxKeys)

// decodeRequest reads a request. Errors: wire.ErrForeign, a wire.VersionError,
// errTooMany, or what is wrong with it.
func decodeRequest(data []byte) (*request, error) {
	fields, err := wire.Open(data, wire.KindQuestions)
	if err != nil {
		return nil, err
	}
	r := &request{}
	err = wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case tagCluster:
			r.cluster = string(c.Rest())
		case tagGroup:
			r.group = string(c.Rest())
		case tagTopic:
			r.topic = string(c.Rest())
		case tagTopicID:
			r.topicID = string(c.Rest())
		case tagGeneration:
			r.generation = c.Int32()
		case tagHops:
			r.hops = c.Int32()
		case tagAsker:
			r.asker = string(c.Rest())
		case tagTo:
			r.to = string(c.Rest())
		case tagBudget:
			r.budget = time.Duration(min(c.Uvarint(), uint64(maxBudget.Milliseconds()))) * time.Millisecond
		case tagQuestion:
			if len(r.asked) == MaxKeys {
				return errTooMany
			}
			q, err := decodeQuestion(c)
			r.asked = append(r.asked, q)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func decodeQuestion(c *wire.Cursor) (asked, error) {
	q := asked{partition: c.Int32()}
	kind := c.Uvarint()
	q.now = kind == kindNow
	q.at = record.Millis(c.Varint())
	q.symbol = c.Text()
	if c.Err() == nil && kind > kindNow {
		return q, fmt.Errorf("question of unknown kind %d", kind)
	}
	if len(c.Rest()) > 0 { // a first attempt has none, nor has one by an earlier release
		q.age = time.Duration(min(c.Uvarint(), uint64(maxAge.Milliseconds()))) * time.Millisecond
		q.ticket = readTicket(c)
	}
	return q, nil
}

func appendTicket(b []byte, t task.Ticket) []byte {
	b = binary.AppendUvarint(b, t.Task)
	return binary.AppendUvarint(b, t.Seq)
}

func readTicket(c *wire.Cursor) task.Ticket { return task.Ticket{Task: c.Uvarint(), Seq: c.Uvarint()} }

func (r *response) encode() []byte {
	b := append(make([]byte, 0, 256+48*len(r.replies)), wire.Header(wire.KindAnswers)...)
	b = wire.AppendText(b, tagAnswerer, r.answerer)
	b = wire.AppendText(b, tagRefusal, r.refusal)
	var body []byte
	prices := 0
	for i := range r.replies {
		a := &r.replies[i]
		body = a.append(body[:0])
		if a.outcome == outFound {
			if prices > 0 && len(b)+len(body) > maxAnswerBytes {
				body = (&reply{outcome: outOverload}).append(body[:0])
			}
			prices++
		}
		b = wire.AppendField(b, tagAnswer, body)
	}
	return b
}

func (a *reply) append(b []byte) []byte {
	b = binary.AppendUvarint(b, a.outcome)
	switch a.outcome {
	case outFound:
		b = binary.AppendUvarint(b, uint64(a.partition))
		b = binary.AppendUvarint(b, uint64(max(a.next, 0)))
		b = appendFlag(b, a.asOf)
		b = binary.AppendVarint(b, int64(a.eventTime))
		b = binary.AppendUvarint(b, uint64(max(a.offset, 0)))
		b = wire.AppendBytes(b, a.text)
	case outNoPrice:
		b = binary.AppendUvarint(b, uint64(a.partition))
		b = binary.AppendUvarint(b, uint64(max(a.next, 0)))
		b = appendFlag(b, a.held)
	case outMoved:
		b = wire.AppendBytes(b, a.owner.id)
		b = wire.AppendBytes(b, a.owner.address)
		b = binary.AppendUvarint(b, uint64(max(a.since, 0)))
	case outTimeout:
		b = appendTicket(b, a.ticket)
	}
	return b
}

func appendFlag(b []byte, set bool) []byte {
	if set {
		return append(b, 1)
	}
	return append(b, 0)
}

// decodeResponse reads the answers to questions. It is an error where there are
// not as many, where one is about another partition than its question, or where
// a price is no number.
func decodeResponse(data []byte, questions []asked) (*response, error) {
	fields, err := wire.Open(data, wire.KindAnswers)
	if err != nil {
		return nil, err
	}
	r := &response{replies: make([]reply, 0, len(questions))}
	err = wire.EachField(fields, func(tag uint64, c *wire.Cursor) error {
		switch tag {
		case tagAnswerer:
			r.answerer = string(c.Rest())
		case tagRefusal:
			r.refusal = string(c.Rest())
		case tagAnswer:
			if len(r.replies) == len(questions) {
				return errors.New("more answers than questions")
			}
			a, err := decodeReply(c, questions[len(r.replies)].partition)
			r.replies = append(r.replies, a)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(r.replies) != len(questions) {
		return nil, fmt.Errorf("%d answers to %d questions", len(r.replies), len(questions))
	}
	return r, nil
}

func decodeReply(c *wire.Cursor, partition int32) (reply, error) {
	a := reply{outcome: c.Uvarint()}
	switch a.outcome {
	case outFound:
		a.partition, a.next, a.asOf = c.Int32(), readOffset(c), c.Uvarint() != 0
		a.eventTime, a.offset = record.Millis(c.Varint()), readOffset(c)
		text := c.Bytes()
		if c.Err() == nil && !isNumber(text) {
			return a, errors.New("a price that is no number")
		}
		a.text = string(text)
	case outNoPrice:
		a.partition, a.next, a.held = c.Int32(), readOffset(c), c.Uvarint() != 0
	case outMoved:
		a.owner = pod{id: c.Text(), address: c.Text()}
		a.since = c.Int32()
		return a, nil
	case outTimeout:
		if len(c.Rest()) > 0 {
			a.ticket = readTicket(c)
		}
		return a, nil
	default:
		return a, nil
	}
	if c.Err() == nil && a.partition != partition {
		return a, fmt.Errorf("an answer about partition %d, asked for %d", a.partition, partition)
	}
	return a, nil
}

func readOffset(c *wire.Cursor) int64 {
	v := c.Uvarint()
	if v > 1<<63-1 {
		c.Fail(fmt.Errorf("offset %d does not fit 63 bits", v))
		return 0
	}
	return int64(v)
}

// isNumber reports whether text is a JSON number and nothing else: it goes into
// alerts as it is.
func isNumber(text []byte) bool {
	if len(text) == 0 || text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return false
	}
	last := text[len(text)-1] // json.Valid lets white space follow
	return last >= '0' && last <= '9' && json.Valid(text)
}
