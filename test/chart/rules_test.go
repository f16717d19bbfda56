package chart

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What holds whatever the values are.

func TestNames(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		seen := map[string]bool{}
		for _, o := range objects {
			if seen[o.String()] {
				t.Errorf("%s is rendered twice", o)
			}
			seen[o.String()] = true
			if errs := validation.IsDNS1123Subdomain(o.GetName()); len(errs) > 0 {
				t.Errorf("%s: %v", o, errs)
			}
			checkLabels(t, o.String(), o.GetLabels())
		}
		for _, s := range every[*core.Service](objects) {
			if errs := validation.IsDNS1035Label(s.Name); len(errs) > 0 {
				t.Errorf("Service %s: %v", s.Name, errs)
			}
		}
		set := only[*apps.StatefulSet](t, objects)
		// What Kubernetes makes of its name: the revision's label, a pod's name, its host name and label.
		for _, name := range []string{set.Name + "-0123456789", set.Name + "-9999"} {
			if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
				t.Errorf("%s: %v", name, errs)
			}
		}
		for _, p := range pods(objects) {
			checkLabels(t, "pods of "+p.owner.String(), p.labels)
		}
	})
}

func checkLabels(t *testing.T, of string, set map[string]string) {
	t.Helper()
	for key, value := range set {
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			t.Errorf("%s: label %s: %q: %v", of, key, value, errs)
		}
	}
}

// TestOneOfEachKey: a label or an annotation that the values have in several
// places stands in each object once, or post-renderers refuse it. What is the
// chart's own stays as it is, and an object's own goes before what is for all.
func TestOneOfEachKey(t *testing.T) {
	const plain = `
kafka: {brokers: [a:9092]}
networkPolicy: {enabled: true}
preflight: {enabled: true}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true}
dashboards: {enabled: true}
`
	given := func(team string) string {
		keys := "{team: " + team
		for _, key := range []string{
			"app.kubernetes.io/name", "app.kubernetes.io/component", "helm.sh/chart", "helm.sh/hook-weight",
			"helm.sh/hook-delete-policy", "helm.sh/hook-output-log-policy", "checksum/config",
		} {
			keys += ", " + key + ": theirs"
		}
		return keys + "}"
	}
	labelled := plain
	for _, key := range []string{"serviceMonitor", "podMonitor", "prometheusRule", "dashboards", "service"} {
		labelled = strings.Replace(labelled, key+": {", key+": {labels: "+given("own")+", annotations: "+given("own")+", ", 1)
	}
	labelled += "podMonitor: {labels: " + given("own") + ", annotations: " + given("own") + "}\n" +
		"service: {labels: " + given("own") + ", annotations: " + given("own") + ", headlessAnnotations: " + given("own") + "}\n" +
		"serviceAccount: {annotations: " + given("own") + "}\n" +
		"keda: {annotations: " + given("own") + "}\nautoscaling: {annotations: " + given("own") + "}\n" +
		"podLabels: " + given("own") + "\npodAnnotations: " + given("own") + "\n" +
		"commonLabels: " + given("all") + "\ncommonAnnotations: " + given("all") + "\n"
	for _, args := range [][]string{
		{"--set", "autoscaling.enabled=true"},
		{"--set", "keda.enabled=true,serviceMonitor.enabled=false,podMonitor.enabled=true"},
	} {
		before := keysOfObjects(decode(t, renderValues(t, plain, args...)))
		after := keysOfObjects(decode(t, renderValues(t, labelled, args...))) // which refuses a key that is there twice
		if len(after) != len(before) {
			t.Fatalf("%d objects became %d", len(before), len(after))
		}
		for name, keys := range after {
			for key, value := range before[name] {
				if keys[key] != value {
					t.Errorf("%s: %s is %q, and the chart's own is %q", name, key, keys[key], value)
				}
			}
			if keys["label team"] == "" || keys["annotation team"] == "" {
				t.Errorf("%s lacks labels or annotations of the values: %v", name, keys)
			}
			if strings.Contains(name, "Monitor") && (keys["label team"] != "own" || keys["annotation team"] != "own") {
				t.Errorf("%s has what is for all, and not its own", name)
			}
		}
	}
}

