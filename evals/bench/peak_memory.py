"""The most memory that a piece of work took, above what was held when it began."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """Begins counting where it is made: the allocator's peak on CUDA, the resident set's on Linux."""

    def __init__(self, device: str) -> None:
        self._cuda: Any = None
        self._before: int | None = None
        gc.collect()
        if device.startswith("cuda"):
            import torch

            self._cuda = torch.cuda
            torch.cuda.reset_peak_memory_stats(device)
            self._before = int(torch.cuda.memory_allocated(device))
            return
        try:
            _CLEAR.write_text("5")  # sets the peak back to what is held now
            self._before = _field_bytes("VmRSS")
        except OSError:
            self._before = None

    def extra_bytes(self) -> int | None:
        """Most bytes above the beginning; None where the system does not tell."""
        if self._before is None:
            return None
        peak = int(self._cuda.max_memory_allocated()) if self._cuda else _field_bytes("VmHWM")
        return None if peak is None else max(peak - self._before, 0)


def _field_bytes(name: str) -> int | None:
    """A field of the process's status, which counts in KiB."""
    for line in _STATUS.read_text("ascii", "replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
