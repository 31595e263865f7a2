{{/* Each role has the values of `common`, merged with its own. */}}

{{/* What follows when a task of a role ends, for task.sh and the supervisor: CODES:ACTION, and the first that applies decides.
     CODES is FIRST-LAST, a list or, after "!", the codes that it does not apply to. The rules of run.failurePolicy come first,
     then the restart policy: "1,2:Ignore !0,3:Fail 0-127:End 128-255:Restart". (dict root spec) */}}
{{- define "distributed-tensorflow.exits" -}}
{{- $spec := .spec -}}
{{- $policies := dict "Always" "0-255:Restart" "Never" "0-255:End" "OnFailure" "0-0:End 1-255:Restart" "ExitCode" "0-127:End 128-255:Restart" -}}
{{- with .root.Values -}}
{{- range ternary .run.failurePolicy.rules list .supervisor.enabled -}}
{{- if and (not .onPodConditions) (or (not .roles) (has $spec.role .roles)) -}}
{{- $codes := .onExitCodes | default (dict "operator" "NotIn" "values" list) -}}
{{- $listed := join "," $codes.values -}}
{{- if eq $codes.operator "NotIn" }}{{ $listed = printf "!%s" (join "," (prepend $codes.values 0)) }}{{ end -}}
{{- $listed }}:{{ .action }}{{ " " -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- get $policies $spec.restartPolicy -}}
{{- end }}

{{/* Of a map, what differs from another one, as YAML. (list map other) */}}
{{- define "distributed-tensorflow.changed" -}}
{{- $changed := dict -}}
{{- $other := index . 1 -}}
{{- range $key, $value := index . 0 -}}
{{- $default := get $other $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $default) -}}
{{- with include "distributed-tensorflow.changed" (list $value $default) | fromYaml }}{{ $_ := set $changed $key . }}{{ end -}}
{{- else if ne (toJson $value) (toJson (ternary $default nil (hasKey $other $key))) -}}
{{- $_ := set $changed $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $changed -}}
{{- end }}

