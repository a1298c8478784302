{{/*
The operator's settings file: `operator.config` and what follows from other values, which can't be set there.
*/}}
{{- define "sandpod.operator.settings" -}}
{{- $settings := dict
  "namespaces" (include "sandpod.sandboxes.namespaces" . | fromJsonArray)
  "namespace" .Release.Namespace
  "lease_owner" (include "sandpod.operator.config" .)
  "runner_image" (include "sandpod.image" (dict "root" . "image" .Values.sandboxes.image))
-}}
{{- if .Values.tenantsOnFirstUse.enabled -}}
{{- $_ := set $settings "tenant_manifests" "/etc/sandpod/tenant.yaml" -}}
{{- $_ := set $settings "tenant_prefix" (include "sandpod.tenants.prefix" .) -}}
{{- $_ := set $settings "max_tenants" (int .Values.tenantsOnFirstUse.maximum) -}}
{{- end -}}
{{- if .Values.traces.endpoint -}}
{{- $_ := set $settings "traces_endpoint" .Values.traces.endpoint -}}
{{- if ne (float64 .Values.traces.ratio) 1.0 -}}
{{- $_ := set $settings "traces_ratio" .Values.traces.ratio -}}
{{- end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.operator.config)) -}}
{{- end -}}
