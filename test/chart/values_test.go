package chart

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// byLag is the least that KEDA needs.
const byLag = "keda: {enabled: true}, kafka: {brokers: [a:9092]}"

// TestRefused: each wrong value stops everything, by a message that names it.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"unknown: 1", "'unknown'"},
		{"kafka: {broker: [a:1]}", "'broker'"},
		{"replicaCount: two", "/replicaCount"},
		{"replicaCount: -1", "/replicaCount"},
		{"image: {tag: 1.0}", "/image/tag"},
		{"image: {digest: latest}", "/image/digest"},
		{"service: {port: 0}", "/service/port"},
		{"podManagementPolicy: Sequential", "/podManagementPolicy"},
		{"commonLabels: {a: 1}", "/commonLabels/a"},
		{"extraEnv: [{name: A, value: 1048576}]", "/extraEnv/0/value"},
		{"persistence: {size: large}", "/persistence/size"},
		{"keda: {enabled: true, minReplicas: 0}", "/keda/minReplicas"},
		{"livenessProbe: {path: /}", "'path'"},

		{"config: {kafka: {sasl: {password: geheim}}}", "config.kafka.sasl.password: secrets have no place in values, which Helm keeps: put it into a Secret of yours, and name that by kafka.sasl.existingSecret"},
		{"config: {kafka: {sasl: {client_secret: geheim}}}", "config.kafka.sasl.client_secret: secrets have no place in values, which Helm keeps: put it into a Secret of yours, and name that by kafka.sasl.existingSecret"},
		{"config: {peer: {token: geheim}}", "name that by peer.existingSecret and peer.tokenKey"},
		{"config: {topcis: {}}", "'topcis'"},
		{"config: {topics: {market: ticks}}", "'market'"},
		{"config: {shutdown: {timeout: 25}}", "/config/shutdown/timeout"},
		{"config: {shutdown: {timeout: soon}}", "/config/shutdown/timeout"},
		{"config: {join: {max_waiting: 1.5}}", "/config/join/max_waiting"},
		{"config: {join: {on_miss: ignore}}", "/config/join/on_miss"},
		{"config: {kafka: {version: 4.0}}", "/config/kafka/version"},
		{"config: {topics: {reserved: [{partition: 1}]}}", "symbols_file"},

		{"config: {group: {instance_id: me}}", "staticMembership"},
		{"config: {http: {listen: 'localhost:8080'}}", "config.http.listen"},
		{"config: {http: {listen: ':0'}}", "config.http.listen"},
		{"config: {peer: {listen: ':8080'}}", "config.peer.listen"},
		{"terminationGracePeriodSeconds: 25", "terminationGracePeriodSeconds"},
		{"{terminationGracePeriodSeconds: 35, lifecycle: {preStop: {sleep: {seconds: 10}}}}", "terminationGracePeriodSeconds"},
		{"{terminationGracePeriodSeconds: 60, config: {shutdown: {timeout: 1m}}}", "terminationGracePeriodSeconds"},
		{"{existingConfigMap: a, config: {log: {level: debug}}}", "existingConfigMap and config"},
		{"{serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}", "choose one"},
		{"{autoscaling: {enabled: true}, keda: {enabled: true}}", "choose one"},
		{"{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}", "resources.requests.cpu"},
		{"autoscaling: {enabled: true, targetCPUUtilizationPercentage: null}", "something to scale by"},
		{"autoscaling: {enabled: true, minReplicas: 7}", "autoscaling.minReplicas"},
		{"keda: {enabled: true, minReplicas: 7, maxReplicas: 6}", "keda.minReplicas"},
		{"{keda: {enabled: true}, existingConfigMap: a}", "keda.triggers"},
		{"podDisruptionBudget: {minAvailable: 1, maxUnavailable: 1}", "podDisruptionBudget"},
		{"kafka: {tls: {existingSecret: a}}", "kafka.tls.enabled"},
		{"kafka: {tls: {enabled: true, clientCertificate: true}}", "kafka.tls.clientCertificate"},
		{"kafka: {sasl: {mechanism: PLAIN, username: a}}", "kafka.sasl.existingSecret"},
		{"kafka: {sasl: {mechanism: PLAIN, existingSecret: a}}", "kafka.sasl.username"},
		{"kafka: {sasl: {existingSecret: a}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {mechanism: GSSAPI}}", "/kafka/sasl/mechanism"},
		{"kafka: {sasl: {mechanism: PLAIN, existingSecret: a, username: a, usernameKey: b}}", "kafka.sasl.usernameKey"},
		{"kafka: {sasl: {mechanism: OAUTHBEARER, existingSecret: a, clientId: b}}", "kafka.sasl.tokenUrl"},
		{"kafka: {sasl: {mechanism: OAUTHBEARER, existingSecret: a, tokenUrl: 'https://b'}}", "kafka.sasl.clientId"},
		{"peer: {tls: {enabled: true}}", "peer.existingSecret"},
		{"peer: {existingSecret: a, tokenKey: token}", "peer.tls.enabled"},
		{"resources: {limits: {memory: plenty}}", "resources.limits.memory"},

		// What would be taken and do nothing.
		{"kafka: {existingSecret: a}", "kafka.existingSecret"},
		{"kafka: {existingSecret: a, tls: {enabled: true, caKey: ''}}", "kafka.existingSecret"},
		{"kafka: {existingSecret: a, sasl: {mechanism: PLAIN, username: b, existingSecret: c}}", "kafka.existingSecret"},
		{"kafka: {tls: {serverName: a}}", "kafka.tls.enabled"},
		{"kafka: {tls: {insecureSkipVerify: true}}", "kafka.tls.enabled"},
		{"kafka: {tls: {enabled: true, existingSecret: a, caKey: ''}}", "kafka.tls.existingSecret"},
		{"kafka: {tls: {enabled: true, existingSecret: a, caExistingSecret: b}}", "kafka.tls.clientCertificate"},
		{"kafka: {tls: {enabled: true, caExistingSecret: a, caKey: ''}}", "kafka.tls.caKey"},
		{"kafka: {sasl: {username: a}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {usernameKey: a}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {tokenUrl: 'https://a'}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {clientId: a}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {scopes: [a]}}", "kafka.sasl.mechanism"},
		{"kafka: {sasl: {mechanism: PLAIN, existingSecret: a, username: b, clientId: c}}", "kafka.sasl.clientId"},
		{"kafka: {sasl: {mechanism: PLAIN, existingSecret: a, username: b, scopes: [c]}}", "kafka.sasl.scopes"},
		{"kafka: {sasl: {mechanism: OAUTHBEARER, existingSecret: a, clientId: b, tokenUrl: 'https://c', username: d}}", "kafka.sasl.username"},
		{"peer: {existingSecret: a, tls: {enabled: true, existingSecret: b}}", "peer.existingSecret"},
		{"networkPolicy: {egress: {enabled: true}}", "networkPolicy.enabled"},
		{"serviceAccount: {create: false, annotations: {a: b}}", "serviceAccount.annotations"},
		{"service: {nodePort: 30080}", "service.nodePort"},
		{"service: {externalTrafficPolicy: Local}", "service.externalTrafficPolicy"},
		{"service: {type: NodePort, loadBalancerClass: a}", "service.loadBalancerClass"},
		{"service: {type: NodePort, loadBalancerSourceRanges: [10.0.0.0/8]}", "service.loadBalancerSourceRanges"},
		{"service: {type: LoadBalancer, clusterIP: None}", "service.clusterIP"},

		{"config: {state: {dir: rel}}", "config.state.dir"},
		{"config: {state: {dir: /}}", "config.state.dir"},
		{"{config: {state: {dir: /etc/joiner}}, persistence: {enabled: true}}", "config.state.dir"},
		{"config: {state: {dir: /data/../usr/}}", "config.state.dir"},
		{"config: {state: {dir: '/data:ro'}}", "config.state.dir"},
		{"config: {state: {dir: /var}}", "/var/run/joiner"},
		{"config: {state: {dir: /var/run/joiner/peer/state}}", "/var/run/joiner/peer"},
		{"{config: {state: {dir: /data/}}, extraVolumeMounts: [{name: a, mountPath: /data}]}", "extraVolumeMounts"},
		{"persistence: {retain: true}", "persistence.enabled"},
		{"{staticMembership: true, config: {group: {heartbeat_interval: 16s}}}", "config.group.session_timeout: 45s"},
		{"{staticMembership: true, extraEnv: [{name: JOINER_GROUP_INSTANCE_ID, value: me}]}", "JOINER_GROUP_INSTANCE_ID"},
		{"{staticMembership: true, extraEnv: [{name: JOINER_GROUP_INSTANCE_ID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}]}", "JOINER_GROUP_INSTANCE_ID"},
		{"extraEnv: [{name: JOINER_GROUP_INSTANCE_ID, value: me}]", "the same in every pod"},
		{"prometheusRule: {enabled: true, disabled: [JoinerNope]}", "JoinerNope"},

		// Names that the API server would refuse, half an installation later.
		{"nameOverride: Foo_bar", "/nameOverride"},
		{"fullnameOverride: Foo_bar", "/fullnameOverride"},
		{"fullnameOverride: 1st", "/fullnameOverride"},
		{"clusterDomain: cluster.local.", "/clusterDomain"},
		{"commonLabels: {team: market data}", "/commonLabels/team"},
		{"podLabels: {'a b': c}", "'a b'"},
		{"nodeSelector: {a: b/c}", "/nodeSelector/a"},
		{"commonAnnotations: {'a/b/c': d}", "'a/b/c'"},
		{"serviceMonitor: {labels: {release: '{{ .Release.Name }}'}}", "/serviceMonitor/labels/release"},
		{"prometheusRule: {ruleLabels: {a-b: c}}", "'a-b'"},
		{"dashboards: {namespace: Grafana}", "/dashboards/namespace"},
		{"priorityClassName: Very_high", "/priorityClassName"},
		{"serviceAccount: {name: a_b}", "/serviceAccount/name"},
		{"existingConfigMap: A", "/existingConfigMap"},
		{"kafka: {existingSecret: a/b}", "/kafka/existingSecret"},
		{"kafka: {tls: {caKey: a/b}}", "/kafka/tls/caKey"},
		{"persistence: {storageClass: Fast}", "/persistence/storageClass"},
		{"image: {tag: 'a:b'}", "/image/tag"},
		{"{staticMembership: true, serviceAccount: {create: false}}", "serviceAccount.name"},

		// What takes the place of what is the chart's, and what the API server refuses.
		{"extraVolumes: [{name: config, emptyDir: {}}]", "extraVolumes: config"},
		{"extraVolumeMounts: [{name: a, mountPath: /etc/joiner/}]", "/etc/joiner"},
		{"extraContainers: [{name: joiner, image: a}]", "extraContainers"},
		{"initContainers: [{name: '{{ .Chart.Name }}', image: a}]", "initContainers"},
		{"dnsPolicy: None", "dnsConfig.nameservers"},
		{"updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}", "updateStrategy.rollingUpdate"},
		{"preflight: {timeout: 4m}", "preflight.timeout"},
		{"preflight: {timeout: 0s}", "preflight.timeout"},
		{"livenessProbe: {successThreshold: 2}", "/livenessProbe/successThreshold"},
		{"readinessProbe: {terminationGracePeriodSeconds: 2}", "'terminationGracePeriodSeconds'"},
		{"podDisruptionBudget: {maxUnavailable: 101%}", "/podDisruptionBudget/maxUnavailable"},

		// What the chart has to know, or KEDA.
		{"networkPolicy: {enabled: true, egress: {enabled: true}}", "kafka.brokers"},
		{"{existingConfigMap: a, networkPolicy: {enabled: true, egress: {enabled: true}}}", "kafka.brokers"},
		{"{extraEnv: [{name: JOINER_KAFKA_BROKERS, valueFrom: {}}], networkPolicy: {enabled: true, egress: {enabled: true}}}", "kafka.brokers"},
		{"kafka: {brokers: [kafka]}", "kafka.brokers"},
		{"kafka: {brokers: ['a:9092 b:9092']}", "kafka.brokers"},
		{"keda: {enabled: true}", "kafka.brokers"},
		{"{" + byLag + ", config: {kafka: {sasl: {mechanism: PLAIN, username: a}}}, extraEnv: [{name: JOINER_KAFKA_SASL_PASSWORD, valueFrom: {secretKeyRef: {name: a, key: b}}}]}", "kafka.sasl.existingSecret"},
		{"{" + byLag + ", extraEnv: [{name: JOINER_KAFKA_SASL_MECHANISM, value: PLAIN}]}", "kafka.sasl.existingSecret"},
		{"{" + byLag + ", config: {kafka: {tls: {enabled: true, ca_file: /etc/ca.pem}}}}", "caExistingSecret"},
		{"extraEnv: [{name: JOINER_HTTP_LISTEN, valueFrom: {configMapKeyRef: {name: a, key: b}}}]", "JOINER_HTTP_LISTEN"},
		{"extraEnv: [{name: JOINER_PEER_LISTEN, value: ':$(PORT)'}]", "JOINER_PEER_LISTEN"},
		{"extraEnv: [{name: JOINER_PEER_LISTEN, value: ':8080'}]", "both are port 8080"},
		{"extraEnv: [{name: JOINER_SHUTDOWN_TIMEOUT, value: '$(LONG)'}]", "terminationGracePeriodSeconds"},
		{"extraEnv: [{name: JOINER_SHUTDOWN_TIMEOUT, value: soon}]", "JOINER_SHUTDOWN_TIMEOUT"},
		{"{terminationGracePeriodSeconds: 60, extraEnv: [{name: JOINER_SHUTDOWN_TIMEOUT, value: 60s}]}", "terminationGracePeriodSeconds"},
		{"extraEnv: [{name: JOINER_GROUP_SESSION_TIMEOUT, value: 1s}]", "config.group.session_timeout"},
		{"extraEnv: [{name: JOINER_DELIVERY_LINGER, value: -1s}]", "config.delivery.linger"},
		{"extraEnv: [{name: JOINER_STATE_DIR, value: /etc}]", "config.state.dir"},
		{"extraEnv: [{name: A, value: a}, {name: A, value: b}]", "twice"},
		{"extraEnv: [{name: JOINER_GRUOP_ID, value: a}]", "JOINER_GRUOP_ID names no key"},
		{"extraEnv: [{name: JOINER_TOPICS, value: a}]", "JOINER_TOPICS names no key"},
		{"extraEnv: [{name: POD_NAME, value: a}]", "POD_NAME"},
		{"config: {peer: {advertise: 'foo:8081'}}", "config.peer.advertise"},
		{"config: {peer: {advertise: '$(POD_IP):8081'}}", "config.peer.advertise"},
		{"extraEnv: [{name: JOINER_PEER_ADVERTISE, value: 'foo:8081'}]", "JOINER_PEER_ADVERTISE"},
		{"prometheusRule: {disabled: ['']}", "prometheusRule.disabled"},
	} {
		t.Run(c.values, func(t *testing.T) {
			t.Parallel()
			out, errs, err := template("--values", file(t, "values.yaml", c.values))
			if err == nil {
				t.Fatalf("it is taken:\n%s", out)
			}
			if !strings.Contains(errs, c.want) {
				t.Errorf("the message does not name %q: %s", c.want, errs)
			}
			if strings.Contains(errs, "geheim") {
				t.Errorf("the message holds the secret: %s", errs)
			}
		})
	}
}

