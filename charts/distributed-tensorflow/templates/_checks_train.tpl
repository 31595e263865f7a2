{{/* The trainer's rules for `train`, as in trainer/config.py, so that a run that cannot start is refused before it is made. */}}

{{- define "distributed-tensorflow.checkTrain" -}}
{{- $train := .Values.train -}}
{{- $facts := include "distributed-tensorflow.settings" . | fromYaml -}}
{{- range $name, $what := $facts.numbers -}}
{{- $value := get $train $name -}}
{{- $isNumber := regexMatch "^([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?$" (toString $value) -}}
{{- if and (hasKey $train $name) (kindIs "string" $value) (or (not $isNumber) (and (contains "positive" $what) (eq (float64 $value) 0.0))) -}}
{{- fail (printf "train.%s: %q is not %s; set one, such as 0.003 or 1e-4." $name $value $what) -}}
{{- end -}}
{{- end -}}
{{- $model := $train.model | default (first $facts.models) -}}
{{- if not (or (has $model $facts.models) (hasSuffix ".py" $model)) -}}
{{- fail (printf "train.model: %q is not a model; set %s, or the path of a Python file in the image." $model (join ", " $facts.models)) -}}
{{- end -}}
{{- with $train.profile_steps -}}
{{- $range := splitList "-" . -}}
{{- if not (and (regexMatch "^[1-9][0-9]*-[1-9][0-9]*$" .) (le (int (first $range)) (int (last $range)))) -}}
{{- fail (printf "train.profile_steps: %q is not a range of global steps; set FIRST-LAST, such as 100-150." .) -}}
{{- end -}}
{{- end -}}

{{- $strategy := $train.strategy | default "ps" -}}
{{- range $name := list "sync_replicas" "replicas_to_aggregate" -}}
{{- if and (ne $strategy "ps") (get $train $name) -}}
{{- fail (printf "train.%s: it is %s, but train.strategy %s always averages the gradients of all replicas; remove it." $name (get $train $name | toString) $strategy) -}}
{{- end -}}
{{- end -}}
{{- if and $train.replicas_to_aggregate (not $train.sync_replicas) -}}
{{- fail (printf "train.replicas_to_aggregate: it is %d, but only synchronous replicas aggregate gradients; set train.sync_replicas to true, or remove it." (int $train.replicas_to_aggregate)) -}}
{{- end -}}
{{- $localSteps := int ($train.local_steps | default 1) -}}
{{- $steps := int ($train.train_steps | default $facts.train_steps) -}}
{{- if and (gt $localSteps 1) (not $train.sync_replicas) -}}
{{- fail (printf "train.local_steps: it is %d, but only synchronous replicas average their parameters; set train.sync_replicas to true and train.strategy to ps." $localSteps) -}}
{{- end -}}
{{- if mod $steps $localSteps -}}
{{- fail (printf "train.local_steps: %d does not divide train.train_steps, %d; set a divisor." $localSteps $steps) -}}
{{- end -}}
{{- with $train.profile_steps -}}
{{- if gt (int (splitList "-" . | first)) $steps -}}
{{- fail (printf "train.profile_steps: %s begins after the last step, train.train_steps %d; set earlier steps, or raise train.train_steps." . $steps) -}}
{{- end -}}
{{- end -}}
{{- end }}
