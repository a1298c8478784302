{{/*
The name of every object of this chart. No template spells a name itself.
*/}}

{{/* Leaves room for the longest suffix of an object whose name may have 63 characters. */}}
{{- define "sandpod.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "sandpod.gateway" -}}
{{ include "sandpod.fullname" . }}-gateway
{{- end -}}

{{- define "sandpod.gateway.config" -}}
{{ include "sandpod.gateway" . }}-config
{{- end -}}

{{- define "sandpod.gateway.keys" -}}
{{- .Values.auth.existingSecret | default (printf "%s-keys" (include "sandpod.fullname" .)) -}}
{{- end -}}

{{/* The Secret that links are signed with. */}}
{{- define "sandpod.gateway.links" -}}
{{ include "sandpod.gateway" . }}-links
{{- end -}}

{{/* The role for that Secret and for the one with the keys. */}}
{{- define "sandpod.gateway.secrets" -}}
{{ include "sandpod.gateway" . }}-secrets
{{- end -}}

{{/* Beginning of the names of the ConfigMaps that usage is kept in. */}}
{{- define "sandpod.gateway.usage" -}}
{{ include "sandpod.gateway" . }}-usage
{{- end -}}

{{/* Of the admission policy for them, and its binding. */}}
{{- define "sandpod.gateway.usage.policy" -}}
usage.{{ .Release.Namespace }}.{{ include "sandpod.fullname" . }}
{{- end -}}

{{- define "sandpod.gateway.metrics" -}}
{{ include "sandpod.fullname" . }}-metrics
{{- end -}}

{{- define "sandpod.gateway.test" -}}
{{ include "sandpod.gateway" . }}-test
{{- end -}}

{{- define "sandpod.gateway.account" -}}
{{- .Values.gateway.serviceAccount.name | default (include "sandpod.gateway" .) -}}
{{- end -}}

{{- define "sandpod.operator" -}}
{{ include "sandpod.fullname" . }}-operator
{{- end -}}

{{- define "sandpod.operator.config" -}}
{{ include "sandpod.operator" . }}-config
{{- end -}}

{{- define "sandpod.operator.account" -}}
{{- .Values.operator.serviceAccount.name | default (include "sandpod.operator" .) -}}
{{- end -}}

{{- define "sandpod.sandboxes.namespace" -}}
{{- .Values.sandboxes.namespace -}}
{{- end -}}

{{/* All namespaces that the operator reconciles, as a JSON list; the gateway's comes first. */}}
{{- define "sandpod.sandboxes.namespaces" -}}
{{- prepend .Values.sandboxes.moreNamespaces (include "sandpod.sandboxes.namespace" .) | toJson -}}
{{- end -}}

{{/*
For quota, limits and the policy of the sandbox namespace. The operator keeps a policy of its own there
(sandpod-deny-all, for the pods that it makes); this one is for every pod, whoever makes it, so it needs another name.
*/}}
{{- define "sandpod.sandboxes" -}}
{{ include "sandpod.fullname" . }}-namespace
{{- end -}}

{{/* Of the admission policy and its binding. They belong to no namespace, so the release's is part of their name. */}}
{{- define "sandpod.sandboxes.policy" -}}
sandboxes.{{ .Release.Namespace }}.{{ include "sandpod.fullname" . }}
{{- end -}}
