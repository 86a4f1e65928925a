{{/* The templates read the manifests of deploy/kubernetes (the link `kubernetes` beside this folder) and change them as the
values say. */}}

{{- define "autoscaler.name" -}}
{{ contains "autoscaler" .Release.Name | ternary .Release.Name (printf "%s-autoscaler" .Release.Name) }}
{{- end }}

{{- define "autoscaler.account" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "autoscaler.name" .) "default") }}
{{- end }}

{{/* Labels that distinguish the pods of this release. */}}
{{- define "autoscaler.selector" -}}
app.kubernetes.io/name: autoscaler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "autoscaler.labels" -}}
{{ include "autoscaler.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* A manifest with the names and labels of this release. A ClusterRole and its binding are in no namespace, so their names include
it: releases with one name in several namespaces have one each. Takes: the root, the path in deploy/kubernetes. */}}
{{- define "autoscaler.manifest" -}}
{{- $root := first . }}
{{- $found := $root.Files.Get (printf "kubernetes/%s" (last .)) | required (printf "deploy/kubernetes/%s is missing" (last .)) | fromYaml }}
{{- $name := include "autoscaler.name" $root }}
{{- $of := hasPrefix "Cluster" $found.kind | ternary (printf "-%s" $root.Release.Namespace) "" }}
{{- $_ := set $found.metadata "name" (print (regexReplaceAll "^autoscaler" $found.metadata.name $name) $of) }}
{{- $_ := set $found.metadata "labels" (include "autoscaler.labels" $root | fromYaml) }}
{{- if hasKey $found "roleRef" }}
{{- $_ := set $found.roleRef "name" (print (regexReplaceAll "^autoscaler" $found.roleRef.name $name) $of) }}
{{- $_ := set (first $found.subjects) "name" (include "autoscaler.account" $root) }}
{{- $_ := set (first $found.subjects) "namespace" $root.Release.Namespace }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* Apply a component's JSON patches (add, replace) to a manifest. Takes: the root, the component's name, the manifest. */}}
{{- define "autoscaler.patch" -}}
{{- $manifest := last . }}
{{- $file := printf "kubernetes/components/%s/kustomization.yaml" (index . 1) }}
{{- range (index . 0).Files.Get $file | fromYaml | dig "patches" list }}
{{- if eq .target.kind $manifest.kind }}
{{- range fromYamlArray .patch }}
  {{- $keys := splitList "/" (trimPrefix "/" .path) }}
  {{- $at := $manifest }}
  {{- $above := dict }}
  {{- range initial $keys }}
    {{- $above = dict "at" $at "key" . }}
    {{- if kindIs "slice" $at }}{{ $at = index $at (atoi .) }}{{ else }}{{ $at = index $at . }}{{ end }}
  {{- end }}
  {{- if kindIs "map" $at }}
    {{- $_ := set $at (last $keys) .value }}
  {{- else if eq (last $keys) "-" }}
    {{- $_ := set $above.at $above.key (append $at .value) }}
  {{- else }}
    {{- $number := atoi (last $keys) }}
    {{- $_ := set $above.at $above.key (concat (slice $at 0 $number) (list .value) (slice $at (add1 $number | int))) }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
