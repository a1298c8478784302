{{/*
What the templates share. Those that concern one component take (dict "root" . "component" "gateway"), since a named
template sees only what it is given; the others take the root.
*/}}

{{- define "sandpod.selector" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sandpod.labels" -}}
{{- $labels := include "sandpod.selector" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "sandpod" -}}
{{- $_ := set $labels "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- merge $labels .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Labels of a component's pods: a user's can't replace those that selectors choose by. */}}
{{- define "sandpod.podLabels" -}}
{{- $values := index .root.Values .component -}}
{{- merge (include "sandpod.selector" . | fromYaml) $values.podLabels .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* An image's full name, from (dict "root" . "image" .Values.gateway.image). */}}
{{- define "sandpod.image" -}}
{{- with .image.registry | default .root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ .image.repository }}
{{- with .image.digest }}@{{ . }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* Names of the Secrets for pulling images, as a JSON list. */}}
{{- define "sandpod.pullSecrets" -}}
{{- concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq | toJson -}}
{{- end -}}

{{/* Of a pod: the same. */}}
{{- define "sandpod.imagePullSecrets" -}}
{{- with include "sandpod.pullSecrets" . | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Which nodes the pods of a component may run on. */}}
{{- define "sandpod.scheduling" -}}
{{- $values := index .root.Values .component -}}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "sandpod.spread" -}}
{{- $values := index .root.Values .component -}}
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "sandpod.selector" . | fromYaml)) -}}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- merge (deepCopy .) $selector | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A component's update strategy, and its replicas unless an autoscaler sets them. */}}
{{- define "sandpod.rollout" -}}
{{- $values := index .root.Values .component -}}
{{- if not (dig "autoscaling" "enabled" false $values) }}
replicas: {{ $values.replicas }}
{{- end }}
strategy:
  {{- toYaml $values.strategy | nindent 2 }}
{{- end -}}

{{/* Environment variables of a component's container, after the chart's own. */}}
{{- define "sandpod.env" -}}
{{- $values := index .root.Values .component -}}
{{- range $name, $value := $values.env }}
- {name: {{ $name | quote }}, value: {{ $value | quote }}}
{{- end }}
{{- with $values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- if and .root.Values.traces.endpoint .root.Values.traces.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .root.Values.traces.headersSecret | quote }}, key: headers}}
{{- end }}
{{- end -}}

{{/* A probe, from (dict "root" . "component" "gateway" "probe" "readinessProbe"): its timing is the values'. */}}
{{- define "sandpod.probe" -}}
{{- $get := dict "path" (ternary "/readyz" "/healthz" (eq .probe "readinessProbe")) "port" "http" -}}
{{- if and (eq .component "gateway") .root.Values.tls.secretName -}}
{{- $_ := set $get "scheme" "HTTPS" -}}
{{- end -}}
{{- merge (dict "httpGet" $get) (index .root.Values .component .probe) | toYaml -}}
{{- end -}}

{{/* Egress rules to DNS and the API server. */}}
{{- define "sandpod.egress" -}}
# pod --> cluster DNS
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
# pod --> API server: its address is outside of what labels can select.
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.apiServerCidrs }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The egress rule to the collector of traces, if there is one. */}}
{{- define "sandpod.egress.traces" -}}
{{- if and .Values.traces.endpoint .Values.networkPolicy.tracesPorts }}
# pod --> collector of traces
- ports:
    {{- range .Values.networkPolicy.tracesPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicy.tracesTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "sandpod.gateway.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.secretName "") }}
{{- end -}}

{{/* Base URL of the gateway inside the cluster. */}}
{{- define "sandpod.gateway.url" -}}
{{ include "sandpod.gateway.scheme" . }}://{{ include "sandpod.gateway" . }}.{{ .Release.Namespace }}.svc:{{ .Values.gateway.service.port }}
{{- end -}}

{{/* Base URL of the gateway outside of the cluster, or nothing where neither Ingress nor HTTPRoute gives it one. */}}
{{- define "sandpod.gateway.publicUrl" -}}
{{- if .Values.ingress.enabled -}}
{{ ternary "https" "http" (not (empty .Values.ingress.tls)) }}://{{ first .Values.ingress.hosts }}
{{- else if .Values.httpRoute.enabled -}}
https://{{ first .Values.httpRoute.hostnames }}
{{- end -}}
{{- end -}}

{{/*
What is in a namespace of sandboxes takes (dict "root" . "place" $place "component" "sandboxes"): an entry of
"sandpod.sandboxes.places", or the one from which the operator makes those of tenants on first use.
*/}}

{{/* Renders one such template for each place. */}}
{{- define "sandpod.places" -}}
{{- range include "sandpod.sandboxes.places" .root | fromJsonArray }}
{{- include $.each (dict "root" $.root "place" . "component" "sandboxes") }}
{{- end }}
{{- end -}}

{{/* Labels. Those of the operator's own objects say nothing of Helm, which would look after them. */}}
{{- define "sandpod.place.labels" -}}
{{- $labels := include "sandpod.labels" . | fromYaml -}}
{{- if .place.onFirstUse -}}
{{- $labels = set (omit $labels "helm.sh/chart") "app.kubernetes.io/managed-by" "sandpod-operator" -}}
{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* Annotation of what outlives the release, so that nobody's volumes go with it. */}}
{{- define "sandpod.place.kept" -}}
{{- if and .root.Values.sandboxes.keepNamespaces (not .place.onFirstUse) -}}
helm.sh/resource-policy: keep
{{- end -}}
{{- end -}}

{{/* Gives a component's account a role there; takes also the binding's `name`, and `kind` and name (`role`) of the role. */}}
{{- define "sandpod.place.binding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .place.namespace | quote }}
  labels:
    {{- include "sandpod.place.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include (printf "sandpod.%s.account" .component) .root | quote }}
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{/*
Bindings of an admission policy (`name`) to all namespaces of sandboxes: those of the values, and those of tenants that are
made on first use, which have a label that the operator can't take away.
*/}}
{{- define "sandpod.sandboxes.policy.bindings" }}
{{- $values := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" (include "sandpod.sandboxes.namespaces" .root | fromJsonArray) }}
{{- $selectors := dict .name $values }}
{{- if .root.Values.tenantsOnFirstUse.enabled }}
{{- $own := dict "key" "sandpod.dev/release-namespace" "operator" "In" "values" (list .root.Release.Namespace) }}
{{- $_ := set $selectors (printf "%s-tenants" .name) $own }}
{{- end }}
{{- range $binding, $selector := $selectors }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $binding | quote }}
  labels:
    {{- include "sandpod.labels" $ | nindent 4 }}
spec:
  policyName: {{ $.name }}
  validationActions: [Deny]
  matchResources:
    namespaceSelector:
      matchExpressions:
        - {{- toYaml $selector | nindent 10 }}
{{- end }}
{{- end -}}