// keysOfObjects are the labels and annotations of objects and of the pods that
// they make, by the name of each.
func keysOfObjects(objects []object) map[string]map[string]string {
	all := map[string]map[string]string{}
	add := func(name string, labels, annotations map[string]string) {
		all[name] = map[string]string{}
		for key, value := range labels {
			all[name]["label "+key] = value
		}
		for key, value := range annotations {
			all[name]["annotation "+key] = value
		}
	}
	for _, o := range objects {
		add(o.String(), o.GetLabels(), o.GetAnnotations())
		switch v := o.typed.(type) {
		case *apps.StatefulSet:
			add("pods of "+o.String(), v.Spec.Template.Labels, v.Spec.Template.Annotations)
		case *batch.Job:
			add("pods of "+o.String(), v.Spec.Template.Labels, v.Spec.Template.Annotations)
		}
	}
	return all
}

// TestSelectors: everything selects the pods of the group, and no others.
func TestSelectors(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		var selectors []map[string]string
		selectors = append(selectors, only[*apps.StatefulSet](t, objects).Spec.Selector.MatchLabels)
		for _, s := range every[*core.Service](objects) {
			selectors = append(selectors, s.Spec.Selector)
		}
		for _, b := range every[*policy.PodDisruptionBudget](objects) {
			selectors = append(selectors, b.Spec.Selector.MatchLabels)
		}
		for _, n := range every[*networking.NetworkPolicy](objects) {
			selectors = append(selectors, n.Spec.PodSelector.MatchLabels)
		}
		for _, m := range every[*monitoring.PodMonitor](objects) {
			selectors = append(selectors, m.Spec.Selector.MatchLabels)
		}
		fixed := []string{"app.kubernetes.io/component", "app.kubernetes.io/instance", "app.kubernetes.io/name"}
		for _, selector := range selectors {
			if keys := slices.Sorted(maps.Keys(selector)); !slices.Equal(keys, fixed) {
				t.Errorf("a selector has the labels %v, and only %v can never change", keys, fixed)
			}
			for _, p := range pods(objects) {
				member := p.owner.kind() == "StatefulSet"
				if labels.SelectorFromSet(selector).Matches(labels.Set(p.labels)) != member {
					t.Errorf("%v and the pods of %s", selector, p.owner)
				}
			}
		}
		for _, claim := range only[*apps.StatefulSet](t, objects).Spec.VolumeClaimTemplates {
			if keys := slices.Sorted(maps.Keys(claim.Labels)); !slices.Equal(keys, fixed) {
				t.Errorf("claims have the labels %v, which can never change", keys)
			}
		}
	})
}

// TestMonitors: every pod is scraped once.
func TestMonitors(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		for _, m := range every[*monitoring.ServiceMonitor](objects) {
			selector, err := meta.LabelSelectorAsSelector(&m.Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, s := range every[*core.Service](objects) {
				if selector.Matches(labels.Set(s.Labels)) && slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }) {
					found = append(found, s.Name)
				}
			}
			if len(found) != 1 {
				t.Errorf("the ServiceMonitor finds the Services %v", found)
			}
		}
	})
}

// TestJobs: whoever is scraped, and by which monitor, has the objects' name as
// its job, whatever release they are a part of; one's own relabelings come after.
func TestJobs(t *testing.T) {
	const own = ".relabelings[0].targetLabel=zone"
	for _, args := range [][]string{
		{"--set", "serviceMonitor.enabled=true,serviceMonitor" + own},
		{"--set", "podMonitor.enabled=true,podMonitor" + own},
		{"--set", "podMonitor.enabled=true,fullnameOverride=east,podMonitor" + own},
	} {
		objects := decode(t, render(t, args...))
		var got []monitoring.RelabelConfig
		for _, m := range every[*monitoring.ServiceMonitor](objects) {
			got = append(got, m.Spec.Endpoints[0].RelabelConfigs...)
			if m.Spec.JobLabel != "" {
				t.Errorf("the job is that of the label %s", m.Spec.JobLabel)
			}
		}
		for _, m := range every[*monitoring.PodMonitor](objects) {
			got = append(got, m.Spec.PodMetricsEndpoints[0].RelabelConfigs...)
			if m.Spec.JobLabel != "" {
				t.Errorf("the job is that of the label %s", m.Spec.JobLabel)
			}
		}
		name := only[*apps.StatefulSet](t, objects).Name
		want := []monitoring.RelabelConfig{{TargetLabel: "job", Replacement: &name}, {TargetLabel: "zone"}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v: relabelings %+v, want %+v", args, got, want)
		}
	}
}

