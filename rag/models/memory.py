"""Estimates the bytes a model needs from its config alone: to refuse before work starts, and for `coalesce memory`.

The architecture is built on torch's meta device (shapes without storage), so every linear layer is counted, not a
formula for one family. NF4 with double quantization keeps, for every 64 weights, 32 bytes of codes and one 8-bit
scale, and for every 256 scales one float32 (QLoRA, Dettmers et al. 2023). Activations are upper estimates, counted
from what a step keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from indexes.errors import first_line
from rag.errors import ModelCannotLoad
from rag.models.capabilities import Capabilities, read_capabilities
from rag.models.devices import choose_device, choose_dtype, free_memory_bytes
from rag.models.folder import quantization_of
from rag.settings import QUANTIZATIONS

_NF4_BLOCK_WEIGHTS = 64
_NF4_BLOCK_SCALES = 256
_FEWEST_QUANTIZED = 5e8
_PREFILL_CHUNK_TOKENS = 512
_PREFILL_CHUNK_TOKENS_ON_A_GPU = 2048
_TRAINED_ANSWER_TOKENS = 512  # assumed longest answer of a training row; training computes logits for answers only


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by what they hold; `total_bytes` is their sum.

    Attributes:
        weights_bytes: the base model; kv_cache_bytes: the KV cache of `context × batch` tokens.
        adapter_bytes: LoRA weights in float32.
        optimizer_bytes: gradients and the two Adam moments of the adapter, float32 each (0 without training).
        activation_bytes: other tensors that one step keeps.
        num_parameters, trainable_parameters: of the base model, of the adapter.
        expert_parameters: of a mixture's experts; transformers holds them as one block that is never quantized.
    """

    weights_bytes: int
    kv_cache_bytes: int
    adapter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    total_bytes: int
    num_parameters: int
    trainable_parameters: int
    expert_parameters: int


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Counts from the meta model: parameters in linear layers (which get quantized), all others, LoRA widths."""

    linear_parameters: int
    linear_outputs: int
    other_parameters: int
    expert_parameters: int
    lora_width: int
    widest_linear: int


def estimate_memory(
    config: Any,
    *,
    quantization: str = "none",
    context_tokens: int = 4096,
    batch: int = 1,
    train: bool = False,
    rank: int | None = None,
    dtype_bytes: int = 2,
) -> MemoryEstimate:
    """Bytes that serving or tuning a model with this config needs.

    Args:
        config: as `load_config` reads it.
        quantization: `none`, `int8` or `nf4`; weights that are quantized on disk keep their own.
        context_tokens: prompt and answer together (serving), sequence length (training).
        rank: LoRA rank; None counts no adapter (16 when training).

    Raises:
        ModelCannotLoad: the config is not that of a causal language model, or names another quantization.
    """
    if min(context_tokens, batch) < 1:
        raise ValueError("context_tokens and batch must be at least 1")
    quantization = quantization_of(config.to_dict()) or quantization
    if quantization not in QUANTIZATIONS:
        raise ModelCannotLoad(
            f"The memory of weights quantized with {quantization} cannot be estimated.",
            hint=f"Known are {', '.join(QUANTIZATIONS)}.",
        )
    shapes = _read_shapes(config)
    capabilities = read_capabilities(config)
    weights = _linear_bytes(shapes.linear_parameters, shapes.linear_outputs, quantization, dtype_bytes)
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
        expert_parameters=shapes.expert_parameters,
    )


def prefill_chunk_tokens(kind: str) -> int:
    """Tokens of a prompt that are read at once on a `cpu`, `cuda` or `mps` device.

    In smaller pieces a GPU waits for Python; while a larger one is read, the answers of others wait.
    """
    return _PREFILL_CHUNK_TOKENS_ON_A_GPU if kind == "cuda" else _PREFILL_CHUNK_TOKENS


def usual_quantization(config: Any, device: str = "auto") -> str:
    """The quantization where none is asked for, which is that of the weights on disk where they have one.

    On a GPU it is `nf4`, and `none` below half a billion weights, where 4 bits cost much quality and save little
    memory. A processor reads prompts more slowly with quantized weights, and they cost quality: there it
    is the first of `none`, `int8` and `nf4` that fits the free memory with an answer (docs/benchmarks.md).
    """
    if (found := quantization_of(config.to_dict())) is not None:
        return found
    device = choose_device(device)
    if device.startswith("cuda"):
        shapes = _read_shapes(config)
        return "none" if shapes.linear_parameters + shapes.other_parameters < _FEWEST_QUANTIZED else "nf4"
    free = free_memory_bytes(device)
    for quantization in ("none", "int8"):
        dtype_bytes = choose_dtype("auto", device, quantization).itemsize
        if estimate_memory(config, quantization=quantization, dtype_bytes=dtype_bytes).total_bytes <= free:
            return quantization
    return "nf4"


def _linear_bytes(parameters: int, outputs: int, quantization: str, dtype_bytes: int) -> int:
    """Bytes of linear layers with `parameters` weights and `outputs` output rows in all."""
    if quantization == "nf4":
        blocks = -(-parameters // _NF4_BLOCK_WEIGHTS)
        return -(-parameters // 2) + blocks + 4 * -(-blocks // _NF4_BLOCK_SCALES)
    if quantization == "int8":
        return parameters + 4 * outputs  # LLM.int8 keeps one float32 scale per row
    return parameters * dtype_bytes


def linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of every linear layer that gets quantized: all but the output embedding and routers of experts."""
    import torch

    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not output and "Router" not in type(module).__name__:
            yield name, module


