package enrich

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how many objects and arrays may be open at once; RFC 8259,
// section 9, allows a limit, and encoding/json has this one. It also bounds
// the recursion, to a few megabytes of stack for a hostile record.
const maxDepth = 10_000

// maxPicks is how many values one scan can pick: symbol, price, event time.
const maxPicks = 3

// span is where a picked value lies in the scanned bytes. No value starts at
// 0, which is the object's brace at the earliest: the zero span is "absent".
type span struct{ from, to int }

// picks are the values found, by slot.
type picks [maxPicks]span

// raw returns the bytes of slot s as they stand in b, nil where absent.
func (p *picks) raw(b []byte, s int) []byte {
	if p[s].from == 0 {
		return nil
	}
	return b[p[s].from:p[s].to]
}

// node is an object's member, as far as somebody asked for it: paths become a
// tree, so that one pass serves all of them.
type node struct {
	name     []byte // unescaped
	slot     int    // where its value goes, -1 if nobody wants it whole
	children []*node
	below    []int // the slots of all nodes beneath
}

func newRoot() *node { return &node{slot: -1} }

// add asks for the value at path and returns its slot; slots are given out
// from next on, and a path that was asked for before shares its slot.
func (n *node) add(path []string, next int) int {
	if len(path) == 0 {
		if n.slot < 0 {
			n.slot = next
		}
		return n.slot
	}
	child := n.find([]byte(path[0]))
	if child == nil {
		child = &node{name: []byte(path[0]), slot: -1}
		n.children = append(n.children, child)
	}
	slot := child.add(path[1:], next)
	n.below = append(n.below, slot)
	return slot
}

func (n *node) find(name []byte) *node {
	for _, c := range n.children {
		if bytes.Equal(c.name, name) {
			return c
		}
	}
	return nil
}

// findEscaped is find for a name that contains escapes.
func (n *node) findEscaped(raw []byte) *node {
	var buf [128]byte
	for _, c := range n.children {
		// No escape is longer than six times what it stands for; names that
		// cannot match need not fit the buffer.
		if len(raw) > 6*len(c.name) {
			continue
		}
		if bytes.Equal(c.name, appendUnescaped(buf[:0], raw)) {
			return c
		}
	}
	return nil
}

// scanObject checks that b is one JSON object with nothing but white space
// around it, and notes in out where the values below root lie. Of duplicate
// members the last counts, with all that is in it.
//
// It returns len(b), or the complement of the position of the first byte that
// cannot stand where it stands (of len(b) where b ends too early).
func scanObject(b []byte, root *node, out *picks) int {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return ^i
	}
	i = scanMembers(b, i, 0, root, out)
	if i < 0 {
		return i
	}
	if i = skipSpace(b, i); i < len(b) {
		return ^i
	}
	return i
}

// scanMembers checks the object whose brace is b[i], depth containers deep,
// and returns the position behind it. n is nil where nothing in it is wanted.
func scanMembers(b []byte, i, depth int, n *node, out *picks) int {
	if depth == maxDepth {
		return ^i
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return ^i
		}
		from := i + 1
		end, escaped := scanString(b, from)
		if i = end; i < 0 {
			return i
		}
		var child *node
		if n != nil {
			if name := b[from : i-1]; escaped {
				child = n.findEscaped(name)
			} else {
				child = n.find(name)
			}
		}
		i = skipSpace(b, i)
		if i >= len(b) || b[i] != ':' {
			return ^i
		}
		i = skipSpace(b, i+1)
		if child != nil {
			i = scanPicked(b, i, depth+1, child, out)
		} else {
			i = scanValue(b, i, depth+1, nil, out)
		}
		if i < 0 {
			return i
		}
		i = skipSpace(b, i)
		if i >= len(b) {
			return ^i
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case '}':
			return i + 1
		default:
			return ^i
		}
	}
}