// TestHardened: no pod has more than it needs.
func TestHardened(t *testing.T) {
	eachCase(t, func(t *testing.T, c aCase, objects []object) {
		for _, p := range pods(objects) {
			s := p.spec
			if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken {
				t.Errorf("%s: a token is mounted", p.owner)
			}
			if s.EnableServiceLinks == nil || *s.EnableServiceLinks {
				t.Errorf("%s: services are in its environment", p.owner)
			}
			if s.SecurityContext.RunAsNonRoot == nil || !*s.SecurityContext.RunAsNonRoot {
				t.Errorf("%s may run as root", p.owner)
			}
			if s.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: seccomp %v", p.owner, s.SecurityContext.SeccompProfile)
			}
			own := s.Containers[0].SecurityContext
			if own == nil || *own.AllowPrivilegeEscalation || !*own.ReadOnlyRootFilesystem || !reflect.DeepEqual(own.Capabilities.Drop, []core.Capability{"ALL"}) || own.Capabilities.Add != nil {
				t.Errorf("%s: %v", p.owner, own)
			}
		}
		for _, a := range every[*core.ServiceAccount](objects) {
			if a.AutomountServiceAccountToken == nil || *a.AutomountServiceAccountToken {
				t.Errorf("ServiceAccount %s mounts tokens", a.Name)
			}
		}
	})
}

// TestEnvironment: no variable is there twice, and none is put together from
// one that is not there yet.
func TestEnvironment(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		for _, p := range pods(objects) {
			known := map[string]bool{}
			for _, e := range p.spec.Containers[0].Env {
				if known[e.Name] {
					t.Errorf("%s: %s is there twice", p.owner, e.Name)
				}
				for _, used := range regexp.MustCompile(`\$\((\w+)\)`).FindAllStringSubmatch(e.Value, -1) {
					if !known[used[1]] {
						t.Errorf("%s: %s needs %s, which is not there before it", p.owner, e.Name, used[1])
					}
				}
				known[e.Name] = true
			}
		}
	})
}

// TestRights: the one right there is goes with its token, and with static
// members only.
func TestRights(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		set := only[*apps.StatefulSet](t, objects)
		static := slices.ContainsFunc(set.Spec.Template.Spec.Containers[0].Env, func(e core.EnvVar) bool { return e.Name == "JOINER_GROUP_INSTANCE_ID" })
		roles, bindings := every[*rbac.Role](objects), every[*rbac.RoleBinding](objects)
		tokens := tokensOf(set.Spec.Template.Spec)
		if len(roles) != len(bindings) || len(roles) != tokens {
			t.Fatalf("%d roles, %d bindings, %d tokens", len(roles), len(bindings), tokens)
		}
		if len(roles) == 0 {
			return
		}
		want := []rbac.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, ResourceNames: []string{set.Name}, Verbs: []string{"get"}}}
		if !static || !reflect.DeepEqual(roles[0].Rules, want) {
			t.Errorf("static members: %t, rules %v", static, roles[0].Rules)
		}
		if bindings[0].RoleRef.Name != roles[0].Name || bindings[0].Subjects[0].Name != set.Spec.Template.Spec.ServiceAccountName {
			t.Errorf("the binding gives %v to %v", bindings[0].RoleRef, bindings[0].Subjects)
		}
		for _, p := range pods(objects) {
			if p.owner.kind() != "StatefulSet" && tokensOf(p.spec) > 0 {
				t.Errorf("%s has a token", p.owner)
			}
		}
	})
}

func tokensOf(s core.PodSpec) (n int) {
	for _, v := range s.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				n++
			}
		}
	}
	return n
}

