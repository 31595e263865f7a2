{{/* The supervisor: the hash of a run, the file with its settings, and its pod template. */}}

{{/* The hash of all that defines a run. A different hash is a different run: it ends the previous one and starts from the
     last checkpoint. The hash excludes what may change during a run: replicas within maxReplicas, suspend, TensorBoard. It
     also excludes what belongs to the chart: its scripts, its defaults and the arguments that it gives the trainer. So another
     version of the chart with the same images and values leaves the run alone. */}}
{{- define "distributed-tensorflow.runHash" -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $train := include "distributed-tensorflow.changed" (list .Values.train $defaults.train) -}}
{{- $parts := list (include "distributed-tensorflow.cluster" .) $train (include "distributed-tensorflow.places" .) (toString .Values.run.attempt) -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $what := pick . "program" "env" "envFrom" "exits" "gpus" -}}
{{- if .packaged }}{{ $_ := set $what "program" (include "distributed-tensorflow.words" (dict "root" $ "words" $.Values.extraArgs) | fromJsonArray) }}{{ end -}}
{{- $parts = append $parts (printf "%s %s %s" .role (include "distributed-tensorflow.image" (dict "root" $ "image" .image "gpus" .gpus)) (toJson $what)) -}}
{{- end -}}
{{- with include "distributed-tensorflow.lastDigest" . }}{{ $parts = append $parts . }}{{ end -}}
{{- with include "distributed-tensorflow.gangIdentity" . }}{{ $parts = append $parts . }}{{ end -}}
{{- if .Values.data.watch.enabled }}{{ $parts = append $parts "watched" }}{{ end -}}
{{- join "\n" $parts | sha256sum | trunc 8 -}}
{{- end }}

{{/* The hash of the values that define a run and differ from the chart's defaults, without run.attempt. Unlike the hash of
     the run, an image that follows the chart's appVersion does not change it. files/defaults.json has the defaults (make
     chart-docs). */}}
{{- define "distributed-tensorflow.definition" -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- $values := dict -}}
{{- range $key, $default := $defaults -}}
{{- $value := get $.Values $key -}}
{{- if has $key (list "common" "chief" "worker" "ps" "evaluator" "client") -}}
{{- $value = pick $value "replicas" "maxReplicas" "taskType" "gpus" "image" "command" "args" "env" "envFrom" "restartPolicy" -}}
{{- end -}}
{{- $_ := set $values $key $value -}}
{{- end -}}
{{- $most := (.Values.run.elastic | default dict).max -}}
{{- range $map := list $values $defaults -}}
{{- $worker := omit $map.worker "replicas" -}}
{{- $_ := set $map "worker" (set $worker "maxReplicas" (int ($map.worker.maxReplicas | default $most | default $map.worker.replicas))) -}}
{{- $most = 0 -}}
{{- end -}}
{{- with include "distributed-tensorflow.lastDigest" . }}{{ $_ := set $values "stages" . }}{{ end -}}
{{- $_ := set $values "places" (include "distributed-tensorflow.places" .) -}}
{{- if .Values.data.watch.enabled }}{{ $_ := set $values "watched" true }}{{ end -}}
{{- include "distributed-tensorflow.changed" (list $values $defaults) | sha256sum | trunc 8 -}}
{{- end }}

{{/* The supervisor's Job and its settings are immutable: a changed pod template or run.json is another object, whose name
     ends with another hash. So a failed upgrade does not change what the present supervisor reads. */}}
{{- define "distributed-tensorflow.supervisorHash" -}}
{{- list (include "distributed-tensorflow.run" .) (include "distributed-tensorflow.supervisorPod" (dict "root" . "configMap" "" "component" "supervisor" "arguments" list)) | join "\n" | sha256sum | trunc 8 -}}
{{- end }}

{{- define "distributed-tensorflow.supervisorJob" -}}
{{ include "distributed-tensorflow.fullname" . }}-run-{{ include "distributed-tensorflow.supervisorHash" . }}
{{- end }}

