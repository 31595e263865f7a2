{{/* The stages: Jobs before and after the training. The supervisor starts them one after another. */}}

{{/* The values of the stages before or after the training as a JSON list: those of the user, and at the end the one that
     publishes the run to MLflow. (dict root when) */}}
{{- define "distributed-tensorflow.stageValues" -}}
{{- $root := .root -}}
{{- $stages := get $root.Values.stages .when | default list -}}
{{- if and (eq .when "after") $root.Values.mlflow.trackingUri -}}
{{- $stages = append $stages (include "distributed-tensorflow.publishStage" $root | fromJson) -}}
{{- end -}}
{{- toJson $stages -}}
{{- end }}

{{/* The values of a stage, merged with those of `common` that apply to it, as YAML, with derived keys as those of a role.
     (dict root stage) */}}
{{- define "distributed-tensorflow.stage" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $spec := omit (deepCopy $values.common) "image" "command" "args" "restartPolicy" "initContainers" "sidecars" "readinessProbe" "livenessProbe" "startupProbe" "lifecycle" "serviceAccount" "podDisruptionBudget" "hostNetwork" "dnsPolicy" "topologySpreadConstraints" -}}
{{- include "distributed-tensorflow.merge" (list $spec (deepCopy .stage)) -}}
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
{{- $_ := set $spec $key (include "distributed-tensorflow.words" (dict "root" $root "words" (get $spec $key | default list)) | fromJsonArray) -}}
{{- end -}}
{{- $_ := set $spec "mountsTraining" (has "training" $spec.volumes) -}}
{{- $_ := set $spec "mountsData" (has "data" $spec.volumes) -}}
{{- $_ := set $spec "sharesNode" (and $spec.mountsTraining (empty (include "distributed-tensorflow.trainingIsShared" $root))) -}}
{{- toYaml $spec -}}
{{- end }}

{{/* The digests of the stages before or after the training, as JSON: each is the hash of what determines the output of a
     stage, and of the digest before it. A new version of the chart does not change it. The stage that publishes, which is the
     last one, depends on the training and not on other stages. (dict root when) */}}
{{- define "distributed-tensorflow.stageDigests" -}}
{{- $root := .root -}}
{{- $digests := list -}}
{{- with include "distributed-tensorflow.stageValues" . | fromJsonArray -}}
{{- $places := include "distributed-tensorflow.places" $root | fromJson -}}
{{- $training := "" -}}
{{- if eq $.when "after" }}{{ $training = include "distributed-tensorflow.definition" $root }}{{ end -}}
{{- $last := $training -}}
{{- range . -}}
{{- $spec := include "distributed-tensorflow.stage" (dict "root" $root "stage" (ternary (omit . "env") . (hasKey . "identity"))) | fromYaml -}}
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
{{- include "distributed-tensorflow.stageDigests" (dict "root" . "when" "before") | fromJsonArray | last -}}
{{- end }}

{{/* The stages before or after the training as a JSON list, each with `name`, `digest`, `job`, `always` and `spec`.
     (dict root when)

     A Job's template is immutable, and it runs once. So its name has the hash of its template and of run.attempt; from the
     first stage that always runs on, also that of the run. If the supervisor creates the Jobs, it does so again and again under
     one name, and annotates them with this hash, `template`. */}}
{{- define "distributed-tensorflow.stages" -}}
{{- $root := .root -}}
{{- $when := .when -}}
{{- $stages := list -}}
{{- $digests := include "distributed-tensorflow.stageDigests" . | fromJsonArray -}}
{{- $attempt := toString $root.Values.run.attempt -}}
{{- $always := false -}}
{{- if eq $when "after" }}{{ range $root.Values.stages.before }}{{ $always = or $always .always }}{{ end }}{{ end -}}
{{- range $index, $stage := include "distributed-tensorflow.stageValues" . | fromJsonArray -}}
{{- $spec := include "distributed-tensorflow.stage" (dict "root" $root "stage" $stage) | fromYaml -}}
{{- $parts := list (include "distributed-tensorflow.stageTemplate" (dict "root" $root "spec" $spec "account" "")) (index $digests $index) $attempt -}}
{{- $always = or $always $stage.always -}}
{{- if $always -}}
{{- $parts = concat $parts (list (include "distributed-tensorflow.runHash" $root) (include "distributed-tensorflow.stageDigests" (dict "root" $root "when" "after"))) -}}
{{- end -}}
{{- $hash := join "\n" $parts | sha256sum | trunc 8 -}}
{{- $job := printf "%s-stage-%s" (include "distributed-tensorflow.fullname" $root) $stage.name -}}
{{- if not (include "distributed-tensorflow.stagesAreMade" $root) }}{{ $job = printf "%s-%s" $job $hash }}{{ end -}}
{{- $stages = append $stages (dict "name" $stage.name "digest" (index $digests $index) "job" $job "template" $hash "always" (eq $stage.always true) "spec" $spec) -}}
{{- end -}}
{{- toJson $stages -}}
{{- end }}

