{{/*
What the templates share. Those that concern one component take (dict "root" . "component" "gateway"), since a named
template sees only what it is given; the others take the root.
*/}}

{{- define "sandpod.selector" -}}
app.kubernetes.io/name: sandpod
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sandpod.labels" -}}
{{ include "sandpod.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image's full name, from (dict "root" . "image" .Values.gateway.image). */}}
{{- define "sandpod.image" -}}
{{- with .image.registry }}{{ . }}/{{ end -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* Pod Security `restricted` and a read-only root, for every container of this chart. */}}
{{- define "sandpod.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "sandpod.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where the pods of a component go: spread over nodes, and as its values say. */}}
{{- define "sandpod.placement" -}}
{{- $values := index .root.Values .component -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sandpod.selector" . | nindent 8 }}
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
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
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
