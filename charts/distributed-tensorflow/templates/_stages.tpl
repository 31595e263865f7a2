{{/* The stages: Jobs before and after the training. The supervisor starts them one after another. */}}

{{/* The values of the stages before or after the training as a JSON list: those of the user, and at the end the one that
     publishes the run to MLflow. (list $ when) */}}
{{- define "distributed-tensorflow.stageValues" -}}
{{- $root := index . 0 -}}
{{- $stages := get $root.Values.stages (index . 1) | default list -}}
{{- if and (eq (index . 1) "after") (include "distributed-tensorflow.mlflowUri" $root) -}}
{{- $stages = append $stages (include "distributed-tensorflow.publishStage" $root | fromJson) -}}
{{- end -}}
{{- toJson $stages -}}
{{- end }}

{{/* The values of a stage, merged with those of `common` that apply to it, as YAML, with derived keys as those of a role.
     (list $ stage) */}}
{{- define "distributed-tensorflow.stage" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $spec := omit (deepCopy $values.common) "image" "command" "args" "restartPolicy" "initContainers" "sidecars" "readinessProbe" "livenessProbe" "startupProbe" "lifecycle" "serviceAccount" "podDisruptionBudget" "hostNetwork" "dnsPolicy" "topologySpreadConstraints" -}}
{{- include "distributed-tensorflow.merge" (list $spec (deepCopy (index . 1))) -}}
{{- $_ := set $spec "gpus" (int ($spec.gpus | default 0)) -}}
{{- if $spec.gpus -}}
{{- $resources := $spec.resources | default dict -}}
{{- $_ := set $spec "resources" (set $resources "limits" (set ($resources.limits | default dict) $values.gpu.resourceName $spec.gpus)) -}}
{{- end -}}
{{- $there := list -}}
{{- if include "distributed-tensorflow.trainingIsVolume" $root }}{{ $there = append $there "training" }}{{ end -}}
{{- if $values.data.enabled }}{{ $there = append $there "data" }}{{ end -}}
{{- $_ := set $spec "volumes" (ternary $spec.volumes $there (hasKey $spec "volumes")) -}}
{{- range $key := list "command" "args" -}}
{{- $_ := set $spec $key (include "distributed-tensorflow.words" (list $root (get $spec $key | default list)) | fromJsonArray) -}}
{{- end -}}
{{- $_ := set $spec "mountsTraining" (has "training" $spec.volumes) -}}
{{- $_ := set $spec "mountsData" (has "data" $spec.volumes) -}}
{{- $_ := set $spec "sharesNode" (and $spec.mountsTraining (empty (include "distributed-tensorflow.trainingIsShared" $root))) -}}
{{- toYaml $spec -}}
{{- end }}

{{/* The digests of the stages before or after the training, as JSON: each is the hash of what determines the output of a
     stage, and of the digest before it. A new version of the chart does not change it. The stage that publishes, which is the
     last one, depends on the training and not on other stages. (list $ when) */}}
{{- define "distributed-tensorflow.stageDigests" -}}
{{- $root := index . 0 -}}
{{- $digests := list -}}
{{- with include "distributed-tensorflow.stageValues" . | fromJsonArray -}}
{{- $places := dict -}}
{{- range $key := list "trainingDirectory" "data" -}}
{{- $_ := set $places $key (pick (get $root.Values $key) "enabled" "uri" "path" "existingClaim" "nfs" "subPath") -}}
{{- end -}}
{{- $training := "" -}}
{{- if eq (index $ 1) "after" }}{{ $training = include "distributed-tensorflow.definition" $root }}{{ end -}}
{{- $last := $training -}}
{{- range . -}}
{{- $spec := include "distributed-tensorflow.stage" (list $root (ternary (omit . "env") . (hasKey . "identity"))) | fromYaml -}}
{{- $image := merge (dict "own" .image) (omit $root.Values.image "pullPolicy") -}}
{{- if .identity }}{{ $image = .identity }}{{ $spec = omit $spec "args" }}{{ $last = $training }}{{ end -}}
{{- $what := list $last $image $places (pick $spec "name" "command" "args" "env" "envFrom" "gpus" "volumes") -}}
{{- $last = toJson $what | sha256sum | trunc 8 -}}
{{- $digests = append $digests $last -}}
{{- end -}}
{{- end -}}
{{- toJson $digests -}}
{{- end }}

{{/* The digest of the last stage before the training; empty without stages. */}}
{{- define "distributed-tensorflow.lastDigest" -}}
{{- include "distributed-tensorflow.stageDigests" (list . "before") | fromJsonArray | last -}}
{{- end }}

