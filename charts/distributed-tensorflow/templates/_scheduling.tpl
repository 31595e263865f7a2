{{/* Gangs, queues and placement: what `scheduling` adds to the pods of tasks. docs/scheduling.md explains the kinds. */}}

{{/* The kinds of scheduling.gang as JSON: the objects that they need, best first; the scheduler of their pods; and whether they
     have queues, or need one. */}}
{{- define "distributed-tensorflow.gangKinds" -}}
{{- dict
  "workload" (dict "apis" (list "scheduling.k8s.io/v1beta1/PodGroup" "scheduling.k8s.io/v1alpha2/PodGroup"))
  "kueue" (dict "apis" (list "kueue.x-k8s.io/v1beta2/Workload") "queue" "required")
  "volcano" (dict "apis" (list "scheduling.volcano.sh/v1beta1/PodGroup") "queue" "optional" "scheduler" "volcano")
  "coscheduling" (dict "apis" (list "scheduling.x-k8s.io/v1alpha1/PodGroup") "scheduler" "scheduler-plugins-scheduler")
  | toJson -}}
{{- end }}

{{/* The object that scheduling.gang needs and the cluster has, as GROUP/VERSION/KIND; empty if it has none. */}}
{{- define "distributed-tensorflow.gangApi" -}}
{{- $found := "" -}}
{{- range (get (include "distributed-tensorflow.gangKinds" . | fromJson) .Values.scheduling.gang | default dict).apis -}}
{{- if and (not $found) ($.Capabilities.APIVersions.Has .) }}{{ $found = . }}{{ end -}}
{{- end -}}
{{- $found -}}
{{- end }}

{{/* How many tasks of each role must start together, as JSON: with run.elastic, the fewest workers. A client is a Job, whose
     pods have no fixed names, so in a queue of Kueue it starts after the others, without quota. */}}
{{- define "distributed-tensorflow.gangMembers" -}}
{{- $members := dict -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- if not (and (eq .role "client") (eq $.Values.scheduling.gang "kueue")) -}}
{{- $least := ternary ($.Values.run.elastic | default dict).min nil (eq .role "worker") -}}
{{- $_ := set $members .role (int ($least | default .replicas)) -}}
{{- end -}}
{{- end -}}
{{- toJson $members -}}
{{- end }}

{{/* The number of tasks that must start together. */}}
{{- define "distributed-tensorflow.gangSize" -}}
{{- $size := 0 -}}
{{- range $role, $count := include "distributed-tensorflow.gangMembers" . | fromJson }}{{ $size = add $size $count }}{{ end -}}
{{- $size -}}
{{- end }}

