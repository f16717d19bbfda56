{{/*
What the schema cannot say, or not in words that help: values that contradict
each other. Rendering stops at the first.
*/}}
{{- define "joiner.validate" -}}
{{- include "joiner.validate.scaling" . -}}
{{- include "joiner.validate.config" . -}}
{{- include "joiner.validate.kafka" . -}}
{{- include "joiner.validate.peer" . -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled: choose one, or every pod is scraped and counted twice" -}}
{{- end -}}
{{- if and (not (kindIs "invalid" .Values.podDisruptionBudget.minAvailable)) (not (kindIs "invalid" .Values.podDisruptionBudget.maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and .maxUnavailable: choose one, and set the other to null" -}}
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
{{- end -}}

{{- define "joiner.validate.config" -}}
{{- if and .Values.existingConfigMap .Values.config -}}
{{- fail "existingConfigMap and config: choose one, the ConfigMap holds the whole configuration in its key config.yaml" -}}
{{- end -}}
{{- if include "joiner.config.get" (dict "root" . "path" "group.instance_id") -}}
{{- fail "config.group.instance_id would be the same in every pod, and two pods of one id fence each other: set staticMembership: true, which makes the pod's name the id" -}}
{{- end -}}
{{- $_ := include "joiner.gracePeriod" . -}}
{{- $_ := include "joiner.port.http" . -}}
{{- if eq (include "joiner.port.http" .) (include "joiner.port.peer" .) -}}
{{- fail (printf "config.http.listen and config.peer.listen: both are port %s" (include "joiner.port.http" .)) -}}
{{- end -}}
{{- end -}}

{{- define "joiner.validate.kafka" -}}
{{- $tls := .Values.kafka.tls -}}
{{- if and (not (include "joiner.on.kafkaTLS" .)) (or $tls.existingSecret $tls.caExistingSecret $tls.clientCertificate) -}}
{{- fail "kafka.tls.enabled is false, and kafka.tls names a secret or a certificate: connections would not be encrypted" -}}
{{- end -}}
{{- if and $tls.clientCertificate (not (include "joiner.secret.kafkaTLS" .)) -}}
{{- fail "kafka.tls.clientCertificate needs kafka.tls.existingSecret, which holds the certificate and its key" -}}
{{- end -}}
{{- $sasl := .Values.kafka.sasl -}}
{{- $mechanism := include "joiner.saslMechanism" . -}}
{{- $secret := include "joiner.secret.kafkaSASL" . -}}
{{- if and $sasl.existingSecret (not $mechanism) -}}
{{- fail "kafka.sasl.existingSecret is set, and kafka.sasl.mechanism is not: nobody would log in" -}}
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

{{- define "joiner.validate.peer" -}}
{{- $peer := .Values.peer -}}
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
