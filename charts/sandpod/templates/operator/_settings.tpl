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
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.operator.config)) -}}
{{- end -}}
