{{/* The rules of files/rules.yaml, for the namespaces of this release; runbooks are below the address of the values. */}}
{{- define "sandpod.rules" -}}
{{- $namespaces := include "sandpod.sandboxes.namespaces" . | fromJsonArray | join "|" -}}
{{- $base := .Values.metrics.runbooks | trimSuffix "/" -}}
{{- .Files.Get "files/rules.yaml"
  | replace "namespace=\"sandpod\"" (printf "namespace=%q" .Release.Namespace)
  | replace "namespace=~\"sandpod-sandboxes\"" (printf "namespace=~%q" $namespaces)
  | replace "runbook_url: docs/runbooks/" (ternary (printf "runbook_url: %s/" $base) "runbook_url: docs/runbooks/" (ne $base "")) -}}
{{- end -}}
