{{/*
The gateway's settings file: `gateway.config` and what follows from other values, which can't be set there.
*/}}
{{- define "sandpod.gateway.settings" -}}
{{- $settings := dict
  "backend" "kubernetes"
  "host" "0.0.0.0"
  "port" 8000
  "metrics_port" 8081
  "kubernetes" (dict
    "namespace" (include "sandpod.sandboxes.namespace" .)
    "link_secret" (printf "%s/%s" .Release.Namespace (include "sandpod.gateway.links" .))
    "keys_secret" (printf "%s/%s" .Release.Namespace (include "sandpod.gateway.keys" .))
    "usage" (printf "%s/%s" .Release.Namespace (include "sandpod.gateway.usage" .))
    "default_template" .Values.sandboxes.defaultTemplate)
  "packages" (dict "cache_dir" "/tmp/packages")
-}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $settings "tls" (dict "cert" "/etc/sandpod/tls/tls.crt" "key" "/etc/sandpod/tls/tls.key") -}}
{{- end -}}
{{- with include "sandpod.gateway.publicUrl" . -}}
{{- $_ := set $settings "links" (dict "public_url" .) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.gateway.config)) -}}
{{- end -}}
