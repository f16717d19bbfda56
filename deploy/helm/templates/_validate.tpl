{{/*
What the schema cannot say, or not in words that help: values that contradict
each other. Rendering stops at the first.
*/}}
{{- define "joiner.validate" -}}
{{- include "joiner.validate.secrets" . -}}
{{- include "joiner.validate.names" . -}}
{{- include "joiner.validate.env" . -}}
{{- include "joiner.validate.scaling" . -}}
{{- include "joiner.validate.bounds" . -}}
{{- include "joiner.validate.times" . -}}
{{- include "joiner.validate.config" . -}}
{{- include "joiner.validate.state" . -}}
{{- include "joiner.validate.rules" . -}}
{{- include "joiner.validate.kafka" . -}}
{{- include "joiner.validate.peer" . -}}
{{- include "joiner.validate.service" . -}}
{{- include "joiner.validate.idle" . -}}
{{- include "joiner.validate.pod" . -}}
{{- include "joiner.validate.fixed" . -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled: choose one, or every pod is scraped and counted twice" -}}
{{- end -}}
{{- include "joiner.validate.budget" . -}}
{{- end -}}

{{/* The schema would say of them how long they may be. No message holds one. */}}
{{- define "joiner.validate.secrets" -}}
{{- range $path, $named := dict "kafka.sasl.password" "kafka.sasl.existingSecret" "kafka.sasl.client_secret" "kafka.sasl.existingSecret" "peer.token" "peer.existingSecret and peer.tokenKey" -}}
{{- if include "joiner.config.own" (dict "root" $ "path" $path) -}}
{{- fail (printf "config.%s: secrets have no place in values, which Helm keeps: put it into a Secret of yours, and name that by %s" $path $named) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* No budget blocks every drain: whoever wants that can make one by hand, and sees it. */}}
{{- define "joiner.validate.budget" -}}
{{- $budget := .Values.podDisruptionBudget -}}
{{- if and (not (kindIs "invalid" $budget.minAvailable)) (not (kindIs "invalid" $budget.maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and .maxUnavailable: choose one, and set the other to null" -}}
{{- end -}}
{{- $least := include "joiner.leastReplicas" . | int64 -}}
{{- if and $budget.enabled (gt $least 1) -}}
{{- if and (not (kindIs "invalid" $budget.maxUnavailable)) (eq (include "joiner.podsOf" (dict "share" $budget.maxUnavailable "of" $least) | int64) 0) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable: %v would block every drain of a node: write 1 or more" $budget.maxUnavailable) -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $budget.minAvailable)) (ge (include "joiner.podsOf" (dict "share" $budget.minAvailable "of" $least) | int64) $least) -}}
{{- fail (printf "podDisruptionBudget.minAvailable: %s are all of %d replicas, which would block every drain of a node: write less" ($budget.minAvailable | toJson | trimAll "\"") $least) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A number of pods, or a share of them in per cent, which Kubernetes rounds up: (dict "share" SHARE "of" PODS). */}}
{{- define "joiner.podsOf" -}}
{{- if kindIs "string" .share -}}
{{- div (add (mul (trimSuffix "%" .share | float64 | int64) .of) 99) 100 -}}
{{- else -}}
{{- int64 .share -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.names" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "joiner.fullname" .)) -}}
{{- fail (printf "%q can be no Service's name: set fullnameOverride to one of small letters, digits and hyphens that begins with a letter" (include "joiner.fullname" .)) -}}
{{- end -}}
{{- if and (include "joiner.asksKubernetes" .) (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false, and serviceAccount.name is not set: staticMembership would give its right to `default`, the account of every pod of the namespace: name one, or set rbac.create: false" -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.scaling" -}}
{{- $a := .Values.autoscaling -}}
{{- if and $a.enabled .Values.keda.enabled -}}
{{- fail "autoscaling.enabled and keda.enabled: choose one, two autoscalers would pull one StatefulSet to and fro" -}}
{{- end -}}
{{- if and $a.enabled (gt (int64 $a.minReplicas) (int64 $a.maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas (%d) is above autoscaling.maxReplicas (%d)" (int64 $a.minReplicas) (int64 $a.maxReplicas)) -}}
{{- end -}}
{{- if and $a.enabled $a.targetCPUUtilizationPercentage (not (dig "requests" "cpu" "" (default dict .Values.resources))) -}}
{{- fail "autoscaling.targetCPUUtilizationPercentage is a share of resources.requests.cpu, which is not set" -}}
{{- end -}}
{{- if and $a.enabled $a.targetMemoryUtilizationPercentage (not (dig "requests" "memory" "" (default dict .Values.resources))) -}}
{{- fail "autoscaling.targetMemoryUtilizationPercentage is a share of resources.requests.memory, which is not set" -}}
{{- end -}}
{{- if and $a.enabled (not (or $a.targetCPUUtilizationPercentage $a.targetMemoryUtilizationPercentage $a.metrics)) -}}
{{- fail "autoscaling.enabled needs something to scale by: targetCPUUtilizationPercentage, targetMemoryUtilizationPercentage or metrics" -}}
{{- end -}}
{{- $k := .Values.keda -}}
{{- if and $k.enabled (gt (int64 $k.minReplicas) (int64 $k.maxReplicas)) -}}
{{- fail (printf "keda.minReplicas (%d) is above keda.maxReplicas (%d)" (int64 $k.minReplicas) (int64 $k.maxReplicas)) -}}
{{- end -}}
{{- if and $k.enabled .Values.existingConfigMap (not $k.triggers) -}}
{{- fail "keda.enabled with existingConfigMap needs keda.triggers: brokers, topics and group are not known to the chart" -}}
{{- end -}}
{{- if and $k.enabled (not $k.triggers) -}}
{{- if not (include "joiner.brokers" . | fromJsonArray) -}}
{{- fail "keda.enabled needs kafka.brokers, which KEDA asks for the lag" -}}
{{- end -}}
{{- $mechanism := include "joiner.saslMechanism" . -}}
{{- if and $mechanism (not (include "joiner.secret.kafkaSASL" .)) -}}
{{- fail (printf "keda.enabled with %s needs kafka.sasl.existingSecret: KEDA logs in as well, and takes the password from a Secret (or write keda.triggers with an authentication of your own)" $mechanism) -}}
{{- end -}}
{{- if and (include "joiner.config.get" (dict "root" . "path" "kafka.tls.ca_file")) (not (include "joiner.secret.kafkaCA" .)) (not (include "joiner.secret.kafkaTLS" .)) -}}
{{- fail "keda.enabled with config.kafka.tls.ca_file needs kafka.tls.existingSecret or caExistingSecret: KEDA encrypts as well, and takes the authority from a Secret (or write keda.triggers with an authentication of your own)" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.config" -}}
{{- if and .Values.existingConfigMap .Values.config -}}
{{- fail "existingConfigMap and config: choose one, the ConfigMap holds the whole configuration in its key config.yaml" -}}
{{- end -}}
{{- if include "joiner.config.get" (dict "root" . "path" "group.instance_id") -}}
{{- fail "config.group.instance_id would be the same in every pod, and two pods of one id fence each other: set staticMembership: true, which makes the pod's name the id" -}}
{{- end -}}
{{- $advertise := include "joiner.config.own" (dict "root" . "path" "peer.advertise") -}}
{{- if and $advertise (not (contains "$(POD_NAME)" $advertise)) -}}
{{- fail (printf "config.peer.advertise: %q would be every pod's address, and look-ups would go to whoever answers there: put $(POD_NAME) in, or leave it out" $advertise) -}}
{{- end -}}
{{- $_ := include "joiner.gracePeriod" . -}}
{{- $_ := include "joiner.port.http" . -}}
{{- if eq (include "joiner.port.http" .) (include "joiner.port.peer" .) -}}
{{- fail (printf "config.http.listen and config.peer.listen: both are port %s" (include "joiner.port.http" .)) -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.kafka" -}}
{{- range include "joiner.brokers" . | fromJsonArray -}}
{{- if not (regexMatch "^[^\\s,/]+:[0-9]{1,5}$" .) -}}
{{- fail (printf "kafka.brokers: %q is not host:port" .) -}}
{{- end -}}
{{- end -}}
{{- $tls := .Values.kafka.tls -}}
{{- if and (not (include "joiner.on.kafkaTLS" .)) (or $tls.existingSecret $tls.caExistingSecret $tls.clientCertificate $tls.serverName $tls.insecureSkipVerify) -}}
{{- fail "kafka.tls.enabled is false, and kafka.tls names a secret, a certificate or what is expected of one: connections would not be encrypted" -}}
{{- end -}}
{{- if and $tls.caExistingSecret (not $tls.caKey) -}}
{{- fail "kafka.tls.caExistingSecret needs kafka.tls.caKey, the key of the authority's certificate: without it the authorities of the system are trusted" -}}
{{- end -}}
{{- if and $tls.existingSecret (not (include "joiner.mounts.kafkaTLS" .)) -}}
{{- fail "kafka.tls.existingSecret would be used for nothing: set kafka.tls.clientCertificate where it holds the client's certificate, or kafka.tls.caKey where it holds the authority" -}}
{{- end -}}
{{- if and $tls.clientCertificate (not (include "joiner.secret.kafkaTLS" .)) -}}
{{- fail "kafka.tls.clientCertificate needs kafka.tls.existingSecret, which holds the certificate and its key" -}}
{{- end -}}
{{- $sasl := .Values.kafka.sasl -}}
{{- $mechanism := include "joiner.saslMechanism" . -}}
{{- $secret := include "joiner.secret.kafkaSASL" . -}}
{{- if not $mechanism -}}
{{- range list "existingSecret" "username" "usernameKey" "tokenUrl" "clientId" "scopes" -}}
{{- if get $sasl . -}}
{{- fail (printf "kafka.sasl.%s is set, and kafka.sasl.mechanism is not: nobody would log in" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range (eq $mechanism "OAUTHBEARER" | ternary (list "username") (list "tokenUrl" "clientId" "scopes")) -}}
{{- if get $sasl . -}}
{{- fail (printf "kafka.sasl.%s has no meaning under %s: leave it out" . $mechanism) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.kafka.existingSecret (not (include "joiner.usesKafkaSecret" .)) -}}
{{- fail "kafka.existingSecret would be used for nothing: set kafka.tls.enabled or kafka.sasl.mechanism, which take their files from it unless they name a secret of their own" -}}
{{- end -}}
{{- if and $sasl.mechanism (not $secret) -}}
{{- fail (printf "kafka.sasl.mechanism: %s needs kafka.sasl.existingSecret, which holds the password or client secret" $sasl.mechanism) -}}
{{- end -}}
{{- if and $sasl.usernameKey (not $secret) -}}
{{- fail "kafka.sasl.usernameKey needs kafka.sasl.existingSecret" -}}
{{- end -}}
{{- if and $sasl.usernameKey (or $sasl.username $sasl.clientId) -}}
{{- fail "kafka.sasl.usernameKey and kafka.sasl.username (or clientId): choose one" -}}
{{- end -}}
{{- if and $sasl.mechanism (ne $mechanism "OAUTHBEARER") (not $sasl.usernameKey) (not $sasl.username) (not (include "joiner.config.get" (dict "root" . "path" "kafka.sasl.username"))) -}}
{{- fail (printf "kafka.sasl.mechanism: %s needs kafka.sasl.username, or kafka.sasl.usernameKey" $mechanism) -}}
{{- end -}}
{{- if eq $sasl.mechanism "OAUTHBEARER" -}}
{{- if not (or $sasl.tokenUrl (include "joiner.config.get" (dict "root" . "path" "kafka.sasl.token_url"))) -}}
{{- fail "kafka.sasl.mechanism: OAUTHBEARER needs kafka.sasl.tokenUrl" -}}
{{- end -}}
{{- if not (or $sasl.clientId $sasl.usernameKey (include "joiner.config.get" (dict "root" . "path" "kafka.sasl.client_id"))) -}}
{{- fail "kafka.sasl.mechanism: OAUTHBEARER needs kafka.sasl.clientId, or kafka.sasl.usernameKey" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether anybody takes something from the Secret for both TLS and SASL: "true" or "". */}}
{{- define "joiner.usesKafkaSecret" -}}
{{- $tls := and (not .Values.kafka.tls.existingSecret) (include "joiner.mounts.kafkaTLS" .) -}}
{{- $sasl := and (not .Values.kafka.sasl.existingSecret) (include "joiner.mounts.kafkaSASL" .) -}}
{{- if or $tls $sasl -}}true{{- end -}}
{{- end -}}

{{/* What the API server would refuse when half of the objects are there. */}}
{{- define "joiner.validate.service" -}}
{{- $s := .Values.service -}}
{{- if and (eq $s.type "ClusterIP") $s.nodePort -}}
{{- fail "service.nodePort: a Service of type ClusterIP has none: set service.type" -}}
{{- end -}}
{{- if and (eq $s.type "ClusterIP") $s.externalTrafficPolicy -}}
{{- fail "service.externalTrafficPolicy: nothing from outside comes to a Service of type ClusterIP: set service.type" -}}
{{- end -}}
{{- if and (ne $s.type "LoadBalancer") (or $s.loadBalancerClass $s.loadBalancerSourceRanges) -}}
{{- fail (printf "service.%s: only a Service of type LoadBalancer has a load balancer: set service.type" (empty $s.loadBalancerClass | ternary "loadBalancerSourceRanges" "loadBalancerClass")) -}}
{{- end -}}
{{- if and (ne $s.type "ClusterIP") (eq (toString $s.clusterIP) "None") -}}
{{- fail (printf "service.clusterIP: a Service of type %s needs an address: leave None out" $s.type) -}}
{{- end -}}
{{- end -}}

{{/* What stands beside what the chart puts into pods, and takes its place. */}}
{{- define "joiner.validate.pod" -}}
{{- $root := . -}}
{{- range .Values.extraVolumes -}}
{{- if has (tpl (toString .name) $root) (list "config" "kafka-tls" "kafka-ca" "kafka-sasl" "peer" "state" "kubernetes") -}}
{{- fail (printf "extraVolumes: %s is a volume of the chart's own: choose another name" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if has (clean (tpl (toString .mountPath) $root)) (list (include "joiner.dir.config" $root) (include "joiner.dir.kafkaTLS" $root) (include "joiner.dir.kafkaCA" $root) (include "joiner.dir.kafkaSASL" $root) (include "joiner.dir.peer" $root) (include "joiner.dir.account" $root)) -}}
{{- fail (printf "extraVolumeMounts: the chart mounts a volume of its own at %s: choose another place" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- range concat (default list .Values.initContainers) (default list .Values.extraContainers) -}}
{{- if eq (tpl (toString .name) $root) "joiner" -}}
{{- fail "extraContainers, initContainers: joiner is the chart's own container: choose another name" -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString .Values.dnsPolicy) "None") (not (dig "nameservers" list (default dict .Values.dnsConfig))) -}}
{{- fail "dnsPolicy: None needs dnsConfig.nameservers" -}}
{{- end -}}
{{- if and (eq (toString (default dict .Values.updateStrategy).type) "OnDelete") .Values.updateStrategy.rollingUpdate -}}
{{- fail "updateStrategy.rollingUpdate has no meaning under OnDelete: leave it out" -}}
{{- end -}}
{{- $timeout := include "joiner.nanoseconds" .Values.preflight.timeout | int64 -}}
{{- if or (le $timeout 0) (ge $timeout (mul 1000000000 (int64 .Values.preflight.activeDeadlineSeconds))) -}}
{{- fail (printf "preflight.timeout: %s is not between 0s and preflight.activeDeadlineSeconds (%d), after which nothing is left to say what was found" .Values.preflight.timeout (int64 .Values.preflight.activeDeadlineSeconds)) -}}
{{- end -}}
{{- end -}}

{{/*
What of a StatefulSet that is there cannot be changed. The API server would refuse
it, too, but after the ConfigMap has been changed. Without a cluster to ask
nothing is known of it.
*/}}
{{- define "joiner.validate.fixed" -}}
{{- with include "joiner.live" . | fromJson -}}
{{- $is := include "joiner.fixed.live" . | fromJson -}}
{{- $wants := include "joiner.fixed.wanted" $ | fromJson -}}
{{- range $what := list "nameOverride" "podManagementPolicy" "persistence.enabled" "persistence.size" "persistence.storageClass" "persistence.accessModes" "persistence.annotations" -}}
{{- if and (hasKey $wants $what) (ne (toJson (get $is $what)) (toJson (get $wants $what))) -}}
{{- fail (printf "%s cannot be changed in a StatefulSet that is there (it has %s, and %s is asked for): leave it, or delete the StatefulSet first (README.md of the chart, Volumes)" $what (toJson (get $is $what)) (toJson (get $wants $what))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "joiner.fixed.live" -}}
{{- $out := dict "podManagementPolicy" (dig "spec" "podManagementPolicy" "OrderedReady" .) "nameOverride" (dig "spec" "selector" "matchLabels" dict .) -}}
{{- $claims := dig "spec" "volumeClaimTemplates" list . | default list -}}
{{- $_ := set $out "persistence.enabled" (not (empty $claims)) -}}
{{- range $claims -}}
{{- $_ := set $out "persistence.size" (dig "spec" "resources" "requests" "storage" "" . | include "joiner.bytes") -}}
{{- $_ := set $out "persistence.accessModes" (dig "spec" "accessModes" list .) -}}
{{- $_ := set $out "persistence.storageClass" (hasKey .spec "storageClassName" | ternary (dig "spec" "storageClassName" "" . | default "-") "") -}}
{{- $_ := set $out "persistence.annotations" (dig "metadata" "annotations" dict . | default dict) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "joiner.fixed.wanted" -}}
{{- $out := dict "podManagementPolicy" .Values.podManagementPolicy "nameOverride" (include "joiner.selectorLabels" . | fromYaml) -}}
{{- with .Values.persistence -}}
{{- $_ := set $out "persistence.enabled" (not (empty .enabled)) -}}
{{- if .enabled -}}
{{- $_ := set $out "persistence.size" (include "joiner.bytes" .size) -}}
{{- $_ := set $out "persistence.accessModes" .accessModes -}}
{{- $_ := set $out "persistence.storageClass" (default "" .storageClass) -}}
{{- $_ := set $out "persistence.annotations" (default dict .annotations) -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* What would be taken and do nothing. */}}
{{- define "joiner.validate.idle" -}}
{{- if and .Values.networkPolicy.egress.enabled (not .Values.networkPolicy.enabled) -}}
{{- fail "networkPolicy.egress.enabled is set, and networkPolicy.enabled is not: nothing would be held back" -}}
{{- end -}}
{{- if and .Values.networkPolicy.egress.enabled (not (include "joiner.brokers" . | fromJsonArray)) -}}
{{- fail "networkPolicy.egress.enabled needs kafka.brokers, whose ports are let through (they may stand beside existingConfigMap, and win over it)" -}}
{{- end -}}
{{- if and .Values.serviceAccount.annotations (not .Values.serviceAccount.create) -}}
{{- fail "serviceAccount.annotations are for an account that the chart makes, and serviceAccount.create is false: put them on the account" -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.peer" -}}
{{- $peer := .Values.peer -}}
{{- if and $peer.existingSecret $peer.tls.existingSecret (not $peer.tokenKey) -}}
{{- fail "peer.existingSecret would be used for nothing: peer.tls.existingSecret has the certificate, and peer.tokenKey is not set" -}}
{{- end -}}
{{- if and $peer.tls.enabled (not (include "joiner.secret.peer" .)) (not (include "joiner.config.get" (dict "root" . "path" "peer.tls.cert_file"))) -}}
{{- fail "peer.tls.enabled needs peer.existingSecret, which holds the pods' certificate, its key and their authority" -}}
{{- end -}}
{{- if and (not (include "joiner.on.peerTLS" .)) (or $peer.existingSecret $peer.tls.existingSecret $peer.tokenKey) -}}
{{- fail "peer.tls.enabled is false, and peer names a secret or a token: pods would talk in the clear" -}}
{{- end -}}
{{- if and $peer.tokenKey (not (include "joiner.secret.peerToken" .)) -}}
{{- fail "peer.tokenKey needs peer.existingSecret, which holds the token" -}}
{{- end -}}
{{- end -}}

{{/*
Numbers and durations that joiner would refuse at its start, pod after pod: as
in its own table of bounds, which a test compares with this one.
*/}}
{{- define "joiner.bounds" -}}
- {key: kafka.metadata_refresh, least: 100ms}
- {key: topics.replication_factor, least: -1, most: 32767, but: 0}
- {key: group.heartbeat_interval, least: 1ms, most: 2147483647ms}
- {key: group.session_timeout, least: 3ms, most: 2147483647ms}
- {key: group.rebalance_timeout, least: 2ms, most: 2147483647ms}
- {key: group.stall_timeout, least: 3s}
- {key: join.wait, least: 0s}
- {key: join.max_waiting, least: 0}
- {key: join.history, least: 0s}
- {key: join.max_idle, least: 0s}
- {key: join.remote_timeout, least: 1ms}
- {key: join.remote_patience, least: 0s}
- {key: delivery.commit_interval, least: 10ms}
- {key: delivery.linger, least: 0s}
- {key: delivery.max_message_bytes, least: 0, most: 104857600}
- {key: state.checkpoint_interval, least: 100ms}
- {key: shutdown.timeout, least: 1ms}
{{- end -}}

{{/* A number, or a duration in nanoseconds, as a text of digits. */}}
{{- define "joiner.amount" -}}
{{- if and (kindIs "string" .) (not (regexMatch "^-?[0-9]+$" .)) -}}
{{- include "joiner.nanoseconds" . -}}
{{- else -}}
{{- int64 . -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.bounds" -}}
{{- $config := include "joiner.config" . | fromYaml -}}
{{- range $bound := include "joiner.bounds" . | fromYamlArray -}}
{{- $path := splitList "." $bound.key -}}
{{- $said := include "joiner.extraEnv" (dict "root" $ "path" $bound.key) | fromJson -}}
{{- $value := $said.value -}}
{{- if and $said.value (not (regexMatch "^[+-]?([0-9]+|([0-9]+(\\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$" $said.value)) -}}
{{- fail (printf "extraEnv: JOINER_%s: %q is neither a number nor a duration such as 10s" ($bound.key | replace "." "_" | upper) $said.value) -}}
{{- end -}}
{{- if not $said.set -}}{{- $value = dig (index $path 0) (index $path 1) "" $config -}}{{- end -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- $amount := include "joiner.amount" $value | int64 -}}
{{- $shown := toJson $value | trimAll "\"" -}}
{{- if lt $amount (include "joiner.amount" $bound.least | int64) -}}
{{- fail (printf "config.%s: %v is too little, and joiner would not start: write %v or more" $bound.key $shown $bound.least) -}}
{{- end -}}
{{- if and (hasKey $bound "most") (gt $amount (include "joiner.amount" (default 0 $bound.most) | int64)) -}}
{{- fail (printf "config.%s: %v is too much, and joiner would not start: write %s or less" $bound.key $shown (toJson $bound.most | trimAll "\"")) -}}
{{- end -}}
{{- if and (hasKey $bound "but") (eq $amount (int64 $bound.but)) -}}
{{- fail (printf "config.%s: %v is not possible, and joiner would not start: write 1 or more, or -1 for the broker's default" $bound.key $shown) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
One duration with joiner's default: (dict "root" $ "config" CONFIG "path" PATH
"default" DURATION). Empty where extraEnv has it, and not its value.
*/}}
{{- define "joiner.time" -}}
{{- $path := splitList "." .path -}}
{{- $said := include "joiner.extraEnv" . | fromJson -}}
{{- if $said.set -}}
{{- $said.value -}}
{{- else -}}
{{- dig (index $path 0) (index $path 1) "" .config | default .default -}}
{{- end -}}
{{- end -}}

{{/* Durations that have to fit each other. */}}
{{- define "joiner.validate.times" -}}
{{- $config := include "joiner.config" . | fromYaml -}}
{{- $heartbeat := include "joiner.time" (dict "root" . "config" $config "path" "group.heartbeat_interval" "default" "500ms") -}}
{{- $session := include "joiner.time" (dict "root" . "config" $config "path" "group.session_timeout" "default" "10s") -}}
{{- $rebalance := include "joiner.time" (dict "root" . "config" $config "path" "group.rebalance_timeout" "default" "30s") -}}
{{- $remote := include "joiner.time" (dict "root" . "config" $config "path" "join.remote_timeout" "default" "200ms") -}}
{{- $patience := include "joiner.time" (dict "root" . "config" $config "path" "join.remote_patience" "default" "30s") -}}
{{- $ns := dict -}}
{{- range $name, $time := dict "heartbeat" $heartbeat "session" $session "rebalance" $rebalance "remote" $remote "patience" $patience -}}
{{- if $time -}}{{- $_ := set $ns $name (include "joiner.nanoseconds" $time | int64) -}}{{- end -}}
{{- end -}}
{{- if and $heartbeat $session (lt (int64 $ns.session) (mul 3 (int64 $ns.heartbeat))) -}}
{{- fail (printf "config.group.session_timeout: %s is less than three heartbeats (group.heartbeat_interval %s), and joiner would not start: one lost heartbeat must not cost the partitions" $session $heartbeat) -}}
{{- end -}}
{{- if and $heartbeat $rebalance (le (int64 $ns.rebalance) (int64 $ns.heartbeat)) -}}
{{- fail (printf "config.group.rebalance_timeout: %s is not longer than a heartbeat (group.heartbeat_interval %s), and joiner would not start" $rebalance $heartbeat) -}}
{{- end -}}
{{- if and $remote $session (ge (int64 $ns.remote) (int64 $ns.session)) -}}
{{- fail (printf "config.join.remote_timeout: %s is not less than group.session_timeout (%s), and joiner would not start" $remote $session) -}}
{{- end -}}
{{- if and $remote $patience (gt (int64 $ns.patience) 0) (lt (int64 $ns.patience) (int64 $ns.remote)) -}}
{{- fail (printf "config.join.remote_patience: %s is less than one attempt (join.remote_timeout %s), and joiner would not start" $patience $remote) -}}
{{- end -}}
{{- end -}}

{{/* state.dir is where a volume is mounted, so it must be nobody else's place. */}}
{{- define "joiner.validate.state" -}}
{{- if and .Values.persistence.retain (not .Values.persistence.enabled) -}}
{{- fail "persistence.retain is set, and persistence.enabled is not: there are no claims that could stay" -}}
{{- end -}}
{{- $given := include "joiner.config.get" (dict "root" . "path" "state.dir") -}}
{{- if $given -}}
{{- if not (regexMatch "^/[^:]*$" $given) -}}
{{- fail (printf "config.state.dir: %q is no place to mount a volume at: write a whole path without a colon, such as %s" $given (include "joiner.dir.state" .)) -}}
{{- end -}}
{{- $dir := clean $given -}}
{{- if regexMatch "^/((bin|boot|dev|etc|joiner|lib|lib32|lib64|proc|root|sbin|sys|usr)(/.*)?)?$" $dir -}}
{{- fail (printf "config.state.dir: a volume is mounted there, and %q belongs to the system or the image: write for example %s" $given (include "joiner.dir.state" .)) -}}
{{- end -}}
{{- range list (include "joiner.dir.config" .) (include "joiner.dir.kafkaTLS" .) (include "joiner.dir.kafkaCA" .) (include "joiner.dir.kafkaSASL" .) (include "joiner.dir.peer" .) "/var/run/secrets" -}}
{{- if or (hasPrefix (printf "%s/" .) (printf "%s/" $dir)) (hasPrefix (printf "%s/" $dir) (printf "%s/" .)) -}}
{{- fail (printf "config.state.dir: a volume is mounted there, and %q is in the way of %s, where the chart mounts another" $given .) -}}
{{- end -}}
{{- end -}}
{{- $root := . -}}
{{- range .Values.extraVolumeMounts -}}
{{- if eq $dir (clean (tpl (toString .mountPath) $root)) -}}
{{- fail (printf "config.state.dir: the chart mounts a volume at %q, and extraVolumeMounts another: leave that one out, or choose another directory" $given) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every key of the configuration; a test compares the list with joiner's own. */}}
{{- define "joiner.keys" -}}
delivery.commit_interval delivery.compression delivery.guarantee delivery.linger delivery.max_message_bytes
delivery.transactional_id_prefix group.heartbeat_interval group.id group.instance_id group.leave
group.rebalance_timeout group.session_timeout group.stall_timeout group.strategy group.upgrade_from
http.listen http.pprof_listen join.history join.max_idle join.max_waiting join.on_miss join.on_unavailable
join.remote_lookup join.remote_patience join.remote_timeout join.wait kafka.brokers kafka.client_id
kafka.isolation_level kafka.metadata_refresh kafka.rack kafka.sasl.client_id kafka.sasl.client_secret
kafka.sasl.client_secret_file kafka.sasl.mechanism kafka.sasl.password kafka.sasl.password_file
kafka.sasl.scopes kafka.sasl.token_url kafka.sasl.username kafka.tls.ca_file kafka.tls.cert_file
kafka.tls.enabled kafka.tls.insecure_skip_verify kafka.tls.key_file kafka.tls.server_name kafka.version
log.format log.level market.event_time market.event_time_unit market.price market.symbol
notification.event_time notification.event_time_unit notification.start notification.symbol peer.advertise
peer.allowed_names peer.listen peer.tls.ca_file peer.tls.cert_file peer.tls.client_auth peer.tls.enabled
peer.tls.key_file peer.token peer.token_file shutdown.timeout state.checkpoint_interval state.dir
topics.create topics.dead_letters topics.enriched_alerts topics.market_updates
topics.market_updates_partitioner topics.notifications topics.notifications_partitioner topics.partitioner
topics.replication_factor topics.reserved
{{- end -}}

{{/*
A variable that is misspelled would be ignored, but for a line in the log.
Variables that Kubernetes makes of a Service named joiner are nobody's mistake.
*/}}
{{- define "joiner.validate.envNames" -}}
{{- $known := regexSplit "\\s+" (include "joiner.keys" . | replace "." "_" | upper) -1 -}}
{{- range include "joiner.extraEnvNames" . | fromJsonArray -}}
{{- if and (hasPrefix "JOINER_" .) (not (has (trimPrefix "JOINER_" .) $known)) (not (regexMatch "_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$" .)) -}}
{{- fail (printf "extraEnv: %s names no key of the configuration, and joiner would ignore it: JOINER_ and the key's path in capitals, such as JOINER_KAFKA_RACK for config.kafka.rack" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.env" -}}
{{- include "joiner.validate.envNames" . -}}
{{- $names := include "joiner.extraEnvNames" . | fromJsonArray -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- fail "extraEnv: a name is there twice, and only the last of them counts" -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if eq (toString .name) "POD_NAME" -}}
{{- fail "extraEnv: POD_NAME is the chart's own, the pod's name" -}}
{{- end -}}
{{- if and (eq (toString .name) "JOINER_PEER_ADVERTISE") .value (not (contains "$(" .value)) -}}
{{- fail "extraEnv: JOINER_PEER_ADVERTISE would be every pod's address, and look-ups would go to whoever answers there: put $(POD_NAME) in, or leave it out" -}}
{{- end -}}
{{- if eq (toString .name) "JOINER_GROUP_INSTANCE_ID" -}}
{{- if $.Values.staticMembership -}}
{{- fail "extraEnv: JOINER_GROUP_INSTANCE_ID is what staticMembership sets, to the pod's name: choose one" -}}
{{- end -}}
{{- if and .value (not (contains "$(" .value)) -}}
{{- fail "extraEnv: JOINER_GROUP_INSTANCE_ID would be the same in every pod, and two pods of one id fence each other: set staticMembership: true, which makes the pod's name the id" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An alert that is misspelled would go on firing. */}}
{{- define "joiner.validate.rules" -}}
{{- if .Values.prometheusRule.disabled -}}
{{- $alerts := list -}}
{{- range (.Files.Get "mixin/rules/joiner.yaml" | fromYaml).groups -}}
{{- range .rules -}}
{{- with get . "alert" -}}{{- $alerts = append $alerts . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.prometheusRule.disabled -}}
{{- if not (has . $alerts) -}}
{{- fail (printf "prometheusRule.disabled: there is no alert %q: those there are: %s" . (join ", " ($alerts | uniq | sortAlpha))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
