package resume

import (
	"strconv"
	"strings"
)

// Label goes with each committed offset, as its metadata: it says which topic
// the offset belongs to, since a topic that is made anew has the same name and
// may have a record at the same offset.
type Label struct {
	TopicID     string // empty: unknown
	OtherID     string // the other input's topic
	OtherOffset int64  // how far the task had come there; None where OtherID is empty
}

const (
	form = "joiner/1" // the major version, which a reader has to know

	keyTopic       = "topic_id"
	keyOther       = "other_id"
	keyOtherOffset = "other_offset"
)

// String is the label as it is committed: words with a space between, the first
// of which is the form's name and major version and the others fields,
// name=value. It is empty where no id is known, and some 100 bytes long; Kafka
// allows 4,096 (offset.metadata.max.bytes).
func (l Label) String() string {
	if !word(l.TopicID) {
		return ""
	}
	text := form + " " + keyTopic + "=" + l.TopicID
	if word(l.OtherID) {
		text += " " + keyOther + "=" + l.OtherID + " " + keyOtherOffset + "=" + strconv.FormatInt(l.OtherOffset, 10)
	}
	return text
}

// word reports whether an id can stand in a label: Kafka's are base64.
func word(id string) bool { return id != "" && !strings.ContainsAny(id, " =") }

// ParseLabel reads what String wrote, by this version or another of the same
// major version, whose fields it does not know it ignores. Anything else, such
// as what other tools commit, is the zero Label: its offset is taken as it is.
func ParseLabel(text string) Label {
	none := Label{OtherOffset: None}
	words := strings.Split(text, " ")
	if words[0] != form {
		return none
	}
	l := none
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case keyTopic:
			l.TopicID = value
		case keyOther:
			l.OtherID = value
		case keyOtherOffset:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				n = None
			}
			l.OtherOffset = n
		}
	}
	if !word(l.TopicID) {
		return none
	}
	if !word(l.OtherID) {
		l.OtherID, l.OtherOffset = "", None
	}
	return l
}