def lora_layers(model: Any) -> dict[str, Any]:
    """The linear layers that LoRA adapts, by name: attention and dense ones, without a mixture's experts.

    A state-space mixer's output goes to a fused kernel that reads its plain weight, so no layer of its name is adapted.
    """
    found = dict(linear_layers(model))
    # only a state-space mixer has `D`, the weight of its own input
    fused = {_kind(name) for name in found if name.endswith("out_proj") and _beside(model, name, "D") is not None}
    return {name: layer for name, layer in found.items() if _kind(name) not in fused}


def lora_kinds(model: Any) -> list[str]:
    """Names for peft's `target_modules` that select the layers of `lora_layers`."""
    return sorted({_kind(name) for name in lora_layers(model)})


def _kind(name: str) -> str:
    """A layer's last name; all of it where that is a number, as in a list of layers."""
    last = name.rpartition(".")[2]
    return name if last.isdigit() else last


def _beside(model: Any, name: str, other: str) -> Any:
    """The attribute `other` of the module that holds the layer `name`."""
    return getattr(model.get_submodule(name.rpartition(".")[0]), other, None)


def _read_shapes(config: Any) -> _Shapes:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, RuntimeError, ImportError) as error:
        raise ModelCannotLoad(
            f"The config cannot be built into a causal language model: {first_line(error)}",
            hint="Give the config.json of a text-generation model.",
        ) from error
    model.tie_weights()
    layers = [module for _, module in linear_layers(model)]
    linear = sum(layer.weight.numel() for layer in layers)
    parameters = {id(p): p for p in model.parameters()}.values()
    total = sum(parameter.numel() for parameter in parameters)
    return _Shapes(
        linear_parameters=linear,
        linear_outputs=sum(layer.out_features for layer in layers),
        other_parameters=total - linear,
        expert_parameters=sum(parameter.numel() for parameter in parameters if parameter.dim() == 3),
        lora_width=sum(layer.in_features + layer.out_features for layer in lora_layers(model).values()),
        widest_linear=max((layer.weight.numel() for layer in layers), default=0),
    )


def _layer_width(shape: Capabilities) -> int:
    """Numbers that one layer computes per token: norms and residual, queries, keys, values, output, gated MLP."""
    attention = shape.attention_heads * shape.key_dim * 2 + shape.kv_heads * (shape.key_dim + shape.value_dim)
    return 4 * shape.hidden_size + attention + 3 * shape.intermediate_size


def _serving_activations(shape: Capabilities, context_tokens: int, batch: int, dtype_bytes: int) -> int:
    chunk = min(context_tokens, _PREFILL_CHUNK_TOKENS_ON_A_GPU)
    mask = chunk * context_tokens  # one byte per pair, when a prompt continues a kept prefix
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
    logits = batch * min(tokens, _TRAINED_ANSWER_TOKENS) * shape.vocab_size * (2 + 4 + 4 + 4)
    dequantized = shapes.widest_linear * 2 if quantization != "none" else 0
    return saved + recomputed + logits + dequantized
