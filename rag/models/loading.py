"""Loads a causal language model and its tokenizer from a folder or hub name, whole or quantized to 8 or 4 bits.

NF4 is loaded with double quantization and bfloat16 arithmetic (QLoRA's settings). A folder is checked before torch is
imported, so that a half finished download is reported in milliseconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from indexes.errors import first_line
from indexes.messages import msg
from rag.errors import DoesNotFitInMemory, ModelCannotLoad
from rag.models.capabilities import Capabilities, read_capabilities
from rag.models.devices import choose_device, choose_dtype, free_memory_bytes
from rag.models.fast_paths import register_attention, speed_up_norms, speed_up_output
from rag.models.folder import (
    check_folder,
    load_config,
    local_folder,
    quantization_of,
    read_config,
    shown_name,
    without_progress_bars,
)
from rag.models.memory import estimate_memory, usual_quantization
from rag.settings import QUANTIZATIONS

_log = logging.getLogger("coalesce.models")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        name: as the user gave it, or as the folder calls itself (`shown_name`).
        model: `transformers.PreTrainedModel` in evaluation mode (training mode when loaded for tuning).
        tokenizer: `transformers.PreTrainedTokenizerBase` with a chat template.
        quantization: `none`, `int8` or `nf4`; device: `cpu`, `cuda`, ...; dtype: of arithmetic and cache.
        dtype_bytes: bytes of one number in the cache.
    """

    name: str
    model: Any
    tokenizer: Any
    capabilities: Capabilities
    quantization: str
    device: str
    dtype: str
    dtype_bytes: int


def load_model(
    name: str,
    *,
    quantization: str = "none",
    device: str = "auto",
    dtype: str = "auto",
    context_cap_tokens: int | None = None,
    for_training: bool = False,
    sharded: bool = False,
) -> LoadedModel:
    """Loads model and tokenizer (seconds to minutes).

    Args:
        name: a folder, or a hub name (downloaded when it is not on this disk).
        quantization: one of `QUANTIZATIONS`, or `auto` (`usual_quantization`).
        for_training: keep the stock attention and no evaluation mode.
        sharded: a launcher (FSDP, ZeRO-3) places the weights; 4-bit ones are stored in `dtype` so that it can cut them.

    Raises:
        ModelCannotLoad: it is missing, half downloaded, of an unknown kind or quantized otherwise, or the hub cannot
            be reached.
        DoesNotFitInMemory: the weights alone exceed the free memory.
    """
    if quantization not in ("auto", *QUANTIZATIONS):
        raise ModelCannotLoad(
            msg("Unknown quantization {}.", repr(quantization)),
            hint=msg("Use --quantization {}.", ", ".join(QUANTIZATIONS)),
        )
    if (folder := local_folder(name)) is not None:
        check_folder(folder)
    config = load_config(name)
    device = choose_device(device)
    if quantization == "auto":
        quantization = usual_quantization(config, device)
        if device == "cpu" and quantization not in ("none", quantization_of(config.to_dict())):
            _log.warning(
                "%s is held in %s, which costs quality: whole weights do not fit the %.1f GiB that are free.",
                shown_name(name), quantization, free_memory_bytes(device) / 2**30,
            )  # fmt: skip
    quantization = _agreed_quantization(name, config, quantization)
    torch_dtype = choose_dtype(dtype, device, quantization)
    _check_room(name, config, quantization, device, torch_dtype.itemsize)
    tokenizer = load_tokenizer(name)
    capabilities = read_capabilities(config, context_cap_tokens=context_cap_tokens)
    model = _load_weights(name, config, quantization, torch_dtype, device=None if sharded else device)
    if not for_training:
        if capabilities.attention == "full" and model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(register_attention())
        model.eval()
        model.requires_grad_(False)
        speed_up_output(model)
        if device.startswith("cuda"):
            speed_up_norms(model)
        _leave_narrow_layers_unpacked(model)
    return LoadedModel(
        name=shown_name(name),
        model=model,
        tokenizer=tokenizer,
        capabilities=capabilities,
        quantization=quantization,
        device=device,
        dtype=str(torch_dtype).removeprefix("torch."),
        dtype_bytes=torch_dtype.itemsize,
    )


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or hub name.

    Raises:
        ModelCannotLoad: there is none, or it has no chat template.
    """
    if (folder := local_folder(name)) is not None:
        read_config(folder)  # a folder that is not a model is named as such before its tokenizer is missed
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # tokenizer files fail in as many ways as there are formats
        raise ModelCannotLoad(
            msg("The tokenizer of {} cannot be loaded: {}", name, first_line(error)),
            hint="The folder needs tokenizer.json (or the model's own tokenizer files) beside config.json.",
        ) from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelCannotLoad(
            msg("The tokenizer of {} has no chat template, so the model cannot be asked questions.", name),
            hint="Use the instruct or chat version of the model, or put its chat_template.jinja into the folder.",
        )
    return tokenizer


def stop_tokens(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer, by the model's generation settings and its tokenizer."""
    found = getattr(generation_config, "eos_token_id", None)
    listed = found if isinstance(found, list) else [found]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def _load_weights(name: str, config: Any, quantization: str, torch_dtype: Any, *, device: str | None) -> Any:
    """Loads onto `device`; None leaves the placement to a launcher."""
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": torch_dtype, "trust_remote_code": False}
    if device is not None:
        options["device_map"] = device
    if quantization != "none":
        quantized = _quantization_config(quantization, torch_dtype, torch.uint8 if device is not None else torch_dtype)
        if quantization_of(config.to_dict()) is None:
            options["quantization_config"] = quantized
    try:
        with without_progress_bars():
            return AutoModelForCausalLM.from_pretrained(name, **options)
    except torch.OutOfMemoryError as error:
        raise DoesNotFitInMemory(
            msg("{} does not fit into the memory of {}: {}", name, device, first_line(error)),
            hint="Use --quantization nf4, a smaller model, or --generator remote.",
        ) from error
    except Exception as error:  # every cause means the same to the caller: this model does not load
        raise ModelCannotLoad(msg("{} cannot be loaded: {}", name, first_line(error)), hint=_hint_for(error)) from error


