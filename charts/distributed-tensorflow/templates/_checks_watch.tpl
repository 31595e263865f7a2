{{/* Checks of the watch of the data. */}}

{{- define "distributed-tensorflow.checkWatch" -}}
{{- if .Values.data.watch.enabled -}}
{{- if not .Values.supervisor.enabled -}}
{{- fail "data.watch.enabled: it is true, but supervisor.enabled is false, and the supervisor watches the data; set it to true." -}}
{{- end -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- if not $leader.packaged -}}
{{- fail (printf "data.watch.enabled: it is true, but %s runs a program of your own, to which the chart cannot give the version; set it to false." $leader.role) -}}
{{- end -}}
{{- if ne (toString .Values.train.dataset) "lance" -}}
{{- fail (printf "data.watch.enabled: it is true, but only a Lance dataset has versions, and train.dataset is %q; set train.dataset to lance, and data.uri." (toString (.Values.train.dataset | default ""))) -}}
{{- end -}}
{{- with .Values.train.data_version -}}
{{- fail (printf "data.watch.enabled: it is true, but train.data_version is %q, and the watch chooses the version; remove it, or set data.watch.enabled to false." (toString .)) -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--(data[-_]version|train[-_]dir)(=|$)" (toString .) -}}
{{- fail (printf "extraArgs: %s takes the place of what data.watch gives to each run; remove it, or set data.watch.enabled to false." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
