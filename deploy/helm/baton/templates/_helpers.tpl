{{/* Names of Services begin with a letter. A part of a long name is that of other releases, too. */}}
{{- define "baton.name" -}}
{{- $name := .Release.Name | replace "." "-" }}
{{- if regexMatch "^[0-9]" $name }}{{ $name = print "baton-" $name }}{{ end }}
{{- if gt (len $name) 40 }}{{ $name = printf "%s-%s" (trunc 33 $name | trimSuffix "-") (sha256sum .Release.Name | trunc 6) }}{{ end }}
{{- $name }}
{{- end }}

{{/* Of root and role. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: baton
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Name and labels of an object of a role. */}}
{{- define "baton.metadata" -}}
name: {{ include "baton.name" .root }}-{{ .suffix | default .role }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
{{- end }}

{{- define "baton.image" -}}
{{- $image := .root.Values.image }}
{{- $tag := $image.tag | default .root.Chart.AppVersion }}
{{- if eq .accelerator "nvidia" }}
{{- if and (hasPrefix "sha256:" $tag) (not $image.gpuTag) }}{{ fail "image.gpuTag: needed, as image.tag is a digest" }}{{ end }}
{{- $tag = $image.gpuTag | default (print $tag "-gpu") }}
{{- end -}}
{{ $image.repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{/* The ports of a role as a JSON object. On the node's own network no two roles share one. */}}
{{- define "baton.ports" -}}
{{- $offset := ternary (dict "router" 0 "prefill" 1 "decode" 2 | dig .role 0) 0 .values.hostNetwork | int }}
{{- if eq .role "router" }}
{{- dict "http" 8000 "grpc" 8001 "admin" 7000 "ops" (add 9090 $offset) | toJson }}
{{- else }}
{{- $base := add 7000 (mul 100 $offset) }}
{{- dict "control" $base "data" (add $base 1) "ops" (add 9090 $offset) | toJson }}
{{- end }}
{{- end }}

{{/* The last of the ports that the ranks of a decode worker take K/V on. */}}
{{- define "baton.lastDataPort" -}}
{{- $ports := include "baton.ports" . | fromJson }}
{{- add $ports.data (include "baton.ranks" . | int) -1 }}
{{- end }}

{{- define "baton.ranks" -}}
{{- ternary .values.accelerator.count 1 (eq .values.accelerator.type "nvidia") -}}
{{- end }}

{{- define "baton.modelFolder" -}}
{{- if .Values.model.demo }}{{ .Values.model.demoFolder }}
{{- else if .Values.model.folder }}/models/{{ .Values.model.folder }}
{{- else }}/models{{ end }}
{{- end }}

{{- define "baton.tlsSecret" -}}
{{- $own := printf "%s-%s-tls" (include "baton.name" .root) .role }}
{{- if eq .root.Values.tls.mode "certManager" }}{{ $own }}
{{- else }}{{ get .root.Values.tls.secrets .role | default $own }}{{ end }}
{{- end }}

{{/* A name that ends in a dot asks the resolver once, whatever ndots says. */}}
{{- define "baton.workers" -}}
{{- $ports := include "baton.ports" . | fromJson -}}
dns:///{{ include "baton.name" .root }}-{{ .role }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}.:{{ $ports.control }}
{{- end }}

{{/* The arguments of a role's program as a JSON list; extraArgs replace those of their name. */}}
{{- define "baton.args" -}}
{{- $root := .root }}
{{- $ports := include "baton.ports" . | fromJson }}
{{- $grace := .values.terminationGracePeriodSeconds | int }}
{{- $args := list (print "--model=" (include "baton.modelFolder" $root)) }}
{{- if and $root.Values.servedModelName (eq .role "router") }}
{{- $args = append $args (print "--served-model-name=" $root.Values.servedModelName) }}
{{- end }}
{{- if $root.Values.maxModelLen }}
{{- $args = append $args (printf "--max-model-len=%d" (int $root.Values.maxModelLen)) }}
{{- end }}
{{- $args = concat $args (list "--host=0.0.0.0" "--tls-dir=/etc/baton/tls") }}
{{- if eq .role "router" }}
{{- $args = concat $args (list
      (printf "--http-port=%v" $ports.http) (printf "--grpc-port=%v" $ports.grpc)
      (printf "--ops-port=%v" $ports.ops) (printf "--admin-port=%v" $ports.admin)
      "--api-keys-file=/etc/baton/keys/keys"
      (ternary "--api-tls-dir=/etc/baton/api-tls" "--api-plaintext" (ne $root.Values.apiTls.existingSecret ""))) }}
{{- range $role := list "prefill" "decode" }}
{{- $workers := include "baton.workers" (dict "root" $root "role" $role "values" (get $root.Values $role)) }}
{{- $args = append $args (printf "--%s=%s" $role $workers) }}
{{- end }}
{{- $args = append $args (printf "--drain-timeout-s=%d" (sub $grace 30)) }}
{{- else }}
{{- $args = concat $args (list
      (printf "--port=%v" $ports.control) (printf "--data-port=%v" $ports.data)
      (printf "--advertise-data-address=$(POD_IP):%v" $ports.data)
      (printf "--metrics-port=%v" $ports.ops)
      (printf "--kv-security=%s" $root.Values.kvSecurity)
      (printf "--kv-transport=%s" $root.Values.kvTransport)
      (printf "--device=%s" (ternary "cuda" "cpu" (eq .values.accelerator.type "nvidia")))
      (printf "--tp=%s" (include "baton.ranks" .))
      "--threads=$(CPU_LIMIT)"
      (printf "--drain-timeout-s=%d" (sub $grace 10))) }}
{{- end }}
{{- $given := list }}
{{- $extra := .values.extraArgs | default list }}
{{- range $extra }}{{ $given = append $given (splitList "=" . | first) }}{{ end }}
{{- $kept := list }}
{{- range $args }}
{{- if not (has (splitList "=" . | first) $given) }}{{ $kept = append $kept . }}{{ end }}
{{- end }}
{{- concat $kept $extra | toJson }}
{{- end }}

{{/* Of every container of the release: Pod Security "restricted", but what a role must have. */}}
{{- define "baton.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ not .writable }}
capabilities:
  drop: [ALL]
  {{- if .rdma }}
  add: [IPC_LOCK]
  {{- end }}
{{- end }}

{{/* A mesh's proxy must not stand before ports that speak TLS themselves, or that probes ask. */}}
{{- define "baton.meshAnnotations" -}}
{{- $decode := dict "role" "decode" "values" .Values.decode }}
{{- $peers := list }}
{{- range untilStep 7000 (include "baton.lastDataPort" $decode | int | add1 | int) 1 }}
{{- $peers = append $peers (toString .) }}
{{- end }}
{{- $peers = join "," $peers }}
{{- if eq .Values.mesh "istio" -}}
traffic.sidecar.istio.io/excludeInboundPorts: {{ print $peers ",9090" | quote }}
traffic.sidecar.istio.io/excludeOutboundPorts: {{ $peers | quote }}
{{- else if eq .Values.mesh "linkerd" -}}
config.linkerd.io/skip-inbound-ports: {{ print $peers ",9090" | quote }}
config.linkerd.io/skip-outbound-ports: {{ $peers | quote }}
{{- end }}
{{- end }}

{{/* "true" where K/V may go over NCCL, which chooses its ports itself. */}}
{{- define "baton.nccl" -}}
{{- $gpus := and (eq .Values.prefill.accelerator.type "nvidia") (eq .Values.decode.accelerator.type "nvidia") }}
{{- if and $gpus (or (eq .Values.kvTransport "nccl") (and (eq .Values.kvTransport "auto") (eq .Values.kvSecurity "authenticated"))) }}true{{ end }}
{{- end }}

{{/* The label matchers of the pods of a role. */}}
{{- define "baton.series" -}}
{{- printf "namespace=%q,pod=~%q" .root.Release.Namespace (printf "%s-%s-.*" (include "baton.name" .root) .role) }}
{{- end }}
