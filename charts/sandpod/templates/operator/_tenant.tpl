{{/*
What a tenant's namespace holds that is made on first use, in the order in which the operator makes it: the namespace, the
rights to go on, what bounds and closes it, and what it offers. It takes the place.
*/}}
{{- define "sandpod.operator.tenant.manifests" -}}
{{- $sandboxes := dict "root" .root "place" .place "component" "sandboxes" -}}
{{- include "sandpod.place.namespace" $sandboxes }}
{{- $operator := dict "root" .root "place" .place "component" "operator" "kind" "ClusterRole" -}}
{{- range $name, $role := dict (include "sandpod.operator" .root) (include "sandpod.operator.clusterRole" .root) (include "sandpod.operator.tenant" .root) (include "sandpod.operator.tenant.clusterRole" .root) }}
{{- include "sandpod.place.binding" (merge (dict "name" $name "role" $role) $operator) }}
{{- end }}
{{- range list "networkPolicy" "quota" "limitRange" "templates" "pools" "autoscalers" }}
{{- include (printf "sandpod.place.%s" .) $sandboxes }}
{{- end }}
{{- include "sandpod.place.binding" (dict "root" .root "place" .place "component" "gateway" "kind" "ClusterRole" "name" (include "sandpod.gateway" .root) "role" (include "sandpod.gateway.clusterRole" .root)) }}
{{- end -}}
