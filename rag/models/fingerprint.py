"""A base model's identity that survives quantization: what an adapter's record names its base by.

Quantizing leaves norms and embeddings as they are, so their bytes (rounded to bfloat16, the precision they are kept
in) name the weights, and the architecture's numbers name the shape. Two models of one shape differ in it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_EMBEDDING_ROWS = 256
_NOT_IDENTITY = frozenset(
    {
        "quantization_config", "dtype", "torch_dtype", "use_cache", "transformers_version", "_name_or_path",
        "architectures", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings",
    }
)  # fmt: skip


def base_fingerprint(model: Any) -> str:
    """16 hexadecimal digits for a loaded `transformers` model, the same in every quantization."""
    import torch

    config = model.config.to_dict()
    shape = {name: value for name, value in config.items() if name not in _NOT_IDENTITY and not name.startswith("_")}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    rows = model.get_input_embeddings().weight.detach()[:_EMBEDDING_ROWS]
    norms = [p.detach() for name, p in model.named_parameters() if name.endswith("norm.weight") and p.dim() == 1]
    for tensor in (rows, *norms):
        numbers = tensor.to(device="cpu", dtype=torch.bfloat16).contiguous()
        digest.update(numbers.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