// TestTaken: what is close to a refused value, and right.
func TestTaken(t *testing.T) {
	for _, values := range []string{
		"{config: {state: {dir: /data/}}, persistence: {enabled: true}, extraVolumeMounts: [{name: a, mountPath: /data2}]}",
		"config: {state: {dir: /varied/etc}}",
		"config: {shutdown: {timeout: +25s}}",
		"{config: {group: {heartbeat_interval: 20s}}, extraEnv: [{name: JOINER_GROUP_SESSION_TIMEOUT, value: 60s}]}",
		"extraEnv: [{name: JOINER_GROUP_INSTANCE_ID, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
		"prometheusRule: {enabled: true, disabled: [JoinerTaskStalled]}",
		"{staticMembership: true, serviceAccount: {create: false, name: ours}}",
		"{staticMembership: true, rbac: {create: false}, serviceAccount: {create: false}}",
		"{nameOverride: 1st, persistence: {enabled: true, storageClass: '-'}, commonLabels: {a: '', example.com/b: C_d.e}}",
		"{" + byLag + ", config: {kafka: {tls: {enabled: true}}}}",
		"{existingConfigMap: a, kafka: {brokers: 'a:9092, [::1]:9093'}, networkPolicy: {enabled: true, egress: {enabled: true}}}",
		"{extraEnv: [{name: JOINER_KAFKA_BROKERS, value: 'a:9094'}], networkPolicy: {enabled: true, egress: {enabled: true}}}",
		"{terminationGracePeriodSeconds: 60, extraEnv: [{name: JOINER_SHUTDOWN_TIMEOUT, valueFrom: {configMapKeyRef: {name: a, key: b}}}]}",
		"{config: {delivery: {linger: -1s}}, extraEnv: [{name: JOINER_DELIVERY_LINGER, value: 1s}]}",
		"config: {peer: {advertise: '$(POD_NAME).example.com:8081'}}",
		"extraEnv: [{name: JOINER_SERVICE_HOST, value: ''}, {name: JOINER_DB_PORT_5432_TCP_ADDR, value: a}, {name: JOINERS, value: a}]",
		"extraEnv: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, {name: JOINER_PEER_ADVERTISE, value: '$(POD_IP):8081'}]",
	} {
		t.Run(values, func(t *testing.T) {
			t.Parallel()
			decode(t, renderValues(t, values))
		})
	}
}

