{{/* TensorBoard's values as a pod's spec: it mounts the training directory like the chief, from the CPU image. */}}
{{- define "distributed-tensorflow.tensorboardSpec" -}}
{{- $spec := deepCopy .Values.tensorboard -}}
{{- $_ := set $spec "imagePullSecrets" ($spec.imagePullSecrets | default .Values.common.imagePullSecrets) -}}
{{- $_ := set $spec "sharesNode" (empty (include "distributed-tensorflow.trainingIsShared" .)) -}}
{{- toYaml $spec -}}
{{- end }}

{{/* Whether the supervisor starts TensorBoard, once the chief has a node: a claim that is mounted on one node only must
     not take TensorBoard to another one first. */}}
{{- define "distributed-tensorflow.tensorboardIsHeld" -}}
{{- if and .Values.tensorboard.enabled .Values.supervisor.enabled (not (include "distributed-tensorflow.trainingIsShared" .)) }}yes{{ end -}}
{{- end }}

{{/* The address of TensorBoard's front page within the cluster. */}}
{{- define "distributed-tensorflow.tensorboardUrl" -}}
http://{{ include "distributed-tensorflow.stem" . }}-tensorboard:{{ .Values.tensorboard.service.port }}{{ trimSuffix "/" .Values.tensorboard.pathPrefix }}
{{- end }}
