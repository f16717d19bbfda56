// Package chart tests deploy/helm with the real Helm, as far as that goes
// without a cluster: what the values of people would become (testdata/cases,
// with golden renderings that -update rewrites), whether Kubernetes' own types
// take every object as it is, whether joiner itself takes every configuration,
// and which values are refused.
//
// It is a module of its own, since the typed APIs of Kubernetes, KEDA and the
// Prometheus operator would be most of what the service's go.mod lists. It must
// never be imported, and needs no cluster.
package chart