{{- define "distributed-tensorflow.supervisorConfigMap" -}}
{{ include "distributed-tensorflow.fullname" . }}-supervisor-{{ include "distributed-tensorflow.supervisorHash" . }}
{{- end }}

{{/* The supervisor's values with derived keys, as JSON. It writes to no volume, so it has no group for them. */}}
{{- define "distributed-tensorflow.supervisorSpec" -}}
{{- $spec := include "distributed-tensorflow.ownSpec" (dict "root" . "spec" .Values.supervisor) | fromJson -}}
{{- $_ := set $spec "podSecurityContext" (omit $spec.podSecurityContext "fsGroup" "fsGroupChangePolicy") -}}
{{- $_ := set $spec "talksToApi" true -}}
{{- toJson $spec -}}
{{- end }}

{{/* The file that `trainer supervise` reads, without the name of its Job: the values of `run`, except those of the Job, and
     facts about the release. trainer/supervisor/run.py has the same names. */}}
{{- define "distributed-tensorflow.run" -}}
{{- $fullname := include "distributed-tensorflow.fullname" . -}}
{{- $roles := dict -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $entry := pick . "replicas" "exits" -}}
{{- if eq .role "client" -}}
{{- $_ := set $entry "job" (include "distributed-tensorflow.clientJob" $) -}}
{{- else if eq .role "worker" -}}
{{- $_ := set $entry "addresses" .addresses -}}
{{- end -}}
{{- $_ := set $roles .role $entry -}}
{{- end -}}
{{- $result := "" -}}
{{- if and .Values.tensorboard.enabled (include "distributed-tensorflow.trainingIsVolume" .) -}}
{{- $result = printf "kubectl exec --namespace %s deployment/%s-tensorboard -- cat %s%s/result.json" .Release.Namespace $fullname .Values.trainingDirectory.path (ternary "/v$(DATA_VERSION)" "" .Values.data.watch.enabled) -}}
{{- end -}}
{{- $tensorboard := dict -}}
{{- $gated := not (empty (include "distributed-tensorflow.tensorboardGated" .)) -}}
{{- if or $gated (include "distributed-tensorflow.tensorboardEnds" .) -}}
{{- $own := .Values.tensorboard.serviceAccount -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" . | fromJson -}}
{{- $tensorboard = dict
  "gated" $gated
  "serviceAccount" (ternary (printf "%s-tensorboard" $fullname) nil (and $gated (empty $own.name)))
  "annotations" ($own.annotations | default dict)
  "leavesNode" (and $gated (not (empty $leader.gpus)))
  "ttlSecondsAfterFinished" .Values.tensorboard.ttlSecondsAfterFinished
-}}
{{- end -}}
{{- $facts := dict
  "fullname" $fullname
  "chart" .Chart.Name
  "release" .Release.Name
  "labels" (include "distributed-tensorflow.ownLabels" (dict "root" . "component" "") | fromYaml)
  "annotations" (include "distributed-tensorflow.common" (dict "root" . "key" "commonAnnotations") | fromYaml)
  "hash" (include "distributed-tensorflow.runHash" .)
  "definition" (include "distributed-tensorflow.definition" .)
  "leader" (printf "%s-%s-0" $fullname (include "distributed-tensorflow.leader" .))
  "roles" $roles
  "tensorboard" ($tensorboard | default nil)
  "resultCommand" ($result | default nil)
  "metricsPort" (ternary .Values.metrics.port nil .Values.metrics.enabled)
-}}
{{- with .Values.data.watch -}}
{{- if .enabled -}}
{{- $data := dict "uri" ($.Values.data.uri | default $.Values.data.path) "tag" .tag "intervalSeconds" (int .intervalSeconds) -}}
{{- $_ := set $facts "dataWatch" $data -}}
{{- end -}}
{{- end -}}
{{- $stages := dict -}}
{{- range $when := list "before" "after" -}}
{{- $entries := list -}}
{{- range include "distributed-tensorflow.stages" (dict "root" $ "when" $when) | fromJsonArray -}}
{{- $entry := pick . "name" "digest" "job" "always" -}}
{{- if include "distributed-tensorflow.stagesAreMade" $ }}{{ $_ := set $entry "template" .template }}{{ $_ := set $entry "manifest" (include "distributed-tensorflow.stageJob" (dict "root" $ "stage" .) | fromYaml) }}{{ end -}}
{{- $entries = append $entries $entry -}}
{{- end -}}
{{- $_ := set $stages $when $entries -}}
{{- end -}}
{{- if or $stages.before $stages.after }}{{ $_ := set $facts "stages" $stages }}{{ end -}}
{{- with .Values.scheduling.gang -}}
{{- $_ := set $facts "gang" (dict "kind" . "queue" $.Values.scheduling.queue "members" (include "distributed-tensorflow.gangMembers" $ | fromJson)) -}}
{{- end -}}
{{- merge $facts (omit .Values.run "ttlSecondsAfterFinished") | toJson -}}
{{- end }}

{{/* A pod template of the supervisor's program. (dict root configMap component arguments) */}}
{{- define "distributed-tensorflow.supervisorPod" -}}
{{- $configMap := .configMap -}}
{{- $component := .component -}}
{{- $arguments := .arguments -}}
{{- with .root -}}
{{- $spec := include "distributed-tensorflow.supervisorSpec" . | fromJson -}}
{{- $watches := and .Values.data.watch.enabled (eq $component "supervisor") -}}
metadata:
  {{- include "distributed-tensorflow.podMetadata" (dict "root" . "component" $component "spec" $spec "annotations" "{}") | nindent 2 }}
spec:
  {{- include "distributed-tensorflow.podSettings" (dict "root" . "component" "supervisor" "spec" $spec "near" "") | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: {{ $component }}
      {{- $image := include "distributed-tensorflow.supervisorImage" . }}
      image: {{ $image | quote }}
      imagePullPolicy: {{ include "distributed-tensorflow.pullPolicy" (dict "root" . "image" $spec.image "name" $image) }}
      command: {{ concat (list "trainer" "supervise" "--run=/etc/distributed-tensorflow/run.json") $arguments | toJson }}
      env:
        - name: JOB_UID
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
        - name: POD_UID
          valueFrom:
            fieldRef:
              fieldPath: metadata.uid
        - name: HOME
          value: /home/trainer
        {{- if and .Values.run.notifySecret (eq $component "supervisor") }}
        - name: NOTIFY_URL
          valueFrom:
            secretKeyRef:
              name: {{ .Values.run.notifySecret | quote }}
              key: url
              optional: true
        {{- end }}
        {{- with concat (ternary (.Values.common.env | default list) list $watches) ($spec.env | default list) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with ternary .Values.common.envFrom list $watches }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and .Values.metrics.enabled (eq $component "supervisor") }}
      ports:
        - name: metrics
          containerPort: {{ .Values.metrics.port }}
      {{- end }}
      {{- with $spec.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $spec.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: config
          mountPath: /etc/distributed-tensorflow
          readOnly: true
        {{- if and $watches .Values.data.enabled }}
        {{- include "distributed-tensorflow.volumeMount" (dict "name" "data" "values" .Values.data "readOnly" true) | nindent 8 }}
        {{- end }}
        {{- include "distributed-tensorflow.scratchMounts" $spec | nindent 8 }}
        {{- with $spec.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ $configMap | quote }}
    {{- if and $watches .Values.data.enabled }}
    {{- include "distributed-tensorflow.volume" (dict "root" . "name" "data" "values" .Values.data) | nindent 4 }}
    {{- end }}
    {{- include "distributed-tensorflow.scratchVolume" $spec | nindent 4 }}
    {{- with $spec.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
