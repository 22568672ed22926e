#!/usr/bin/env bash
# Makes the data of the adapter for smollm2-135m and trains it.
#   bash rag/tuning/launch/smollm2.sh TEXTS OUT [options of `coalesce tune`]
# TEXTS holds the texts of evals/question_sets/fit, a folder each, as that folder's README names them. Run it again with
# --resume to go on after an interruption.
set -euo pipefail
texts=$1 out=$2
shift 2
model=${MODEL:-smollm2-135m}
coalesce=${COALESCE:-coalesce}
data=$out-data
shown=(--passages 3 --passage-tokens 300)
if [ ! -e "$data/complete" ]; then
    $coalesce dataset --from-bank --out "$data"
    $coalesce dataset --from-bank "${shown[@]}" --out "$data"
    for set in csc-portable-gpu-programming enccs-cuda numba-cuda-docs; do
        $coalesce dataset "$texts/$set" --questions "evals/question_sets/fit/$set.jsonl" "${shown[@]}" --out "$data"
    done
    touch "$data/complete"
fi
$coalesce tune --model "$model" --data "$data" --out "$out" --max-length 768 --epochs 2 "$@"
