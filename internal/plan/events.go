package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what can be planned: far above any group that Kafka would bear, and
// low enough that a slip of the keyboard is refused and not computed.
const (
	MaxMembers    = 10_000
	MaxPartitions = 100_000
	maxEvents     = 1_000
)

// Event is one change of the group's members, and one rebalance.
type Event struct {
	// Text is the event as it was written.
	Text string
	// Join and Leave are the numbers of the members that come and go; member
	// 3 is called m3. Both are empty where an event changes nothing.
	Join, Leave []int
}

// Name is what member n is called.
func Name(n int) string { return "m" + strconv.Itoa(n) }

// EventError says which event makes no sense, and why.
type EventError struct {
	Position int // from 1; 0 is the number of members at the start
	Text     string
	Reason   string
}

func (e *EventError) Error() string {
	if e.Position == 0 {
		return fmt.Sprintf("%s members at the start: %s", e.Text, e.Reason)
	}
	return fmt.Sprintf("event %d (%q): %s", e.Position, e.Text, e.Reason)
}

// ParseEvents reads events that are separated by commas, for a group that begins
// with start members, which is then the first event; 0 is a group that is empty
// before the first event, and an empty text no events:
//
//   - a number scales to that many members: up adds the lowest-numbered ones
//     that were never in the group, down takes the highest-numbered away; the
//     number of members that there are is a rebalance without a change;
//   - -m2 removes m2;
//   - +m7 adds m7, which must not be there. One that was there before comes
//     back as a new process that remembers nothing.
//
// Spaces around an event do not matter. The error is an *EventError; its
// position counts the events of the text.
func ParseEvents(start int, text string) ([]Event, error) {
	var words []string
	if text != "" {
		words = strings.Split(text, ",")
	}
	if len(words) > maxEvents {
		return nil, &EventError{Position: maxEvents + 1, Text: strings.TrimSpace(words[maxEvents]), Reason: fmt.Sprintf("at most %d events", maxEvents)}
	}
	g := roll{ever: make(map[int]bool)}
	events := make([]Event, 0, len(words)+1)
	if start != 0 {
		event, problem := g.read(strconv.Itoa(start))
		if problem != "" {
			return nil, &EventError{Text: strconv.Itoa(start), Reason: problem}
		}
		events = append(events, event)
	}
	for i, word := range words {
		event, problem := g.read(strings.TrimSpace(word))
		if problem != "" {
			return nil, &EventError{Position: i + 1, Text: strings.TrimSpace(word), Reason: problem}
		}
		events = append(events, event)
	}
	return events, nil
}

// roll is who is in the group while its events are read.
type roll struct {
	present []int // ascending
	ever    map[int]bool
	lowest  int // no number from 1 to this one is left that was never used
}

func (r *roll) read(word string) (Event, string) {
	e := Event{Text: word}
	if word == "" {
		return e, "it is empty; write a number of members, -m2 or +m2"
	}
	if word[0] == '+' || word[0] == '-' {
		n, ok := memberNumber(word[1:])
		if !ok {
			return e, fmt.Sprintf("no member is called %q; they are m1 to m%d", word[1:], MaxMembers)
		}
		if word[0] == '+' {
			return r.join(e, n)
		}
		return r.leave(e, n)
	}
	n, ok := plainNumber(word)
	if !ok {
		return e, "write a number of members, -m2 or +m2"
	}
	return r.scale(e, n)
}

func (r *roll) join(e Event, n int) (Event, string) {
	at, there := slices.BinarySearch(r.present, n)
	if there {
		return e, Name(n) + " is in the group already"
	}
	r.present = slices.Insert(r.present, at, n)
	r.ever[n] = true
	e.Join = []int{n}
	return e, ""
}

func (r *roll) leave(e Event, n int) (Event, string) {
	at, there := slices.BinarySearch(r.present, n)
	if !there {
		return e, fmt.Sprintf("%s is not in the group, which has %s", Name(n), Names(r.present))
	}
	if len(r.present) == 1 {
		return e, Name(n) + " is the last member, and without any there is nothing to plan"
	}
	r.present = slices.Delete(r.present, at, at+1)
	e.Leave = []int{n}
	return e, ""
}

func (r *roll) scale(e Event, n int) (Event, string) {
	if n < 1 || n > MaxMembers {
		return e, fmt.Sprintf("scale to 1 to %d members", MaxMembers)
	}
	if len(r.present) > n {
		e.Leave = slices.Clone(r.present[n:])
		r.present = r.present[:n]
	}
	for len(r.present) < n {
		m := r.unused()
		if m > MaxMembers {
			return e, fmt.Sprintf("no name up to m%d is left that was never used", MaxMembers)
		}
		if _, problem := r.join(e, m); problem != "" {
			return e, problem
		}
		e.Join = append(e.Join, m)
	}
	return e, ""
}

// unused returns the lowest number that no member ever had.
func (r *roll) unused() int {
	for {
		if r.lowest++; !r.ever[r.lowest] {
			return r.lowest
		}
	}
}

func memberNumber(name string) (int, bool) {
	digits, found := strings.CutPrefix(name, "m")
	if !found {
		return 0, false
	}
	n, ok := plainNumber(digits)
	return n, ok && n >= 1 && n <= MaxMembers
}

// plainNumber reads decimal digits without a sign or a leading zero, so that
// each member has one name.
func plainNumber(digits string) (int, bool) {
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// Names lists members for a human, neighbours as a range: m1–m4, m6.
func Names(members []int) string {
	var parts []string
	for i := 0; i < len(members); {
		end := i
		for end+1 < len(members) && members[end+1] == members[end]+1 {
			end++
		}
		switch end - i {
		case 0:
			parts = append(parts, Name(members[i]))
		case 1:
			parts = append(parts, Name(members[i]), Name(members[end]))
		default:
			parts = append(parts, Name(members[i])+"–"+Name(members[end]))
		}
		i = end + 1
	}
	if len(parts) == 0 {
		return "nobody"
	}
	return strings.Join(parts, ", ")
}
