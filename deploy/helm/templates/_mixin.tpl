{{/*
The name of an object that may be made in a namespace where other releases make
theirs, too, which may have the same name: (list $ NAMESPACE NAME).
*/}}
{{- define "joiner.guest" -}}
{{- $home := (index . 0).Release.Namespace -}}
{{- if has (index . 1) (list "" $home) -}}
{{- index . 2 -}}
{{- else -}}
{{- printf "%s-%s" $home (index . 2) -}}
{{- end -}}
{{- end -}}
