// Package mixin makes the Grafana dashboard of the chart, and tests it and the
// Prometheus rules beside it: their form, their pages in the runbook, and, on
// joiners that run and a Prometheus that scrapes them, that every metric and
// label which they name is there and every query can be answered.
//
// It must never be imported by the service. The dashboard is a Go value and not
// JSON kept by hand, since what makes one right (no two panels in one place, an
// id of its own for each, the same selector in every query) is then so by
// construction; `go test ./test/mixin -update` writes the file.
package mixin