{{/* All stages, those before the training first, as a JSON list. */}}
{{- define "distributed-tensorflow.allStages" -}}
{{- $stages := list -}}
{{- range $when := list "before" "after" -}}
{{- $stages = concat $stages (include "distributed-tensorflow.stages" (dict "root" $ "when" $when) | fromJsonArray) -}}
{{- end -}}
{{- toJson $stages -}}
{{- end }}

{{/* Whether the supervisor creates the Jobs of stages, each when it is its turn, and not the chart. Kubernetes starts a Job of
     the chart as soon as its service account exists, so that must be a new one: one that exists, or has an identity, would
     start all stages at once. */}}
{{- define "distributed-tensorflow.stagesAreMade" -}}
{{- $own := .Values.stages.serviceAccount -}}
{{- if or .Values.data.watch.enabled $own.name $own.annotations }}yes{{ end -}}
{{- end }}

{{/* The Job of a stage. (dict root stage), with `job` and `spec` */}}
{{- define "distributed-tensorflow.stageJob" -}}
{{- $root := .root -}}
{{- with .stage -}}
{{- $isMade := not (empty (include "distributed-tensorflow.stagesAreMade" $root)) -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .job }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "distributed-tensorflow.labelsAndAnnotations" (dict "root" $root "component" "stage" "isMade" $isMade) | nindent 2 }}
spec:
  {{- $shared := include "distributed-tensorflow.serviceAccountName" (dict "root" $root "component" "stage" "spec" $root.Values.stages) }}
  {{- $account := ternary $shared .job $isMade }}
  {{- include "distributed-tensorflow.stageTemplate" (dict "root" $root "spec" .spec "account" $account) | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a stage's Job has: its limits, and its pod template. (dict root spec account) */}}
{{- define "distributed-tensorflow.stageTemplate" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $spec := set .spec "serviceAccount" (dict "name" .account) -}}
completionMode: Indexed # so that the supervisor can set 0 completions, which ends the Job of a stage that is skipped
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
    {{- include "distributed-tensorflow.podMetadata" (dict "root" $root "component" "stage" "spec" $spec "annotations" "{}") | nindent 4 }}
  spec:
    {{- include "distributed-tensorflow.podSettings" (dict "root" $root "component" "stage" "spec" $spec "near" "") | nindent 4 }}
    restartPolicy: Never
    containers:
      - name: stage
        {{- $image := include "distributed-tensorflow.image" (dict "root" $root "image" $spec.image "gpus" $spec.gpus) }}
        image: {{ $image | quote }}
        imagePullPolicy: {{ include "distributed-tensorflow.pullPolicy" (dict "root" $root "image" $spec.image "name" $image) }}
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
          {{- include "distributed-tensorflow.stageMounts" (dict "root" $root "spec" $spec) | nindent 10 }}
          {{- with $spec.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      {{- include "distributed-tensorflow.stageVolumes" (dict "root" $root "spec" $spec) | nindent 6 }}
      {{- with $spec.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end }}

{{/* The volumes that the chart makes in the pod of a stage, and where it mounts them: data can be written. (dict root spec) */}}
{{- define "distributed-tensorflow.stageMounts" -}}
{{- $values := .root.Values -}}
{{- $spec := .spec -}}
{{- include "distributed-tensorflow.scratchMounts" $spec -}}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volumeMount" (dict "name" "training" "values" (include "distributed-tensorflow.runVolume" .root | fromJson) "readOnly" false) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volumeMount" (dict "name" "data" "values" $values.data "readOnly" false) | nindent 0 }}
{{- end }}
{{- end }}

{{- define "distributed-tensorflow.stageVolumes" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- include "distributed-tensorflow.scratchVolume" $spec -}}
{{- if $spec.mountsTraining }}
{{- include "distributed-tensorflow.volume" (dict "root" $root "name" "training" "values" $root.Values.trainingDirectory) | nindent 0 }}
{{- end }}
{{- if $spec.mountsData }}
{{- include "distributed-tensorflow.volume" (dict "root" $root "name" "data" "values" $root.Values.data) | nindent 0 }}
{{- end }}
{{- end }}