// TestBounds: where joiner begins and ceases to take a number or a duration,
// the chart does: else helm is content, and every pod ends as it starts.
func TestBounds(t *testing.T) {
	durations := []string{"-1ms", "0s", "999us", "1ms", "2ms", "9ms", "10ms", "99ms", "100ms", "199ms", "200ms", "201ms", "500ms", "501ms", "1499ms", "1500ms", "2999ms", "3s", "3333ms", "3334ms", "9999ms", "10s", "1h", "2147483647ms", "2147483648ms"}
	numbers := []string{"-2", "-1", "0", "1", "32767", "32768", "104857600", "104857601"}
	edges := 0
	for key, value := range flatten("", defaultConfig(t)) {
		values := durations
		if _, err := strconv.Atoi(value); err == nil {
			values = numbers
		} else if _, err := time.ParseDuration(strings.Trim(value, `"`)); err != nil {
			continue
		}
		for _, edge := range edgesOf(t, key, values) {
			edges++
			t.Run(key+"="+edge.value, func(t *testing.T) {
				t.Parallel()
				_, errs, err := template("--set-string", "config."+key+"="+edge.value)
				if taken := err == nil; taken != edge.taken {
					t.Errorf("joiner takes it: %v, the chart: %v: %s", edge.taken, taken, errs)
				}
				if err != nil && !strings.Contains(errs, "config.") {
					t.Errorf("the message names no key: %s", errs)
				}
			})
		}
	}
	if edges < 30 {
		t.Errorf("joiner has %d edges: were its bounds found?", edges)
	}
}

