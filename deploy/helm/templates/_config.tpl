{{/*
The configuration, and what follows from it.

What joiner reads is `config` with what the chart knows better: dedicated values
(kafka, peer, persistence) win over `config`, which wins over the release's name
as the group's. Where a ConfigMap of one's own is used, its content is not known
here: then the dedicated values reach joiner through its environment.
*/}}

{{/* Where the pieces lie in the container. */}}
{{- define "joiner.dir.config" -}}/etc/joiner{{- end -}}
{{- define "joiner.dir.kafkaTLS" -}}/var/run/joiner/kafka-tls{{- end -}}
{{- define "joiner.dir.kafkaCA" -}}/var/run/joiner/kafka-ca{{- end -}}
{{- define "joiner.dir.kafkaSASL" -}}/var/run/joiner/kafka-sasl{{- end -}}
{{- define "joiner.dir.peer" -}}/var/run/joiner/peer{{- end -}}
{{- define "joiner.dir.account" -}}/var/run/secrets/kubernetes.io/serviceaccount{{- end -}}
{{- define "joiner.dir.state" -}}/var/lib/joiner{{- end -}}

{{/*
What extraEnv says of a key of the configuration, in JSON: whether it is `set`
there, and its `value` where that is known here, which it is not out of a Secret
or put together from other variables. (dict "root" $ "path" PATH)
*/}}
{{- define "joiner.extraEnv" -}}
{{- $name := printf "JOINER_%s" (.path | replace "." "_" | upper) -}}
{{- $root := .root -}}
{{- $said := dict "set" false "value" "" -}}
{{- range .root.Values.extraEnv -}}
{{- if eq (toString .name) $name -}}
{{- $value := tpl (toString (default "" .value)) $root -}}
{{- $said = dict "set" (not (empty (or $value .valueFrom))) "value" (contains "$(" $value | ternary "" $value) -}}
{{- end -}}
{{- end -}}
{{- toJson $said -}}
{{- end -}}

{{/* One key of `config`, or of extraEnv, which wins over it, as text: (dict "root" $ "path" "kafka.tls.enabled"). */}}
{{- define "joiner.config.get" -}}
{{- $said := include "joiner.extraEnv" . | fromJson -}}
{{- $said.value | default (include "joiner.config.own" .) -}}
{{- end -}}
{{- define "joiner.config.own" -}}
{{- $at := default dict .root.Values.config -}}
{{- range splitList "." .path -}}
{{- $at = (kindIs "map" $at | ternary (get (kindIs "map" $at | ternary $at dict) .) "") -}}
{{- end -}}
{{- if not (kindIs "invalid" $at) -}}{{- toString $at -}}{{- end -}}
{{- end -}}

{{/* The names of secrets, empty where there is none. */}}
{{- define "joiner.secret.kafkaTLS" -}}
{{- tpl (.Values.kafka.tls.existingSecret | default .Values.kafka.existingSecret | default "") . -}}
{{- end -}}
{{- define "joiner.secret.kafkaCA" -}}
{{- tpl (.Values.kafka.tls.caExistingSecret | default "") . -}}
{{- end -}}
{{- define "joiner.secret.kafkaSASL" -}}
{{- tpl (.Values.kafka.sasl.existingSecret | default .Values.kafka.existingSecret | default "") . -}}
{{- end -}}
{{- define "joiner.secret.peer" -}}
{{- tpl (.Values.peer.tls.existingSecret | default .Values.peer.existingSecret | default "") . -}}
{{- end -}}
{{- define "joiner.secret.peerToken" -}}
{{- tpl (.Values.peer.existingSecret | default .Values.peer.tls.existingSecret | default "") . -}}
{{- end -}}

{{/* What is in effect, by the dedicated value or by `config`: "true" or "". */}}
{{- define "joiner.on.kafkaTLS" -}}
{{- if or .Values.kafka.tls.enabled (eq (include "joiner.config.get" (dict "root" . "path" "kafka.tls.enabled")) "true") -}}true{{- end -}}
{{- end -}}
{{- define "joiner.on.peerTLS" -}}
{{- if or .Values.peer.tls.enabled (eq (include "joiner.config.get" (dict "root" . "path" "peer.tls.enabled")) "true") -}}true{{- end -}}
{{- end -}}
{{- define "joiner.saslMechanism" -}}
{{- .Values.kafka.sasl.mechanism | default (include "joiner.config.get" (dict "root" . "path" "kafka.sasl.mechanism")) -}}
{{- end -}}

