// Package check looks at a real cluster before, or while, the service runs on
// it, and says what is wrong, what may go wrong, and what to do.
//
// It works in two steps. gather asks the cluster and writes down what it saw,
// what it could not see, and why, as Facts; judge turns Facts into findings and
// asks nobody. So every judgement is a pure function, and a fact that is
// missing is judged too: as a warning that names the missing right, or the
// broker that is away, and never as ok.
//
// It must never change anything: create a topic, join the group, commit an
// offset, write a record, or use a transactional id. And it must never take
// longer than its timeout: what is not known by then was not looked at.
package check