type edge struct {
	value string
	taken bool
}

// edgesOf asks joiner for each value, and gives those on both sides of where
// its answer changes.
func edgesOf(t *testing.T, key string, values []string) (edges []edge) {
	t.Helper()
	dir := t.TempDir()
	var before edge
	for i, value := range values {
		cmd := exec.Command(tools.joiner, "config", "--set", key+"="+value)
		cmd.Dir, cmd.Env = dir, []string{}
		now := edge{value, cmd.Run() == nil}
		if i > 0 && now.taken != before.taken {
			edges = append(edges, before, now)
		}
		before = now
	}
	return edges
}

// TestStaticSession: a static member gets the time to come back in, unless
// somebody says how long, and others keep joiner's default.
func TestStaticSession(t *testing.T) {
	const own = "extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: own}, data: {config.yaml: 'group: {session_timeout: 20s}'}}]"
	for _, c := range []struct{ values, want string }{
		{"staticMembership: true", "45s"},
		{"{staticMembership: true, config: {group: {session_timeout: 30s}}}", "30s"},
		{"staticMembership: false", "10s"},
		{"{staticMembership: true, existingConfigMap: own, " + own + "}", "20s"},
	} {
		objects := decode(t, renderValues(t, c.values))
		got := newWorld(t, objects).effective(t, pods(objects)[0])["group"].(map[string]any)["session_timeout"]
		if got != c.want {
			t.Errorf("%s: session_timeout %v, want %s", c.values, got, c.want)
		}
	}
}

// TestNumbers: 1048576 stays what it is, whichever way it comes.
func TestNumbers(t *testing.T) {
	const key = "config.delivery.max_message_bytes"
	for name, rendering := range map[string]string{
		"--set":        render(t, "--set", key+"=1048576"),
		"--set-string": render(t, "--set-string", key+"=1048576"),
		"--set-json":   render(t, "--set-json", key+"=1048576"),
		"a file":       renderValues(t, "config: {delivery: {max_message_bytes: 1048576}}"),
		"JSON":         renderValues(t, `{"config": {"delivery": {"max_message_bytes": 1.048576e6}}}`),
	} {
		objects := decode(t, rendering)
		got := newWorld(t, objects).effective(t, pods(objects)[0])
		if n := got["delivery"].(map[string]any)["max_message_bytes"]; n != 1048576.0 {
			t.Errorf("by %s: %v", name, n)
		}
	}
	for _, large := range []string{"replicaCount=1048576", "kafka.brokers=a:9092,keda.enabled=true,keda.maxReplicas=1048576,keda.notificationsLagThreshold=1048576", "preflight.enabled=true,preflight.activeDeadlineSeconds=1048576"} {
		for _, rendering := range []string{render(t, "--set", large), renderValues(t, nested(t, large))} {
			if strings.Contains(rendering, "e+06") || !strings.Contains(rendering, "1048576") {
				t.Errorf("%s is mangled", large)
			}
			decode(t, rendering)
		}
	}
}

// nested makes a file of what --set takes.
func nested(t *testing.T, settings string) string {
	t.Helper()
	root := map[string]any{}
	for setting := range strings.SplitSeq(settings, ",") {
		path, text, _ := strings.Cut(setting, "=")
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		at, keys := root, strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		at[keys[len(keys)-1]] = value
	}
	out, err := yaml.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestPasswordFile: a password with a newline at its end reaches joiner as the
// file that it is, byte for byte, and by no environment.
func TestPasswordFile(t *testing.T) {
	const password = "s3cret \"quoted\" {{ not a template }} 1048576\n"
	objects := decode(t, renderValues(t, `
kafka:
  sasl: {mechanism: SCRAM-SHA-256, username: joiner, existingSecret: kafka}
extraObjects:
  - apiVersion: v1
    kind: Secret
    metadata: {name: kafka}
    data: {}
`, "--set-string", "extraObjects[0].data.password="+base64.StdEncoding.EncodeToString([]byte(password))))
	secret := only[*core.Secret](t, objects)
	if got := string(secret.Data["password"]); got != password {
		t.Errorf("the secret holds %q", got)
	}
	world := newWorld(t, objects)
	for _, p := range pods(objects) {
		effective := world.effective(t, p)
		if got := effective["kafka"].(map[string]any)["sasl"].(map[string]any)["password_file"]; got != "/var/run/joiner/kafka-sasl/password" {
			t.Errorf("%s: password_file %v", p.owner, got)
		}
		for _, e := range p.spec.Containers[0].Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				t.Errorf("%s: %s has it in the environment, newline and all", p.owner, e.Name)
			}
		}
	}
}

