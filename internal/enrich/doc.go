// Package enrich turns records into joins and joins into records: it decodes
// market updates and notifications, decides which of a task's two inputs is
// merged next, and encodes enriched alerts and dead letters.
//
// Everything here is a pure function of its arguments, so that what a join
// says depends on the two topics and nothing else. The package must never
// import a Kafka client, read a clock, start a goroutine, or keep state
// between two calls; decoders may be shared by any number of goroutines.
//
// What is decided here, where the documented formats leave room:
//
//   - JSON is RFC 8259 and nothing more, judged exactly as encoding/json.Valid
//     judges it, at most 10,000 levels deep. Bytes above 0x7F in strings are
//     not checked for being UTF-8 (encoding/json does not either) and pass as
//     they are.
//   - A path names members from the outside in, separated by dots; see
//     [ParsePath] for names with dots in them and for members called key or
//     record. Elements of arrays cannot be named.
//   - A numeric string holds a JSON number and nothing around it: no spaces,
//     no plus sign, no leading zeros.
//   - A symbol found by a path is a non-empty string, or a number, whose text
//     as written is then the symbol. The bytes of a string that are not UTF-8
//     are kept, so that a symbol by path can equal any key; an unpaired
//     surrogate escape becomes the three bytes that UTF-8 would write it as
//     (WTF-8), so that it is no other symbol's.
//   - An event time lies in the years 0000 to 9999, which RFC 3339 can write;
//     everything outside is an invalid event time, and so is the timestamp of
//     a record that has none where it is asked for.
//   - Of several faults of one record the first is named in the order value,
//     symbol, price, event time.
package enrich
