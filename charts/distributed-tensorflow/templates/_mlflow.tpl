{{/* MLflow: the stage that publishes the run. */}}

{{/* The values of the stage that publishes the run, as JSON. `identity` stands for its image and its arguments in its digest:
     both have the chart's version, and a new version must not publish an old run again, as if its image had made it. Its own
     variable, the digest of that image, which the supervisor learns from the node, is not in its digest either. Another attempt
     trains a program of one's own anew, so its number is in the digest.

     Kubernetes waits for 10 seconds before the second pod, twice as long before each other one, and at most 10 minutes. So 20
     more pods try it for more than an hour and a half. */}}
{{- define "distributed-tensorflow.publishStage" -}}
{{- $values := .Values -}}
{{- $mlflow := $values.mlflow -}}
{{- $uri := $mlflow.trackingUri -}}
{{- $experiment := $mlflow.experiment | default .Release.Name -}}
{{- $name := ternary "worker" "chief" (gt (int $values.worker.replicas) 0) -}}
{{- $words := list "models" "publish" (include "distributed-tensorflow.runDirectory" .) -}}
{{- $words = concat $words (list (printf "--tracking_uri=%s" $uri) (printf "--experiment=%s" $experiment)) -}}
{{- $model := $mlflow.model -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- if not $leader.packaged -}}
{{- $name = include "distributed-tensorflow.leader" . -}}
{{- $model = $model | default .Release.Name -}}
{{- $words = append $words "--done" -}}
{{- end -}}
{{- with $model }}{{ $words = append $words (printf "--model=%s" .) }}{{ end -}}
{{- $role := include "distributed-tensorflow.role" (dict "root" . "role" $name) | fromJson -}}
{{- range list
  (printf "image=%s" (include "distributed-tensorflow.image" (dict "root" . "image" $role.image "gpus" $role.gpus)))
  (printf "release=%s" .Release.Name)
  (printf "namespace=%s" .Release.Namespace)
-}}
{{- $words = concat $words (list "--tag" .) -}}
{{- end -}}
{{- $args := list -}}
{{- range $words }}{{ $args = append $args (replace "{{" "{{ \"{{\" }}" .) }}{{ end -}}
{{- $env := list -}}
{{- range $values.common.env }}{{ if ne (toString .name) "IMAGE_DIGEST" }}{{ $env = append $env . }}{{ end }}{{ end -}}
{{- $digest := dict "name" (printf "%s-run" (include "distributed-tensorflow.fullname" .)) "key" (printf "image.%s" $name) "optional" true -}}
{{- dict
  "name" "publish"
  "image" (include "distributed-tensorflow.packagedImage" (dict "root" . "image" $mlflow.image "repository" "distributed-tensorflow/trainer" "tag" (printf "%s-cpu-mlflow" .Chart.AppVersion)) | fromJson)
  "args" $args
  "env" (append $env (dict "name" "IMAGE_DIGEST" "valueFrom" (dict "configMapKeyRef" $digest)))
  "envFrom" (concat (ternary ($values.common.envFrom | default list) list (not (empty $values.trainingDirectory.uri))) ($mlflow.envFrom | default list))
  "resources" ($mlflow.resources | default dict)
  "volumes" (ternary list (list "training") (empty (include "distributed-tensorflow.trainingIsVolume" .)))
  "backoffLimit" 20
  "identity" (dict "uri" $uri "experiment" $experiment "model" $mlflow.model "image" (omit ($mlflow.image | default dict) "pullPolicy") "attempt" (ternary 0 $values.run.attempt $leader.packaged))
| toJson -}}
{{- end }}
