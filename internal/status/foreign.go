package status

import (
	"fmt"
	"strings"

	"joiner/internal/assign"
	"joiner/internal/record"
)

// mostForeign bounds how many members are told of one by one.
const mostForeign = 5

// ForeignOwners says, a sentence for each, which members of a group are no joiners and
// own partitions of an input: what lies there is joined by nobody.
func ForeignOwners(d *assign.Directory, topics [record.Sides]string) (notes []string) {
	if d == nil {
		return nil
	}
	more := 0
	for i := range d.Members {
		m := &d.Members[i]
		if !m.Foreign {
			continue
		}
		owned, lost := taken(d, m.ID, topics)
		switch {
		case len(owned) == 0:
		case len(notes) == mostForeign:
			more++
		default:
			notes = append(notes, fmt.Sprintf("member %s is no joiner and owns %s: %s", m.ID,
				strings.Join(owned, " and "), strings.Join(lost, ", and ")))
		}
	}
	if more > 0 {
		notes = append(notes, fmt.Sprintf("%d more members are no joiners and own partitions", more))
	}
	return notes
}

// taken lists what a member owns of the inputs, and what that costs.
func taken(d *assign.Directory, id string, topics [record.Sides]string) (owned, lost []string) {
	costs := [record.Sides]string{
		record.Market:       "their prices cannot be looked up",
		record.Notification: "their notifications get no alert",
	}
	for _, side := range []record.Side{record.Notification, record.Market} {
		var partitions []string
		for p, owner := range d.Owners[topics[side]] {
			if owner == id {
				partitions = append(partitions, fmt.Sprint(p))
			}
		}
		if len(partitions) > 0 {
			owned = append(owned, fmt.Sprintf("partitions %s of %s", strings.Join(partitions, ", "), topics[side]))
			lost = append(lost, costs[side])
		}
	}
	return owned, lost
}
