{{/* What the pods of the group, of the preflight and of `helm test` share. */}}

{{/* Environment that says what is configured, but for what extraEnv says: a list in JSON. */}}
{{- define "joiner.env" -}}
{{- $env := list -}}
{{- if .Values.existingConfigMap -}}
{{- $env = include "joiner.derivedEnv" . | fromJsonArray -}}
{{- end -}}
{{- if .Values.keda.enabled -}}
{{- $env = concat $env (include "joiner.kedaEnv" . | fromJsonArray) -}}
{{- end -}}
{{- if .Values.kafka.sasl.usernameKey -}}
{{- $name := include "joiner.derived.usernameEnv" . -}}
{{- $ref := dict "name" (include "joiner.secret.kafkaSASL" .) "key" .Values.kafka.sasl.usernameKey -}}
{{- $env = append $env (dict "name" $name "valueFrom" (dict "secretKeyRef" $ref)) -}}
{{- end -}}
{{- $given := include "joiner.extraEnvNames" . | fromJsonArray -}}
{{- $ours := list -}}
{{- range $env -}}
{{- if not (has .name $given) -}}{{- $ours = append $ours . -}}{{- end -}}
{{- end -}}
{{- toJson $ours -}}
{{- end -}}

{{/*
What KEDA looks up in the pods' environment: a TriggerAuthentication cannot say
it otherwise. The values are those of the configuration.
*/}}
{{- define "joiner.kedaEnv" -}}
{{- $env := list -}}
{{- if and (not .Values.keda.triggers) (not .Values.existingConfigMap) (include "joiner.saslMechanism" .) -}}
{{- $config := include "joiner.config" . | fromYaml -}}
{{- range $key := list "username" "client_id" "token_url" "scopes" -}}
{{- with dig "kafka" "sasl" $key "" $config -}}
{{- $env = append $env (dict "name" (printf "JOINER_KAFKA_SASL_%s" (upper $key)) "value" (kindIs "slice" . | ternary (join "," .) (toString .))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* OAUTHBEARER's client id is the name that goes with its secret. */}}
{{- define "joiner.derived.usernameEnv" -}}
{{- eq (include "joiner.saslMechanism" .) "OAUTHBEARER" | ternary "JOINER_KAFKA_SASL_CLIENT_ID" "JOINER_KAFKA_SASL_USERNAME" -}}
{{- end -}}

{{/* The memory limit that Go's collector respects: nine tenths leave room for what it does not count. */}}
{{- define "joiner.gomemlimit" -}}
{{- $limit := dig "limits" "memory" "" (default dict .Values.resources) -}}
{{- if and $limit (not (has "GOMEMLIMIT" (include "joiner.extraEnvNames" . | fromJsonArray))) -}}
{{- div (mul (include "joiner.bytes" $limit) 9) 10 -}}
{{- end -}}
{{- end -}}
{{- define "joiner.extraEnvNames" -}}
{{- $names := list -}}
{{- range .Values.extraEnv -}}{{- $names = append $names .name -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Mounts of what the configuration names. */}}
{{- define "joiner.volumeMounts" -}}
- name: config
  mountPath: {{ include "joiner.dir.config" . }}
  readOnly: true
{{- if include "joiner.mounts.kafkaTLS" . }}
- name: kafka-tls
  mountPath: {{ include "joiner.dir.kafkaTLS" . }}
  readOnly: true
{{- end }}
{{- if include "joiner.mounts.kafkaCA" . }}
- name: kafka-ca
  mountPath: {{ include "joiner.dir.kafkaCA" . }}
  readOnly: true
{{- end }}
{{- if include "joiner.mounts.kafkaSASL" . }}
- name: kafka-sasl
  mountPath: {{ include "joiner.dir.kafkaSASL" . }}
  readOnly: true
{{- end }}
{{- if include "joiner.mounts.peer" . }}
- name: peer
  mountPath: {{ include "joiner.dir.peer" . }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}

{{/* Whole secrets are mounted, and no single files, since only those are renewed in running pods. */}}
{{- define "joiner.mounts.kafkaTLS" -}}
{{- $used := or .Values.kafka.tls.clientCertificate (and .Values.kafka.tls.caKey (not (include "joiner.secret.kafkaCA" .))) -}}
{{- if and (include "joiner.on.kafkaTLS" .) (include "joiner.secret.kafkaTLS" .) $used -}}true{{- end -}}
{{- end -}}
{{- define "joiner.mounts.kafkaCA" -}}
{{- if and (include "joiner.on.kafkaTLS" .) (include "joiner.secret.kafkaCA" .) .Values.kafka.tls.caKey -}}true{{- end -}}
{{- end -}}
{{- define "joiner.mounts.kafkaSASL" -}}
{{- if and (include "joiner.saslMechanism" .) (include "joiner.secret.kafkaSASL" .) -}}true{{- end -}}
{{- end -}}
{{- define "joiner.mounts.peer" -}}
{{- if and (include "joiner.on.peerTLS" .) (include "joiner.secret.peer" .) -}}true{{- end -}}
{{- end -}}

{{/* The volumes of joiner.volumeMounts: (dict "root" $ "configMap" NAME). */}}
{{- define "joiner.volumes" -}}
{{- $root := .root -}}
- name: config
  configMap:
    name: {{ .configMap }}
{{- with $root }}
{{- if include "joiner.mounts.kafkaTLS" . }}
- name: kafka-tls
  secret:
    secretName: {{ include "joiner.secret.kafkaTLS" . }}
    defaultMode: {{ include "joiner.secretMode" $root }}
{{- end }}
{{- if include "joiner.mounts.kafkaCA" . }}
- name: kafka-ca
  secret:
    secretName: {{ include "joiner.secret.kafkaCA" . }}
    defaultMode: {{ include "joiner.secretMode" $root }}
{{- end }}
{{- if include "joiner.mounts.kafkaSASL" . }}
- name: kafka-sasl
  secret:
    secretName: {{ include "joiner.secret.kafkaSASL" . }}
    defaultMode: {{ include "joiner.secretMode" $root }}
{{- end }}
{{- if include "joiner.mounts.peer" . }}
- name: peer
{{- if eq (include "joiner.secret.peer" .) (include "joiner.secret.peerToken" .) }}
  secret:
    secretName: {{ include "joiner.secret.peer" . }}
    defaultMode: {{ include "joiner.secretMode" $root }}
{{- else }}
  projected:
    defaultMode: {{ include "joiner.secretMode" $root }}
    sources:
      - secret:
          name: {{ include "joiner.secret.peer" . }}
          items:
            {{- range uniq (list .Values.peer.tls.caKey .Values.peer.tls.certKey .Values.peer.tls.keyKey) }}
            - key: {{ . }}
              path: {{ . }}
            {{- end }}
      {{- with .Values.peer.tokenKey }}
      - secret:
          name: {{ include "joiner.secret.peerToken" $root }}
          items:
            - key: {{ . }}
              path: {{ . }}
      {{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ tpl (toYaml .) $root }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A probe: (dict "probe" VALUES "path" PATH). A handler in the values replaces ours. */}}
{{- define "joiner.probe" -}}
{{- $probe := omit .probe "enabled" -}}
{{- if not (or $probe.httpGet $probe.exec $probe.tcpSocket $probe.grpc) -}}
{{- $probe = set (deepCopy $probe) "httpGet" (dict "path" .path "port" "http") -}}
{{- end -}}
{{- toYaml $probe -}}
{{- end -}}

{{/* Where pods may run, and as what. */}}
{{- define "joiner.scheduling" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A pod that runs `joiner check` once: (dict "root" $ "configMap" NAME "serviceAccount" NAME). */}}
{{- define "joiner.checkPod" -}}
{{- $pod := . -}}
{{- with .root -}}
restartPolicy: Never
serviceAccountName: {{ $pod.serviceAccount }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "joiner.imagePullSecrets" . }}
imagePullSecrets:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "joiner.scheduling" . | trim }}
{{ . }}
{{- end }}
containers:
  - name: check
    image: {{ include "joiner.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      - check
      - --config={{ include "joiner.dir.config" . }}/config.yaml
      - --replicas={{ include "joiner.plannedReplicas" . }}
      - --timeout={{ .Values.preflight.timeout }}
      {{- if include "joiner.stateDir" . }}
      - --set=state.dir= # this pod has no volume
      {{- end }}
    env:
      # A pod's own address stands for those of the group, which it is compared with peer.allowed_names for.
      - name: POD_NAME
        value: {{ include "joiner.fullname" . }}-0
      {{- if not (has "JOINER_PEER_ADVERTISE" (include "joiner.extraEnvNames" . | fromJsonArray)) }}
      - name: JOINER_PEER_ADVERTISE
        value: {{ include "joiner.advertise" . }}
      {{- end }}
      {{- with include "joiner.env" . | fromJsonArray }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with .Values.extraEnv }}
      {{- tpl (toYaml .) $pod.root | nindent 6 }}
      {{- end }}
    {{- with .Values.extraEnvFrom }}
    envFrom:
      {{- tpl (toYaml .) $pod.root | nindent 6 }}
    {{- end }}
    {{- with .Values.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .Values.preflight.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      {{- include "joiner.volumeMounts" . | nindent 6 }}
volumes:
  {{- include "joiner.volumes" (dict "root" . "configMap" $pod.configMap) | nindent 2 }}
{{- end -}}
{{- end -}}

{{/*
Under which name a pod is found by the others, made from its POD_NAME. The name
outlives the pod's address. The cluster's domain is left to the resolver's search
path, which is right in every cluster, unless it is given.
*/}}
{{- define "joiner.advertise" -}}
{{- $own := include "joiner.config.own" (dict "root" . "path" "peer.advertise") -}}
{{- if $own -}}
{{- $own | quote -}}
{{- else -}}
{{- $domain := "" -}}
{{- with .Values.clusterDomain -}}{{- $domain = printf ".%s" . -}}{{- end -}}
{{- printf "$(POD_NAME).%s.%s.svc%s:%s" (include "joiner.headless" .) .Release.Namespace $domain (include "joiner.port.peer" .) -}}
{{- end -}}
{{- end -}}

{{/* Secrets are for the pod's group alone (0440), where it has one. */}}
{{- define "joiner.secretMode" -}}
{{- empty (dig "fsGroup" "" (default dict .Values.podSecurityContext)) | ternary 292 288 -}}
{{- end -}}
