{{/* The settings that all pods of a run share, and the pod template of a task. */}}

{{/* Labels and annotations of a pod. (dict root component spec annotations): the chart's own annotations, as YAML */}}
{{- define "distributed-tensorflow.podMetadata" -}}
{{- $spec := .spec -}}
{{- $labels := dict "app.kubernetes.io/part-of" "distributed-tensorflow" "sidecar.istio.io/inject" "false" -}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.common" (dict "root" .root "key" "commonLabels") | fromYaml)) -}}
{{- include "distributed-tensorflow.merge" (list $labels ($spec.labels | default dict)) -}}
{{- include "distributed-tensorflow.merge" (list $labels (include "distributed-tensorflow.selectorLabels" . | fromYaml)) -}}
{{- if $spec.sharesNode }}{{ $_ := set $labels (include "distributed-tensorflow.onNodeLabel" .) "mounted" }}{{ end -}}
{{- $annotations := dict "sidecar.istio.io/inject" "false" "linkerd.io/inject" "disabled" -}}
{{- /* The autoscaler keeps the node of a pod with an emptyDir, but TensorBoard's has only temporary files. */}}
{{- if eq .component "tensorboard" }}{{ $_ := set $annotations "cluster-autoscaler.kubernetes.io/safe-to-evict" "true" }}{{ end -}}
{{- include "distributed-tensorflow.merge" (list $annotations (include "distributed-tensorflow.common" (dict "root" .root "key" "commonAnnotations") | fromYaml)) -}}
{{- include "distributed-tensorflow.merge" (list $annotations ($spec.annotations | default dict)) -}}
{{- include "distributed-tensorflow.merge" (list $annotations (.annotations | fromYaml)) -}}
labels:
  {{- toYaml $labels | nindent 2 }}
annotations:
  {{- toYaml $annotations | nindent 2 }}
{{- end }}

{{/* A value as YAML, with its templates rendered. (dict root value) */}}
{{- define "distributed-tensorflow.render" -}}
{{- $text := .value | toYaml -}}
{{- if contains "{{" $text }}{{ tpl $text .root }}{{ else }}{{ $text }}{{ end -}}
{{- end }}

{{/* The values of a pod that runs no program of the user, with what a task has keys for, as JSON: from its `podSpec`, or else from
     `common`. It runs as a user of the tasks, unless that is root, and needs no rights. (dict root spec) */}}
{{- define "distributed-tensorflow.ownSpec" -}}
{{- $spec := deepCopy .spec -}}
{{- $fields := $spec.podSpec | default dict -}}
{{- $ofTasks := .root.Values.common.podSecurityContext | default dict -}}
{{- $user := dict "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- if and $ofTasks (ne (toString $ofTasks.runAsUser) "0") }}{{ $user = pick $ofTasks "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy" "supplementalGroups" }}{{ end -}}
{{- $context := merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $user -}}
{{- include "distributed-tensorflow.merge" (list $context ($fields.securityContext | default dict)) -}}
{{- $_ := set $spec "imagePullSecrets" .root.Values.common.imagePullSecrets -}}
{{- range $key := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "schedulerName" "runtimeClassName" "dnsConfig" "hostAliases" "terminationGracePeriodSeconds" -}}
{{- if hasKey $fields $key }}{{ $_ := set $spec $key (get $fields $key) }}{{ $_ := unset $fields $key }}{{ end -}}
{{- end -}}
{{- $_ := set $spec "podSpec" (omit $fields "securityContext") -}}
{{- $_ := set $spec "podSecurityContext" $context -}}
{{- $_ := set $spec "securityContext" (dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL"))) -}}
{{- toJson $spec -}}
{{- end }}

{{/* The service account, security context and scheduling of a pod. (dict root component spec near): `near` is the component
     whose node the pod must share if only one node can mount the training directory; empty for any pod that mounts it. A
     pod that follows the leader also tolerates the leader's taints, so that it can run on the leader's node. */}}
{{- define "distributed-tensorflow.podSettings" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- $leader := include "distributed-tensorflow.leaderSpec" $root | fromJson -}}
{{- $tolerations := $spec.tolerations | default list -}}
{{- $follows := and $spec.sharesNode (not (has .component (list "chief" "worker" "ps"))) -}}
{{- if $follows }}{{ $tolerations = concat $tolerations ($leader.tolerations | default list) | uniq }}{{ end -}}
{{- if or $spec.gpus (and $follows $leader.gpus) -}}
{{- $tolerations = append $tolerations (dict "key" $root.Values.gpu.resourceName "operator" "Exists") -}}
{{- end -}}
{{- $affinity := include "distributed-tensorflow.render" (dict "root" $root "value" ($spec.affinity | default dict)) | fromYaml -}}
{{- if $spec.sharesNode -}}
{{- $affinity = include "distributed-tensorflow.affinityToTraining" (dict "root" $root "affinity" $affinity "component" .near) | fromYaml -}}
{{- end -}}
{{- $fields := dict "automountServiceAccountToken" (eq $spec.talksToApi true) "enableServiceLinks" false -}}
{{- include "distributed-tensorflow.merge" (list $fields ($spec.podSpec | default dict)) -}}
serviceAccountName: {{ include "distributed-tensorflow.serviceAccountName" . | quote }}
{{ include "distributed-tensorflow.render" (dict "root" $root "value" $fields) }}
{{- with $spec.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "imagePullSecrets" "nodeSelector" "topologySpreadConstraints" "priorityClassName" "schedulerName" "runtimeClassName" "dnsConfig" "hostAliases" }}
{{- with get $spec $key }}
{{ $key }}: {{ if kindIs "string" . }}{{ . | quote }}{{ else }}{{ include "distributed-tensorflow.render" (dict "root" $root "value" .) | nindent 2 }}{{ end }}
{{- end }}
{{- end }}
{{- if hasKey $spec "terminationGracePeriodSeconds" }}
terminationGracePeriodSeconds: {{ int $spec.terminationGracePeriodSeconds }}
{{- end }}
{{- end }}

{{/* Writable volumes at /tmp and HOME for a read-only root file system. (spec) */}}
{{- define "distributed-tensorflow.scratchMounts" -}}
{{- if (.securityContext | default dict).readOnlyRootFilesystem -}}
- name: scratch
  mountPath: /tmp
  subPath: tmp
- name: scratch
  mountPath: /home/trainer
  subPath: home
{{- end }}
{{- end }}

{{- define "distributed-tensorflow.scratchVolume" -}}
{{- if (.securityContext | default dict).readOnlyRootFilesystem -}}
- name: scratch
  emptyDir: {}
{{- end }}
{{- end }}

{{/* The environment variables that describe the cluster to a task. (dict root spec) */}}
{{- define "distributed-tensorflow.clusterEnvironment" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
- name: POD_INDEX
  {{- if eq $spec.role "client" }}
  value: "0"
  {{- else }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
  {{- end }}
{{- if not (include "distributed-tensorflow.clusterIsTooLong" $root) }}
- name: TF_CLUSTER
  valueFrom:
    configMapKeyRef:
      name: {{ include "distributed-tensorflow.fullname" $root }}-config
      key: cluster.json
- name: TF_CONFIG
  value: '{"cluster":$(TF_CLUSTER),"task":{"type":"{{ $spec.taskType }}","index":$(POD_INDEX)},"environment":"cloud"}'
{{- else }}
- name: TRAINER_CLUSTER_FILE
  value: /etc/distributed-tensorflow/cluster.json
- name: TRAINER_JOB_NAME
  value: {{ $spec.role }}
- name: TRAINER_TASK_INDEX
  value: $(POD_INDEX)
{{- end }}
{{- range include "distributed-tensorflow.rolesWithHosts" (dict "words" $spec.program) | fromJsonArray }}
- name: {{ include "distributed-tensorflow.hostsVariable" . }}
  valueFrom:
    configMapKeyRef:
      name: {{ include "distributed-tensorflow.fullname" $root }}-config
      key: {{ . }}-hosts
{{- end }}
{{- end }}

{{/* The volumes that the chart makes in the pod of a task, and where it mounts them. (dict root spec) */}}
{{- define "distributed-tensorflow.taskVolumeMounts" -}}
{{- $values := .root.Values -}}
{{- $spec := .spec -}}
- name: config
  mountPath: /etc/distributed-tensorflow
  readOnly: true
- name: task
  mountPath: /run/task
{{- if $values.supervisor.enabled }}
- name: ended
  mountPath: /etc/distributed-tensorflow-ended
  readOnly: true
{{- end }}
{{- include "distributed-tensorflow.scratchMounts" $spec | nindent 0 }}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volumeMount" (dict "name" "training" "values" (include "distributed-tensorflow.runVolume" .root | fromJson) "readOnly" false) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volumeMount" (dict "name" "data" "values" $values.data "readOnly" $values.data.readOnly) | nindent 0 }}
{{- end }}
{{- if $spec.sharedMemorySize }}
- name: shared-memory
  mountPath: /dev/shm
{{- end }}
{{- end }}

{{- define "distributed-tensorflow.taskVolumes" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $spec := .spec -}}
- name: config
  configMap:
    name: {{ include "distributed-tensorflow.fullname" $root }}-config
- name: task
  emptyDir: {}
{{- if $values.supervisor.enabled }}
- name: ended
  configMap:
    name: {{ include "distributed-tensorflow.fullname" $root }}-ended
{{- end }}
{{- include "distributed-tensorflow.scratchVolume" $spec | nindent 0 }}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volume" (dict "root" $root "name" "training" "values" $values.trainingDirectory) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volume" (dict "root" $root "name" "data" "values" $values.data) | nindent 0 }}
{{- end }}
{{- with $spec.sharedMemorySize }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The pod template of a task. (dict root spec) */}}
{{- define "distributed-tensorflow.taskPod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $spec := include "distributed-tensorflow.scheduled" . | fromJson -}}
{{- $metrics := and $spec.packaged $values.metrics.enabled -}}
metadata:
  {{- $annotations := dict "checksum/config" (include "distributed-tensorflow.configChecksum" $root) "kubectl.kubernetes.io/default-container" $spec.role }}
  {{- include "distributed-tensorflow.podMetadata" (dict "root" $root "component" $spec.role "spec" $spec "annotations" (toYaml $annotations)) | nindent 2 }}
spec:
  {{- include "distributed-tensorflow.podSettings" (dict "root" $root "component" $spec.role "spec" $spec "near" (ternary (include "distributed-tensorflow.leader" $root) "" (eq $spec.role "evaluator"))) | nindent 2 }}
  {{- if eq $spec.role "client" }}
  # The supervisor counts the restarts of one pod, and the wrapper ends the container for good.
  restartPolicy: {{ ternary "OnFailure" "Never" $values.supervisor.enabled }}
  # The names of a Job's pods are random; the hostname is the task's name.
  hostname: {{ include "distributed-tensorflow.fullname" $root }}-client-0
  {{- end }}
  {{- if $spec.hostNetwork }}
  hostNetwork: true
  {{- end }}
  {{- with $spec.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" (eq $spec.hostNetwork true)) }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- with $spec.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $spec.role }}
      {{- $image := include "distributed-tensorflow.image" (dict "root" $root "image" $spec.image "gpus" $spec.gpus) }}
      image: {{ $image | quote }}
      imagePullPolicy: {{ include "distributed-tensorflow.pullPolicy" (dict "root" $root "image" $spec.image "name" $image) }}
      command: [sh, /etc/distributed-tensorflow/task.sh]
      args:
        {{- toYaml $spec.program | nindent 8 }}
      env:
        {{- include "distributed-tensorflow.clusterEnvironment" (dict "root" $root "spec" $spec) | nindent 8 }}
        {{- with include "distributed-tensorflow.dataVersion" $root }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: TASK_DIR
          value: /run/task
        - name: TASK_POD
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- if $values.supervisor.enabled }}
        - name: TASK_ENDED
          value: /etc/distributed-tensorflow-ended
        - name: TASK_RUN
          value: {{ printf "%s%s" (include "distributed-tensorflow.runHash" $root) (ternary ".v$(DATA_VERSION)" "" $values.data.watch.enabled) | quote }}
        {{- end }}
        {{- if or $values.stages.before $values.data.watch.enabled }}
        - name: TASK_WAITS
          value: start
        {{- else if and $values.supervisor.enabled (eq $spec.role "client") }}
        - name: TASK_WAITS
          value: "yes"
        {{- end }}
        {{- if and $values.supervisor.enabled (eq $spec.role "client") }}
        - name: TASK_NAME
          value: {{ include "distributed-tensorflow.fullname" $root }}-client-0
        {{- end }}
        {{- $logs := $values.trainingDirectory.logs | default (ternary "logs" "" $spec.packaged) }}
        {{- if and $spec.mountsTraining $logs }}
        - name: TASK_LOG
          value: {{ printf "%s/%s/%s-$(POD_INDEX).log" $values.trainingDirectory.path $logs $spec.role | quote }}
        {{- end }}
        {{- if and $spec.packaged $spec.terminationGracePeriodSeconds }}
        - name: TRAINER_GRACE_SECONDS
          value: {{ max 1 (sub (int $spec.terminationGracePeriodSeconds) 5) | quote }}
        {{- end }}
        - name: TASK_EXITS
          value: {{ $spec.exits | quote }}
        {{- if $metrics }}
        - name: TRAINER_METRICS_PORT
          value: {{ $values.metrics.port | quote }}
        {{- end }}
        {{- if ($spec.securityContext | default dict).readOnlyRootFilesystem }}
        - name: HOME
          value: /home/trainer
        {{- end }}
        {{- with $spec.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $spec.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if ne $spec.role "client" }}
      ports:
        - name: {{ $values.portName }}
          containerPort: {{ $values.port }}
        {{- if $metrics }}
        - name: metrics
          containerPort: {{ $values.metrics.port }}
        {{- end }}
      {{- end }}
      {{- with $spec.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $spec.securityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $listens := not (has $spec.role (list "evaluator" "client")) }}
      {{- $port := ternary list (list (toString $values.port)) (not (empty (include "distributed-tensorflow.isAlone" $root))) }}
      {{- if $spec.readinessProbe }}
      readinessProbe:
        {{- toYaml $spec.readinessProbe | nindent 8 }}
      {{- else if and $listens (or $spec.startupProbe $spec.livenessProbe) }}
      readinessProbe:
        {{- include "distributed-tensorflow.probe" (dict "port" $port "periodSeconds" 3) | nindent 8 }}
      {{- else if $listens }}
      {{- /*
      Each probe starts a program in the container, which takes CPU time from the training, so it runs often only until the
      task is ready. The failure threshold is the maximum, because a closed port must never restart a task.
      */}}
      startupProbe:
        {{- include "distributed-tensorflow.probe" (dict "port" $port "periodSeconds" 3) | nindent 8 }}
        failureThreshold: 2147483647
      readinessProbe:
        {{- include "distributed-tensorflow.probe" (dict "port" $port "periodSeconds" 60) | nindent 8 }}
      {{- end }}
      {{- range $key := list "livenessProbe" "startupProbe" "lifecycle" }}
      {{- with get $spec $key }}
      {{ $key }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      volumeMounts:
        {{- include "distributed-tensorflow.taskVolumeMounts" . | nindent 8 }}
        {{- with $spec.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with $spec.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "distributed-tensorflow.taskVolumes" . | nindent 4 }}
    {{- with $spec.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A probe of whether a task is ready. (dict port periodSeconds), with a list of its port, or of nothing */}}
{{- define "distributed-tensorflow.probe" -}}
exec:
  command: {{ concat (list "sh" "/etc/distributed-tensorflow/ready.sh") .port | toJson }}
periodSeconds: {{ .periodSeconds }}
timeoutSeconds: 5
{{- end }}
