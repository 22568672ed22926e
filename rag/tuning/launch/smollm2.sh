#!/usr/bin/env bash
# Makes the data of the adapter for smollm2-135m (rag/smollm2_adapter) and trains it: a quarter of an hour of one core
# that multiplies in bfloat16, an hour and a half of one that does not.
#   bash rag/tuning/launch/smollm2.sh TEXTS OUT [options of `coalesce tune`]
# TEXTS holds the texts of evals/question_sets/fit, a folder each, as that folder's README names them. Run it again with
# --resume to go on after an interruption.
set -euo pipefail
texts=$1 out=$2
shift 2
coalesce=${COALESCE:-coalesce}
data=$out-data
if [ ! -e "$data/complete" ]; then
    $coalesce dataset --from-bank --limit 60 --out "$data"
    $coalesce dataset --from-bank --limit 100 --passages 5 --out "$data"
    for set in enccs-cuda:250 csc-portable-gpu-programming:60 numba-cuda-docs:60; do
        name=${set%:*}
        $coalesce dataset "$texts/$name" --questions "evals/question_sets/fit/$name.jsonl" --limit "${set#*:}" \
            --passages 5 --out "$data"
    done
    touch "$data/complete"
fi
# the upper two thirds of the layers: a third less time than all
$coalesce tune --model "${MODEL:-smollm2-135m}" --data "$data" --out "$out" --max-length 512 --epochs 1 --rank 8 \
    --target-modules 'model\.layers\.[12]\d\..*_proj' --no-activation-checkpointing --learning-rate 1e-3 --dropout 0 \
    --batch-size 8 --accumulation 1 --validation-share 0.04 --checkpoint-steps 25 "$@"
