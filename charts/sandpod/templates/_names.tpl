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

{{/* Secrets with what sign-ins through the gateways leave, as a JSON array. How many decides where each entry is. */}}
{{- define "sandpod.gateway.signIn" -}}
{{- $names := list -}}
{{- if hasKey (include "sandpod.gateway.oidc" . | fromJson) "proxy" -}}
{{- range until 16 -}}
{{- $names = append $names (printf "%s-sign-in-%d" (include "sandpod.gateway" $) .) -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
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

{{/* The headless Service by which gateways find each other. */}}
{{- define "sandpod.gateway.peers" -}}
{{ include "sandpod.fullname" . }}-peers
{{- end -}}

{{- define "sandpod.gateway.metrics" -}}
{{ include "sandpod.fullname" . }}-metrics
{{- end -}}

{{/* The role for the resources of tenants that are made on first use. */}}
{{- define "sandpod.gateway.tenants" -}}
{{ include "sandpod.gateway" . }}-tenants
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

{{/* With what tenants that are made on first use get. */}}
{{- define "sandpod.operator.tenant" -}}
{{ include "sandpod.operator" . }}-tenant
{{- end -}}

{{/*
Roles of the operator and of the gateway in the namespaces of such tenants, and what the operator may do everywhere to
make them. They belong to no namespace, so the release's is part of their names.
*/}}
{{- define "sandpod.operator.clusterRole" -}}
{{ include "sandpod.operator" . }}-{{ .Release.Namespace }}-sandboxes
{{- end -}}

{{- define "sandpod.gateway.clusterRole" -}}
{{ include "sandpod.gateway" . }}-{{ .Release.Namespace }}-sandboxes
{{- end -}}

{{- define "sandpod.operator.tenant.clusterRole" -}}
{{ include "sandpod.operator" . }}-{{ .Release.Namespace }}-tenant
{{- end -}}

{{- define "sandpod.operator.tenants.clusterRole" -}}
{{ include "sandpod.operator" . }}-{{ .Release.Namespace }}-tenants
{{- end -}}

{{/* Of the admission policy for what the operator does everywhere, and its binding. */}}
{{- define "sandpod.operator.tenants.policy" -}}
tenants.{{ .Release.Namespace }}.{{ include "sandpod.fullname" . }}
{{- end -}}

{{- define "sandpod.operator.account" -}}
{{- .Values.operator.serviceAccount.name | default (include "sandpod.operator" .) -}}
{{- end -}}

{{- define "sandpod.sandboxes.namespace" -}}
{{- .Values.sandboxes.namespace -}}
{{- end -}}

{{/* Beginning of the names of tenants' namespaces, for those that name none. */}}
{{- define "sandpod.tenants.prefix" -}}
{{ .Values.sandboxes.namespace }}-
{{- end -}}

{{/* What is in a tenant's namespace by its values, as JSON; from (dict "root" . "values" $values). */}}
{{- define "sandpod.tenants.content" -}}
{{- $own := .root.Values.sandboxes -}}
{{- dict
  "gateway" true
  "quota" (mergeOverwrite (deepCopy $own.quota) (.values.quota | default dict))
  "limitRange" (mergeOverwrite (deepCopy $own.limitRange) (.values.limitRange | default dict))
  "templates" (ternary .values.templates $own.templates (hasKey .values "templates"))
  "pools" (ternary .values.pools $own.pools (hasKey .values "pools")) | toJson -}}
{{- end -}}

{{/*
The place from which the operator makes the namespaces of tenants on first use, as JSON; {} where it makes none. It fills
in the namespace, a name that no namespace can have.
*/}}
{{- define "sandpod.tenants.onFirstUse" -}}
{{- $place := dict -}}
{{- with .Values.tenantsOnFirstUse -}}
{{- if .enabled -}}
{{- $at := dict "values" "tenantsOnFirstUse.each" "namespace" "NAMESPACE" "onFirstUse" true -}}
{{- $place = merge $at (include "sandpod.tenants.content" (dict "root" $ "values" .each) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- toJson $place -}}
{{- end -}}

{{/*
All namespaces of sandboxes and what is in each, as a JSON list: the default tenant's, those of other tenants, and more
for the operator alone. `values` is where its templates and pools are set.
*/}}
{{- define "sandpod.sandboxes.places" -}}
{{- $own := .Values.sandboxes -}}
{{- $places := list (merge (dict "values" "sandboxes" "gateway" true) (pick $own "namespace" "quota" "limitRange" "templates" "pools")) -}}
{{- range $tenant, $values := .Values.tenants -}}
{{- $at := dict "values" (printf "tenants.%s" $tenant) "tenant" $tenant "namespace" ($values.namespace | default (printf "%s%s" (include "sandpod.tenants.prefix" $) $tenant)) -}}
{{- $places = append $places (merge $at (include "sandpod.tenants.content" (dict "root" $ "values" $values) | fromJson)) -}}
{{- end -}}
{{- range $own.moreNamespaces -}}
{{- $places = append $places (dict "namespace" . "quota" $own.quota "limitRange" $own.limitRange) -}}
{{- end -}}
{{- $places | toJson -}}
{{- end -}}

{{/* The names of these namespaces, as a JSON list. */}}
{{- define "sandpod.sandboxes.namespaces" -}}
{{- $names := list -}}
{{- range include "sandpod.sandboxes.places" . | fromJsonArray -}}
{{- $names = append $names .namespace -}}
{{- end -}}
{{- $names | toJson -}}
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