// TestHooks: hooks are no part of a release, so each takes itself away, and
// what one needs is there before it.
func TestHooks(t *testing.T) {
	eachCase(t, func(t *testing.T, _ aCase, objects []object) {
		for _, o := range objects {
			hook, ok := o.GetAnnotations()["helm.sh/hook"]
			if !ok {
				continue
			}
			policy := o.GetAnnotations()["helm.sh/hook-delete-policy"]
			for _, when := range []string{"before-hook-creation", "hook-succeeded", "hook-failed"} {
				if !strings.Contains(policy, when) {
					t.Errorf("%s (%s) stays: %q", o, hook, policy)
				}
			}
		}
		for _, job := range every[*batch.Job](objects) {
			preflightNeeds(t, job, objects)
		}
	})
}

func preflightNeeds(t *testing.T, job *batch.Job, objects []object) {
	t.Helper()
	spec := job.Spec.Template.Spec
	needs := map[string]bool{}
	if spec.ServiceAccountName == job.Name { // else it is of the cluster
		needs["ServiceAccount "+job.Name] = false
	}
	for _, v := range spec.Volumes {
		if v.Name == "config" && v.ConfigMap.Name == job.Name {
			needs["ConfigMap "+v.ConfigMap.Name] = false
		}
	}
	for _, o := range objects {
		if _, needed := needs[o.String()]; needed {
			a := o.GetAnnotations()
			needs[o.String()] = a["helm.sh/hook"] == job.Annotations["helm.sh/hook"] && a["helm.sh/hook-weight"] == "-10"
		}
	}
	for name, there := range needs {
		if !there {
			t.Errorf("the preflight needs %s, which is not there before it", name)
		}
	}
	if job.Annotations["helm.sh/hook-weight"] != "0" {
		t.Errorf("the preflight's weight is %s", job.Annotations["helm.sh/hook-weight"])
	}
}

// TestProbes: nothing that waits or restores is restarted, what is stuck is.
func TestProbes(t *testing.T) {
	set := only[*apps.StatefulSet](t, decode(t, render(t)))
	c := set.Spec.Template.Spec.Containers[0]
	for _, p := range []struct {
		name, path string
		probe      *core.Probe
	}{{"startup", "/livez", c.StartupProbe}, {"liveness", "/livez", c.LivenessProbe}, {"readiness", "/readyz", c.ReadinessProbe}} {
		if p.probe == nil || p.probe.HTTPGet == nil || p.probe.HTTPGet.Path != p.path || p.probe.HTTPGet.Port.StrVal != "http" {
			t.Errorf("%s: %v", p.name, p.probe)
		}
	}
}

// TestGrace: the kubelet waits longer than the shutdown may take.
func TestGrace(t *testing.T) {
	for timeout, want := range map[string]int64{"25s": 35, "500ms": 11, "1m30.5s": 101, "2h": 7210} {
		set := only[*apps.StatefulSet](t, decode(t, render(t, "--set", "config.shutdown.timeout="+timeout)))
		if got := *set.Spec.Template.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("shutdown.timeout %s: %d s, and %d s are wanted", timeout, got, want)
		}
	}
}

// TestMemoryLimit: Go's collector gets nine tenths of whatever form the limit
// has, and nothing where there is none.
func TestMemoryLimit(t *testing.T) {
	for limit, want := range map[string]string{
		"1Gi": "966367641", "512Mi": "483183820", "1.5Gi": "1449551462", "100M": "90000000",
		"1000000000": "900000000", "1e9": "900000000", "128974848000m": "116077363",
	} {
		objects := decode(t, renderValues(t, "resources: {limits: {memory: "+limit+"}}"))
		if got := gomemlimit(t, objects); got != want {
			t.Errorf("%s: GOMEMLIMIT=%s, and %s is wanted", limit, got, want)
		}
	}
	if got := gomemlimit(t, decode(t, renderValues(t, "resources: {limits: {memory: null}}"))); got != "" {
		t.Errorf("without a limit: GOMEMLIMIT=%s", got)
	}
}

func gomemlimit(t *testing.T, objects []object) string {
	t.Helper()
	for _, e := range only[*apps.StatefulSet](t, objects).Spec.Template.Spec.Containers[0].Env {
		if e.Name == "GOMEMLIMIT" {
			return e.Value
		}
	}
	return ""
}

