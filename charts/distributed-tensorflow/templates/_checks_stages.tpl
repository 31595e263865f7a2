{{/* Checks of the stages. */}}

{{- define "distributed-tensorflow.checkStages" -}}
{{- $values := .Values -}}
{{- if and (or $values.stages.before $values.stages.after) (not $values.supervisor.enabled) -}}
{{- fail "stages: there are stages, but supervisor.enabled is false, and the supervisor runs them; set it to true." -}}
{{- end -}}
{{- $names := list -}}
{{- $made := list -}}
{{- range $when := list "before" "after" -}}
{{- if eq $when "after" }}{{ $made = append $made $values.trainingDirectory.path }}{{ end -}}
{{- range $index, $stage := get $values.stages $when -}}
{{- $key := printf "stages.%s[%d]" $when $index -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (toString $stage.name)) -}}
{{- fail (printf "%s.name: %q is not a valid name of a stage; use lower-case letters, digits and dashes, starting with a letter." $key (toString ($stage.name | default ""))) -}}
{{- end -}}
{{- if has $stage.name $names -}}
{{- fail (printf "%s.name: there are two stages %s; choose another name." $key $stage.name) -}}
{{- end -}}
{{- $names = append $names $stage.name -}}
{{- $length := len (printf "%s-stage-%s-12345678" (include "distributed-tensorflow.fullname" $) $stage.name) -}}
{{- if gt $length 63 -}}
{{- fail (printf "%s.name: the name of its Job, with the release's name, would have %d characters, and 63 are allowed; choose a shorter name." $key $length) -}}
{{- end -}}
{{- include "distributed-tensorflow.checkItemKeys" (dict "key" $key "what" "a stage" "item" $stage "known" (list "name" "image" "command" "args" "env" "envFrom" "resources" "gpus" "volumes" "needs" "makes" "nodeSelector" "tolerations" "backoffLimit" "activeDeadlineSeconds" "always")) -}}
{{- include "distributed-tensorflow.checkImageKeys" (dict "key" (printf "%s.image" $key) "image" $stage.image) -}}
{{- if not (or $stage.command $stage.args) -}}
{{- fail (printf "%s.command: it is not set, and neither is args; set the program of the stage, such as args: [data, import, SOURCE, URI] of the packaged trainer." $key) -}}
{{- end -}}
{{- $spec := include "distributed-tensorflow.stage" (dict "root" $ "stage" $stage) | fromYaml -}}
{{- include "distributed-tensorflow.checkResources" (dict "component" $key "resources" ($spec.resources | default dict)) -}}
{{- if and $spec.mountsData (not $values.data.enabled) -}}
{{- fail (printf "%s.volumes: the stage mounts the data, but data.enabled is false; set it to true, or remove data." $key) -}}
{{- end -}}
{{- if and $spec.mountsTraining (not (include "distributed-tensorflow.trainingIsVolume" $)) -}}
{{- fail (printf "%s.volumes: the stage mounts the training directory, which is not a volume here; remove training, or set trainingDirectory.enabled to true and trainingDirectory.uri to none." $key) -}}
{{- end -}}
{{- range $spec.env -}}
{{- if and $values.data.watch.enabled (eq .name "DATA_VERSION") -}}
{{- fail (printf "%s.env: the chart itself sets DATA_VERSION, because data.watch.enabled is true; choose another name." $key) -}}
{{- end -}}
{{- end -}}
{{- range $stage.needs -}}
{{- if not (has . $made) -}}
{{- fail (printf "%s.needs: no stage before %s makes %s; add it to `makes` of the stage that does, or remove it." $key $stage.name .) -}}
{{- end -}}
{{- end -}}
{{- $made = concat $made ($stage.makes | default list) -}}
{{- end -}}
{{- end -}}
{{- end }}
