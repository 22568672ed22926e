#!/usr/bin/env bash
# The comparison with the small language model that README.md shows. Run it again to go on after an interruption.
#   bash evals/small_model.sh OUT [number of open questions: 100]
set -euo pipefail
out=$1 open=${2:-100}
coalesce=${COALESCE:-coalesce}
arms=base,tuned,rag,rag+tuned
openly=(--types short,why,code --limit "$open")

$coalesce models get smollm2-135m
$coalesce eval --model smollm2-135m --arms $arms --types choice --out "$out/choice"
$coalesce eval --model smollm2-135m --arms $arms "${openly[@]}" --out "$out/open"
$coalesce eval --model smollm2-135m --arms rag --answers quotes "${openly[@]}" --out "$out/quotes"
$coalesce eval --arms rag "${openly[@]}" --out "$out/default" --against "$out/quotes"
"${PYTHON:-python}" -m evals.plots "$out/arms.svg" "$out/choice/report.json" "$out/open/report.json" \
    "quoting=$out/quotes/report.json" "no model=$out/default/report.json"
