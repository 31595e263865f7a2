{{/* Checks of what the chart itself makes in the pods: volumes, mounts, and the environment variables of task.sh. */}}

{{- define "distributed-tensorflow.checkReserved" -}}
{{- $values := .Values -}}
{{- $variables := list "TASK_DIR" "TASK_ENDED" "TASK_EXITS" "TASK_LOG" "TASK_NAME" "TASK_POD" "TASK_REPORTS" "TASK_RESTARTS" "TASK_RUN" "TASK_WAITS" -}}
{{- range list "chief" "worker" "ps" "evaluator" }}{{ $variables = append $variables (include "distributed-tensorflow.hostsVariable" .) }}{{ end -}}
{{- if $values.data.watch.enabled }}{{ $variables = append $variables "DATA_VERSION" }}{{ end -}}
{{- range $spec := include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $role := $spec.role -}}
{{- $own := get $values $role -}}
{{- range $spec.env -}}
{{- if has .name $variables -}}
{{- fail (printf "%s.env: the chart itself sets %s, for the wrapper that runs the task; remove it, or choose another name." (ternary $role "common" (hasKey $own "env")) .name) -}}
{{- end -}}
{{- end -}}
{{- include "distributed-tensorflow.checkVolumes" (dict
  "volumesOf" (ternary $role "common" (hasKey $own "extraVolumes"))
  "mountsOf" (ternary $role "common" (hasKey $own "extraVolumeMounts"))
  "spec" $spec
  "volumes" (include "distributed-tensorflow.taskVolumes" (dict "root" $ "spec" $spec) | fromYamlArray)
  "mounts" (include "distributed-tensorflow.taskVolumeMounts" (dict "root" $ "spec" $spec) | fromYamlArray)
) -}}
{{- end -}}

{{- $supervisor := list (dict "name" "config" "mountPath" "/etc/distributed-tensorflow") -}}
{{- if and $values.data.watch.enabled $values.data.enabled -}}
{{- $supervisor = append $supervisor (dict "name" "data" "mountPath" $values.data.path) -}}
{{- end -}}
{{- $tensorboard := ternary list (list (dict "name" "training" "mountPath" $values.trainingDirectory.path)) (not (empty $values.trainingDirectory.uri)) -}}
{{- range $component, $volumes := dict "supervisor" $supervisor "tensorboard" $tensorboard -}}
{{- $spec := get $values $component -}}
{{- if $spec.enabled -}}
{{- include "distributed-tensorflow.checkVolumes" (dict
  "volumesOf" $component
  "mountsOf" $component
  "spec" $spec
  "volumes" (concat (include "distributed-tensorflow.scratchVolume" $spec | fromYamlArray) $volumes)
  "mounts" (concat (include "distributed-tensorflow.scratchMounts" $spec | fromYamlArray) $volumes)
) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A pod may not have two volumes of one name, nor a container two mounts at one path. (dict volumesOf mountsOf spec volumes
     mounts): the components whose values have the user's own, the values of the pod, and the chart's volumes and mounts. */}}
{{- define "distributed-tensorflow.checkVolumes" -}}
{{- $names := list -}}
{{- range .volumes }}{{ $names = append $names .name }}{{ end -}}
{{- $places := dict -}}
{{- range .mounts }}{{ $_ := set $places (trimSuffix "/" .mountPath) .name }}{{ end -}}
{{- $checked := . -}}
{{- range .spec.extraVolumes -}}
{{- if has .name $names -}}
{{- fail (printf "%s.extraVolumes: the chart itself makes the volume %s of these pods; choose another name." $checked.volumesOf .name) -}}
{{- end -}}
{{- end -}}
{{- range .spec.extraVolumeMounts -}}
{{- $path := trimSuffix "/" (toString .mountPath) -}}
{{- with get $places $path -}}
{{- fail (printf "%s.extraVolumeMounts: the chart itself mounts its volume %s at %s; choose another mountPath." $checked.mountsOf . $path) -}}
{{- end -}}
{{- end -}}
{{- end }}
