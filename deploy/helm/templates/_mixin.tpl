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

{{/*
An expression of the rules, of this release alone: every selector gets namespace
and job. (list $ EXPRESSION). Labels and functions have other names than these.
*/}}
{{- define "joiner.scoped" -}}
{{- $root := index . 0 -}}
{{- $names := "\\b(joiner_[a-z0-9_]+|process_[a-z0-9_]+|up|ALERTS)" -}}
{{- $expr := regexReplaceAll (print $names "\\{") (index . 1) "${1}{<scope>, " -}}
{{- $expr = regexReplaceAll (print $names "([^A-Za-z0-9_{]|$)") $expr "${1}{<scope>}${2}" -}}
{{- replace "<scope>" (printf "namespace=%q, job=%q" $root.Release.Namespace (include "joiner.fullname" $root)) $expr -}}
{{- end -}}

{{/*
The dashboard, as one of its own for this release: its name, its uid, and what
its variables show at first. (list $ TEXT).
*/}}
{{- define "joiner.dashboard" -}}
{{- $root := index . 0 -}}
{{- $name := include "joiner.fullname" $root -}}
{{- $home := $root.Release.Namespace -}}
{{- $text := index . 1 -}}
{{- $parts := regexSplit "\"current\": \\{[^}]*\\}" $text -1 -}}
{{- if ne (len $parts) 3 -}}
{{- fail "the dashboard has other variables than namespace and job" -}}
{{- end -}}
{{- $out := index $parts 0 -}}
{{- range $i, $value := list $home $name -}}
{{- $out = print $out "\"current\": " (dict "selected" true "text" (list $value) "value" (list $value) | toJson) (index $parts (add1 $i)) -}}
{{- end -}}
{{- $out = replace "  \"uid\": \"joiner\"" (printf "  \"uid\": \"joiner-%s\"" (printf "%s/%s" $home $name | sha256sum | trunc 16)) $out -}}
{{- replace "  \"title\": \"joiner\"" (printf "  \"title\": \"joiner (%s/%s)\"" $home $name) $out -}}
{{- end -}}