// scanPicked checks the value at b[i], which n or something below n stands
// for, and notes where it lies.
func scanPicked(b []byte, i, depth int, n *node, out *picks) int {
	for _, s := range n.below {
		out[s] = span{} // what an earlier duplicate held counts no more
	}
	end := scanValue(b, i, depth, n, out)
	if n.slot >= 0 && end > 0 {
		out[n.slot] = span{from: i, to: end}
	}
	return end
}

// scanValue checks the value at b[i] and returns the position behind it.
func scanValue(b []byte, i, depth int, n *node, out *picks) int {
	if i >= len(b) {
		return ^i
	}
	switch c := b[i]; {
	case c == '"':
		end, _ := scanString(b, i+1)
		return end
	case c == '-' || isDigit(c):
		return scanNumber(b, i)
	case c == '{':
		return scanMembers(b, i, depth, n, out)
	case c == '[':
		return scanElements(b, i, depth)
	case c == 't':
		return scanWord(b, i, "true")
	case c == 'f':
		return scanWord(b, i, "false")
	case c == 'n':
		return scanWord(b, i, "null")
	}
	return ^i
}

// scanElements checks the array whose bracket is b[i].
func scanElements(b []byte, i, depth int) int {
	if depth == maxDepth {
		return ^i
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = scanValue(b, i, depth+1, nil, nil); i < 0 {
			return i
		}
		i = skipSpace(b, i)
		if i >= len(b) {
			return ^i
		}
		switch b[i] {
		case ',':
			i = skipSpace(b, i+1)
		case ']':
			return i + 1
		default:
			return ^i
		}
	}
}

func scanWord(b []byte, i int, word string) int {
	for k := range len(word) {
		if i+k >= len(b) || b[i+k] != word[k] {
			return ^(i + k)
		}
	}
	return i + len(word)
}

// scanNumber checks the number at b[i]: an optional minus, an integer without
// leading zeros, an optional fraction, an optional exponent.
func scanNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b) || !isDigit(b[i]):
		return ^i
	case b[i] == '0':
		i++
	default:
		i = skipDigits(b, i+1)
	}
	if i < len(b) && b[i] == '.' {
		i++
		if i >= len(b) || !isDigit(b[i]) {
			return ^i
		}
		i = skipDigits(b, i+1)
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if i >= len(b) || !isDigit(b[i]) {
			return ^i
		}
		i = skipDigits(b, i+1)
	}
	return i
}

// isNumber reports whether text is a JSON number and nothing else.
func isNumber(text []byte) bool { return len(text) > 0 && scanNumber(text, 0) == len(text) }

func isDigit(c byte) bool { return c-'0' < 10 }

func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

func skipSpace(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	return skipSpaces(b, i)
}

func skipSpaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// Eight bytes at a time: the constants repeat a byte in each lane.
const (
	lanes      = 0x0101010101010101
	laneTops   = 0x8080808080808080
	laneQuotes = '"' * lanes
	laneSlash  = '\\' * lanes
	laneBlanks = ' ' * lanes
)

// endsPlain returns a word whose lowest set bit is the top bit of the first
// lane of x that holds a quote, a backslash or a control character; 0 where
// none does. Bits above the lowest may be false: the borrow of a subtraction
// runs upwards only.
func endsPlain(x uint64) uint64 {
	q, s := x^laneQuotes, x^laneSlash
	return ((x-laneBlanks)&^x | (q-lanes)&^q | (s-lanes)&^s) & laneTops
}

// scanString checks the string whose first byte, behind the quote, is b[i];
// it returns the position behind the closing quote, and whether there were
// escapes. Unpaired surrogates are grammatical, so they pass.
func scanString(b []byte, i int) (int, bool) {
	escaped := false
	for {
		i = skipPlain(b, i)
		if i >= len(b) {
			return ^i, false
		}
		switch c := b[i]; c {
		case '"':
			return i + 1, escaped
		case '\\':
			escaped = true
			if i = scanEscape(b, i+1); i < 0 {
				return i, false
			}
		default:
			return ^i, false
		}
	}
}