{{/*
Where checkpoints are kept: a directory below the volume's own, since a new
volume may hold a lost+found. Empty without a volume and without state.dir.
*/}}
{{- define "joiner.stateDir" -}}
{{- $dir := include "joiner.config.get" (dict "root" . "path" "state.dir") -}}
{{- if $dir -}}
{{- $dir -}}
{{- else if .Values.persistence.enabled -}}
{{- include "joiner.dir.state" . }}/checkpoints
{{- end -}}
{{- end -}}
{{/* Where the volume is mounted: a directory of one's own choice is the volume itself. */}}
{{- define "joiner.stateMount" -}}
{{- include "joiner.config.get" (dict "root" . "path" "state.dir") | default (include "joiner.dir.state" .) -}}
{{- end -}}

{{/* Brokers as a list, also where --set gave them as one text. */}}
{{- define "joiner.brokers" -}}
{{- $said := include "joiner.extraEnv" (dict "root" . "path" "kafka.brokers") | fromJson -}}
{{- $brokers := $said.value | default .Values.kafka.brokers | default (default dict (default dict .Values.config).kafka).brokers | default list -}}
{{- if kindIs "string" $brokers -}}
{{- $brokers = splitList "," $brokers -}}
{{- end -}}
{{- $out := list -}}
{{- range $brokers -}}
{{- $out = append $out (tpl (toString .) $ | trim) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* What the dedicated values say, as nested JSON in the configuration's form. */}}
{{- define "joiner.derived" -}}
{{- $kafka := dict -}}
{{- if .Values.kafka.brokers -}}
{{- $_ := set $kafka "brokers" (include "joiner.brokers" . | fromJsonArray) -}}
{{- end -}}
{{- with include "joiner.derived.kafkaTLS" . | fromJson -}}{{- $_ := set $kafka "tls" . -}}{{- end -}}
{{- with include "joiner.derived.kafkaSASL" . | fromJson -}}{{- $_ := set $kafka "sasl" . -}}{{- end -}}
{{- $out := dict -}}
{{- with $kafka -}}{{- $_ := set $out "kafka" . -}}{{- end -}}
{{- with include "joiner.derived.peer" . | fromJson -}}{{- $_ := set $out "peer" . -}}{{- end -}}
{{- if .Values.persistence.enabled -}}
{{- $_ := set $out "state" (dict "dir" (include "joiner.stateDir" .)) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "joiner.derived.kafkaTLS" -}}
{{- $v := .Values.kafka.tls -}}
{{- $out := dict -}}
{{- if $v.enabled -}}{{- $_ := set $out "enabled" true -}}{{- end -}}
{{- if include "joiner.on.kafkaTLS" . -}}
{{- if and (include "joiner.secret.kafkaCA" .) $v.caKey -}}
{{- $_ := set $out "ca_file" (printf "%s/%s" (include "joiner.dir.kafkaCA" .) $v.caKey) -}}
{{- else if and (include "joiner.secret.kafkaTLS" .) $v.caKey -}}
{{- $_ := set $out "ca_file" (printf "%s/%s" (include "joiner.dir.kafkaTLS" .) $v.caKey) -}}
{{- end -}}
{{- if $v.clientCertificate -}}
{{- $_ := set $out "cert_file" (printf "%s/%s" (include "joiner.dir.kafkaTLS" .) $v.certKey) -}}
{{- $_ := set $out "key_file" (printf "%s/%s" (include "joiner.dir.kafkaTLS" .) $v.keyKey) -}}
{{- end -}}
{{- with $v.serverName -}}{{- $_ := set $out "server_name" . -}}{{- end -}}
{{- if $v.insecureSkipVerify -}}{{- $_ := set $out "insecure_skip_verify" true -}}{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "joiner.derived.kafkaSASL" -}}
{{- $v := .Values.kafka.sasl -}}
{{- $mechanism := include "joiner.saslMechanism" . -}}
{{- $secret := include "joiner.secret.kafkaSASL" . -}}
{{- $out := dict -}}
{{- with $v.mechanism -}}{{- $_ := set $out "mechanism" . -}}{{- end -}}
{{- with $v.username -}}{{- $_ := set $out "username" . -}}{{- end -}}
{{- with $v.tokenUrl -}}{{- $_ := set $out "token_url" . -}}{{- end -}}
{{- with $v.clientId -}}{{- $_ := set $out "client_id" . -}}{{- end -}}
{{- with $v.scopes -}}{{- $_ := set $out "scopes" . -}}{{- end -}}
{{- if and $secret (eq $mechanism "OAUTHBEARER") -}}
{{- $_ := set $out "client_secret_file" (printf "%s/%s" (include "joiner.dir.kafkaSASL" .) $v.clientSecretKey) -}}
{{- else if and $secret $mechanism -}}
{{- $_ := set $out "password_file" (printf "%s/%s" (include "joiner.dir.kafkaSASL" .) $v.passwordKey) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "joiner.derived.peer" -}}
{{- $v := .Values.peer -}}
{{- $out := dict -}}
{{- if include "joiner.on.peerTLS" . -}}
{{- $tls := dict -}}
{{- if $v.tls.enabled -}}
{{- $_ := set $tls "enabled" true -}}
{{- $_ := set $tls "client_auth" $v.tls.clientAuth -}}
{{- end -}}
{{- if include "joiner.secret.peer" . -}}
{{- $dir := include "joiner.dir.peer" . -}}
{{- $_ := set $tls "ca_file" (printf "%s/%s" $dir $v.tls.caKey) -}}
{{- $_ := set $tls "cert_file" (printf "%s/%s" $dir $v.tls.certKey) -}}
{{- $_ := set $tls "key_file" (printf "%s/%s" $dir $v.tls.keyKey) -}}
{{- end -}}
{{- with $tls -}}{{- $_ := set $out "tls" . -}}{{- end -}}
{{- end -}}
{{- if $v.tokenKey -}}
{{- $_ := set $out "token_file" (printf "%s/%s" (include "joiner.dir.peer" .) $v.tokenKey) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* Lays the second of two nested dicts over the first: (list BASE TOP). JSON. */}}
{{- define "joiner.overlay" -}}
{{- $out := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- $old := get $out $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- $_ := set $out $key (include "joiner.overlay" (list $old $value) | fromJson) -}}
{{- else -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/*
config.yaml. Numbers go through toYaml alone, which writes 1048576 whether it
came from a file, where Helm makes a floating-point number of it, or by --set.
*/}}
{{- define "joiner.config" -}}
{{- $config := include "joiner.overlay" (list (default dict .Values.config) (include "joiner.derived" . | fromJson)) | fromJson -}}
{{- $group := default dict (get $config "group") -}}
{{- if not (hasKey $group "id") -}}
{{- $_ := set $group "id" (include "joiner.fullname" .) -}}
{{- end -}}
{{- if and .Values.staticMembership (not (get $group "session_timeout")) -}}
{{- $_ := set $group "session_timeout" (include "joiner.staticSession" .) -}}
{{- end -}}
{{- $_ := set $config "group" $group -}}
{{- toYaml $config -}}
{{- end -}}

{{/*
What a static member gets to come back in: joiner's own default is about a
member that died, and a pod that is replaced takes longer than that.
*/}}
{{- define "joiner.staticSession" -}}45s{{- end -}}

{{/* The ConfigMap that pods mount. */}}
{{- define "joiner.configMapName" -}}
{{- if .Values.existingConfigMap -}}
{{- tpl .Values.existingConfigMap . -}}
{{- else -}}
{{- include "joiner.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* A port out of an address to listen on: (dict "root" $ "path" PATH "default" ADDRESS). */}}
{{- define "joiner.port" -}}
{{- $said := include "joiner.extraEnv" . | fromJson -}}
{{- if and $said.set (not $said.value) -}}
{{- fail (printf "extraEnv: the port of JOINER_%s has to be known here, for Services and probes: write its value" (.path | replace "." "_" | upper)) -}}
{{- end -}}
{{- $address := include "joiner.config.get" . | default .default -}}
{{- $port := regexFind "[0-9]+$" $address -}}
{{- if or (not $port) (eq (int $port) 0) -}}
{{- fail (printf "config.%s: %q has no port that others could know" .path $address) -}}
{{- end -}}
{{- if regexMatch "^(localhost|127\\.[0-9.]+|\\[::1\\]):" $address -}}
{{- fail (printf "config.%s: %q is reached from inside the pod alone: write :%s" .path $address $port) -}}
{{- end -}}
{{- $port -}}
{{- end -}}
{{- define "joiner.port.http" -}}
{{- include "joiner.port" (dict "root" . "path" "http.listen" "default" ":8080") -}}
{{- end -}}
{{- define "joiner.port.peer" -}}
{{- include "joiner.port" (dict "root" . "path" "peer.listen" "default" ":8081") -}}
{{- end -}}

{{- define "joiner.groupID" -}}
{{- include "joiner.config.get" (dict "root" . "path" "group.id") | default (include "joiner.fullname" .) -}}
{{- end -}}
{{- define "joiner.topic.market" -}}
{{- include "joiner.config.get" (dict "root" . "path" "topics.market_updates") | default "market-updates" -}}
{{- end -}}
{{- define "joiner.topic.notifications" -}}
{{- include "joiner.config.get" (dict "root" . "path" "topics.notifications") | default "notifications" -}}
{{- end -}}

{{/* Whether a stopping pod asks whether it comes back: "true" or "". */}}
{{- define "joiner.asksKubernetes" -}}
{{- $leave := include "joiner.config.get" (dict "root" . "path" "group.leave") | default "auto" -}}
{{- if and .Values.staticMembership .Values.rbac.create (eq $leave "auto") -}}true{{- end -}}
{{- end -}}

{{- define "joiner.shutdownSeconds" -}}
{{- $said := include "joiner.extraEnv" (dict "root" . "path" "shutdown.timeout") | fromJson -}}
{{- if and $said.set (not $said.value) (kindIs "invalid" .Values.terminationGracePeriodSeconds) -}}
{{- fail "extraEnv: the value of JOINER_SHUTDOWN_TIMEOUT is not known here: set terminationGracePeriodSeconds above it, or pods are killed in the middle of their last commit" -}}
{{- end -}}
{{- include "joiner.seconds" (include "joiner.config.get" (dict "root" . "path" "shutdown.timeout") | default "25s") -}}
{{- end -}}

{{/* Seconds that a preStop sleep takes away from the grace period. */}}
{{- define "joiner.preStopSeconds" -}}
{{- dig "preStop" "sleep" "seconds" 0 (default dict .Values.lifecycle) | int64 -}}
{{- end -}}

{{/*
The grace period: as given, else the shutdown's timeout, what a preStop hook
sleeps, and ten seconds for the last log lines and the runtime.
*/}}
{{- define "joiner.gracePeriod" -}}
{{- $least := add (include "joiner.shutdownSeconds" .) (include "joiner.preStopSeconds" .) -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add $least 10 -}}
{{- else -}}
{{- $given := int64 .Values.terminationGracePeriodSeconds -}}
{{- if le $given $least -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is not above the %d seconds that a stop may take (config.shutdown.timeout and a preStop sleep): the pod would be killed in the middle of its last commit" $given $least) -}}
{{- end -}}
{{- $given -}}
{{- end -}}
{{- end -}}

{{/* The derived configuration as environment, for a ConfigMap of one's own. */}}
{{- define "joiner.derivedEnv" -}}
{{- $env := list -}}
{{- range $item := include "joiner.flatten" (dict "prefix" "JOINER" "value" (include "joiner.derived" . | fromJson)) | fromJsonArray -}}
{{- $env = append $env $item -}}
{{- end -}}
{{- $env = append $env (dict "name" "JOINER_HTTP_LISTEN" "value" (printf ":%s" (include "joiner.port.http" .))) -}}
{{- $env = append $env (dict "name" "JOINER_PEER_LISTEN" "value" (printf ":%s" (include "joiner.port.peer" .))) -}}
{{- toJson $env -}}
{{- end -}}

{{- define "joiner.flatten" -}}
{{- $prefix := .prefix -}}
{{- $out := list -}}
{{- range $key, $value := .value -}}
{{- $name := printf "%s_%s" $prefix (upper $key) -}}
{{- if kindIs "map" $value -}}
{{- $out = concat $out (include "joiner.flatten" (dict "prefix" $name "value" $value) | fromJsonArray) -}}
{{- else if kindIs "slice" $value -}}
{{- $out = append $out (dict "name" $name "value" (join "," $value)) -}}
{{- else -}}
{{- $out = append $out (dict "name" $name "value" (toString $value)) -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}