{{/* Merges another map into a map in place: maps key by key, every other value as a whole. Null removes a key, and an
     empty map replaces it. Unlike with mergeOverwrite, false, 0 and [] override too. (list map other) */}}
{{- define "distributed-tensorflow.merge" -}}
{{- $map := index . 0 -}}
{{- range $key, $value := index . 1 }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $map $key }}
{{- else if and $value (kindIs "map" $value) }}
{{- if not (kindIs "map" (get $map $key)) }}{{ $_ := set $map $key dict }}{{ end }}
{{- include "distributed-tensorflow.merge" (list (get $map $key) $value) }}
{{- else }}
{{- $_ := set $map $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The command line of a role's container, as a JSON list. Words with templates are rendered. Booleans and numbers become
     strings, because `--set worker.command='{false}'` passes a boolean. (dict root spec) */}}
{{- define "distributed-tensorflow.program" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- $trainer := list "trainer" "train" "--config" "/etc/distributed-tensorflow/trainer.yaml" -}}
{{- if $root.Values.data.watch.enabled -}}
{{- $trainer = concat $trainer (list "--data_version=$(DATA_VERSION)" (printf "--train_dir=%s" (include "distributed-tensorflow.runDirectory" $root))) -}}
{{- end -}}
{{- $trainer = concat $trainer $root.Values.extraArgs -}}
{{- $words := ternary (concat ($spec.command | default list) ($spec.args | default list)) $trainer (not (empty $spec.command)) -}}
{{- $text := include "distributed-tensorflow.words" (dict "root" $root "words" $words) -}}
{{- if contains "distributed-tensorflow.hosts" (toJson $words) -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" -}}
{{- $hosts := include "distributed-tensorflow.hosts" (list $root $role) -}}
{{- if contains "," $hosts }}{{ $text = replace $hosts (include "distributed-tensorflow.hostsVariable" $role | printf "$(%s)") $text }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end }}

{{/* The words of a command line as a JSON list of strings, with their templates rendered. (dict root words) */}}
{{- define "distributed-tensorflow.words" -}}
{{- $root := .root -}}
{{- $words := list -}}
{{- range .words -}}
{{- $word := ternary . (toJson .) (kindIs "string" .) -}}
{{- if contains "{{" $word }}{{ $word = tpl $word $root }}{{ end -}}
{{- $words = append $words $word -}}
{{- end -}}
{{- toJson $words -}}
{{- end }}

{{/* The values of a role as JSON, with derived keys: `addresses` (how many the cluster lists), `resources` with the GPUs,
     `exits` (what follows its exit codes), `packaged` (whether it runs the packaged trainer), `program` (the container's
     command line), `mountsTraining`,
     `mountsData`, and `sharesNode` (whether its pods must run on the node of the training directory). (dict root role)
     It is JSON because every component includes it, and Helm took half of its time to write and parse it as YAML. */}}
{{- define "distributed-tensorflow.role" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $values := $root.Values -}}
{{- $spec := deepCopy $values.common -}}
{{- include "distributed-tensorflow.merge" (list $spec (deepCopy (get $values $role))) -}}
{{- $_ := set $spec "role" $role -}}
{{- $_ := set $spec "taskType" ($spec.taskType | default $role) -}}
{{- $_ := set $spec "gpus" (int ($spec.gpus | default 0)) -}}
{{- $_ := set $spec "replicas" (int $spec.replicas) -}}
{{- $_ := set $spec "addresses" (int (ternary (include "distributed-tensorflow.workerAddresses" $root) (toString $spec.replicas) (eq $role "worker"))) -}}
{{- if $spec.gpus -}}
{{- $resources := $spec.resources | default dict -}}
{{- $_ := set $spec "resources" (set $resources "limits" (set ($resources.limits | default dict) $values.gpu.resourceName $spec.gpus)) -}}
{{- end -}}
{{- $_ := set $spec "exits" (include "distributed-tensorflow.exits" (dict "root" $root "spec" $spec)) -}}
{{- $foreign := (($spec.image | default dict).repository) -}}
{{- $_ := set $spec "packaged" (not (or $foreign $spec.command)) -}}
{{- /* Credentials of the data and the training directory are not for parameter servers, which read and write neither. */}}
{{- if and (eq $role "ps") $spec.packaged (not (hasKey $values.ps "envFrom")) }}{{ $_ := unset $spec "envFrom" }}{{ end -}}
{{- $_ := set $spec "program" (include "distributed-tensorflow.program" (dict "root" $root "spec" $spec) | fromJsonArray) -}}
{{- $shared := include "distributed-tensorflow.trainingIsShared" $root -}}
{{- $leads := eq $role (include "distributed-tensorflow.leader" $root) -}}
{{- $_ := set $spec "mountsTraining" (and (not (empty (include "distributed-tensorflow.trainingIsVolume" $root))) (or (not (empty $shared)) $leads (eq $role "evaluator"))) -}}
{{- $_ := set $spec "sharesNode" (and $spec.mountsTraining (empty $shared)) -}}
{{- $_ := set $spec "mountsData" (and $values.data.enabled (ne $role "ps")) -}}
{{- toJson $spec -}}
{{- end }}

{{/* The values of each role that has tasks, as a JSON list. */}}
{{- define "distributed-tensorflow.roles" -}}
{{- $specs := list -}}
{{- range $role := list "chief" "worker" "ps" "evaluator" "client" -}}
{{- if int (get $.Values $role).replicas -}}
{{- $specs = append $specs (include "distributed-tensorflow.role" (dict "root" $ "role" $role) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- toJson $specs -}}
{{- end }}

{{/* The values of the leader, as JSON. */}}
{{- define "distributed-tensorflow.leaderSpec" -}}
{{- include "distributed-tensorflow.role" (dict "root" . "role" (include "distributed-tensorflow.leader" .)) -}}
{{- end }}

{{/* The image of a pod. (dict root image gpus): the packaged one, unless `image` has a repository */}}
{{- define "distributed-tensorflow.image" -}}
{{- $root := .root -}}
{{- $own := .image | default dict -}}
{{- $packaged := $root.Values.image -}}
{{- $name := $own -}}
{{- $tag := $own.tag | default "latest" -}}
{{- $digest := $own.digest -}}
{{- if not $own.repository -}}
{{- $name = $packaged -}}
{{- $tag = $packaged.tag | default $root.Chart.AppVersion -}}
{{- if .gpus }}{{ $tag = printf "%s-gpu" $tag }}{{ end -}}
{{- $tag = $own.tag | default $tag -}}
{{- $digest = $own.digest | default $packaged.digest -}}
{{- end -}}
{{- /* A release pins its images: files/digests.json has their digests by REPOSITORY:TAG. */}}
{{- $digest = $digest | default (get ($root.Files.Get "files/digests.json" | fromJson) (printf "%s:%s" $name.repository $tag)) -}}
{{- with $name.registry }}{{ . }}/{{ end }}{{ $name.repository }}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end }}

{{/* The values of a packaged image that is not the training image, as JSON: in image.registry, with this repository and tag,
     unless `image` has a repository. (dict root image repository tag) */}}
{{- define "distributed-tensorflow.packagedImage" -}}
{{- $image := .image | default dict -}}
{{- if not $image.repository -}}
{{- $packaged := dict "registry" .root.Values.image.registry "repository" .repository "tag" .tag -}}
{{- $image = mergeOverwrite $packaged $image -}}
{{- end -}}
{{- toJson $image -}}
{{- end }}

{{/* The supervisor's image: the packaged one with this chart's appVersion, unless supervisor.image has a repository */}}
{{- define "distributed-tensorflow.supervisorImage" -}}
{{- $image := include "distributed-tensorflow.packagedImage" (dict "root" . "image" .Values.supervisor.image "repository" "distributed-tensorflow/supervisor" "tag" .Chart.AppVersion) | fromJson -}}
{{- include "distributed-tensorflow.image" (dict "root" . "image" $image "gpus" 0) -}}
{{- end }}

{{/* Never for a packaged image without a registry: no public registry has it, and whoever took its name there would run with
     the supervisor's token. (dict root image name), with the values of the image and its rendered name */}}
{{- define "distributed-tensorflow.pullPolicy" -}}
{{- $policy := (.image | default dict).pullPolicy | default .root.Values.image.pullPolicy -}}
{{- $policy | default (ternary "Never" "IfNotPresent" (hasPrefix "distributed-tensorflow/" .name)) -}}
{{- end }}

{{/* The service account of a pod. (dict root component spec) */}}
{{- define "distributed-tensorflow.serviceAccountName" -}}
{{- .spec.serviceAccount.name | default (printf "%s-%s" (include "distributed-tensorflow.fullname" .root) .component) -}}
{{- end }}
