"""GGUF files: weights, config and tokenizer in one file, as llama.cpp reads it, converted once into a model folder.

transformers knows the architectures and puts the weights into its own layout. Here its slow parts are made quick (it
reads the vocabulary as 100,000 arrays, three times, and maps the tensors' names once for every module: 100 s for a
model of 135 million weights, of which 9 s remain), and a splitting rule that it leaves out is added.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from indexes.disk import is_disk_full
from indexes.errors import CoalesceError, StorageFull, first_line
from indexes.messages import msg
from rag.errors import DoesNotFitInMemory, ModelCannotLoad
from rag.models.devices import free_memory_bytes
from rag.models.folder import without_progress_bars

Progress = Callable[[str, int, int], None]
"""Takes a step's name, how much of it is done, and how much there is."""

_TRANSFORMERS_NAMES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
_ONE_DIGIT_A_TOKEN = ("smollm", "starcoder", "refact", "command-r")  # as llama.cpp splits for `tokenizer.ggml.pre`
_UNKNOWN_TYPE_HINT = "Take the file in another quantization (Q4_K_M, Q8_0, F16), or serve it with --generator remote."


def convert_gguf(file: Path, folder: Path, progress: Progress = lambda _step, _done, _total: None) -> None:
    """Writes what a GGUF file holds into `folder` as a transformers model: bfloat16 weights, config, tokenizer.

    Raises:
        ModelCannotLoad: the file is cut short or damaged, or its architecture or a tensor's type cannot be read.
        StorageFull, DoesNotFitInMemory: too little room for the converted weights.
    """
    reader = open_gguf(file)
    check_room(file, folder, 2 * sum(int(tensor.n_elements) for tensor in reader.tensors))
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        with without_progress_bars():
            with _read_once(reader, lambda done: progress("converting", done, len(reader.tensors))):
                tokenizer = AutoTokenizer.from_pretrained(**where)
                config = AutoConfig.from_pretrained(**where)
                width = reader.fields.get(f"{text_field(reader, 'general.architecture')}.attention.key_length")
                if width is not None and hasattr(config, "head_dim"):  # transformers does not read it for every family
                    config.head_dim = int(width.parts[width.data[0]][0])
                model = AutoModelForCausalLM.from_pretrained(
                    **where, config=config, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
                )
            _set_splitting(tokenizer, reader)
            tokenizer.model_max_length = model.config.max_position_embeddings
            progress("writing the model", 0, 0)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
    except Exception as error:
        if isinstance(error, CoalesceError) or is_disk_full(error):
            raise
        raise ModelCannotLoad(
            msg("{} cannot be converted: {}", file, first_line(error)),
            hint="Take the model as a transformers folder, or serve the file with llama.cpp and --generator remote.",
        ) from error


def check_room(file: Path, folder: Path, needed_bytes: int) -> None:
    """Raises StorageFull or DoesNotFitInMemory where a converted file finds no room in `folder`, or in memory."""
    needed = f"{needed_bytes / 1e6:,.0f} MB"
    if (free := shutil.disk_usage(folder).free) < needed_bytes:
        raise StorageFull(
            msg(
                "{} needs {} in {} once it is converted; {} MB are free.",
                file,
                needed,
                folder.parent,
                f"{free / 1e6:,.0f}",
            ),
            hint="Free some space, or name another home with --home.",
        )
    if (free := free_memory_bytes("cpu")) < needed_bytes:
        raise DoesNotFitInMemory(
            msg("{} needs {} of memory to be converted; {} MB are free.", file, needed, f"{free / 1e6:,.0f}"),
            hint="Serve it with llama.cpp and use --generator remote, or take a smaller model.",
        )


