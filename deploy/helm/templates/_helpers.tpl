{{/* The chart's name, or what stands for it. */}}
{{- define "joiner.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
The name of this installation's objects. 52 characters leave room for what
Kubernetes appends to a StatefulSet's name in the label controller-revision-hash
(a hyphen and ten characters), and for our own longest suffix, -preflight. A
longer one is cut, and what it was cut from told by a hash, or two installations
of one long name would be one. A release that is named after the chart is named
once; within another chart only one that has the very name, since several of
this one there (by alias) could all be parts of it.
*/}}
{{- define "joiner.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "joiner.shortened" .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if or (eq $name .Release.Name) (and .Chart.IsRoot (contains $name .Release.Name)) -}}
{{- include "joiner.shortened" .Release.Name -}}
{{- else -}}
{{- include "joiner.shortened" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "joiner.shortened" -}}
{{- if gt (len .) 52 -}}
{{- printf "%s-%s" (trunc 43 . | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "joiner.headless" -}}
{{- include "joiner.fullname" . }}-headless
{{- end -}}

{{- define "joiner.preflight" -}}
{{- include "joiner.fullname" . }}-preflight
{{- end -}}

{{- define "joiner.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "joiner.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/*
The account of the preflight: one of its own, since that of the release is not
there before it; where the chart makes none, the one that is there, with all that
hangs on it (secrets to pull by, what a platform grants).
*/}}
{{- define "joiner.preflightAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "joiner.preflight" . -}}
{{- else -}}
{{- include "joiner.serviceAccountName" . -}}
{{- end -}}
{{- end -}}

{{- define "joiner.instanceLabels" -}}
app.kubernetes.io/name: {{ include "joiner.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/*
What selects the pods of the group, and nothing else: the pods of the preflight
and of `helm test` differ in their component, or the Service would send requests
to them. Selectors cannot be changed: nothing may be added here, no labels of
users above all.
*/}}
{{- define "joiner.selectorLabels" -}}
{{ include "joiner.instanceLabels" . }}
app.kubernetes.io/component: member
{{- end -}}

{{/* Labels as kubectl's --selector takes them. */}}
{{- define "joiner.selector" -}}
{{- $terms := list -}}
{{- range $key, $value := . -}}{{- $terms = append $terms (printf "%s=%s" $key $value) -}}{{- end -}}
{{- join "," $terms -}}
{{- end -}}

{{/*
Labels of objects. Call it with (dict "root" $ "component" NAME), and "own"
LABELS where the object has some of its own in the values: each key stands there
once, ours before the object's, and these before those of all.
*/}}
{{- define "joiner.labels" -}}
{{- $labels := include "joiner.instanceLabels" .root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" .component -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- if .root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/version" (.root.Chart.AppVersion | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- end -}}
{{- toYaml (merge $labels (deepCopy (default dict (get . "own"))) (deepCopy (default dict .root.Values.commonLabels))) -}}
{{- end -}}

{{/*
Labels of pods, without what changes with each version of the chart: pods roll
for what changes them. Call it with (dict "root" $ "component" NAME).
*/}}
{{- define "joiner.podLabels" -}}
{{- $labels := include "joiner.instanceLabels" .root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/component" .component -}}
{{- toYaml (merge $labels (deepCopy (default dict .root.Values.podLabels)) (deepCopy (default dict .root.Values.commonLabels))) -}}
{{- end -}}

{{/*
Annotations of pods, those that are ours before: (dict "root" $ "ours" ANNOTATIONS).
Nothing where there are none.
*/}}
{{- define "joiner.podAnnotations" -}}
{{- $given := tpl (toYaml (default dict .root.Values.podAnnotations)) .root | fromYaml -}}
{{- with merge (deepCopy .ours) $given -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Annotations of a hook, which decide what Helm does with it: (dict "root" $ "ours" ANNOTATIONS), and "own" those of the object. */}}
{{- define "joiner.hookAnnotations" -}}
{{- toYaml (merge (deepCopy .ours) (deepCopy (default dict (get . "own"))) (deepCopy (default dict .root.Values.commonAnnotations))) -}}
{{- end -}}

{{- define "joiner.image" -}}
{{- $repository := .Values.image.repository -}}
{{- with (default dict .Values.global).imageRegistry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) $repository -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (toString (default .Chart.AppVersion .Values.image.tag)) -}}
{{- end -}}
{{- end -}}

{{/* A list of {name}, from names or {name} objects, those of global before. */}}
{{- define "joiner.imagePullSecrets" -}}
{{- $names := list -}}
{{- range concat (default list (default dict .Values.global).imagePullSecrets) (default list .Values.imagePullSecrets) -}}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) -}}
{{- end -}}
{{- $secrets := list -}}
{{- range uniq $names -}}
{{- $secrets = append $secrets (dict "name" .) -}}
{{- end -}}
{{- if $secrets -}}
{{- toYaml $secrets -}}
{{- end -}}
{{- end -}}

{{/* Whether the number of replicas is somebody else's: an autoscaler's, or by replicaCount null a person's. "true" or "". */}}
{{- define "joiner.scaledByOthers" -}}
{{- if or .Values.autoscaling.enabled .Values.keda.enabled (kindIs "invalid" .Values.replicaCount) -}}true{{- end -}}
{{- end -}}

{{/*
How many replicas the StatefulSet is to have. Nothing where others say it, but
where the release has said it before: to take the field away then is to ask for
the API server's default, one replica, which stops all pods but one. So it stays
in, with the number that there is. An annotation tells that it is in, and which
number it was; without a cluster to ask (helm template) there is neither.
*/}}
{{- define "joiner.replicas" -}}
{{- if not (include "joiner.scaledByOthers" .) -}}
{{- int64 .Values.replicaCount -}}
{{- else -}}
{{- with include "joiner.live" . | fromJson -}}
{{- if hasKey (default dict (dig "metadata" "annotations" dict .)) "joiner/replicas" -}}
{{- int64 (dig "spec" "replicas" 1 .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The StatefulSet as the cluster has it, in JSON; empty where there is none, or no cluster. */}}
{{- define "joiner.live" -}}
{{- toJson (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "joiner.fullname" .)) -}}
{{- end -}}

{{/*
How many replicas there will be at most, as far as that is known here: what the
preflight compares the partitions with; 0 where it is not, which has it look at
the group. KEDA's own ceiling is the partitions.
*/}}
{{- define "joiner.plannedReplicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- int64 .Values.autoscaling.maxReplicas -}}
{{- else if .Values.keda.enabled -}}
{{- int64 .Values.keda.minReplicas -}}
{{- else -}}
{{- int64 .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{/* How many there will be at least; 0 where that is not known. */}}
{{- define "joiner.leastReplicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- int64 .Values.autoscaling.minReplicas -}}
{{- else if .Values.keda.enabled -}}
{{- int64 .Values.keda.minReplicas -}}
{{- else -}}
{{- int64 .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{/*
Seconds of a Go duration, rounded up: added to a moment right before a second's
end, whose whole seconds are then counted.
*/}}
{{- define "joiner.seconds" -}}
{{- $start := toDate "2006-01-02T15:04:05.999999999" "2000-01-01T00:00:00.999999999" -}}
{{- sub (mustDateModify (toString .) $start | unixEpoch) ($start | unixEpoch) -}}
{{- end -}}

{{/*
Nanoseconds of a Go duration, to compare two: whole seconds, and what is behind
the point without its zeros in front, which would make it octal.
*/}}
{{- define "joiner.nanoseconds" -}}
{{- $start := toDate "2006-01-02T15:04:05" "2000-01-01T00:00:00" -}}
{{- $end := mustDateModify (toString .) $start -}}
{{- $fraction := regexReplaceAll "^\\.0*" (date ".000000000" $end) "" -}}
{{- add (mul (sub ($end | unixEpoch) ($start | unixEpoch)) 1000000000) (int64 $fraction) -}}
{{- end -}}

{{/* Bytes of a Kubernetes quantity, which may have come as a number. */}}
{{- define "joiner.bytes" -}}
{{- $quantity := . -}}
{{- if not (kindIs "string" $quantity) -}}
{{- $quantity = toJson $quantity -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]*)?([eE][+]?[0-9]+|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$" $quantity) -}}
{{- fail (printf "%q is not a quantity (resources.limits.memory): write it such as 512Mi or 1Gi" $quantity) -}}
{{- end -}}
{{- $suffix := regexFind "(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)$" $quantity -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (float64 (trimSuffix $suffix $quantity)) (get $units $suffix) | floor | int64 -}}
{{- end -}}