{{/* The stages before or after the training as a JSON list, each with `name`, `digest`, `job`, `always` and `spec`.
     (list $ when)

     A Job's template is immutable, and it runs once. So its name has the hash of its template and of run.attempt; from the
     first stage that always runs on, also that of the run. */}}
{{- define "distributed-tensorflow.stages" -}}
{{- $root := index . 0 -}}
{{- $when := index . 1 -}}
{{- $stages := list -}}
{{- $digests := include "distributed-tensorflow.stageDigests" . | fromJsonArray -}}
{{- $attempt := toString $root.Values.run.attempt -}}
{{- $always := false -}}
{{- if eq $when "after" }}{{ range $root.Values.stages.before }}{{ $always = or $always .always }}{{ end }}{{ end -}}
{{- range $index, $stage := include "distributed-tensorflow.stageValues" . | fromJsonArray -}}
{{- $spec := include "distributed-tensorflow.stage" (list $root $stage) | fromYaml -}}
{{- $parts := list (include "distributed-tensorflow.stageTemplate" (list $root $spec "")) (index $digests $index) $attempt -}}
{{- $always = or $always $stage.always -}}
{{- if $always -}}
{{- $parts = concat $parts (list (include "distributed-tensorflow.runHash" $root) (include "distributed-tensorflow.stageDigests" (list $root "after"))) -}}
{{- end -}}
{{- $job := printf "%s-stage-%s-%s" (include "distributed-tensorflow.fullname" $root) $stage.name (join "\n" $parts | sha256sum | trunc 8) -}}
{{- $stages = append $stages (dict "name" $stage.name "digest" (index $digests $index) "job" $job "always" (eq $stage.always true) "spec" $spec) -}}
{{- end -}}
{{- toJson $stages -}}
{{- end }}

{{/* The Job of a stage. (list $ stage), with `job` and `spec` */}}
{{- define "distributed-tensorflow.stageJob" -}}
{{- $root := index . 0 -}}
{{- with index . 1 -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .job }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "distributed-tensorflow.labelsAndAnnotations" (list $root "stage") | nindent 2 }}
spec:
  {{- include "distributed-tensorflow.stageTemplate" (list $root .spec .job) | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a stage's Job has: its limits, and its pod template. (list $ spec account) */}}
{{- define "distributed-tensorflow.stageTemplate" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $spec := set (index . 1) "serviceAccount" (dict "name" (index . 2)) -}}
backoffLimit: {{ ternary $spec.backoffLimit 6 (hasKey $spec "backoffLimit") | int }}
{{- with $spec.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ int . }}
{{- end }}
# As with restartPolicy ExitCode of a task: codes up to 127 are permanent, and a disruption does not count.
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
    - action: FailJob
      onExitCodes:
        containerName: stage
        operator: In
        values: {{ untilStep 1 128 1 | toJson }}
template:
  metadata:
    {{- include "distributed-tensorflow.podMetadata" (list $root "stage" $spec "{}") | nindent 4 }}
  spec:
    {{- include "distributed-tensorflow.podSettings" (list $root "stage" $spec "") | nindent 4 }}
    restartPolicy: Never
    containers:
      - name: stage
        {{- $image := include "distributed-tensorflow.image" (list $root $spec.image $spec.gpus) }}
        image: {{ $image | quote }}
        imagePullPolicy: {{ include "distributed-tensorflow.pullPolicy" (list $root $spec.image $image) }}
        {{- with $spec.command }}
        command:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with $spec.args }}
        args:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- $home := (($spec.securityContext | default dict).readOnlyRootFilesystem) }}
        {{- $version := include "distributed-tensorflow.dataVersion" $root }}
        {{- if or $home $version $spec.env }}
        env:
          {{- with $version }}
          {{- . | nindent 10 }}
          {{- end }}
          {{- if $home }}
          - name: HOME
            value: /home/trainer
          {{- end }}
          {{- with $spec.env }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- end }}
        {{- with $spec.envFrom }}
        envFrom:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with $spec.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with $spec.securityContext }}
        securityContext:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        volumeMounts:
          {{- include "distributed-tensorflow.stageMounts" (list $root $spec) | nindent 10 }}
          {{- with $spec.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- include "distributed-tensorflow.stageVolumes" (list $root $spec) | nindent 6 }}
      {{- with $spec.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}

{{/* The volumes that the chart makes in the pod of a stage, and where it mounts them: data can be written. (list $ spec) */}}
{{- define "distributed-tensorflow.stageMounts" -}}
{{- $values := (index . 0).Values -}}
{{- $spec := index . 1 -}}
{{- include "distributed-tensorflow.scratchMounts" $spec -}}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volumeMount" (list "training" (include "distributed-tensorflow.runVolume" (index . 0) | fromJson) false) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volumeMount" (list "data" $values.data false) | nindent 0 }}
{{- end }}
{{- end }}

{{- define "distributed-tensorflow.stageVolumes" -}}
{{- $root := index . 0 -}}
{{- $spec := index . 1 -}}
{{- include "distributed-tensorflow.scratchVolume" $spec -}}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volume" (list $root "training" $root.Values.trainingDirectory) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volume" (list $root "data" $root.Values.data) | nindent 0 }}
{{- end }}
{{- end }}