def _leave_narrow_layers_unpacked(model: Any) -> None:
    """Keeps bitsandbytes from repacking, on CPUs with AVX512-BF16, what it cannot: widths that 32 does not divide."""
    for module in model.modules():
        if getattr(module, "support_avx512bf16_for_cpu", False) and module.out_features % 32:
            module.support_avx512bf16_for_cpu = False


def _quantization_config(quantization: str, compute_dtype: Any, storage_dtype: Any) -> Any:
    """The bitsandbytes settings for `int8` or `nf4`; `storage_dtype` holds the packed 4-bit codes.

    Raises:
        ModelCannotLoad: bitsandbytes is not installed (it exists for Linux).
    """
    # On import it advises installing a package that would download kernels from the hub.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import bitsandbytes  # noqa: F401 - transformers needs it; imported here to name what is missing
    except ImportError as error:
        raise ModelCannotLoad(
            msg("Quantization {} needs bitsandbytes, which is not installed.", quantization),
            hint="Install bitsandbytes, or use --quantization none.",
        ) from error
    from transformers import BitsAndBytesConfig

    if quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        bnb_4bit_quant_storage=storage_dtype,
    )


def _agreed_quantization(name: str, config: Any, wanted: str) -> str:
    """The quantization that will run: weights that are quantized on disk keep theirs."""
    found = quantization_of(config.to_dict())
    if found is None:
        return wanted
    if found not in QUANTIZATIONS:
        raise ModelCannotLoad(
            msg("{} is quantized with {}, which cannot be loaded here.", name, found),
            hint="Serve it with vLLM, SGLang or LMDeploy and use --generator remote, or take the unquantized model.",
        )
    if wanted not in (found, "none"):
        raise ModelCannotLoad(
            msg("{} is quantized as {} on disk; {} was asked for.", name, found, wanted),
            hint=msg("Use --quantization {}.", found),
        )
    return found


def _check_room(name: str, config: Any, quantization: str, device: str, dtype_bytes: int) -> None:
    estimate = estimate_memory(config, quantization=quantization, context_tokens=1, dtype_bytes=dtype_bytes)
    needed, free = estimate.weights_bytes, free_memory_bytes(device)
    if needed > free:
        smaller = "Use a smaller model" if quantization == "nf4" else "Use --quantization nf4, or a smaller model"
        if 2 * estimate.expert_parameters > estimate.num_parameters:
            smaller = "Its experts stay in 16 bits here: serve it with an engine and --generator remote"
        raise DoesNotFitInMemory(
            msg(
                "{} needs {} GiB for its weights ({}); {} GiB are free on {}.",
                name,
                f"{needed / 2**30:.1f}",
                quantization,
                f"{free / 2**30:.1f}",
                device,
            ),
            hint=msg("{}; `coalesce memory --model {}` shows the arithmetic.", smaller, name),
        )


def _hint_for(error: BaseException) -> str:
    text = f"{type(error).__name__} {error}"
    if any(word in text for word in ("trust_remote_code", "custom code", "does not recognize this architecture")):
        return "Only architectures that transformers itself knows are loaded; serve others with --generator remote."
    return "Check the folder with `coalesce memory --model PATH`, or download the model again."
