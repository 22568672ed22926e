#!/usr/bin/env bash
# The recipe of the comparison's adapter: makes 570 rows and trains on them once, for both tuned arms. 54 minutes on two busy
# cores that multiply in bfloat16, 11 GB of memory.
#   bash rag/tuning/launch/recipe.sh TEXTS OUT [options of `coalesce tune`]
# TEXTS holds the texts of evals/question_sets/fit, a folder each, as that folder's README names them. Run it again with
# --resume to go on after an interruption. On a GPU it is the same, over 4 bits. MODEL names another base.
set -euo pipefail
texts=$1 out=$2
shift 2
coalesce=${COALESCE:-coalesce}
data=$out-data
if [ ! -e "$data/complete" ]; then
    # what the bundled book says, in the model's weights: arm tuned
    $coalesce dataset --from-bank --wordings 1 --out "$data"
    # how to answer from passages: arm rag+tuned
    $coalesce dataset --from-bank --wordings 1 --limit 150 --passages 5 --out "$data"
    for name in enccs-cuda numba-cuda-docs csc-portable-gpu-programming; do
        $coalesce dataset "$texts/$name" --questions "evals/question_sets/fit/$name.jsonl" --limit 60 --passages 5 --out "$data"
    done
    touch "$data/complete"
fi
# the upper third of the layers: the others need no backward pass
$coalesce tune --model "${MODEL:-qwen2.5-coder-1.5b}" --data "$data" --out "$out" --epochs 1 --top-layers 9 \
    --no-activation-checkpointing --batch-size 2 --accumulation 4 --max-length 1024 --validation-share 0.07 --checkpoint-steps 16 "$@"