// TestEnvironmentWins: the chart goes by what extraEnv says, as joiner does.
func TestEnvironmentWins(t *testing.T) {
	for _, base := range []string{"config: {http: {listen: ':7070'}, shutdown: {timeout: 5s}}", "existingConfigMap: own"} {
		objects := decode(t, renderValues(t, base+`
kafka: {brokers: [a:9092]}
networkPolicy: {enabled: true, egress: {enabled: true}}
preflight: {enabled: true}
extraEnv:
  - {name: JOINER_HTTP_LISTEN, value: ":{{ 9000 | add 90 }}"}
  - {name: JOINER_PEER_LISTEN, value: ":7000"}
  - {name: JOINER_PEER_ADVERTISE, value: "$(POD_NAME).example.com:7000"}
  - {name: JOINER_SHUTDOWN_TIMEOUT, value: 120s}
  - {name: JOINER_KAFKA_BROKERS, value: "b:9094,c:9095"}
  - {name: JOINER_STATE_DIR, value: /data}
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: own}, data: {config.yaml: "{}"}}]
`))
		set := only[*apps.StatefulSet](t, objects)
		spec := set.Spec.Template.Spec
		if got := *spec.TerminationGracePeriodSeconds; got != 130 {
			t.Errorf("%s: the grace period is %d s", base, got)
		}
		if http, peer := spec.Containers[0].Ports[0].ContainerPort, spec.Containers[0].Ports[1].ContainerPort; http != 9090 || peer != 7000 {
			t.Errorf("%s: the ports are %d and %d", base, http, peer)
		}
		var ports []int
		for _, rule := range only[*networking.NetworkPolicy](t, objects).Spec.Egress {
			for _, port := range rule.Ports {
				ports = append(ports, port.Port.IntValue())
			}
		}
		if want := []int{53, 53, 5353, 5353, 7000, 9094, 9095}; !slices.Equal(ports, want) {
			t.Errorf("%s: egress to %v, want %v", base, ports, want)
		}
		for _, p := range pods(objects) {
			names := map[string]bool{}
			for _, e := range p.spec.Containers[0].Env {
				if names[e.Name] {
					t.Errorf("%s: %s has %s twice", base, p.owner, e.Name)
				}
				names[e.Name] = true
			}
			got := newWorld(t, objects).effective(t, p)
			if want := set.Name + "-0.example.com:7000"; got["peer"].(map[string]any)["advertise"] != want {
				t.Errorf("%s: %s advertises %v, want %s", base, p.owner, got["peer"], want)
			}
		}
	}
}

