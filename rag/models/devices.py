"""The device and number format a model runs in, and the memory there: free, peak, exhausted."""

from __future__ import annotations

import resource
import sys
import threading
from typing import Any

from indexes.embedder import cpu_computes_bfloat16
from indexes.messages import msg
from rag.errors import ModelCannotLoad

RANDOM_NUMBERS = threading.Lock()
"""Held by what draws random numbers on a GPU (training), and while a CUDA graph is captured: torch refuses both."""
_DTYPES = ("auto", "float32", "bfloat16", "float16")

_FREE_SHARE = 0.5  # of the memory left beside the weights; the rest is for activations, the embedder and FAISS
_MOST_CPU_KV_BUDGET_BYTES = 4 << 30


def choose_device(device: str) -> str:
    """The device to use; `auto` takes a CUDA GPU, else Apple's, else the CPU.

    Raises:
        ModelCannotLoad: this machine does not have the device.
    """
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available.get(device.partition(":")[0], False):
        raise ModelCannotLoad(msg("This machine has no device {}.", device), hint="Use --device auto or cpu.")
    return device


def choose_dtype(dtype: str, device: str, quantization: str) -> Any:
    """The `torch.dtype` of arithmetic and cache; `auto` takes bfloat16 where the hardware computes in it.

    Raises:
        ModelCannotLoad: an unknown number format.
    """
    import torch

    if dtype not in _DTYPES:
        raise ModelCannotLoad(msg("Unknown dtype {}.", repr(dtype)), hint=msg("Use one of {}.", ", ".join(_DTYPES)))
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if quantization != "none" or device == "mps" or cpu_computes_bfloat16():
        return torch.bfloat16
    return torch.float32


def free_memory_bytes(device: str) -> int:
    """Free bytes on the device."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def default_kv_budget_bytes(device: str) -> int:
    """Half of the memory left free by the weights; on a CPU, whose memory others need too, at most 4 GiB."""
    share = int(free_memory_bytes(device) * _FREE_SHARE)
    return share if device.startswith("cuda") else min(share, _MOST_CPU_KV_BUDGET_BYTES)


def free_cached_memory(device: str) -> None:
    """Gives memory that torch holds for later back to a CUDA device."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def reset_peak_memory(device: str) -> None:
    """Resets `peak_memory_bytes` on a CUDA device; the peak of a process cannot be reset."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: str) -> int:
    """Most bytes allocated on a CUDA device since `reset_peak_memory`; elsewhere most bytes this process ever held."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or CUDA says, in its own way, that memory is full."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
