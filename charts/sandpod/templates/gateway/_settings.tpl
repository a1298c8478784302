{{/* The settings of the OpenID Connect provider, as JSON; {} without one. */}}
{{- define "sandpod.gateway.oidc" -}}
{{- dig "auth" "oidc" dict .Values.gateway.config | default dict | toJson -}}
{{- end -}}

{{/* Path prefixes that are served from outside, as a JSON array. */}}
{{- define "sandpod.gateway.paths" -}}
{{- $paths := .Values.gateway.paths -}}
{{- with include "sandpod.gateway.oidc" . | fromJson -}}
{{- $paths = append $paths "/.well-known" -}}
{{- if hasKey . "proxy" -}}
{{- $paths = concat $paths (list "/register" "/authorize" "/consent" "/auth/callback" "/token" "/revoke") -}}
{{- end -}}
{{- end -}}
{{- toJson $paths -}}
{{- end -}}

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
  "shutdown" (dict "drain" 6 "calls" (max 1 (sub (int .Values.gateway.terminationGracePeriodSeconds) 10)))
-}}
{{- if not .Values.sandboxes.keepNamespaces -}}
{{- $_ := set $settings.kubernetes "usage_owner" (include "sandpod.gateway.config" .) -}}
{{- end -}}
{{- $tenants := dict -}}
{{- range $place := include "sandpod.sandboxes.places" . | fromJsonArray -}}
{{- with $place.tenant -}}
{{- $_ := set $tenants . $place.namespace -}}
{{- end -}}
{{- end -}}
{{- with $tenants -}}
{{- $_ := set $settings.kubernetes "tenants" . -}}
{{- end -}}
{{- if .Values.tenantsOnFirstUse.enabled -}}
{{- $_ := set $settings.kubernetes "first_use_namespace" .Release.Namespace -}}
{{- $_ := set $settings.kubernetes "first_use_limit" (int .Values.tenantsOnFirstUse.maximum) -}}
{{- end -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $settings "tls" (dict "cert" "/etc/sandpod/tls/tls.crt" "key" "/etc/sandpod/tls/tls.key") -}}
{{- end -}}
{{- with include "sandpod.gateway.publicUrl" . -}}
{{- $_ := set $settings "links" (dict "public_url" .) -}}
{{- end -}}
{{- with include "sandpod.gateway.signIn" . | fromJsonArray -}}
{{- $references := list -}}
{{- range . -}}
{{- $references = append $references (printf "%s/%s" $.Release.Namespace .) -}}
{{- end -}}
{{- $_ := set $settings.kubernetes "sign_in_secrets" $references -}}
{{- end -}}
{{- if .Values.traces.endpoint -}}
{{- $traces := dict "endpoint" .Values.traces.endpoint -}}
{{- if ne (float64 .Values.traces.ratio) 1.0 -}}
{{- $_ := set $traces "ratio" .Values.traces.ratio -}}
{{- end -}}
{{- $_ := set $settings "traces" $traces -}}
{{- end -}}
{{- $auth := dict "change_keys" .Values.auth.changeKeys -}}
{{- if .Values.auth.oidcClientSecret -}}
{{- $_ := set $auth "oidc" (dict "client_secret_file" "/etc/sandpod/oidc/client_secret") -}}
{{- end -}}
{{- $_ := set $settings "auth" $auth -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.gateway.config)) -}}
{{- end -}}
