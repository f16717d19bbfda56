package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"joiner/test/cluster"
)

// One cluster of brokers for all of it: starting one is most of what a short
// scenario costs. Figures that people ask for are logged as "figure: …".
func TestK8s(t *testing.T) {
	s := newStage(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *stage)
	}{
		{"Installed", installed},
		{"ScaledExactlyOnce", func(t *testing.T, s *stage) { scaled(t, s, exactlyOnce) }},
		{"ScaledAtLeastOnce", func(t *testing.T, s *stage) { scaled(t, s, atLeastOnce) }},
		{"RestartedStatic", restartedStatic},
		{"RestartedDynamic", restartedDynamic},
		{"Checkpoints", checkpoints},
		{"Autoscaled", autoscaled},
		{"Secured", secured},
		{"BrokersAway", brokersAway}, // the last: brokers are back then, but not rested
	} {
		t.Run(scenario.name, func(t *testing.T) {
			began := time.Now()
			scenario.run(t, s)
			t.Logf("figure: the scenario took %v", time.Since(began).Round(time.Second))
		})
	}
}

// A first installation with the preflight, what it joins, what an upgrade does
// and does not, and what is left of it.
func installed(t *testing.T, s *stage) {
	r := s.release(t, "installed")
	extras := []string{
		"--set", "preflight.enabled=true", "--set", "prometheusRule.enabled=true", "--set", "dashboards.enabled=true",
		"--set", "serviceMonitor.enabled=true", "--set", "networkPolicy.enabled=true",
	}
	began := time.Now()
	r.install(extras...)
	pods := r.awaitReady(2)
	r.awaitBalanced(pods)
	t.Logf("figure: %v from helm install, preflight included, until 2 pods are ready", time.Since(began).Round(time.Second))

	r.thirty(pods, 30)
	if out := r.helm("test", r.name); !strings.Contains(out, "Phase:          Succeeded") {
		t.Errorf("helm test says:\n%s", out)
	}
	r.refuses(extras)
	r.rolls(extras)
	r.uninstall()
}

// thirty joins 30 notifications, so many of them by the pod that has their price
// and the others by asking it, and has everything up to now proven.
func (r *release) thirty(pods []pod, local float64) {
	r.t.Helper()
	before := r.metrics(pods...)
	var ticks, notes []cluster.KeyValue
	for i := range 10 {
		symbol := fmt.Sprintf("SYM%d", i)
		ticks = append(ticks, cluster.KeyValue{Key: symbol, Value: fmt.Sprintf(`{"price": 91%d.25}`, i)})
		for n := range 3 {
			notes = append(notes, cluster.KeyValue{Key: symbol, Value: fmt.Sprintf(`{"alert": %d}`, n)})
		}
	}
	r.ConsoleProduce(r.t, r.topics["market_updates"], ticks)
	r.ConsoleProduce(r.t, r.topics["notifications"], notes)
	await(r.t, "30 joins", func() error {
		now := r.metrics(pods...)
		joins := func(labels ...string) float64 {
			return now.Sum("joiner_joins_total", labels...) - before.Sum("joiner_joins_total", labels...)
		}
		acknowledged := now.Sum("joiner_alert_latency_seconds_count") - before.Sum("joiner_alert_latency_seconds_count")
		if joins() < 30 || acknowledged < 30 {
			return fmt.Errorf("%v so far, %v alerts are acknowledged", joins(), acknowledged)
		}
		if joins() != 30 || joins("locality", "local") != local || joins("result", "hit") != 30 {
			r.t.Errorf("%v joins: %v local, want %v, %v hits", joins(), joins("locality", "local"), local, joins("result", "hit"))
		}
		r.t.Logf("figure: %v of %v joins are local", joins("locality", "local"), joins())
		return nil
	})
	r.sound(atLeastOnce)
}

// refuses tries upgrades that must change nothing: by the schema, by the chart's
// own rules, and by what the preflight finds in the real cluster.
func (r *release) refuses(installed []string) {
	r.t.Helper()
	before := r.kubectl("get", "statefulset", r.name, "--output", "jsonpath={.metadata.generation} {.spec}")
	for _, wrong := range []struct{ value, says string }{
		{"replicaCounts=3", "replicaCounts"},
		{"config.group.strategy=fastest", "strategy"},
		{"terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"},
		{"config.topics.notifications=no-such-topic", "no-such-topic"},
	} {
		out, errs, err := r.upgrade(append(slices.Clone(installed), "--set", wrong.value)...)
		if err == nil {
			r.t.Errorf("helm upgrade --set %s went through", wrong.value)
		}
		if !strings.Contains(out+errs, wrong.says) {
			r.t.Errorf("helm upgrade --set %s does not say what is wrong:\n%s%s", wrong.value, out, errs)
		}
	}
	if after := r.kubectl("get", "statefulset", r.name, "--output", "jsonpath={.metadata.generation} {.spec}"); after != before {
		r.t.Errorf("refused upgrades changed the StatefulSet:\n%s\n%s", before, after)
	}
}

