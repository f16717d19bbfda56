// Package audit proves a join by what lies in the topics: joiner audit.
//
// It reads the outputs, the notifications and the market updates, each up to
// the end that it had when the audit began, and holds them against each other.
// Every notification has an alert, a dead letter, or a reason for having
// neither; every output has a source, carries it byte for byte, and stands
// behind those of the older notifications of its symbol; every price is the one
// that the ticks below the offset in joiner-market give. It must rest on the
// topics and the configuration alone, and never on what the service did to get
// there: it shares the decoders of internal/enrich with it, because they say
// what a record means, and neither the price table nor the merge. Nor may it
// change anything, or join a group.
//
// Topics are larger than memory, so nothing is kept of them but rows of a fixed
// size, which are sorted on disk (see sorter) into the order in which the next
// topic is read:
//
//	outputs        → a row each, by the source that it names
//	notifications  → met by those rows in offset order; each alert that cites
//	                 the market becomes a question, by market partition and
//	                 cited offset
//	market updates → met by the questions in offset order, so that the table of
//	                 one partition stands where the join stood
//
// Two more sorts settle what one pass cannot: questions that the ticks seen do
// not answer as the alert does are held against the tick that it names
// (doubts), and ticks that came after a join are held against its event time
// (spans).
//
// Memory is what the sorters are given, plus, for one partition at a time, about
// 100 bytes for each of its symbols and 40 for each version that join.history
// keeps. Symbols, keys, headers, values and prices are compared by keyed hashes
// of 64 bits (128 for a symbol), with keys drawn for each audit.
package audit
