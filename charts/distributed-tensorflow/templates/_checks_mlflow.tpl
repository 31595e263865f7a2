{{/* Checks of what is published to MLflow. */}}

{{- define "distributed-tensorflow.checkMlflow" -}}
{{- $values := .Values -}}
{{- with $values.mlflow.trackingUri -}}
{{- if regexMatch "^[^?#]*@" . -}}
{{- fail "mlflow.trackingUri: it has a user or a password, which the arguments of a pod would show; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in a Secret, and name it in mlflow.envFrom." -}}
{{- end -}}
{{- if regexMatch "[?#]" . -}}
{{- fail "mlflow.trackingUri: it has a query, which may be a token and which MLflow does not read; remove all from the ? on, and set MLFLOW_TRACKING_TOKEN in a Secret that mlflow.envFrom names." -}}
{{- end -}}
{{- if not (regexMatch "^https?://(\\[[0-9A-Fa-f:.]+\\]|[!-.0-9;-~]+)(:[0-9]+)?(/[!-~]*)?$" .) -}}
{{- fail (printf "mlflow.trackingUri: %q is not the address of an MLflow server; set one such as http://mlflow:5000." .) -}}
{{- end -}}
{{- end -}}
{{- if $values.mlflow.trackingUri -}}
{{- if not $values.supervisor.enabled -}}
{{- fail "mlflow.trackingUri: it is set, but supervisor.enabled is false, and the supervisor runs the stage that publishes the run; set it to true." -}}
{{- end -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- if and (not $values.trainingDirectory.enabled) (not $leader.packaged) -}}
{{- fail (printf "mlflow.trackingUri: it is set, but trainingDirectory.enabled is false, so %s has no directory that could be published; set it to true, or remove the key." $leader.role) -}}
{{- end -}}
{{- range $when := list "before" "after" -}}
{{- range $index, $stage := get $values.stages $when -}}
{{- if eq (toString $stage.name) "publish" -}}
{{- fail (printf "stages.%s[%d].name: publish is the name of the stage that mlflow.trackingUri adds; choose another name." $when $index) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $stage := include "distributed-tensorflow.stage" (dict "root" . "stage" (include "distributed-tensorflow.publishStage" . | fromJson)) | fromYaml -}}
{{- include "distributed-tensorflow.checkResources" (dict "component" "mlflow" "resources" ($stage.resources | default dict)) -}}
{{- end -}}
{{- end }}