// rolls upgrades a value of the configuration, which replaces all pods, and one
// that is not of it, which replaces none.
func (r *release) rolls(installed []string) {
	r.t.Helper()
	first := r.awaitReady(2)
	configured := append(slices.Clone(installed), "--set", "config.join.wait=1s")
	if _, _, err := r.upgrade(configured...); err != nil {
		r.t.Fatal(err)
	}
	second := r.awaitReady(2)
	if same := common(first, second); same != 0 {
		r.t.Errorf("a changed configuration left %d pods as they were", same)
	}
	if _, _, err := r.upgrade(append(configured, "--set", "service.annotations.team=markets")...); err != nil {
		r.t.Fatal(err)
	}
	third := r.awaitReady(2)
	if same := common(second, third); same != 2 {
		r.t.Errorf("an annotation of the Service left %d pods of 2 as they were", same)
	}
	r.t.Logf("figure: a value of the configuration replaced %d pods of 2, another value %d", 2-common(first, second), 2-common(second, third))
}

// autoscaled hands the number of pods over to an autoscaler and takes it back:
// neither stops a pod that runs.
func autoscaled(t *testing.T, s *stage) {
	r := s.release(t, "autoscaled")
	r.install("--set", "replicaCount=3")
	before := r.awaitReady(3)
	for _, args := range [][]string{
		{"--set", "replicaCount=3", "--set", "autoscaling.enabled=true", "--set", "autoscaling.minReplicas=2", "--set", "autoscaling.maxReplicas=6"},
		{"--set", "replicaCount=3"},
	} {
		if _, _, err := r.upgrade(args...); err != nil {
			t.Fatal(err)
		}
		// Whoever is told to stop is soon not ready.
		time.Sleep(3 * time.Second)
		if same := common(before, r.awaitReady(3)); same != 3 {
			t.Errorf("helm upgrade %v left %d of 3 pods", args, same)
		}
	}
	r.kubectl("scale", "statefulset/"+r.name, "--replicas=4")
	r.awaitReady(4)
	t.Log("figure: an autoscaler was given the pods and lost them again: 0 of 3 were stopped")
}

// common counts the pods that are in both.
func common(a, b []pod) (n int) {
	for _, p := range a {
		if slices.ContainsFunc(b, func(q pod) bool { return q.Metadata.UID == p.Metadata.UID }) {
			n++
		}
	}
	return n
}

