{{/* Checks of the versions of served models. */}}

{{- define "distributed-tensorflow.checkServing" -}}
{{- if and .Values.serving.enabled (not .Values.serving.versions) -}}
{{- fail "serving.versions: it is empty, but serving.enabled is true; name a version, such as [{name: v1, image: {repository: team/model-digits, tag: \"2001\"}}]." -}}
{{- end -}}
{{- $names := list -}}
{{- range $index, $version := .Values.serving.versions -}}
{{- $key := printf "serving.versions[%d]" $index -}}
{{- range $field := keys $version | sortAlpha -}}
{{- if not (has $field (list "name" "image" "replicas" "args")) -}}
{{- fail (printf "%s.%s: the chart has no such key; a version has name, image, replicas and args." $key $field) -}}
{{- end -}}
{{- end -}}
{{- $name := toString $version.name -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?$" $name) -}}
{{- fail (printf "%s.name: %q is not valid; set at most 12 lower-case letters, digits and dashes, such as v1." $key $name) -}}
{{- end -}}
{{- if has $name $names -}}
{{- fail (printf "%s.name: another version has the name %s; give each its own." $key $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- if not ($version.image | default dict).repository -}}
{{- fail (printf "%s.image.repository: it is empty, but each version needs the image of a model; make package-model builds one." $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
