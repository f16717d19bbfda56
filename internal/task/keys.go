package task

import (
	"joiner/internal/record"
)

// saw judges where a consumed record lies and counts it; symbol is what a good
// one is joined by, nil for a bad one.
func (t *Task) saw(side record.Side, rec *record.Record, symbol []byte) {
	c := &t.merge.tally
	placed := t.placedBy(side, rec, symbol)
	well := t.o.Placement.WellPlaced(side, placed)
	if !well {
		t.o.Keys.Misplaced(side, placed, c.misplaced[side])
	}
	c.took(side, well)
	if symbol != nil {
		t.o.Keys.Took(side, symbol, placed)
	}
}

// placedBy is what a record's place is judged by: its key, as that is what its
// producer places it by. A tick's is its symbol where that is not the key: a price
// is looked for where the symbol belongs, and nowhere else. A bad one is not
// looked for at all, and an empty symbol is never misplaced.
func (t *Task) placedBy(side record.Side, rec *record.Record, symbol []byte) []byte {
	if side == record.Market && !t.o.Market.ByKey() {
		return symbol
	}
	return rec.Key
}
