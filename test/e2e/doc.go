// Package e2e holds the end-to-end tests: the joiner binary as people run it,
// several processes of it, against a real Kafka cluster (package cluster), with
// records that clients other than the joiner have written.
//
// The tests judge by what lies in the topics, what the group has committed and
// what the processes say of themselves over HTTP and in their logs. They must
// never reach into the service, and never assert how long something took:
// deadlines are there against hanging, times are printed for people.
package e2e
