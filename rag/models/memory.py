"""How many bytes a model needs, from its config alone: to refuse before work starts, and for `coalesce memory`.

The architecture is built on torch's meta device (shapes without storage), so every linear layer is counted as it is,
not by a formula for one family. Nothing is downloaded for a path. NF4 with double quantization keeps, for every 64
weights, 32 bytes of codes and one 8-bit scale, and for every 256 scales one float32 (QLoRA, Dettmers et al. 2023).
Activation figures are upper estimates by counting what a step keeps; weights were checked against a loaded NF4 model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag.errors import ModelCannotLoad
from rag.models.capabilities import Capabilities, read_capabilities
from rag.models.folder import local_folder, quantization_of, read_config

NF4_BLOCK_WEIGHTS = 64
NF4_BLOCK_SCALES = 256
PREFILL_CHUNK_TOKENS = 512
TRAINED_ANSWER_TOKENS = 512  # assumed longest answer of a training row; training computes logits for answers only


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by what they hold; `total_bytes` is their sum.

    Attributes:
        weights_bytes: the base model; kv_cache_bytes: keys and values of `context × batch` tokens.
        adapter_bytes: LoRA weights in float32.
        optimizer_bytes: gradients and the two Adam moments of the adapter, float32 each (0 without training).
        activation_bytes: what one step keeps besides.
        num_parameters, trainable_parameters: of the base model, of the adapter.
    """

    weights_bytes: int
    kv_cache_bytes: int
    adapter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    total_bytes: int
    num_parameters: int
    trainable_parameters: int


@dataclass(frozen=True, slots=True)
class _Shapes:
    """What the meta model shows: parameters in linear layers that get quantized, all others, LoRA width sums."""

    linear_parameters: int
    linear_outputs: int
    other_parameters: int
    lora_width: int
    widest_linear: int


def estimate_memory(
    model: str,
    *,
    quantization: str = "none",
    context_tokens: int = 4096,
    batch: int = 1,
    train: bool = False,
    rank: int | None = None,
    dtype_bytes: int = 2,
) -> MemoryEstimate:
    """Bytes that serving or tuning needs.

    Args:
        model: a model folder, a config.json, or a hub name that is on disk already.
        quantization: `none`, `int8` or `nf4`; a folder that is quantized on disk keeps its own.
        context_tokens: prompt and answer together (serving), sequence length (training).
        rank: LoRA rank; None counts no adapter (16 when training).

    Raises:
        ModelCannotLoad: no such config.
    """
    config = load_config(model)
    quantization = quantization_of(config.to_dict()) or quantization
    return estimate_from_config(
        config,
        quantization=quantization,
        context_tokens=context_tokens,
        batch=batch,
        train=train,
        rank=rank,
        dtype_bytes=dtype_bytes,
    )


def estimate_from_config(
    config: Any,
    *,
    quantization: str,
    context_tokens: int,
    batch: int = 1,
    train: bool = False,
    rank: int | None = None,
    dtype_bytes: int = 2,
) -> MemoryEstimate:
    """As `estimate_memory`, from a transformers config object."""
    if quantization not in ("none", "int8", "nf4"):
        raise ValueError(f"quantization must be none, int8 or nf4, not {quantization!r}")
    if min(context_tokens, batch) < 1:
        raise ValueError("context_tokens and batch must be at least 1")
    shapes = _read_shapes(config)
    capabilities = read_capabilities(config)
    weights = quantized_linear_bytes(shapes.linear_parameters, shapes.linear_outputs, quantization, dtype_bytes)
    weights += shapes.other_parameters * dtype_bytes
    rank = 16 if train and rank is None else rank
    trainable = (rank or 0) * shapes.lora_width
    kv = 0 if train else batch * capabilities.kv_bytes(context_tokens, dtype_bytes)
    if train:
        activations = _training_activations(capabilities, shapes, context_tokens, batch, quantization)
    else:
        activations = _serving_activations(capabilities, context_tokens, batch, dtype_bytes)
    adapter, optimizer = trainable * 4, (trainable * 12 if train else 0)
    return MemoryEstimate(
        weights_bytes=weights,
        kv_cache_bytes=kv,
        adapter_bytes=adapter,
        optimizer_bytes=optimizer,
        activation_bytes=activations,
        total_bytes=weights + kv + adapter + optimizer + activations,
        num_parameters=shapes.linear_parameters + shapes.other_parameters,
        trainable_parameters=trainable,
    )