// TestBudget: of one replica, none is held back.
func TestBudget(t *testing.T) {
	for values, want := range map[string]string{
		"replicaCount=1":             "max 1",
		"replicaCount=1,min=1":       "max 1",
		"replicaCount=4,min=3":       "min 3",
		"replicaCount=4,min=75%":     "min 75%",
		"scaled from 1,min=1":        "max 1",
		"by lag from 1,min=50%":      "max 1",
		"replicaCount=4,max=2":       "max 2",
		"replicaCount=0,min=1,off":   "none",
		"replicaCount=1,min=1,max=0": "refused",
		"replicaCount=1,max=0":       "max 1",
		"replicaCount=1,max=0%":      "max 1",
		"replicaCount=1,max=3":       "max 1",
		"scaled from 1,max=0":        "max 1",
		"replicaCount=4,max=0":       "refused",
		"replicaCount=4,max=00%":     "refused",
		"replicaCount=4,max=1%":      "max 1%", // rounded up
		"replicaCount=4,min=4":       "refused",
		"replicaCount=4,min=100%":    "refused",
		"replicaCount=4,min=76%":     "refused", // rounded up
		"replicaCount=4,min=08%":     "min 08%",
		"replicaCount=4,min=0":       "min 0",
		"replicaCount=4,min=4,off":   "none",
		"scaled from 2,min=2":        "refused",
		"scaled from 2,min=50%":      "min 50%",
	} {
		replacer := strings.NewReplacer(
			"min=", "podDisruptionBudget.minAvailable=", "max=", "podDisruptionBudget.maxUnavailable=",
			"off", "podDisruptionBudget.enabled=false",
			"scaled from 2", "autoscaling.enabled=true,autoscaling.minReplicas=2", "scaled from 1", "autoscaling.enabled=true,autoscaling.minReplicas=1", "by lag from 1", "kafka.brokers={a:9092},keda.enabled=true,keda.minReplicas=1")
		out, _, err := template("--set", replacer.Replace(values))
		if got := budget(t, out, err); got != want {
			t.Errorf("%s: %s, and %s is wanted", values, got, want)
		}
	}
}

func budget(t *testing.T, rendering string, err error) string {
	t.Helper()
	if err != nil {
		return "refused"
	}
	budgets := every[*policy.PodDisruptionBudget](decode(t, rendering))
	switch {
	case len(budgets) == 0:
		return "none"
	case budgets[0].Spec.MinAvailable != nil:
		return "min " + budgets[0].Spec.MinAvailable.String()
	}
	return "max " + budgets[0].Spec.MaxUnavailable.String()
}

// TestSpread: each constraint counts pods by a selector, without which the API
// server refuses keys of labels.
func TestSpread(t *testing.T) {
	set := only[*apps.StatefulSet](t, decode(t, renderValues(t, `
topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}
  - {maxSkew: 1, topologyKey: b, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [controller-revision-hash]}
  - {maxSkew: 1, topologyKey: c, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: other}}}
  - {maxSkew: 1, topologyKey: d, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}
`)))
	own := set.Spec.Selector
	want := []*meta.LabelSelector{own, own, {MatchLabels: map[string]string{"app": "other"}}, {}}
	for i, c := range set.Spec.Template.Spec.TopologySpreadConstraints {
		if !reflect.DeepEqual(c.LabelSelector, want[i]) {
			t.Errorf("%s: %v, want %v", c.TopologyKey, c.LabelSelector, want[i])
		}
	}
	if n := len(set.Spec.Template.Spec.TopologySpreadConstraints); n != len(want) {
		t.Errorf("%d constraints", n)
	}
}

// TestReplicas: who scales says how many.
func TestReplicas(t *testing.T) {
	for values, want := range map[string]bool{"enabled=true": true, "autoscaling.enabled=true": false, "kafka.brokers={a:9092},keda.enabled=true": false} {
		set := only[*apps.StatefulSet](t, decode(t, render(t, "--set", values)))
		if got := set.Spec.Replicas != nil; got != want {
			t.Errorf("%s: replicas are set: %t", values, got)
		}
	}
}