// uninstall takes the release away and looks for what is left.
func (r *release) uninstall() {
	r.t.Helper()
	r.helm("uninstall", r.name)
	r.installed = false
	kinds := r.kubectl("api-resources", "--namespaced", "--verbs", "list", "--output", "name")
	var ask []string
	for kind := range strings.FieldsSeq(kinds) {
		// Events tell what was; they go by themselves.
		if !strings.HasPrefix(kind, "events") {
			ask = append(ask, kind)
		}
	}
	await(r.t, "nothing to be left", func() error {
		out := r.kubectl("get", strings.Join(ask, ","), "--output", "name", "--ignore-not-found")
		var left []string
		for name := range strings.FieldsSeq(out) {
			// Of the namespace, not of the release.
			if name != "configmap/kube-root-ca.crt" && name != "serviceaccount/default" {
				left = append(left, name)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	r.t.Logf("figure: of %d kinds of objects none is left after the uninstall", len(ask))
}

// scale has kubectl change the number of pods, and waits for them and for their
// tasks.
func (r *release) scale(n int) []pod {
	r.t.Helper()
	r.kubectl("scale", "statefulset/"+r.name, fmt.Sprintf("--replicas=%d", n))
	pods := r.awaitReady(n)
	r.awaitBalanced(pods)
	return pods
}

// Up to one pod for each partition, a spare, and down again, all under load.
func scaled(t *testing.T, s *stage, guarantee string) {
	r := s.release(t, "scaled-"+strings.ReplaceAll(guarantee, "_", "-"))
	r.install("--set", "config.delivery.guarantee="+guarantee)
	pods := r.awaitReady(2)
	r.awaitBalanced(pods)
	rest := r.load(append(pace(), "--duration", "10s")...).wait()
	t.Logf("figure: with 2 pods that nobody scales alerts are late by %s", rest)
	load := r.load(append(pace(), "--duration", "0s")...)
	for _, n := range []int{4, 6, 7} {
		began := time.Now()
		pods = r.scale(n)
		t.Logf("figure: %d pods are ready and balanced %v after kubectl scale", n, time.Since(began).Round(100*time.Millisecond))
	}
	idle := 0
	for _, p := range pods {
		if r.metrics(p).Sum("joiner_colocated_partitions") == 0 {
			idle++
		}
	}
	if idle != 1 {
		t.Errorf("%d of 7 pods are idle, want 1", idle)
	}
	r.scaledDown(pods, 2)
	result := load.end()
	t.Logf("figure: %d notifications all the while, alerts late by %s", result.Notifications, result)
	r.sound(guarantee)
	for _, p := range r.pods() {
		if p.restarts() != 0 {
			t.Errorf("%s was restarted %d times", p.name(), p.restarts())
		}
	}
}

// scaledDown scales down and says how soon the tasks of the pods that go have new
// owners. Those are named by the pods themselves, on one clock.
func (r *release) scaledDown(pods []pod, n int) {
	r.t.Helper()
	l := r.follow(pods)
	from := time.Now()
	r.scale(n)
	var h handover
	await(r.t, "the logs of all pods", func() (err error) {
		h, err = l.handovers(from, pods[n:])
		return err
	})
	r.t.Logf("figure: %d -> %d pods: %d halves of tasks had new owners within %v of their release, %v of the signal to stop (session timeout %v)",
		len(pods), n, h.tasks, h.sinceRelease.Round(time.Millisecond), h.sinceSignal.Round(time.Millisecond), sessionTimeout)
	if h.tasks == 0 || h.sinceSignal >= sessionTimeout {
		r.t.Errorf("tasks of pods that went waited for the end of their session: %+v", h)
	}
}

// A rolling restart of members that keep their places, then a scaling down whose
// pods learn from the API server that they do not come back.
func restartedStatic(t *testing.T, s *stage) {
	r := s.release(t, "static")
	r.install("--set", "staticMembership=true", "--set", "replicaCount=3")
	pods := r.awaitReady(3)
	r.awaitBalanced(pods)
	before, after := r.restart(pods)
	if before != after {
		t.Errorf("the generation was %v and is %v", before, after)
	}
	pods = r.pods()
	l := r.follow(pods)
	from := time.Now()
	left := r.scale(2)
	await(t, "the log of the pod that goes", func() error {
		for _, one := range l.said("what becomes of the pod", from) {
			if one.pod == pods[2].name() && one.Line["gone"] == true {
				t.Logf("figure: %s asked the API server, and was told in %s: %s", one.pod, one.Text("took"), one.Text("why"))
				return nil
			}
		}
		return fmt.Errorf("%s has not said what becomes of it", pods[2].name())
	})
	if now := r.generation(left); now == after {
		t.Errorf("the generation is still %v: the pod that went has not left the group", now)
	}
	if h, err := l.handovers(from, pods[2:]); err != nil || h.sinceSignal >= sessionTimeout {
		t.Errorf("its tasks: %+v, %v", h, err)
	} else {
		t.Logf("figure: static members, 3 -> 2 pods: new owners within %v of the signal to stop", h.sinceSignal.Round(time.Millisecond))
	}
	r.sound(atLeastOnce)
	r.uninstall()
}

func restartedDynamic(t *testing.T, s *stage) {
	r := s.release(t, "dynamic")
	r.install("--set", "replicaCount=3")
	pods := r.awaitReady(3)
	r.awaitBalanced(pods)
	r.restart(pods)
	r.sound(atLeastOnce)
}

// restart restarts all pods, one after another, under load, and returns the
// group's generations before and after.
func (r *release) restart(pods []pod) (before, after float64) {
	r.t.Helper()
	load := r.load(append(pace(), "--duration", "0s")...)
	await(r.t, "joins", func() error {
		if n := r.metrics(pods...).Sum("joiner_joins_total"); n < 50 {
			return fmt.Errorf("%v joins", n)
		}
		return nil
	})
	before = r.generation(pods)
	l := r.follow(pods)
	from := time.Now()
	r.kubectl("rollout", "restart", "statefulset/"+r.name)
	r.kubectl("rollout", "status", "statefulset/"+r.name, "--timeout", "4m")
	restarted := r.awaitReady(len(pods))
	took := time.Since(from)
	if common(pods, restarted) != 0 {
		r.t.Fatal("not all pods were restarted")
	}
	r.awaitBalanced(restarted)
	after = r.generation(restarted)

	var claims, prices time.Duration // the longest of each
	for _, p := range restarted {
		begins, restores := r.said(p, "claim begins"), r.said(p, "restored")
		for _, stop := range l.said("stopping", from) {
			if stop.pod == p.name() && len(begins) > 0 && len(restores) > 0 {
				claims = max(claims, begins[0].Time().Sub(stop.Time()))
				prices = max(prices, restores[len(restores)-1].Time().Sub(stop.Time()))
			}
		}
	}
	result := load.end()
	r.t.Logf("figure: rolling restart of %d pods in %v: generation %v -> %v, from its stop a pod took %v at most to its claims, %v to its prices, alerts late by %s",
		len(pods), took.Round(time.Second), before, after, claims.Round(time.Millisecond), prices.Round(time.Millisecond), result)
	return before, after
}
