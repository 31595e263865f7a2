{{/* The values of the pods of a version of served models, with derived keys, as JSON: `image` and `args` of the container,
     `mountsTraining`, and `sharesNode` as those of a role. (dict root version)

     Of a packaged model the image has everything; with the repository that make package-model gives it, it is in image.registry,
     as the other packaged images. Any other server has its own arguments, and mounts the training directory if it wants to. With
     `model` our server finds the model, and waits until it is there. */}}
{{- define "distributed-tensorflow.servingSpec" -}}
{{- $root := .root -}}
{{- $version := .version -}}
{{- $values := $root.Values -}}
{{- $spec := deepCopy $values.serving -}}
{{- $_ := set $spec "imagePullSecrets" ($spec.imagePullSecrets | default $values.common.imagePullSecrets) -}}
{{- $_ := set $spec "labels" (merge (dict "distributed-tensorflow/model-version" (toString $version.name)) ($spec.labels | default dict)) -}}
{{- $isPath := and (not (empty $version.model)) (not (hasPrefix "models:" $version.model)) -}}
{{- $_ := set $spec "mountsTraining" (or $isPath (and $version.mountTraining true)) -}}
{{- $_ := set $spec "sharesNode" (and $spec.mountsTraining (empty (include "distributed-tensorflow.trainingIsShared" $root))) -}}
{{- $args := list -}}
{{- if $version.model -}}
{{- $place := $version.model -}}
{{- if $isPath -}}
{{- $place = printf "%s/%s" (trimSuffix "/" $values.trainingDirectory.path) $version.model | trimSuffix "/." -}}
{{- end -}}
{{- $args = list $place "--wait" -}}
{{- with $spec.name }}{{ $args = append $args (printf "--name=%s" .) }}{{ end -}}
{{- if not $isPath }}{{ $args = append $args (printf "--tracking_uri=%s" $values.mlflow.trackingUri) }}{{ end -}}
{{- $_ := set $spec "image" (include "distributed-tensorflow.packagedImage" (dict "root" $root "image" $spec.image "repository" "distributed-tensorflow/model-server" "tag" $root.Chart.AppVersion) | fromJson) -}}
{{- else -}}
{{- $registry := ternary $values.image.registry "" (hasPrefix "distributed-tensorflow/" (toString $version.image.repository)) -}}
{{- $_ := set $spec "image" (mergeOverwrite (dict "registry" $registry) $version.image) -}}
{{- end -}}
{{- $_ := set $spec "args" (concat $args ($version.args | default list)) -}}
{{- toJson $spec -}}
{{- end }}

{{/* The component whose node the pods share that mount a training directory that only one node can mount: TensorBoard, if it
     stays after the run, because it is scheduled after the leader. Otherwise they run on the node of any pod that mounts it. */}}
{{- define "distributed-tensorflow.servingNear" -}}
{{- if and .Values.tensorboard.enabled (kindIs "invalid" .Values.tensorboard.ttlSecondsAfterFinished) }}tensorboard{{ end -}}
{{- end }}

{{/* The weight of a version in the route. (version) */}}
{{- define "distributed-tensorflow.servingWeight" -}}
{{- ternary 1 .weight (kindIs "invalid" .weight) | int -}}
{{- end }}

{{/* The Service of a version, for the route; without a version that of the pods of all, each of which gets requests by its
     number of replicas. (dict root version) */}}
{{- define "distributed-tensorflow.servingService" -}}
{{- $root := .root -}}
{{- $version := .version -}}
{{- $service := $root.Values.serving.service }}
apiVersion: v1
kind: Service
metadata:
  {{- include "distributed-tensorflow.metadata" (dict "root" $root "component" "serving" "word" (printf "serving-%s" $version | trimSuffix "-") "annotations" $service.annotations) | nindent 2 }}
spec:
  type: {{ ternary "ClusterIP" $service.type (ne $version "") }}
  selector:
    {{- include "distributed-tensorflow.selectorLabels" (dict "root" $root "component" "serving") | nindent 4 }}
    {{- with $version }}
    distributed-tensorflow/model-version: {{ . | quote }}
    {{- end }}
  ports:
    - name: http
      port: {{ $service.port }}
      targetPort: http
    - name: grpc
      port: 8081
      targetPort: grpc
{{- end }}