// TestLongNames: names that are alike in the beginning stay apart, and one that
// is no name of a Service is refused.
func TestLongNames(t *testing.T) {
	const long = "a-very-long-name-of-a-release-as-pipelines-make-th" // 50, and 53 are Helm's limit
	seen := map[string]string{}
	for _, args := range [][]string{
		{"--name-template", long + "-e"}, {"--name-template", long + "-w"},
		{"--name-template", long, "--set", "nameOverride=east"}, {"--name-template", long, "--set", "nameOverride=west"},
		{"--set", "fullnameOverride=" + long + "-north"}, {"--set", "fullnameOverride=" + long + "-south"},
		{"--set", "fullnameOverride=" + long + "-e"},
	} {
		all := append([]string{"template", chartDir, "--namespace", namespace, "--kube-version", kubeVersion}, args...)
		if !slices.Contains(args, "--name-template") {
			all = append(all, "--name-template", release)
		}
		out, errs, err := helm(all...)
		if err != nil {
			t.Fatal(errs)
		}
		name := only[*apps.StatefulSet](t, decode(t, out)).Name
		if len(name) > 52 || !strings.HasPrefix(name, "a-very-long-name-of-a-release-as-pipelines-") {
			t.Errorf("%v: %s", args, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%v and %s have one name, %s", args, other, name)
		}
		seen[name] = strings.Join(args, " ")
	}
	for _, name := range []string{"1st", "with.dot"} {
		_, errs, err := helm("template", name, chartDir, "--kube-version", kubeVersion)
		if err == nil || !strings.Contains(errs, "fullnameOverride") {
			t.Errorf("a release %s: %s", name, errs)
		}
		if _, errs, err := helm("template", name, chartDir, "--kube-version", kubeVersion, "--set", "fullnameOverride=first"); err != nil {
			t.Errorf("a release %s with a name for its objects: %s", name, errs)
		}
	}
}

// TestPreflightAccount: the preflight can pull and be admitted like the pods.
func TestPreflightAccount(t *testing.T) {
	const annotated = "{preflight: {enabled: true}, imagePullSecrets: [a], serviceAccount: {annotations: {role: b}}}"
	objects := decode(t, renderValues(t, annotated))
	job := only[*batch.Job](t, objects)
	if name := job.Spec.Template.Spec.ServiceAccountName; name != job.Name {
		t.Errorf("its account is %s", name)
	}
	for _, account := range every[*core.ServiceAccount](objects) {
		if account.Annotations["role"] != "b" {
			t.Errorf("ServiceAccount %s: %v", account.Name, account.Annotations)
		}
	}
	if secrets := job.Spec.Template.Spec.ImagePullSecrets; len(secrets) != 1 || secrets[0].Name != "a" {
		t.Errorf("it pulls by %v", secrets)
	}
	objects = decode(t, renderValues(t, "{preflight: {enabled: true}, serviceAccount: {create: false, name: pullers}}"))
	if accounts := every[*core.ServiceAccount](objects); len(accounts) != 0 {
		t.Errorf("%v are made", accounts)
	}
	for _, p := range pods(objects) {
		if p.spec.ServiceAccountName != "pullers" {
			t.Errorf("%s runs as %s", p.owner, p.spec.ServiceAccountName)
		}
	}
}

// TestRolls: pods roll for what they are made of, and for nothing else.
func TestRolls(t *testing.T) {
	podTemplate := func(args ...string) string {
		set := only[*apps.StatefulSet](t, decode(t, render(t, args...)))
		text, err := json.Marshal(set.Spec.Template)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := podTemplate()
	for _, rolls := range []string{
		"config.log.level=debug", "kafka.brokers={a:9092}", "config.shutdown.timeout=20s",
		"image.tag=next", "resources.limits.memory=2Gi", "staticMembership=true",
	} {
		if podTemplate("--set", rolls) == before {
			t.Errorf("%s does not roll the pods", rolls)
		}
	}
	for _, stays := range []string{
		"replicaCount=5", "serviceMonitor.enabled=true,serviceMonitor.interval=15s", "podDisruptionBudget.maxUnavailable=2",
		"service.type=NodePort", "commonAnnotations.a=b", "networkPolicy.enabled=true", "preflight.enabled=true",
		"serviceAccount.annotations.a=b", "autoscaling.enabled=true", "podManagementPolicy=OrderedReady",
	} {
		if diff := cmp.Diff(before, podTemplate("--set", stays)); diff != "" {
			t.Errorf("%s rolls the pods:\n%s", stays, diff)
		}
	}
	newer := copyChart(t)
	about := filepath.Join(newer, "Chart.yaml")
	write(t, about, strings.Replace(read(t, about), "\nversion: ", "\nversion: 9", 1))
	out, errs, err := helm("template", release, newer, "--namespace", namespace, "--kube-version", kubeVersion)
	if err != nil {
		t.Fatal(errs)
	}
	if !strings.Contains(out, "helm.sh/chart: joiner-9") {
		t.Fatal("the copy's version is not the new one")
	}
	after, err := json.Marshal(only[*apps.StatefulSet](t, decode(t, out)).Spec.Template)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, string(after)); diff != "" {
		t.Errorf("a new version of the chart rolls the pods:\n%s", diff)
	}
}

// copyChart gives a copy of the chart to change.
func copyChart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(chartDir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDependency uses the chart in another one, by a condition.
func TestDependency(t *testing.T) {
	chart, err := filepath.Abs(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	above := t.TempDir()
	for name, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: market\nversion: 1.0.0\ndependencies:\n  - name: joiner\n    version: \">=0.0.0-0\"\n    repository: file://" + chart + "\n    condition: joiner.enabled\n",
		"values.yaml": "global: {imageRegistry: registry.example.com, elsewhere: {a: 1}}\njoiner:\n  enabled: false\n  kafka: {brokers: ['{{ .Release.Name }}-kafka:9092']}\n",
	} {
		write(t, filepath.Join(above, name), text)
	}
	if _, errs, err := helm("dependency", "update", above); err != nil {
		t.Fatal(errs)
	}
	for enabled, want := range map[string]int{"true": 1, "false": 0} {
		out, errs, err := helm("template", release, above, "--kube-version", kubeVersion, "--set", "joiner.enabled="+enabled)
		if err != nil {
			t.Fatal(errs)
		}
		sets := every[*apps.StatefulSet](decode(t, out))
		if len(sets) != want {
			t.Errorf("joiner.enabled=%s: %d StatefulSets", enabled, len(sets))
		}
		for _, s := range sets {
			if got := s.Spec.Template.Spec.Containers[0].Image; !strings.HasPrefix(got, "registry.example.com/joiner:") {
				t.Errorf("the image is %s", got)
			}
		}
	}
}

// TestAliases uses the chart twice in another one: no object of the one is an
// object of the other, and neither selects the other's pods.
func TestAliases(t *testing.T) {
	chart, err := filepath.Abs(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	above := t.TempDir()
	entry := "\n  - name: joiner\n    version: \">=0.0.0-0\"\n    repository: file://" + chart + "\n    alias: "
	write(t, filepath.Join(above, "Chart.yaml"), "apiVersion: v2\nname: market\nversion: 1.0.0\ndependencies:"+entry+"east"+entry+"west\n")
	const values = "{kafka: {brokers: [a:9092]}, staticMembership: true, preflight: {enabled: true}, networkPolicy: {enabled: true}, serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}"
	write(t, filepath.Join(above, "values.yaml"), "east: "+values+"\nwest: "+values+"\n")
	if _, errs, err := helm("dependency", "update", above); err != nil {
		t.Fatal(errs)
	}
	for _, name := range []string{release, "east", "east-west", "a-release-of-both-east-and-west-as-long-as-it-may-be"} {
		out, errs, err := helm("template", name, above, "--kube-version", kubeVersion)
		if err != nil {
			t.Fatal(errs)
		}
		seen := map[string]bool{}
		objects := decode(t, out)
		for _, o := range objects {
			if seen[o.String()] {
				t.Errorf("release %s: %s is there twice", name, o)
			}
			seen[o.String()] = true
		}
		sets := every[*apps.StatefulSet](objects)
		if len(sets) != 2 || maps.Equal(sets[0].Spec.Selector.MatchLabels, sets[1].Spec.Selector.MatchLabels) {
			t.Errorf("release %s: %d StatefulSets, which select the same pods", name, len(sets))
		}
	}
}

// TestSchemaKnowsEveryKey compares the schema of `config` with joiner's own
// keys: a key that one of them lacks could not be set, or not be refused.
func TestSchemaKnowsEveryKey(t *testing.T) {
	var schema node
	if err := json.Unmarshal([]byte(read(t, filepath.Join(chartDir, "values.schema.json"))), &schema); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keysOf("", defaultConfig(t)), schema.Properties["config"].keys("")); diff != "" {
		t.Errorf("values.schema.json and joiner's keys differ (-joiner +schema):\n%s", diff)
	}
	listed := regexp.MustCompile(`(?s)define "joiner\.keys" -}}(.*?){{-`).FindStringSubmatch(read(t, filepath.Join(chartDir, "templates/_validate.tpl")))
	if diff := cmp.Diff(keysOf("", defaultConfig(t)), strings.Fields(listed[1])); diff != "" {
		t.Errorf("joiner.keys of the templates and joiner's keys differ (-joiner +templates):\n%s", diff)
	}
	values := asMap(t, read(t, filepath.Join(chartDir, "values.yaml")))
	top := slices.Sorted(maps.Keys(schema.Properties))
	if diff := cmp.Diff(slices.Sorted(maps.Keys(values)), top); diff != "" {
		t.Errorf("values.yaml and values.schema.json differ (-values +schema):\n%s", diff)
	}
	schema.closed(t, "")
}

// TestEveryValueIsUsed: a documented value that no template reads is a lie.
func TestEveryValueIsUsed(t *testing.T) {
	var templates strings.Builder
	for _, pattern := range []string{"templates/*", "templates/tests/*"} {
		files, err := filepath.Glob(filepath.Join(chartDir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				templates.WriteString(read(t, path))
			}
		}
	}
	for key, value := range asMap(t, read(t, filepath.Join(chartDir, "values.yaml"))) {
		if key == "enabled" {
			continue // read by the chart above
		}
		if !strings.Contains(templates.String(), ".Values."+key) {
			t.Errorf("%s is read nowhere", key)
		}
		below, _ := value.(map[string]any)
		for name := range below {
			// What is handed on whole (resources, probes, strategies) has Kubernetes' names.
			whole := strings.Contains(templates.String(), "toYaml .Values."+key) || regexp.MustCompile(`with \.Values\.`+key+` }}|"probe" \.Values\.`+key).MatchString(templates.String())
			if !whole && !regexp.MustCompile(`\.`+name+`\b`).MatchString(templates.String()) {
				t.Errorf("%s.%s is read nowhere", key, name)
			}
		}
	}
}

type node struct {
	Properties map[string]node `json:"properties"`
	Additional any             `json:"additionalProperties"`
}

func (n node) keys(prefix string) (keys []string) {
	for name, below := range n.Properties {
		if below.Properties != nil {
			keys = append(keys, below.keys(prefix+name+".")...)
			continue
		}
		keys = append(keys, prefix+name)
	}
	slices.Sort(keys)
	return keys
}

// closed: whatever lists its keys takes no others.
func (n node) closed(t *testing.T, path string) {
	t.Helper()
	if n.Properties != nil && n.Additional != false {
		t.Errorf("%s/ takes unknown keys", path)
	}
	for name, below := range n.Properties {
		below.closed(t, path+"/"+name)
	}
}

func keysOf(prefix string, at map[string]any) []string {
	keys := slices.Collect(maps.Keys(flatten(prefix, at)))
	slices.Sort(keys)
	return keys
}

// TestReadme: README.md is what helm-docs makes of values.yaml.
func TestReadme(t *testing.T) {
	copied := copyChart(t)
	cmd := exec.Command(tools.helmDocs, "--chart-search-root", copied, "--sort-values-order", "file", "--skip-version-footer")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff(read(t, filepath.Join(chartDir, "README.md")), read(t, filepath.Join(copied, "README.md"))); diff != "" {
		t.Errorf("`make chart-docs` makes another README.md (-is +would be):\n%s", diff)
	}
}

// TestNotes: what is printed after an installation says what to do next.
func TestNotes(t *testing.T) {
	// Helm shows them to those only who have a cluster: a copy of the chart has
	// them rendered beside its objects.
	chart := copyChart(t)
	write(t, filepath.Join(chart, "notes"), read(t, filepath.Join(chart, "templates/NOTES.txt")))
	write(t, filepath.Join(chart, "templates/notes.yaml"), `notes: {{ tpl (.Files.Get "notes") . | toJson }}`)
	notes := func(args ...string) string {
		t.Helper()
		out, errs, err := helm(append([]string{"template", release, chart, "--namespace", namespace, "--show-only", "templates/notes.yaml", "--kube-version", kubeVersion}, args...)...)
		if err != nil {
			t.Fatal(errs)
		}
		return asMap(t, out)["notes"].(string)
	}
	plain := notes()
	for _, want := range []string{
		"no brokers are named", "rollout status statefulset/prices-joiner", "helm test prices --namespace market",
		"port-forward service/prices-joiner", "committed offsets stay", "--delete --group prices-joiner",
	} {
		if !strings.Contains(plain, want) {
			t.Errorf("the notes do not say %q:\n%s", want, plain)
		}
	}
	if kept := notes("--set", "persistence.enabled=true,persistence.retain=true,kafka.brokers={a:9092}"); strings.Contains(kept, "no brokers") || !strings.Contains(kept, "delete persistentvolumeclaim") {
		t.Errorf("with claims that stay:\n%s", kept)
	}
	if static := notes("--set", "staticMembership=true,persistence.enabled=true"); !strings.Contains(static, "45s") || !strings.Contains(static, "nothing but retain can be changed") {
		t.Errorf("with static members and claims:\n%s", static)
	}
	if strings.Contains(plain, "session_timeout") || strings.Contains(plain, "retain") {
		t.Errorf("without either:\n%s", plain)
	}
	if static := notes("--set", "staticMembership=true,existingConfigMap=a"); !strings.Contains(static, "have your ConfigMap set") {
		t.Errorf("with static members and a ConfigMap of one's own:\n%s", static)
	}
	for args, want := range map[string]string{
		"":                         "exec prices-joiner-0 --container joiner -- /joiner health --config=/etc/joiner/config.yaml",
		"replicaCount=4":           "(4 now) wins",
		"replicaCount=null":        "scale statefulset/prices-joiner --replicas 6",
		"autoscaling.enabled=true": "upgrades leave the number alone",
		"staticMembership=true":    "scale statefulset/prices-joiner --replicas 0",
		"service.port=80":          "8080:80\n",
		"service.clusterIP=None":   "8080:8080\n",
		"config.http.listen=:9090": "8080:8080\n",
		"service.clusterIP=None,config.http.listen=:9090": "8080:9090\n", // kubectl goes to the pod's port then
	} {
		if got := notes("--set", args); !strings.Contains(got, want) {
			t.Errorf("with %q the notes do not say %q:\n%s", args, want, got)
		}
	}
	if strings.Contains(plain, "--replicas 0") || strings.Contains(plain, "helm rollback") || strings.Contains(plain, "WARNING: somebody") {
		t.Errorf("without static members, at the first installation:\n%s", plain)
	}
	for args, warns := range map[string]bool{"replicaCount=3": true, "replicaCount=6": false, "replicaCount=null": false, "keda.enabled=true": false} {
		upgraded := notes("--set", "kafka.brokers={a:9092},"+args, "--is-upgrade", "--dry-run=server", "--kubeconfig", live(t, set(6, hasReplicas)))
		if got := strings.Contains(upgraded, "WARNING: somebody had made them 6 replicas, and replicaCount makes them 3 now."); got != warns || !strings.Contains(upgraded, "helm rollback prices --namespace market") {
			t.Errorf("six pods, and an upgrade with %s warns: %t\n%s", args, got, upgraded)
		}
	}
	wasStatic := strings.Replace(set(3, hasReplicas), `"spec":{`, `"spec":{"template":{"spec":{"volumes":[{"name":"config"},{"name":"kubernetes"}]}},`, 1)
	for args, warns := range map[string]bool{"staticMembership=false": true, "staticMembership=true": false} {
		upgraded := notes("--set", args, "--is-upgrade", "--dry-run=server", "--kubeconfig", live(t, wasStatic))
		if got := strings.Contains(upgraded, "WARNING: the pods that stop now are static members"); got != warns {
			t.Errorf("static members that ask Kubernetes, and an upgrade with %s warns: %t\n%s", args, got, upgraded)
		}
	}
	for args, pod := range map[string]string{"replicaCount=3": "prices-joiner-2", "replicaCount=0": "prices-joiner-0", "replicaCount=null": "prices-joiner-5"} {
		upgraded := notes("--set", args, "--is-upgrade", "--dry-run=server", "--kubeconfig", live(t, set(6, hasReplicas)))
		if !strings.Contains(upgraded, "describe pod "+pod+"\n") || strings.Contains(upgraded, "WARNING: the pods that stop") {
			t.Errorf("the pod that a rollout with %s replaces first is %s:\n%s", args, pod, upgraded)
		}
	}
	const linked = "no address: set prometheusRule.runbookBase"
	if alerts := notes("--set", "prometheusRule.enabled=true"); !strings.Contains(alerts, linked) {
		t.Errorf("alerts that link to nowhere:\n%s", alerts)
	}
	if alerts := notes("--set", "prometheusRule.enabled=true,prometheusRule.runbookBase=https://example.com/book"); strings.Contains(alerts, linked) {
		t.Errorf("alerts that link to the runbook:\n%s", alerts)
	}
	asked := notes("--set", "replicaCount=4", "--is-upgrade", "--dry-run=server", "--kubeconfig", live(t, set(2, hasReplicas)))
	if strings.Contains(asked, "WARNING: somebody") {
		t.Errorf("a number that is asked for, where nobody else has scaled, warns:\n%s", asked)
	}
	if onDelete := notes("--set", "updateStrategy.type=OnDelete"); strings.Contains(onDelete, "rollout status") || !strings.Contains(onDelete, "get pods --selector app.kubernetes.io/component=member,") {
		t.Errorf("a rollout that kubectl cannot follow:\n%s", onDelete)
	}
	if own := notes("--set", "existingConfigMap=a"); !strings.Contains(own, "--delete --group GROUP") {
		t.Errorf("with a ConfigMap of one's own:\n%s", own)
	}
}

// TestNull: a value that is null is refused by its name, or is as good as
// empty; what has no meaning without a value is not rendered without one. Helm
// takes such a key away before the schema and the templates see it.
func TestNull(t *testing.T) {
	values := asMap(t, read(t, filepath.Join(chartDir, "values.yaml")))
	const secured = `
kafka: {brokers: [a:9092], existingSecret: a, tls: {enabled: true, clientCertificate: true}, sasl: {mechanism: PLAIN, username: a}}
peer: {existingSecret: b, tokenKey: token, tls: {enabled: true}}
networkPolicy: {enabled: true, egress: {enabled: true}}
persistence: {enabled: true}
staticMembership: true
preflight: {enabled: true}
prometheusRule: {enabled: true}
dashboards: {enabled: true}
`
	refusedOrFine(t, "secured, set by hand", secured+"serviceMonitor: {enabled: true}", pathsOf("", values))
	refusedOrFine(t, "by CPU", "{autoscaling: {enabled: true}, podDisruptionBudget: {minAvailable: 1}}", pathsOf("", map[string]any{
		"autoscaling": values["autoscaling"], "podDisruptionBudget": values["podDisruptionBudget"], "replicaCount": 3,
	}))
	refusedOrFine(t, "by lag", secured+"keda: {enabled: true}\npodMonitor: {enabled: true}\n", pathsOf("", map[string]any{
		"keda": values["keda"], "podMonitor": values["podMonitor"], "kafka": values["kafka"],
	}))
	refusedOrFine(t, "configuration", "{}", []string{"config.group", "config.group.id", "config.kafka.tls", "config.topics.reserved", "config.join.max_waiting"})
}

// refusedOrFine sets each key to null, beside other values.
func refusedOrFine(t *testing.T, name, base string, keys []string) {
	t.Helper()
	path := file(t, "values.yaml", base)
	for _, key := range keys {
		t.Run(name+"/"+key, func(t *testing.T) {
			t.Parallel()
			out, errs, err := template("--values", path, "--set", key+"=null")
			last := key[strings.LastIndex(key, ".")+1:]
			if err != nil {
				if !strings.Contains(errs, last) || strings.Contains(errs, "nil pointer") || strings.Contains(errs, "executing") {
					t.Errorf("the message does not name it: %s", errs)
				}
				return
			}
			for _, nonsense := range []string{"nil>", ": null", "- null"} {
				if strings.Contains(withoutMixin(out), nonsense) {
					t.Errorf("it is rendered as %q:\n%s", nonsense, out)
				}
			}
			objects := decode(t, out)
			if set := only[*apps.StatefulSet](t, objects); set.Spec.Replicas != nil && (*set.Spec.Replicas != 3 || key == "replicaCount") {
				t.Errorf("%d replicas", *set.Spec.Replicas)
			}
			newWorld(t, objects).effective(t, pods(objects)[0])
		})
	}
}

// pathsOf names all values, and all objects of values.
func pathsOf(prefix string, at map[string]any) (paths []string) {
	for key, value := range at {
		paths = append(paths, prefix+key)
		if below, ok := value.(map[string]any); ok {
			paths = append(paths, pathsOf(prefix+key+".", below)...)
		}
	}
	slices.Sort(paths)
	return paths
}
