{{/* Names of Kubernetes end at 63 characters; StatefulSets append to theirs. */}}
{{- define "metaq.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "metaq.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "metaq.selector" . }}
{{- end -}}

{{- define "metaq.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "metaq.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}

{{/* All name servers, host:port;host:port: brokers register at each. */}}
{{- define "metaq.namesrvAddr" -}}
{{- $service := printf "%s-namesrv" (include "metaq.fullname" .) -}}
{{- $found := list -}}
{{- range $number := until (int .Values.namesrv.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s.%s.svc.%s:%d" $service $number $service $.Release.Namespace $.Values.clusterDomain (int $.Values.namesrv.port)) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end -}}

{{/* What would not start, or not do what it looks like, is refused here. */}}
{{- define "metaq.check" -}}
{{- if not (or .Values.insecure .Values.acl.existingSecret) -}}
{{- fail "accounts are needed, acl.existingSecret, or insecure=true: without accounts everybody who reaches the ports may read, write and delete" -}}
{{- end -}}
{{- if and .Values.insecure .Values.acl.existingSecret -}}
{{- fail "insecure=true and acl.existingSecret exclude each other" -}}
{{- end -}}
{{- if and (gt (int .Values.broker.replicas) 1) (not .Values.failover.zookeeper) -}}
{{- fail "broker.replicas is more than 1: failover.zookeeper must name the ZooKeeper in which they agree who leads" -}}
{{- end -}}
{{- if gt (int .Values.broker.replicas) 64 -}}
{{- fail "broker.replicas: a group has 64 brokers at most" -}}
{{- end -}}
{{- if gt (int .Values.broker.minInSyncReplicas) (int .Values.broker.replicas) -}}
{{- fail (printf "broker.minInSyncReplicas=%d is more than broker.replicas=%d: no send would be taken" (int .Values.broker.minInSyncReplicas) (int .Values.broker.replicas)) -}}
{{- end -}}
{{- if not (has .Values.broker.advertise (list "dns" "ip")) -}}
{{- fail (printf "broker.advertise=%s: need dns or ip" .Values.broker.advertise) -}}
{{- end -}}
{{- end -}}

{{/* Arguments of both kinds of server: accounts, TLS, and the HTTP port. */}}
{{- define "metaq.commonArguments" -}}
- --data
- /data
- --host
- "0.0.0.0"
{{- if .Values.insecure }}
- --insecure
{{- end }}
- -o
- httpPort={{ .Values.http.port }}
- -o
- httpBindAddress=0.0.0.0
{{- if .Values.acl.existingSecret }}
- -o
- aclEnable=true
- -o
- aclPath=/etc/metaq/acl/plain_acl.yml
{{- end }}
{{- if .Values.tls.existingSecret }}
- -o
- tls.server.mode=enforcing
- -o
- tls.server.certPath=/etc/metaq/tls/tls.crt
- -o
- tls.server.keyPath=/etc/metaq/tls/tls.key
- -o
- tls.client.trustCertPath=/etc/metaq/tls/ca.crt
{{- end }}
{{- end -}}

{{- define "metaq.volumeMounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if .Values.acl.existingSecret }}
- name: acl
  mountPath: /etc/metaq/acl
  readOnly: true
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/metaq/tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "metaq.volumes" -}}
- name: tmp
  emptyDir: {}
{{- if .Values.acl.existingSecret }}
- name: acl
  secret:
    secretName: {{ .Values.acl.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* Variables by which `metaq` commands in the pod find the cluster, and sign and encrypt what they ask. */}}
{{- define "metaq.clientEnvironment" -}}
- name: NAMESRV_ADDR
  value: {{ include "metaq.namesrvAddr" . | quote }}
{{- if .Values.acl.existingSecret }}
- name: METAQ_ACL_FILE
  value: /etc/metaq/acl/tools.yml
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: METAQ_TLS
  value: "1"
- name: METAQ_TLS_CA
  value: /etc/metaq/tls/ca.crt
- name: METAQ_TLS_VERIFY
  value: ca
{{- end }}
{{- end -}}

{{- define "metaq.scheme" -}}
{{ if .Values.tls.existingSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}

{{/* Pods of one component on different nodes, where that can be. Arguments: root, component, name. */}}
{{- define "metaq.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "metaq.selector" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component }}
            {{- with .name }}
            metaq/broker-name: {{ . }}
            {{- end }}
{{- end -}}

{{/* Arguments: size, storageClass. */}}
{{- define "metaq.claim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- if eq .storageClass "-" }}
    storageClassName: ""
    {{- else if .storageClass }}
    storageClassName: {{ .storageClass }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}

{{/* An option as -o takes it. Numbers of a values file are floating point to Helm, which writes a million as 1e+06. Arguments: key, value. */}}
{{- define "metaq.option" -}}
{{- $value := .value -}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) -}}
{{- $value = int64 $value -}}
{{- end -}}
{{ printf "%s=%v" .key $value | quote }}
{{- end -}}
