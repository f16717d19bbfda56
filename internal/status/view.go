package status

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"joiner/internal/record"
)

// Scope says whose knowledge a View is.
type Scope string

// The scopes.
const (
	ScopePod   Scope = "pod"   // one pod's: nobody else was asked
	ScopeGroup Scope = "group" // every member was asked
)

// View is the answer of /v1/status. What is not known is null, never a number
// that might be one.
type View struct {
	Group      string `json:"group"`
	Generation int32  `json:"generation"` // of the newest assignment; 0 outside the group
	Strategy   string `json:"strategy"`
	Scope      Scope  `json:"scope"`
	Pod        string `json:"pod"` // ID of the member that answers
	At         string `json:"at"`  // when, UTC
	// Problem says what keeps the group from being assigned in full; empty
	// where nothing does.
	Problem string    `json:"problem"`
	Inputs  Inputs    `json:"inputs"`
	Members []Member  `json:"members"` // ascending by ID
	Tasks   []Task    `json:"tasks"`   // ascending by partition
	Joins   Joins     `json:"joins"`   // since the pods started: of one pod, or of all that answered
	Hottest []HotRate `json:"hottest"` // of the same pods, hottest first
}

// Inputs names the two input topics: they are the keys of a task's topics.
type Inputs struct {
	MarketUpdates string `json:"market_updates"`
	Notifications string `json:"notifications"`
}

// Member is one member of the group.
type Member struct {
	ID       string  `json:"id"`       // stable identity
	Instance string  `json:"instance"` // group.instance_id, empty for a dynamic member
	Address  string  `json:"address"`  // for requests between pods; empty where none is advertised
	Tasks    []int32 `json:"tasks"`    // indices of which it owns at least one half
	// Reachable is null where the member was not asked.
	Reachable *bool `json:"reachable"`
	// Error says why it is not reachable, or was not asked though the whole
	// group was to be; empty else.
	Error string `json:"error,omitempty"`
	// Ready and Reasons are those of its /readyz; null where it did not answer.
	Ready   *bool    `json:"ready"`
	Reasons []string `json:"reasons,omitempty"`
	// Joins are its own since it started; null where it did not answer.
	Joins Joins `json:"joins"`
	// Notes are those of its /readyz: what is odd and keeps nobody from working.
	Notes []string `json:"notes,omitempty"`
}

// State is where a task stands.
type State string

// The states of a task. The first ones are its owner's word, the others follow
// from the directory.
const (
	StateNew       State = "new"       // made, its position is not known yet
	StateRestoring State = "restoring" // its prices are being read back
	StateRunning   State = "running"   // it joins; whether it has caught up is another question
	StateFrozen    State = "frozen"    // it takes nothing more and is being handed over
	StateClosed    State = "closed"    // committed for the last time
	StateStalled   State = "stalled"   // has work, and did none of it for group.stall_timeout
	StateStarting  State = "starting"  // assigned, its claims have not begun
	StateMoving    State = "moving"    // withheld until its old owner has let go
	StateUnowned   State = "unowned"   // nobody can own it
	StateUnknown   State = "unknown"   // its owner was not asked or did not answer
)

// Task is one partition index.
type Task struct {
	Partition int32 `json:"partition"`
	// Owner is the ID of the member that owns the notifications' half, or the
	// other where nobody has that; empty where nobody owns either.
	Owner string `json:"owner"`
	// Colocated: one member owns the partition of both topics.
	Colocated bool  `json:"colocated"`
	State     State `json:"state"`
	// CaughtUp, Remaining and Symbols are the market half's word, State and
	// Unsettled that of the notifications' half, where two members own them.

	// CaughtUp: the market end seen at its assignment has been reached.
	CaughtUp *bool `json:"caught_up"`
	// Remaining is how many records (offsets) are left of the restore or of
	// the first catch-up.
	Remaining *int64 `json:"remaining"`
	Symbols   *int64 `json:"symbols"`   // in its price table
	Unsettled *int64 `json:"unsettled"` // waiting notifications and outputs without an acknowledgement
	// Topics has an entry for each half that somebody owns, by topic name.
	Topics map[string]Half `json:"topics"`
}

// Half is a task's partition of one topic.
type Half struct {
	Owner         string `json:"owner"`
	Position      *int64 `json:"position"`       // the next record to merge
	Committed     *int64 `json:"committed"`      // null where nothing was committed yet
	HighWatermark *int64 `json:"high_watermark"` // the partition's end for a reader
	Lag           *int64 `json:"lag"`            // high watermark minus committed offset
	Leader        *int32 `json:"leader"`         // broker id
}

// Joins counts joins by locality and result, every combination present.
type Joins map[string]map[string]uint64

// NewJoins returns the counts, all zero.
func NewJoins() Joins {
	j := Joins{}
	for l := range record.Localities {
		j[l.String()] = map[string]uint64{}
		for r := range record.Results {
			j[l.String()][r.String()] = 0
		}
	}
	return j
}

// add adds what a part counts; combinations that this version does not know
// are a newer one's, and are shown too, up to a bound.
func (j Joins) add(other Joins) {
	for locality, results := range other {
		if j[locality] == nil && len(j) >= maxLabels {
			continue
		}
		if j[locality] == nil {
			j[locality] = map[string]uint64{}
		}
		for result, n := range results {
			if _, known := j[locality][result]; known || len(j[locality]) < maxLabels {
				j[locality][result] += n
			}
		}
	}
}

// maxLabels bounds the localities, and the results of each.
const maxLabels = 8

// HotRate is a key and its share of the records that were consumed lately.
type HotRate struct {
	Symbol Symbol
	Share  float64 // 0 to 1, what it surely has
}

// MarshalJSON writes the symbol as symbol or symbol_base64.
func (h HotRate) MarshalJSON() ([]byte, error) {
	text, b64 := h.Symbol.split()
	return json.Marshal(struct {
		Symbol *string `json:"symbol,omitempty"`
		Base64 *string `json:"symbol_base64,omitempty"`
		Share  float64 `json:"share"`
	}{text, b64, h.Share})
}

// Symbol is a symbol's bytes.
type Symbol string

// split returns the symbol as text, or in base64 where it is not UTF-8, as an
// alert has it.
func (s Symbol) split() (text, b64 *string) {
	if utf8.ValidString(string(s)) {
		t := string(s)
		return &t, nil
	}
	e := base64.StdEncoding.EncodeToString([]byte(s))
	return nil, &e
}
