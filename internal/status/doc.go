// Package status is what a pod tells of itself and of its group: the Part that
// a pod knows at first hand, and the View that is put together from the
// directory and from the parts of those who answer. /v1/status and the status
// page show a View.
//
// It must never wait for a broker, hold a payload or a secret, or let one pod
// that is silent hide what the others and the directory say. What a peer sends
// is data from outside: it is bounded, checked, and only ever shown.
package status
