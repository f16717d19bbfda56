package task

import (
	"joiner/internal/record"
)

// saw judges where a consumed record lies and counts it; symbol is what a good
// one is joined by, nil for a bad one.
func (t *Task) saw(side record.Side, rec *record.Record, symbol []byte) {
	c := &t.merge.tally
	well := t.o.Placement.WellPlaced(side, rec.Key)
	if !well {
		t.o.Keys.Misplaced(side, rec.Key, c.misplaced[side])
	}
	c.took(side, well)
	if symbol != nil {
		t.o.Keys.Took(side, symbol, rec.Key)
	}
}
