{{/* Facts about the trainer's settings; `make chart-docs` writes this file. */}}
{{- define "distributed-tensorflow.settings" -}}
models:
- cnn
- mlp
numbers:
  epsilon: a positive number
  eval_seconds: a positive number
  global_clipnorm: a positive number
  keep_checkpoint_hours: a positive number
  learning_rate: a positive number
  save_seconds: a positive number
  save_share: a number
  stall_seconds: a positive number
  straggler_seconds: a positive number
  wait_seconds: a positive number
  weight_decay: a number
train_steps: 2000
{{- end }}
