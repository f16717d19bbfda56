package chart

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
)

const hasReplicas = `"annotations":{"joiner/replicas":"2"}`

// TestReplicasStay: whatever is turned on or off, an upgrade never asks for
// fewer pods than there are but by replicaCount, and never takes away a number
// that it has given, which would leave one.
func TestReplicasStay(t *testing.T) {
	const byHand = "replicaCount: null"
	for _, c := range []struct{ live, values, want string }{
		{"", "{}", "3, kept"},
		{"", "autoscaling: {enabled: true}", "none"},
		{"", "{keda: {enabled: true}, kafka: {brokers: [a:9092]}}", "none"},
		{"", byHand, "none"},
		{set(6, hasReplicas), "{}", "3, kept"},
		{set(6, hasReplicas), "replicaCount: 4", "4, kept"},
		{set(6, hasReplicas), "autoscaling: {enabled: true}", "6, kept"},
		{set(6, hasReplicas), "{keda: {enabled: true}, kafka: {brokers: [a:9092]}}", "6, kept"},
		{set(6, hasReplicas), byHand, "6, kept"},
		{set(0, hasReplicas), byHand, "0, kept"},
		// Scaled by others from the first day on: nothing to keep.
		{set(6, `"labels":{}`), "autoscaling: {enabled: true}", "none"},
		{set(6, `"annotations":{"a":"b"}`), byHand, "none"},
		{set(6, `"labels":{}`), "{}", "3, kept"},
	} {
		server := live(t, c.live)
		out := render(t, "--dry-run=server", "--kubeconfig", server, "--values", file(t, "values.yaml", c.values))
		got := only[*apps.StatefulSet](t, decode(t, out))
		is := "none"
		if got.Spec.Replicas != nil {
			is = fmt.Sprint(*got.Spec.Replicas)
		}
		if kept, ok := got.Annotations["joiner/replicas"]; ok && kept == is {
			is += ", kept"
		}
		if is != c.want {
			t.Errorf("%s on %s: %s, want %s", c.values, c.live, is, c.want)
		}
	}
}

// TestFixed: what the API server refuses to change is refused before anything
// is, and what is the same in other words is not.
func TestFixed(t *testing.T) {
	const without, with = "{}", "persistence: {enabled: true, size: 10Gi, storageClass: fast, annotations: {a: b}}"
	for _, c := range []struct{ is, wants, named string }{
		{without, without, ""},
		{with, with, ""},
		{with, "persistence: {enabled: true, size: 10240Mi, storageClass: fast, annotations: {a: b}, retain: true}", ""},
		{"persistence: {enabled: true}", "persistence: {enabled: true, storageClass: ''}", ""},
		{"persistence: {enabled: true, storageClass: '-'}", "persistence: {enabled: true, storageClass: '-'}", ""},
		{without, with, "persistence.enabled"},
		{with, without, "persistence.enabled"},
		{with, "persistence: {enabled: true, size: 11Gi, storageClass: fast, annotations: {a: b}}", "persistence.size"},
		{with, "persistence: {enabled: true, size: 10Gi, annotations: {a: b}}", "persistence.storageClass"},
		{with, "persistence: {enabled: true, size: 10Gi, storageClass: '-', annotations: {a: b}}", "persistence.storageClass"},
		{"persistence: {enabled: true}", "persistence: {enabled: true, storageClass: '-'}", "persistence.storageClass"},
		{with, "persistence: {enabled: true, size: 10Gi, storageClass: fast}", "persistence.annotations"},
		{with, "persistence: {enabled: true, size: 10Gi, storageClass: fast, annotations: {a: b}, accessModes: [ReadWriteOncePod]}", "persistence.accessModes"},
		{without, "podManagementPolicy: OrderedReady", "podManagementPolicy"},
		{"fullnameOverride: prices-joiner", "{fullnameOverride: prices-joiner, nameOverride: other}", "nameOverride"},
	} {
		is, err := json.Marshal(only[*apps.StatefulSet](t, decode(t, renderValues(t, c.is))))
		if err != nil {
			t.Fatal(err)
		}
		_, errs, err := template("--dry-run=server", "--kubeconfig", live(t, string(is)), "--values", file(t, "values.yaml", c.wants))
		if refused := err != nil; refused != (c.named != "") || !strings.Contains(errs, c.named) {
			t.Errorf("%s after %s: refused: %t, want by the name %q: %s", c.wants, c.is, refused, c.named, errs)
		}
	}
}

// set is the StatefulSet that there is.
func set(replicas int, metadata string) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"prices-joiner","namespace":"market",%s},"spec":{"replicas":%d,`+
		`"podManagementPolicy":"Parallel","selector":{"matchLabels":{"app.kubernetes.io/name":"joiner","app.kubernetes.io/instance":"prices","app.kubernetes.io/component":"member"}}}}`, metadata, replicas)
}

// live stands for an API server that has this one object, and gives the
// kubeconfig for it.
func live(t *testing.T, statefulSet string) string {
	t.Helper()
	answers := map[string]string{
		"/version": `{"major":"1","minor":"37","gitVersion":"v1.37.0"}`,
		"/api":     `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":    `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
		"/api/v1":  `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`,
		"/apis/apps/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[` +
			`{"name":"statefulsets","singularName":"statefulset","namespaced":true,"kind":"StatefulSet","verbs":["get","list"]}]}`,
	}
	if statefulSet != "" {
		answers["/apis/apps/v1/namespaces/market/statefulsets/prices-joiner"] = statefulSet
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[strings.TrimSuffix(r.URL.Path, "/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, config, `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "`+server.URL+`"}}]
users: [{name: a, user: {}}]
`)
	return config
}