def open_gguf(file: Path) -> Any:
    """A `gguf.GGUFReader` of a file whose architecture and tensor types can be read; loads neither torch nor weights.

    Raises:
        ModelCannotLoad: see `convert_gguf`.
    """
    import gguf
    from gguf import quants

    again = "Download the file again."
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise ModelCannotLoad(msg("{} cannot be read: {}.", file, error.strerror), hint="Give a .gguf file.") from error
    if magic != b"GGUF":
        raise ModelCannotLoad(
            msg("{} is not a GGUF file.", file), hint="Give a .gguf file, or a transformers model folder."
        )
    try:
        reader = _reader_class()(file)
    except ValueError as error:
        if "GGMLQuantizationType" in str(error):  # "np.uint32(99) is not a valid GGMLQuantizationType"
            number = re.findall(r"\d+", str(error))[-1]
            raise ModelCannotLoad(
                msg("{} holds tensors of type {}, which is not known here.", file, number), hint=_UNKNOWN_TYPE_HINT
            ) from error
        raise ModelCannotLoad(msg("{} is cut short or damaged: {}", file, first_line(error)), hint=again) from error
    except (IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError) as error:
        raise ModelCannotLoad(msg("{} is cut short or damaged: {}", file, first_line(error)), hint=again) from error
    architecture = text_field(reader, "general.architecture")
    if architecture not in (known := known_architectures()):
        raise ModelCannotLoad(
            msg("{} holds a model of the architecture {}, which cannot be converted.", file, repr(architecture)),
            hint=msg("Known are {}. Others run in llama.cpp: use --generator remote.", ", ".join(known)),
        )
    plain = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    for tensor in reader.tensors:
        if tensor.tensor_type not in plain and tensor.tensor_type not in quants._type_traits:
            raise ModelCannotLoad(
                msg("{} holds {} as {}, which cannot be read.", file, tensor.name, tensor.tensor_type.name),
                hint=_UNKNOWN_TYPE_HINT,
            )
    return reader


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says of itself: its matrices' types, such as `Q4_K`, with how many have each."""

    architecture: str = ""
    matrix_types: Counter[str] = field(default_factory=Counter)
    num_parameters: int = 0

    @property
    def commonest_type(self) -> str:
        """Of its matrices; "" without any."""
        return next((name for name, _ in self.matrix_types.most_common(1)), "")


def read_header(file: Path) -> GGUFHeader:
    """The header of a GGUF file; an empty one for a file that cannot be read."""
    try:
        reader = _reader_class()(file)
    except Exception:  # noqa: BLE001 - a damaged file fails in as many ways as it has bytes
        return GGUFHeader()
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1)
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    return GGUFHeader(text_field(reader, "general.architecture"), kinds, parameters)


@lru_cache(maxsize=1)
def known_architectures() -> tuple[str, ...]:
    """Architectures, by GGUF's names, that transformers reads; its own list, so it grows with transformers."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

    theirs = {name: ours for ours, name in _TRANSFORMERS_NAMES.items()}
    encoders = {"general", "tokenizer", "mistral", "t5", "umt5"}
    return tuple(sorted(theirs.get(name, name) for name in {*GGUF_CONFIG_MAPPING, *GGUF_CONFIG_ARCHS} - encoders))


def text_field(reader: Any, name: str) -> str:
    """A text of the file's metadata; "" without."""
    field = reader.fields.get(name)
    return "" if field is None else bytes(field.parts[field.data[0]]).decode("utf-8", "replace")


@lru_cache(maxsize=1)
def _reader_class() -> Any:
    """The package's reader, with arrays read in one go: texts by their lengths alone, for only the count is used."""
    import numpy as np
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):  # type: ignore[misc]  # the base class is untyped
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            kind, count = struct.unpack_from("<IQ", self.data, orig_offs)
            start = orig_offs + 12
            item = GGUFValueType(kind)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            types = [GGUFValueType.ARRAY, item]
            if item == GGUFValueType.STRING:
                stop = start
                for _ in range(count):
                    stop += 8 + struct.unpack_from("<Q", self.data, stop)[0]
                return stop - orig_offs, [*head, np.empty(0, np.uint8)], [2] * count, types
            if item == GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            values = self._get(start, self.gguf_scalar_to_np[item], count)
            if len(values) < count:
                raise ValueError("a list ends before its last value")
            indices = list(range(2, 2 + count))
            return start + values.nbytes - orig_offs, [*head, *values.reshape(-1, 1)], indices, types

    return Reader


@contextmanager
def _read_once(reader: Any, on_tensor: Callable[[int], None]) -> Iterator[None]:
    """Lets transformers take `reader` wherever it would read the file again, and map the names of tensors once."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as theirs

    before = gguf.GGUFReader, gguf.get_tensor_name_map, theirs.tqdm

    def counted(tensors: Any, **_: Any) -> Iterator[Any]:
        for number, tensor in enumerate(tensors, 1):
            yield tensor
            on_tensor(number)

    gguf.GGUFReader = lambda _path: reader
    gguf.get_tensor_name_map = lru_cache(maxsize=8)(gguf.get_tensor_name_map)
    theirs.tqdm = counted
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map, theirs.tqdm = before


def _set_splitting(tokenizer: Any, reader: Any) -> None:
    """Splits digits one by one where the model's own tokenizer does; transformers 5.23 leaves numbers whole."""
    if text_field(reader, "tokenizer.ggml.pre") not in _ONE_DIGIT_A_TOKEN:
        return
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
