{{- define "mcpd.selector" -}}
app.kubernetes.io/name: mcpd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mcpd.labels" -}}
{{ include "mcpd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The configuration, with what the chart knows. Members of `config` win, but for `listen` and `tls`. */}}
{{- define "mcpd.config" -}}
{{- $address := printf "http://${HOSTNAME}.%s-replicas:8931" .Release.Name }}
{{- $cluster := dict "key" "${MCPD_CLUSTER_KEY}" "address" $address }}
{{- $own := dict "listen" "0.0.0.0:8931" "tls" "balancer" }}
{{- $http := dict "hosts" (list .Values.host) "cluster" $cluster }}
{{- $http = mergeOverwrite $http (deepCopy (dig "settings" "http" dict .Values.config)) $own }}
{{- mergeOverwrite (deepCopy .Values.config) (dict "settings" (dict "http" $http)) | toYaml }}
{{- end }}