def quantized_linear_bytes(parameters: int, outputs: int, quantization: str, dtype_bytes: int = 2) -> int:
    """Bytes of linear layers with `parameters` weights and `outputs` output rows in all."""
    if quantization == "nf4":
        blocks = -(-parameters // NF4_BLOCK_WEIGHTS)
        return -(-parameters // 2) + blocks + 4 * -(-blocks // NF4_BLOCK_SCALES)
    if quantization == "int8":
        return parameters + 4 * outputs  # LLM.int8 keeps one float32 scale a row
    return parameters * dtype_bytes


def load_config(model: str) -> Any:
    """The transformers config of a folder, a config.json or a hub name.

    Raises:
        ModelCannotLoad: it is missing, broken, or of a model type that transformers does not know.
    """
    from transformers import AutoConfig

    path = Path(model).expanduser()
    folder = path if path.is_file() else local_folder(model)
    try:
        if folder is None:
            return AutoConfig.from_pretrained(model)
        content = dict(read_config(folder))
        return AutoConfig.for_model(content.pop("model_type"), **content)
    except ModelCannotLoad:
        raise
    except Exception as error:  # a config's values are checked by as many hands as there are model types
        raise ModelCannotLoad(
            f"No config can be read for the model {model}: {' '.join(str(error).split())[:300]}",
            hint="Give a model folder or a config.json with --model; names need the model on this disk or the hub.",
        ) from error


def linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of every linear layer but the output embedding: what is quantized, and what LoRA adapts."""
    import torch

    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not output:
            yield name, module


def _read_shapes(config: Any) -> _Shapes:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RuntimeError, ImportError) as error:
        raise ModelCannotLoad(
            f"The config describes no causal language model that can be built: {_first_line(error)}",
            hint="Give the config.json of a text-generation model.",
        ) from error
    model.tie_weights()
    layers = [module for _, module in linear_layers(model)]
    linear = sum(layer.weight.numel() for layer in layers)
    total = sum(parameter.numel() for parameter in {id(p): p for p in model.parameters()}.values())
    return _Shapes(
        linear_parameters=linear,
        linear_outputs=sum(layer.out_features for layer in layers),
        other_parameters=total - linear,
        lora_width=sum(layer.in_features + layer.out_features for layer in layers),
        widest_linear=max((layer.weight.numel() for layer in layers), default=0),
    )


def _layer_width(shape: Capabilities) -> int:
    """Numbers that one layer makes for one token: norms and residual, queries, keys, values, output, gated MLP."""
    attention = shape.attention_heads * shape.key_dim * 2 + shape.kv_heads * (shape.key_dim + shape.value_dim)
    return 4 * shape.hidden_size + attention + 3 * shape.intermediate_size


def _serving_activations(shape: Capabilities, context_tokens: int, batch: int, dtype_bytes: int) -> int:
    chunk = min(context_tokens, PREFILL_CHUNK_TOKENS)
    mask = chunk * context_tokens  # one byte a pair, when a prompt continues a kept prefix
    return batch * (chunk * _layer_width(shape) * dtype_bytes + shape.vocab_size * 4 * 2) + mask


def _training_activations(shape: Capabilities, shapes: _Shapes, tokens: int, batch: int, quantization: str) -> int:
    """One step with checkpointed layers: every layer's input, one layer recomputed with its gradients, the logits.

    LoRA works in float32, so each adapted layer keeps a float32 copy of its input besides; logits are kept once in
    bfloat16 and three times in float32 (upcast, log-softmax, gradient), for the answer's positions only.
    """
    positions = batch * tokens
    saved = positions * shape.hidden_size * 2 * (shape.num_layers + 1)
    lora_inputs = 5 * shape.hidden_size + shape.attention_heads * shape.key_dim + shape.intermediate_size
    recomputed = positions * (_layer_width(shape) * 2 * 2 + lora_inputs * 4)
    logits = batch * min(tokens, TRAINED_ANSWER_TOKENS) * shape.vocab_size * (2 + 4 + 4 + 4)
    dequantized = shapes.widest_linear * 2 if quantization != "none" else 0
    return saved + recomputed + logits + dequantized


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
