{{/* Refuses unknown keys of the values. The schema could do that too, but its error cannot say which key is meant.
     files/keys.json has the keys of each mapping, by its path, and files/own.json the settings that the chart sets itself
     (make chart-docs). */}}

{{- define "distributed-tensorflow.checkKeys" -}}
{{- range $setting, $keys := .Files.Get "files/own.json" | fromJson -}}
{{- if hasKey $.Values.train $setting -}}
{{- fail (printf "train.%s: the chart itself sets it, from %s; set that instead." $setting $keys) -}}
{{- end -}}
{{- end -}}
{{- $known := .Files.Get "files/keys.json" | fromJson -}}
{{- range $path, $keys := $known -}}
{{- $found := $.Values -}}
{{- range compact (splitList "." $path) -}}
{{- $found = get (default dict $found) . -}}
{{- end -}}
{{- range $key := keys (default dict $found) | sortAlpha -}}
{{- if not (or (has $key $keys) (and (eq $path "") (eq $key "global"))) -}}
{{- $meant := include "distributed-tensorflow.meantKey" (list $known $path $key) -}}
{{- $remedy := "values.yaml has all keys, with what they do." -}}
{{- if $meant }}{{ $remedy = printf "did you mean %s?" $meant }}{{ end -}}
{{- fail (printf "%s: the chart has no such key; %s" (printf "%s.%s" $path $key | trimPrefix ".") $remedy) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses unknown keys of an item of a list, which files/keys.json does not know. (dict key what item known) */}}
{{- define "distributed-tensorflow.checkItemKeys" -}}
{{- $known := .known -}}
{{- range $key := keys (.item | default dict) | sortAlpha -}}
{{- if not (has $key $known) -}}
{{- fail (printf "%s.%s: %s has no such key; it has %s." $.key $key $.what (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The same for its image. (dict key image) */}}
{{- define "distributed-tensorflow.checkImageKeys" -}}
{{- include "distributed-tensorflow.checkItemKeys" (dict "key" .key "what" "an image" "item" .image "known" (list "registry" "repository" "tag" "digest" "pullPolicy")) -}}
{{- end }}

{{/* The path of the key that is meant by an unknown one: the same key in another mapping, best one below its own, or a similar
     key in its own mapping; empty if there is none. Takes a list: the known keys, the path and the unknown key. */}}
{{- define "distributed-tensorflow.meantKey" -}}
{{- $known := index . 0 -}}
{{- $path := index . 1 -}}
{{- $key := index . 2 -}}
{{- $meant := "" -}}
{{- range prepend (keys $known | sortAlpha) "worker" | reverse -}}
{{- if has $key (get $known .) }}{{ $meant = printf "%s.%s" . $key }}{{ end -}}
{{- end -}}
{{- range keys $known | sortAlpha | reverse -}}
{{- if and $path (hasPrefix (printf "%s." $path) .) (has $key (get $known .)) }}{{ $meant = printf "%s.%s" . $key }}{{ end -}}
{{- end -}}
{{- range ternary list (get $known $path) (not (empty $meant)) | reverse -}}
{{- if include "distributed-tensorflow.isSimilar" (list $key .) }}{{ $meant = printf "%s.%s" $path . }}{{ end -}}
{{- end -}}
{{- trimPrefix "." $meant -}}
{{- end }}

{{/* Whether the second key contains the first one, or has its letters but for two, in any order. */}}
{{- define "distributed-tensorflow.isSimilar" -}}
{{- $one := index . 0 | lower | replace "_" "" | splitList "" | sortAlpha -}}
{{- $other := index . 1 | lower | replace "_" "" | splitList "" | sortAlpha -}}
{{- $shorter := ternary $one $other (lt (len $one) (len $other)) -}}
{{- $longer := ternary $other $one (lt (len $one) (len $other)) -}}
{{- $pattern := regexReplaceAll "\\\\?." (join "" $shorter | regexQuoteMeta) "${0}.*" -}}
{{- $same := and (le (sub (len $longer) (len $shorter)) 2) (regexMatch $pattern (join "" $longer)) -}}
{{- if or (contains (lower (index . 0)) (lower (index . 1))) $same }}yes{{ end -}}
{{- end }}