{{/* The spec of the run's PodGroup, as YAML. */}}
{{- define "distributed-tensorflow.podGroupSpec" -}}
{{- $gang := .Values.scheduling.gang -}}
{{- if eq $gang "workload" -}}
schedulingPolicy:
  gang:
    minCount: {{ include "distributed-tensorflow.gangSize" . }}
{{- if eq .Values.scheduling.placement "exclusive" }}
# The scheduler then chooses a domain with room for all. Without the gate TopologyAwareWorkloadScheduling this is ignored.
schedulingConstraints:
  topology:
    - key: {{ .Values.scheduling.topologyKey | quote }}
{{- end }}
# What takes the place of one task takes that of all, unless the run goes on with fewer workers.
{{- $single := not (empty .Values.run.elastic) }}
{{- if contains "/v1alpha2/" (include "distributed-tensorflow.gangApi" .) }}
disruptionMode: {{ ternary "Pod" "PodGroup" $single }}
{{- else }}
disruptionMode:
  {{ ternary "single" "all" $single }}: {}
{{- end }}
{{- else -}}
minMember: {{ include "distributed-tensorflow.gangSize" . }}
{{- with .Values.scheduling.queue }}
queue: {{ . | quote }}
{{- end }}
{{- end }}
{{- with (include "distributed-tensorflow.leaderSpec" . | fromJson).priorityClassName }}
{{- if ne $gang "coscheduling" }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the run's PodGroup. Kubernetes' own is immutable, but for its size from v1beta1 on, so with another spec it is
     another object, whose name ends with another hash. */}}
{{- define "distributed-tensorflow.podGroup" -}}
{{- $name := include "distributed-tensorflow.fullname" . -}}
{{- if eq .Values.scheduling.gang "workload" -}}
{{- $fixed := include "distributed-tensorflow.podGroupSpec" . | fromYaml -}}
{{- if not (contains "/v1alpha2/" (include "distributed-tensorflow.gangApi" .)) }}{{ $fixed = omit $fixed "schedulingPolicy" }}{{ end -}}
{{- $name = printf "%s-%s" $name (toJson $fixed | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* What of the gang is part of a run's identity, because tasks with another one would be another gang; empty if nothing. */}}
{{- define "distributed-tensorflow.gangIdentity" -}}
{{- if eq .Values.scheduling.gang "kueue" -}}
{{- printf "kueue %s %s %d" .Values.scheduling.queue (include "distributed-tensorflow.gangMembers" .) (int .Values.worker.replicas) -}}
{{- $defaults := .Files.Get "files/defaults.json" | fromJson -}}
{{- range include "distributed-tensorflow.roles" . | fromJsonArray -}}
{{- $asked := pick . "role" "resources" "nodeSelector" "tolerations" "affinity" "runtimeClassName" "priorityClassName" "podSpec" -}}
{{- include "distributed-tensorflow.changed" (list $asked $defaults.common) -}}
{{- end -}}
{{- else if eq .Values.scheduling.gang "workload" -}}
{{- include "distributed-tensorflow.podGroup" . -}}
{{- end -}}
{{- end }}

{{/* The labels and annotations with which a pod names its gang to a scheduler beside Kubernetes' own, as YAML. (dict root spec) */}}
{{- define "distributed-tensorflow.gangMarks" -}}
{{- $root := .root -}}
{{- $gang := $root.Values.scheduling.gang -}}
{{- $name := include "distributed-tensorflow.podGroup" $root | quote -}}
{{- if eq $gang "volcano" -}}
annotations:
  scheduling.k8s.io/group-name: {{ $name }}
{{- else if eq $gang "coscheduling" -}}
labels:
  scheduling.x-k8s.io/pod-group: {{ $name }}
{{- end -}}
{{- end }}

{{/* The node label whose values are the domains of scheduling.placement. */}}
{{- define "distributed-tensorflow.topologyKey" -}}
{{- .Values.scheduling.topologyKey | default "kubernetes.io/hostname" -}}
{{- end }}

{{/* The label of the tasks of a run that shares its domain with no other, and its value, which no other release of the cluster
     has: names of releases are unique in a namespace only. */}}
{{- define "distributed-tensorflow.exclusiveLabel" -}}
distributed-tensorflow/exclusive
{{- end }}

{{- define "distributed-tensorflow.exclusiveValue" -}}
{{- printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 16 -}}
{{- end }}

{{/* Where a task goes, as YAML: what to add to its topologySpreadConstraints and to each kind of affinity. (dict root spec) */}}
{{- define "distributed-tensorflow.placement" -}}
{{- $root := .root -}}
{{- $placement := $root.Values.scheduling.placement -}}
{{- $key := include "distributed-tensorflow.topologyKey" $root | quote -}}
{{- $tasks := "{key: app.kubernetes.io/component, operator: In, values: [chief, worker, ps, evaluator, client]}" -}}
{{- $isSpread := eq $placement "spread" -}}
{{- if or $isSpread (eq .spec.role "ps") -}}
spread:
  - maxSkew: 1
    topologyKey: {{ ternary $key "kubernetes.io/hostname" $isSpread }}
    # With DoNotSchedule, a domain that cannot take the task, such as a node without GPUs, would count as an empty one.
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "distributed-tensorflow.selectorLabels" (dict "root" $root "component" .spec.role) | nindent 8 }}
{{- end }}
{{- if not $isSpread }}
{{- $near := dict "labelSelector" (dict
  "matchLabels" (include "distributed-tensorflow.selectorLabels" (dict "root" $root) | fromYaml)
  "matchExpressions" (list ($tasks | fromYaml))
) "topologyKey" (include "distributed-tensorflow.topologyKey" $root) }}
affinity:
  podAffinity:
    {{- if eq $placement "pack" }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          {{- toYaml $near | nindent 10 }}
    {{- else }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - {{- toYaml $near | nindent 8 }}
  podAntiAffinity:
    # One term for all namespaces: where a namespaceSelector says NotIn, schedulers of Kubernetes also match the pod's own namespace.
    requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchLabels: {app.kubernetes.io/name: {{ $root.Chart.Name }}}
          matchExpressions:
            - {{ $tasks }}
            - {key: {{ include "distributed-tensorflow.exclusiveLabel" $root }}, operator: NotIn, values: [{{ include "distributed-tensorflow.exclusiveValue" $root | quote }}]}
        namespaceSelector: {}
        topologyKey: {{ $key }}
    {{- end }}
{{- end }}
{{- end }}

{{/* The values of a task with what `scheduling` adds to its pod, as JSON. (dict root spec) */}}
{{- define "distributed-tensorflow.scheduled" -}}
{{- $root := .root -}}
{{- $spec := .spec -}}
{{- $gang := $root.Values.scheduling.gang -}}
{{- if and (eq $gang "kueue") (ne $spec.role "client") -}}
{{- /* The supervisor removes the gate when Kueue has admitted the run. trainer/supervisor/kueue.py has the same name. */}}
{{- $fields := deepCopy ($spec.podSpec | default dict) -}}
{{- $gates := append ($fields.schedulingGates | default list) (dict "name" "distributed-tensorflow/queue") -}}
{{- $_ := set $spec "podSpec" (set $fields "schedulingGates" $gates) -}}
{{- else if eq $gang "workload" -}}
{{- $group := dict "schedulingGroup" (dict "podGroupName" (include "distributed-tensorflow.podGroup" $root)) -}}
{{- $_ := set $spec "podSpec" (merge $group ($spec.podSpec | default dict)) -}}
{{- else if $gang -}}
{{- $marks := include "distributed-tensorflow.gangMarks" . | fromYaml -}}
{{- range $key := list "labels" "annotations" -}}
{{- $_ := set $spec $key (mergeOverwrite (deepCopy (get $spec $key | default dict)) (get $marks $key | default dict)) -}}
{{- end -}}
{{- $_ := set $spec "schedulerName" ($spec.schedulerName | default (get (include "distributed-tensorflow.gangKinds" $root | fromJson) $gang).scheduler) -}}
{{- end -}}
{{- if $root.Values.scheduling.placement -}}
{{- $placed := include "distributed-tensorflow.placement" . | fromYaml -}}
{{- if eq $root.Values.scheduling.placement "exclusive" -}}
{{- $mark := dict (include "distributed-tensorflow.exclusiveLabel" $root) (include "distributed-tensorflow.exclusiveValue" $root) -}}
{{- $_ := set $spec "labels" (merge $mark ($spec.labels | default dict)) -}}
{{- end -}}
{{- $_ := set $spec "topologySpreadConstraints" (concat ($spec.topologySpreadConstraints | default list) ($placed.spread | default list)) -}}
{{- $affinity := deepCopy ($spec.affinity | default dict) -}}
{{- range $kind, $rules := $placed.affinity -}}
{{- $own := get $affinity $kind | default dict -}}
{{- range $when, $terms := $rules -}}
{{- $_ := set $own $when (concat (get $own $when | default list) $terms) -}}
{{- end -}}
{{- $_ := set $affinity $kind $own -}}
{{- end -}}
{{- /* Only nodes of a domain, so that a key that no node has is noticed. A node must match one of the terms. */}}
{{- with $root.Values.scheduling.topologyKey -}}
{{- $labelled := dict "key" . "operator" "Exists" -}}
{{- $nodes := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $nodes "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := list -}}
{{- range $required.nodeSelectorTerms | default (list dict) -}}
{{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $labelled)) -}}
{{- end -}}
{{- $_ := set $nodes "requiredDuringSchedulingIgnoredDuringExecution" (set $required "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $nodes -}}
{{- end -}}
{{- $_ := set $spec "affinity" $affinity -}}
{{- end -}}
{{- toJson $spec -}}
{{- end }}
