// Package k8s tests the chart and the image on a real Kubernetes (test/k8s/up),
// with real brokers on the host: what only an API server, a kubelet and a
// container runtime can show. `make test-k8s` runs it.
//
// It must never touch objects outside the namespaces that it makes, and reaches
// pods only as an operator could: by kubectl, by Helm, by HTTP.
package k8s