// skipPlain returns the position of the first byte from i on that does not
// simply belong to a string, len(b) where there is none.
func skipPlain(b []byte, i int) int {
	if j, long := skipWindow(b, i); long {
		return skipLong(b, j)
	}
	return skipWords(b, i)
}

// plainWindow is how far ahead of a long string's bytes is looked at once. It
// bounds what is looked at again in a string with many escapes.
const plainWindow = 256

// skipWindow steps over the first 16 bytes where they are plain, and tells
// whether they are: most strings are shorter, and not worth more.
func skipWindow(b []byte, i int) (int, bool) {
	if i+16 > len(b) {
		return i, false
	}
	x, y := binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint64(b[i+8:])
	return i + 16, endsPlain(x)|endsPlain(y) == 0
}

// skipLong goes on in windows: the quote and the backslash are found by the
// machine's own search, which leaves one test a byte to us.
func skipLong(b []byte, i int) int {
	for {
		window := b[i:min(i+plainWindow, len(b))]
		n := bytes.IndexByte(window, '"')
		closed := n >= 0
		if closed {
			window = window[:n]
		}
		if bytes.IndexByte(window, '\\') >= 0 || hasControl(window) {
			return skipWords(b, i)
		}
		i += len(window)
		if closed || i == len(b) {
			return i
		}
	}
}

// hasControl reports whether a byte is below a blank.
func hasControl(b []byte) bool {
	var found uint64
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		found |= (x - laneBlanks) &^ x
		b = b[8:]
	}
	if found&laneTops != 0 {
		return true
	}
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}

// skipWords steps over plain bytes eight at a time.
func skipWords(b []byte, i int) int {
	for i+8 <= len(b) {
		if m := endsPlain(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// scanEscape checks the escape whose letter is b[i].
func scanEscape(b []byte, i int) int {
	if i >= len(b) {
		return ^i
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		for k := 1; k <= 4; k++ {
			if i+k >= len(b) || hexDigit(b[i+k]) < 0 {
				return ^(i + k)
			}
		}
		return i + 5
	}
	return ^i
}

func hexDigit(c byte) rune {
	switch {
	case isDigit(c):
		return rune(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10
	}
	return -1
}

// appendUnescaped appends what the inside of a checked string stands for. Bytes
// that are not UTF-8 stay what they are. A surrogate without its other half is
// written as UTF-8 would have it (WTF-8), which is not UTF-8: as U+FFFD, as
// encoding/json has it, different symbols would become one.
func appendUnescaped(dst, raw []byte) []byte {
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:n]...)
		raw = raw[n:]
		if raw[1] != 'u' {
			dst = append(dst, unescape(raw[1]))
			raw = raw[2:]
			continue
		}
		r := codeUnit(raw)
		raw = raw[6:]
		if utf16.IsSurrogate(r) {
			pair := utf16.DecodeRune(r, codeUnit(raw))
			if pair == utf8.RuneError {
				dst = append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
				continue
			}
			raw = raw[6:]
			r = pair
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// codeUnit returns the value of the \u escape that raw, the inside of a
// checked string, begins with; -1 where it begins with something else.
func codeUnit(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	return hexDigit(raw[2])<<12 | hexDigit(raw[3])<<8 | hexDigit(raw[4])<<4 | hexDigit(raw[5])
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// text returns what a checked value says as text: the inside of a string with
// its escapes resolved (which allocates only where there are any), a number
// as written. ok is false for everything else, and for nil.
func text(raw []byte) (t []byte, quoted, ok bool) {
	if len(raw) == 0 {
		return nil, false, false
	}
	switch c := raw[0]; {
	case c == '"':
		inside := raw[1 : len(raw)-1]
		if bytes.IndexByte(inside, '\\') < 0 {
			return inside, true, true
		}
		return appendUnescaped(make([]byte, 0, len(inside)), inside), true, true
	case c == '-' || isDigit(c):
		return raw, false, true
	}
	return nil, false, false
}
