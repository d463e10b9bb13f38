{{/* What the schema cannot say: an API server would refuse it, or take it and never do it. */}}

{{/* maxUnavailable and maxSurge of a role as a JSON object. */}}
{{- define "baton.strategy" -}}
{{- $nvidia := eq (dig "accelerator" "type" "cpu" .values) "nvidia" }}
{{- $given := .values.strategy | default dict }}
{{- $made := dict "maxUnavailable" (ternary 1 0 $nvidia) "maxSurge" (ternary 0 1 $nvidia) }}
{{- range $key, $value := $given }}{{ $_ := set $made $key $value }}{{ end }}
{{- if not (or (regexMatch "[1-9]" (toString $made.maxUnavailable)) (regexMatch "[1-9]" (toString $made.maxSurge))) }}
{{- fail (printf "%s.strategy: maxUnavailable and maxSurge are both 0, so no pod could be replaced" .role) }}
{{- end }}
{{- toJson $made }}
{{- end }}

{{- define "baton.checkRole" -}}
{{- $role := .role }}
{{- $scaling := .values.autoscaling }}
{{- $requests := dig "requests" dict (.values.resources | default dict) | default dict }}
{{- $limits := dig "limits" dict (.values.resources | default dict) | default dict }}
{{- if $scaling.enabled }}
{{- if gt (int $scaling.min) (int $scaling.max) }}
{{- fail (printf "%s.autoscaling.min: %v is more than max, which is %v" $role $scaling.min $scaling.max) }}
{{- end }}
{{- if and (eq $role "router") (not (or (hasKey $requests "cpu") (hasKey $limits "cpu"))) }}
{{- fail "router.resources.requests.cpu: needed, as autoscaling counts percent of it" }}
{{- end }}
{{- end }}
{{- $grace := .values.terminationGracePeriodSeconds | int }}
{{- $most := sub $grace (ternary 15 0 (eq $role "router")) | int }}
{{- range .values.extraArgs }}
{{- if and (hasPrefix "--drain-timeout-s=" .) (ge (trimPrefix "--drain-timeout-s=" . | int) $most) }}
{{- fail (printf "%s.extraArgs: %s does not end within terminationGracePeriodSeconds, %d" $role . $grace) }}
{{- end }}
{{- end }}
{{- $volumes := list "tls" "keys" "api-tls" "model" "scratch" "shm" }}
{{- range .values.extraVolumes }}
{{- if has .name $volumes }}{{ fail (printf "%s.extraVolumes: two are named %s" $role .name) }}{{ end }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- $paths := list }}
{{- range .values.extraVolumeMounts }}
{{- if not (has .name $volumes) }}
{{- fail (printf "%s.extraVolumeMounts: no volume is named %s" $role .name) }}
{{- end }}
{{- if has .mountPath $paths }}
{{- fail (printf "%s.extraVolumeMounts: two are at %s" $role .mountPath) }}
{{- end }}
{{- $paths = append $paths .mountPath }}
{{- end }}
{{- $gpus := dig "accelerator" "count" 0 .values | int }}
{{- if eq (dig "accelerator" "type" "cpu" .values) "nvidia" }}
{{- range $amounts := list $requests $limits }}
{{- if and (hasKey $amounts "nvidia.com/gpu") (ne (get $amounts "nvidia.com/gpu" | toString) (toString $gpus)) }}
{{- fail (printf "%s.resources: nvidia.com/gpu is not accelerator.count, %d" $role $gpus) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
