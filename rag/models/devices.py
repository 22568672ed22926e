"""Which device and number format a model runs in, and how much memory is free there."""

from __future__ import annotations

import resource
import sys
from typing import Any

from rag.errors import ModelCannotLoad

_DTYPES = ("auto", "float32", "bfloat16", "float16")


def choose_device(device: str) -> str:
    """`auto` is the CUDA GPU, else Apple's, else the CPU.

    Raises:
        ModelCannotLoad: the device that was asked for is not there.
    """
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kind = device.partition(":")[0]
    missing = (kind == "cuda" and not torch.cuda.is_available()) or (
        kind == "mps" and not torch.backends.mps.is_available()
    )
    if missing or kind not in ("cpu", "cuda", "mps"):
        raise ModelCannotLoad(f"There is no device {device} here.", hint="Use --device auto or cpu.")
    return device


def choose_dtype(dtype: str, device: str, quantization: str) -> Any:
    """The `torch.dtype` of arithmetic and cache: bfloat16 where the hardware computes in it or weights are quantized.

    Raises:
        ModelCannotLoad: no such number format.
    """
    import torch

    if dtype not in _DTYPES:
        raise ModelCannotLoad(f"dtype {dtype!r} is none of {', '.join(_DTYPES)}.", hint="Leave it at auto.")
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if quantization != "none" or device == "mps":
        return torch.bfloat16
    return torch.bfloat16 if cpu_has_bfloat16() else torch.float32


def cpu_has_bfloat16() -> bool:
    """True when this CPU multiplies bfloat16 in hardware (AVX512-BF16 or better)."""
    import torch

    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe()) if probe is not None else False


def free_memory_bytes(device: str) -> int | None:
    """Free bytes on the device; None where it cannot be known."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def peak_memory_bytes(device: str) -> int:
    """Most bytes held so far: allocated on a CUDA device, resident of this process otherwise."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
