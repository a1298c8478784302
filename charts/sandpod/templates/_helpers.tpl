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

{{/* Annotation of what outlives the release, so that nobody's volumes go with it. */}}
{{- define "sandpod.sandboxes.kept" -}}
{{- if .Values.sandboxes.keepNamespaces -}}
helm.sh/resource-policy: keep
{{- end -}}
{{- end -}}
