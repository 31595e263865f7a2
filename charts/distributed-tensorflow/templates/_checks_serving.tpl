{{/* Checks of the versions of served models. */}}

{{- define "distributed-tensorflow.checkServing" -}}
{{- if and .Values.serving.enabled (not .Values.serving.versions) -}}
{{- fail "serving.versions: it is empty, but serving.enabled is true; name a version, such as [{name: v1, image: {repository: distributed-tensorflow/model-digits, tag: \"2001\"}}]." -}}
{{- end -}}
{{- $route := .Values.serving.httpRoute -}}
{{- $weights := 0 -}}
{{- $names := list -}}
{{- range $index, $version := .Values.serving.versions -}}
{{- $key := printf "serving.versions[%d]" $index -}}
{{- include "distributed-tensorflow.checkItemKeys" (dict "key" $key "what" "a version" "item" $version "known" (list "name" "image" "model" "weight" "replicas" "command" "args" "readinessPath" "mountTraining")) -}}
{{- include "distributed-tensorflow.checkImageKeys" (dict "key" (printf "%s.image" $key) "image" $version.image) -}}
{{- $name := ternary "" (toString $version.name) (kindIs "invalid" $version.name) -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?$" $name) -}}
{{- fail (printf "%s.name: %q is not valid; set at most 12 lower-case letters, digits and dashes, such as v1." $key $name) -}}
{{- end -}}
{{- if has $name $names -}}
{{- fail (printf "%s.name: another version has the name %s; give each its own." $key $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- if $version.model -}}
{{- if $version.image -}}
{{- fail (printf "%s.image: %s.model is set too, but a version has one model; remove one, and set serving.image for another image of the server." $key $key) -}}
{{- end -}}
{{- range list "command" "readinessPath" "mountTraining" -}}
{{- if get $version . -}}
{{- fail (printf "%s.%s: it is for the image of another server, but %s.model is served by the chart's own; remove one, and set %s.image with the first." $key . $key $key) -}}
{{- end -}}
{{- end -}}
{{- include "distributed-tensorflow.checkServedModel" (dict "root" $ "key" (printf "%s.model" $key) "model" $version.model) -}}
{{- else if not ($version.image | default dict).repository -}}
{{- fail (printf "%s.image.repository: it is empty, but each version needs the image of a model, which make package-model builds, or %s.model; set one, such as model: . for the model of this run." $key $key) -}}
{{- else if not (or $version.image.tag $version.image.digest) -}}
{{- fail (printf "%s.image.tag: it is not set, and neither is digest, but make package-model gives an image the step of its model as the tag; set one, such as tag: \"2001\"." $key) -}}
{{- end -}}
{{- if and $version.mountTraining (not (include "distributed-tensorflow.trainingIsVolume" $)) -}}
{{- fail (printf "%s.mountTraining: it is true, but the training directory is not a volume; remove trainingDirectory.uri and set trainingDirectory.enabled to true." $key) -}}
{{- end -}}
{{- if and $version.readinessPath (not (regexMatch "^/[^\\pC ]*$" $version.readinessPath)) -}}
{{- fail (printf "%s.readinessPath: %q is not a path of a URL; set one such as /v1/models/digits." $key $version.readinessPath) -}}
{{- end -}}
{{- if and (not $route.enabled) (not (kindIs "invalid" $version.weight)) -}}
{{- fail (printf "%s.weight: only a route has weights, but serving.httpRoute.enabled is false; set it to true, or set replicas instead." $key) -}}
{{- end -}}
{{- if and $route.enabled (hasKey $version "replicas") (not $version.replicas) (include "distributed-tensorflow.servingWeight" $version | int) -}}
{{- fail (printf "%s.replicas: it is 0, but the route sends requests to this version; set its weight to 0 too." $key) -}}
{{- end -}}
{{- $weights = add $weights (include "distributed-tensorflow.servingWeight" $version | int) -}}
{{- end -}}
{{- if and .Values.serving.enabled $route.enabled -}}
{{- if not $route.parentRefs -}}
{{- fail "serving.httpRoute.parentRefs: it is empty, but an HTTPRoute needs a Gateway; set it, such as [{name: my-gateway}]." -}}
{{- end -}}
{{- if not $weights -}}
{{- fail "serving.versions: the weight of each version is 0, so none gets a request; set one to at least 1." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* (dict root key model): a URI of MLflow, or a path in the training directory */}}
{{- define "distributed-tensorflow.checkServedModel" -}}
{{- $root := .root -}}
{{- $key := .key -}}
{{- $model := .model -}}
{{- if hasPrefix "models:" $model -}}
{{- if not (regexMatch "^models:/[^/@:'\"\\pC]+(/[0-9]+|@[A-Za-z0-9_-]+)$" $model) -}}
{{- fail (printf "%s: %q is not a version of a registered model; set models:/NAME/VERSION or models:/NAME@ALIAS." $key $model) -}}
{{- end -}}
{{- if not $root.Values.mlflow.trackingUri -}}
{{- fail (printf "%s: %q is in MLflow, but no server is known; set mlflow.trackingUri." $key $model) -}}
{{- end -}}
{{- else -}}
{{- if or (contains ":" $model) (hasPrefix "/" $model) (has ".." (splitList "/" $model)) (not (regexMatch "^[^\\pC]+$" $model)) -}}
{{- fail (printf "%s: %q is not a path in the training directory; set one such as . for the model that the run has exported last, or export/2001." $key $model) -}}
{{- end -}}
{{- if not (include "distributed-tensorflow.trainingIsVolume" $root) -}}
{{- fail (printf "%s: %q is in the training directory, but that is not a volume; remove trainingDirectory.uri and set trainingDirectory.enabled to true, or use models:/NAME/VERSION of MLflow." $key $model) -}}
{{- end -}}
{{- end -}}
{{- end }}
