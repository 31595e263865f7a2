{{/* The watch of the data: a Deployment that upgrades its own release for each new version of the dataset. */}}

{{/* Whether the run waits until the watch has found the first version. */}}
{{- define "distributed-tensorflow.waitsForData" -}}
{{- if and .Values.data.watch.enabled (not .Values.train.data_version) }}yes{{ end -}}
{{- end }}

{{/* The arguments of files/watch.sh, as a JSON list. The watch keeps the last two in the release's values, so that its own
     upgrades change nothing of its pod. An upgrade by hand that names no version starts another pod, which upgrades the release
     to the present version again. */}}
{{- define "distributed-tensorflow.watchArguments" -}}
{{- $state := .Values.data.watch.state -}}
{{- $key := ternary "uri" "subPath" (not (empty .Values.trainingDirectory.uri)) -}}
{{- $base := get .Values.trainingDirectory $key | trimSuffix "/" -}}
{{- $revision := toString .Release.Revision -}}
{{- if and .Values.train.data_version $state.revision }}{{ $base = $state.base | default "" }}{{ $revision = $state.revision }}{{ end -}}
{{- list .Release.Name .Release.Namespace (replace "$" "$$" $base) (printf "trainingDirectory.%s" $key) (toString $revision) | toJson -}}
{{- end }}

{{/* The pod's settings: those of the supervisor, with an image, resources and a service account of its own, as JSON. */}}
{{- define "distributed-tensorflow.watchSpec" -}}
{{- $watch := .Values.data.watch -}}
{{- $spec := include "distributed-tensorflow.supervisorSpec" . | fromYaml -}}
{{- $_ := set $spec "image" (include "distributed-tensorflow.packagedImage" (list . $watch.image "distributed-tensorflow/watch" .Chart.AppVersion) | fromJson) -}}
{{- $_ := set $spec "resources" $watch.resources -}}
{{- $_ := set $spec "serviceAccount" $watch.serviceAccount -}}
{{- $_ := set $spec "terminationGracePeriodSeconds" 300 -}}{{/* for an upgrade that is broken off locks the release */}}
{{- toJson $spec -}}
{{- end }}
