{{/* TensorBoard's values with derived keys. It mounts the training directory as the chief does, and uses the CPU image. As JSON:
     YAML loses some characters. */}}
{{- define "distributed-tensorflow.tensorboardSpec" -}}
{{- $spec := include "distributed-tensorflow.ownSpec" (dict "root" . "spec" .Values.tensorboard) | fromJson -}}
{{- $_ := set $spec "sharesNode" (empty (include "distributed-tensorflow.trainingIsShared" .)) -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- if and $spec.sharesNode $leader.gpus -}}
{{- /* During the run it must follow the leader. After the run it prefers nodes without the labels that GPUs have. */ -}}
{{- $terms := list -}}
{{- range $label := list .Values.gpu.resourceName "nvidia.com/gpu.present" "cloud.google.com/gke-accelerator" "k8s.amazonaws.com/accelerator" -}}
{{- $terms = append $terms (dict "weight" 100 "preference" (dict "matchExpressions" (list (dict "key" $label "operator" "DoesNotExist")))) -}}
{{- end -}}
{{- $affinity := dict "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $terms) -}}
{{- include "distributed-tensorflow.merge" (list $affinity ($spec.affinity | default dict)) -}}
{{- $_ := set $spec "affinity" $affinity -}}
{{- end -}}
{{- toJson $spec -}}
{{- end }}

{{/* Whether the supervisor starts TensorBoard after the chief has a node. Otherwise TensorBoard could bind a claim that only
     one node can mount to a node on which the chief does not fit. */}}
{{- define "distributed-tensorflow.tensorboardGated" -}}
{{- if and .Values.tensorboard.enabled .Values.supervisor.enabled (not (include "distributed-tensorflow.trainingIsShared" .)) }}yes{{ end -}}
{{- end }}

{{/* Whether a Job stops TensorBoard some time after the run. */}}
{{- define "distributed-tensorflow.tensorboardEnds" -}}
{{- if and .Values.tensorboard.enabled .Values.supervisor.enabled (not (kindIs "invalid" .Values.tensorboard.ttlSecondsAfterFinished)) }}yes{{ end -}}
{{- end }}

{{/* The URL of TensorBoard inside the cluster. */}}
{{- define "distributed-tensorflow.tensorboardUrl" -}}
http://{{ include "distributed-tensorflow.fullname" . }}-tensorboard:{{ .Values.tensorboard.service.port }}{{ trimSuffix "/" .Values.tensorboard.pathPrefix }}
{{- end }}

{{/* The addresses that the Ingress and the HTTPRoute give TensorBoard, separated by spaces. A route's Gateway defines the scheme. */}}
{{- define "distributed-tensorflow.tensorboardAddresses" -}}
{{- $tensorboard := .Values.tensorboard -}}
{{- $addresses := list -}}
{{- if $tensorboard.ingress.enabled -}}
{{- $encrypted := list -}}
{{- range $tensorboard.ingress.tls }}{{ $encrypted = concat $encrypted (.hosts | default list) }}{{ end -}}
{{- range $tensorboard.ingress.hosts | default (list "ADDRESS-OF-THE-INGRESS") -}}
{{- $addresses = append $addresses (printf "%s://%s%s" (ternary "https" "http" (has . $encrypted)) . $tensorboard.pathPrefix) -}}
{{- end -}}
{{- end -}}
{{- if $tensorboard.httpRoute.enabled -}}
{{- range $tensorboard.httpRoute.hostnames | default (list "ADDRESS-OF-THE-GATEWAY") -}}
{{- $addresses = append $addresses (printf "%s%s" . $tensorboard.pathPrefix) -}}
{{- end -}}
{{- end -}}
{{- join " " $addresses -}}
{{- end }}

{{/* The part of the notes on these addresses, and on a NetworkPolicy that closes them; empty without an address. */}}
{{- define "distributed-tensorflow.tensorboardNotes" -}}
{{- $addresses := include "distributed-tensorflow.tensorboardAddresses" . -}}
{{- if and .Values.tensorboard.enabled $addresses -}}
{{- $peers := .Values.networkPolicy.tensorboardFrom -}}
{{- $outside := false -}}
{{- range $peers }}{{ if or (hasKey . "namespaceSelector") (hasKey . "ipBlock") }}{{ $outside = true }}{{ end }}{{ end -}}
TensorBoard is published at {{ $addresses }}
{{- if and .Values.networkPolicy.enabled (not $peers) }}
networkPolicy.tensorboardFrom is empty, so the NetworkPolicy closes this address; add the pods of the Ingress controller or the Gateway.
{{- else if and .Values.networkPolicy.enabled (not $outside) }}
networkPolicy.tensorboardFrom admits only pods of the namespace {{ .Release.Namespace }}. If the Ingress controller or the Gateway runs in another namespace, add it: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ITS-NAMESPACE}}}.
{{- end }}
{{- end -}}
{{- end }}
