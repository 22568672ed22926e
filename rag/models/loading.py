"""Loads a causal language model and its tokenizer: from a folder or hub name, whole, in 8 or in 4 bits.

NF4 is loaded with double quantization and bfloat16 arithmetic (QLoRA's settings). Everything that can be wrong with a
folder is looked at before torch is imported, so that a half finished download is an answer in milliseconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from rag.errors import DoesNotFitInMemory, ModelCannotLoad
from rag.models.attention import register_attention
from rag.models.capabilities import Capabilities, read_capabilities
from rag.models.devices import choose_device, choose_dtype, free_memory_bytes
from rag.models.folder import ModelFolder, inspect_folder, local_folder, quantization_of, read_config
from rag.models.memory import estimate_from_config, load_config
from rag.models.output_head import keep_head_fast
from rag.settings import QUANTIZATIONS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        name: as the user gave it.
        model: `transformers.PreTrainedModel` in evaluation mode (training mode when loaded for tuning).
        tokenizer: `transformers.PreTrainedTokenizerBase` with a chat template.
        quantization: `none`, `int8` or `nf4`; device: `cpu`, `cuda`, ...; dtype: of arithmetic and of the cache.
        dtype_bytes: bytes of one number of the cache.
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
        for_training: keep the stock attention and no evaluation mode.
        sharded: a launcher (FSDP, ZeRO-3) places the weights; 4-bit ones are stored in `dtype` so that it can cut them.

    Raises:
        ModelCannotLoad: missing, half downloaded, of no known kind, quantized otherwise, or the hub is out of reach.
        DoesNotFitInMemory: the weights alone exceed the free memory.
    """
    if quantization not in QUANTIZATIONS:
        raise ModelCannotLoad(
            f"Quantization {quantization!r} is none of {', '.join(QUANTIZATIONS)}.",
            hint="Use --quantization none, int8 or nf4.",
        )
    path = local_folder(name)
    folder = inspect_folder(path) if path is not None else None
    config = load_config(name)
    quantization = _agreed_quantization(name, folder, config, quantization)
    device = choose_device(device)
    torch_dtype = choose_dtype(dtype, device, quantization)
    _check_room(name, config, quantization, device, torch_dtype.itemsize)
    tokenizer = load_tokenizer(name)
    capabilities = read_capabilities(config, context_cap_tokens=context_cap_tokens)
    placement = None if sharded else device
    model = _load_weights(name, config, capabilities, quantization, placement, torch_dtype, for_training)
    if not for_training:
        model.eval()
        model.requires_grad_(False)
        keep_head_fast(model)
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        capabilities=capabilities,
        quantization=quantization,
        device=device,
        dtype=str(torch_dtype).removeprefix("torch."),
        dtype_bytes=torch_dtype.itemsize,
    )


def load_tokenizer(name: str, *, needs_chat_template: bool = True) -> Any:
    """The tokenizer of a folder or hub name.

    Raises:
        ModelCannotLoad: none is there, or it has no chat template.
    """
    if (path := local_folder(name)) is not None:
        read_config(path)  # says what a folder that is no model is, before its tokenizer is missed
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # tokenizer files fail in as many ways as there are formats
        raise ModelCannotLoad(
            f"The tokenizer of {name} cannot be loaded: {first_line(error)}",
            hint="The folder needs tokenizer.json (or the model's own tokenizer files) beside config.json.",
        ) from error
    if needs_chat_template and not getattr(tokenizer, "chat_template", None):
        raise ModelCannotLoad(
            f"The tokenizer of {name} has no chat template, so questions cannot be put to the model.",
            hint="Use the instruct or chat version of the model, or put its chat_template.jinja into the folder.",
        )
    return tokenizer


def bitsandbytes_config(quantization: str, compute_dtype: Any, *, storage: Any) -> Any:
    """The bitsandbytes settings for `int8` or `nf4`; `storage` is the dtype that holds the packed 4-bit codes.

    Raises:
        ModelCannotLoad: bitsandbytes is not installed (it exists for Linux).
    """
    _quiet_bitsandbytes()
    try:
        import bitsandbytes  # noqa: F401 - transformers needs it; asked for here to name what is missing
    except ImportError as error:
        raise ModelCannotLoad(
            f"Quantization {quantization} needs bitsandbytes, which is not installed here.",
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
        bnb_4bit_quant_storage=storage,
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for messages of one sentence."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _load_weights(
    name: str,
    config: Any,
    capabilities: Capabilities,
    quantization: str,
    placement: str | None,
    torch_dtype: Any,
    for_training: bool,
) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    options: dict[str, Any] = {"dtype": torch_dtype}
    if placement is not None:
        options["device_map"] = placement
    if quantization != "none":
        _quiet_bitsandbytes()
        if quantization_of(config.to_dict()) is None:
            options["quantization_config"] = bitsandbytes_config(
                quantization, torch_dtype, storage=torch_dtype if placement is None else torch.uint8
            )
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # a server has no terminal; callers say what they load
    try:
        model = AutoModelForCausalLM.from_pretrained(name, **options)
        if not for_training and capabilities.attention == "full" and model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(register_attention())
        return model
    except torch.OutOfMemoryError as error:
        raise DoesNotFitInMemory(
            f"{name} does not fit into the memory of {placement}: {first_line(error)}",
            hint="Use --quantization nf4, a smaller model, or --generator remote.",
        ) from error
    except Exception as error:  # every cause is the same to the caller: this model does not load
        raise ModelCannotLoad(f"{name} cannot be loaded: {first_line(error)}", hint=_hint_for(error)) from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


def _agreed_quantization(name: str, folder: ModelFolder | None, config: Any, wanted: str) -> str:
    """What will run: a folder quantized on disk keeps its quantization."""
    found = folder.quantized_as if folder else quantization_of(config.to_dict())
    if found is None:
        return wanted
    if found not in QUANTIZATIONS:
        raise ModelCannotLoad(
            f"{name} is quantized with {found}, which is not loaded here.",
            hint="Serve it with vLLM, SGLang or LMDeploy and use --generator remote, or take the unquantized model.",
        )
    if wanted not in (found, "none"):
        raise ModelCannotLoad(
            f"{name} is quantized as {found} on disk; {wanted} was asked for.", hint=f"Use --quantization {found}."
        )
    return found


def _check_room(name: str, config: Any, quantization: str, device: str, dtype_bytes: int) -> None:
    estimate = estimate_from_config(config, quantization=quantization, context_tokens=1, dtype_bytes=dtype_bytes)
    free = free_memory_bytes(device)
    if free is not None and estimate.weights_bytes > free:
        smaller = "" if quantization == "nf4" else "Use --quantization nf4, or "
        raise DoesNotFitInMemory(
            f"{name} needs {estimate.weights_bytes / 2**30:.1f} GiB for its weights ({quantization}); "
            f"{free / 2**30:.1f} GiB are free on {device}.",
            hint=f"{smaller or 'Use '}a smaller model; `coalesce memory --model {name}` shows the arithmetic.",
        )


def _hint_for(error: BaseException) -> str:
    text = f"{type(error).__name__} {error}"
    if any(word in text for word in ("trust_remote_code", "custom code", "does not recognize this architecture")):
        return "Only architectures that transformers itself knows are loaded; serve others with --generator remote."
    return "Check the folder with `coalesce memory --model PATH`, or download the model again."


def _quiet_bitsandbytes() -> None:
    """Its import advises installing a package that would download kernels from the hub."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
