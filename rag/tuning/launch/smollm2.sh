#!/usr/bin/env bash
# Makes the data of the adapter for smollm2-135m (rag/smollm2_adapter) and trains it: 818 rows, 18 minutes on two busy cores
# that multiply in bfloat16.
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
    --target-modules 'model\.layers\.[12]\d\..*_proj' --no-activation-checkpointing --learning-rate 5e-4 \
    --batch-size 8 --accumulation 1 --validation-share 0.04 --checkpoint-steps 25 "$@"
# stored in bfloat16, half the size, and without this machine's paths
"${PYTHON:-python}" - "$out" <<'STORE'
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rag.models.adapters import read_adapter

folder = Path(sys.argv[1])
record = read_adapter(folder).record
file = folder / "adapter_model.safetensors"
config = json.loads((folder / "adapter_config.json").read_text("utf-8")) | {"base_model_name_or_path": record.base_model}
(folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
replace(record, command="bash rag/tuning/launch/smollm2.sh TEXTS OUT").write(folder)
shipped = read_adapter(Path("rag/smollm2_adapter")).record
print("made of", "the same rows as" if record.data_sha256 == shipped.data_sha256 else "other rows than", "the adapter that ships")
STORE
