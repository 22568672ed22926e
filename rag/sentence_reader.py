"""Chooses sentences: question and passages in, sentences with scores out, best first.

`SentenceReader` is the seam. The reader here lets a cross-encoder read the most promising sentences with the question.
Four cheap signals say which are promising: the question's terms in the sentence, in its heading, in a neighbour, and
the passage's rank (`docs/decisions.md`).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from indexes.embedder import MiniLM, bundled_model_folder, bundled_tokenizer, choose_device, encode_workers, usual_dtype
from indexes.sentences import SpanKind, split_spans
from indexes.words import TermWeights, signed_names, terms_of
from rag.errors import ModelCannotLoad
from rag.forms import definition_share
from rag.query import Query
from rag.types import Passage

TERMS_WEIGHT = 0.7
HEADING_WEIGHT = 0.56
"""For terms of the question in the heading of the sentence's section, but not in the sentence."""
NEIGHBOUR_WEIGHT = 0.4
"""For the better of the two neighbours: an answer often follows what repeats the question."""
PLACE_WEIGHT = 0.16
"""For the first passage; a half for the second, a third for the third."""
READ_UNITS = 16
"""Most units that are read with the question. Reading takes most of an answer's time."""
READ_LISTINGS = 6
"""Most of them that are listings, where code is asked for; other answers bring a listing along with a sentence."""
READ_CHARACTERS = 600
"""More than the model reads; spares the tokenizer a long listing."""
REMEMBERED = 64
"""Readings kept, so that whoever asks again about the same passages does not wait again."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its place, to be read with a question.

    Attributes:
        heading: the last two headings over it.
        signals: how well its terms, heading, neighbours and place fit the question.
    """

    sentence: str
    heading: str
    signals: float


ScorePairs = Callable[[str, Sequence[Pair]], NDArray[np.float32]]
"""A question and pairs to how likely each sentence answers, 0 to 1, `(len(pairs),)`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence, list item, listing, table, formula or heading of a passage.

    Attributes:
        passage: index of the passage, from 0.
        place: index among the units of its passage; `place - 1` is the unit before it.
        start, end: offsets in the passage's text.
        paragraph: ordinal of the paragraph that it belongs to.
        section: heading path over it.
        pieces: its terms, for comparing.
        indent: columns before the bullet of a list item: items of a list within another have more.
    """

    passage: int
    place: int
    start: int
    end: int
    kind: SpanKind
    paragraph: int
    section: tuple[str, ...]
    text: str
    pieces: frozenset[str]
    indent: int = 0


@dataclass(frozen=True, slots=True)
class ScoredUnit:
    """A unit and how well it answers the question; higher is better, 0 and below is irrelevant."""

    unit: Unit
    score: float


class SentenceReader(Protocol):
    """Chooses the sentences that answer a question."""

    def read(self, query: Query, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """The promising units of the passages, best first, by the query's English; headings are never among them."""
        ...


class LearnedReader:
    """Reads the units with the best signals by a model. Threads may share it.

    Args:
        score: the model, loaded when first called.
    """

    def __init__(self, score: ScorePairs) -> None:
        self._score = score
        self._readings: OrderedDict[tuple[str, str, tuple[str, ...]], list[ScoredUnit]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, query: Query, passages: Sequence[Passage]) -> list[ScoredUnit]:
        """At most `READ_UNITS` units, best first."""
        key = (query.english, query.kind, tuple(passage.text for passage in passages))
        with self._lock:
            if key in self._readings:
                return self._readings[key]
        units, pairs = candidates(query, passages)
        if query.kind == "code":
            listings, shown = candidates(query, passages, listings=True)
            units, pairs = listings[:READ_LISTINGS] + units, shown[:READ_LISTINGS] + pairs
        units, pairs = units[:READ_UNITS], pairs[:READ_UNITS]
        scores = self._score(query.english, pairs) if pairs else np.zeros(0, dtype=np.float32)
        read = [ScoredUnit(unit, float(score)) for unit, score in zip(units, scores, strict=True)]
        read.sort(key=lambda item: (-item.score, item.unit.passage, item.unit.place))
        if names := signed_names(query.english):  # to the encoder `-E` is little else than `-g`
            held = sorted(read, key=lambda item: not names <= item.unit.pieces)
            read = [replace(item, score=place.score) for item, place in zip(held, read, strict=True)]
        with self._lock:
            self._readings[key] = read
            while len(self._readings) > REMEMBERED:
                self._readings.popitem(last=False)
        return read


def candidates(query: Query, passages: Sequence[Passage], *, listings: bool = False) -> tuple[list[Unit], list[Pair]]:
    """The units of the passages that a model may read, and the same as pairs: what defines the name asked about first,
    then the best signals.

    Args:
        listings: the listings, instead of everything else; headings are in neither.
    """
    units = [unit for unit in units_of(passages) if unit.kind != "heading"]
    signals = _signals(query.english, units)
    order = sorted(
        (i for i, unit in enumerate(units) if (unit.kind == "code") == listings),
        key=lambda i: (not (query.subject and definition_share(query.subject, units[i].text) > 0), -signals[i]),
    )
    pairs = [Pair(units[i].text[:READ_CHARACTERS], " > ".join(units[i].section[-2:]), signals[i]) for i in order]
    return [units[i] for i in order], pairs


def units_of(passages: Sequence[Passage]) -> list[Unit]:
    """Every unit of the passages, in order."""
    units: list[Unit] = []
    for number, passage in enumerate(passages):
        for place, span in enumerate(split_spans(passage.text)):
            text = passage.text[span.start : span.end]
            section = passage.part_at(span.start).section
            pieces = terms_of(text).pieces
            at = (number, place, span.start, span.end)
            units.append(Unit(*at, span.kind, span.paragraph, section, text, pieces, span.indent))
    return units


def _signals(question: str, units: Sequence[Unit]) -> list[float]:
    asked = terms_of(question).pieces
    weights = TermWeights([unit.pieces for unit in units])
    own = [weights.share(asked, unit.pieces) for unit in units]
    headings = {section: terms_of(" ".join(section)).pieces for section in {unit.section for unit in units}}
    return [
        TERMS_WEIGHT * own[i]
        + HEADING_WEIGHT * weights.share(asked, headings[unit.section], beside=unit.pieces)
        + NEIGHBOUR_WEIGHT * max((own[n] for n in (i - 1, i + 1) if _adjacent(units, i, n)), default=0.0)
        + PLACE_WEIGHT / (1 + unit.passage)
        for i, unit in enumerate(units)
    ]


def _adjacent(units: Sequence[Unit], one: int, other: int) -> bool:
    if not 0 <= other < len(units) or units[one].passage != units[other].passage:
        return False
    return abs(units[one].place - units[other].place) == 1


# --- the model: a cross-encoder reads a question with a sentence and its context, and scores how well that answers
#
# It is the bundled encoder with a LoRA adapter and a small head (`rag/reader_adapter/`), trained by
# `tools/reader_training.py`. Questions and sentences are English: a Chinese question is put into English first.

QUESTION_TOKENS = 32
SENTENCE_TOKENS = 56
HEADING_TOKENS = 12
"""Longest parts of an input."""
BATCH = 4
"""Pairs of similar length that one core reads at once."""
_CLS, _SEP = 101, 102
_WEIGHTS, _RECORD = "adapter.safetensors", "adapter.json"
_REINSTALL = "install Coalesce again, or train it: python -m tools.reader_training --help"


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Token ids of `[CLS] question [SEP] sentence [SEP] heading [SEP]`, and the lengths of the first two."""

    ids: tuple[int, ...]
    question_tokens: int
    sentence_tokens: int
    signals: float


class PairTokenizer:
    """Turns pairs into token ids, for training and serving alike."""

    def __init__(self) -> None:
        self._tokenizer = bundled_tokenizer()

    def encode(self, question: str, pairs: Sequence[Pair]) -> list[EncodedPair]:
        """One input per pair."""
        asked = self._ids(question)[:QUESTION_TOKENS]
        encoded = []
        for pair in pairs:
            sentence = self._ids(pair.sentence)[:SENTENCE_TOKENS]
            heading = self._ids(pair.heading)[:HEADING_TOKENS]
            ids = (_CLS, *asked, _SEP, *sentence, _SEP, *heading, _SEP)
            encoded.append(EncodedPair(ids, len(asked), len(sentence), pair.signals))
        return encoded

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def pad(pairs: Sequence[EncodedPair], device: str = "cpu") -> tuple[Any, Any]:
    """Token ids and mask of some pairs, both int64 (pairs, tokens of the longest)."""
    import torch

    longest = max(len(pair.ids) for pair in pairs)
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    mask = torch.zeros(len(pairs), longest, dtype=torch.long)
    for row, pair in enumerate(pairs):
        ids[row, : len(pair.ids)] = torch.tensor(pair.ids)
        mask[row, : len(pair.ids)] = 1
    return ids.to(device), mask.to(device)


def score_hidden(hidden: Any, mask: Any, pairs: Sequence[EncodedPair], weight: Any, bias: Any, mix: Any) -> Any:
    """Logits (pairs,) from the encoder's last states, float32 (pairs, tokens, dimension).

    The sum of a linear head over `[CLS]` and the mean state; the cosine of the question's and the sentence's mean
    states, which is where training starts; and the signals. Above 0 the sentence more likely answers than not.

    Args:
        weight, bias: the head, (1, 2 * dimension) and (1,).
        mix: weights of cosine and signals, and a constant, (3,).
    """
    import torch

    tokens = torch.arange(hidden.shape[1], device=hidden.device)
    asked, said, signals = (
        torch.tensor(values, device=hidden.device).unsqueeze(1)
        for values in zip(*((pair.question_tokens, pair.sentence_tokens, pair.signals) for pair in pairs), strict=True)
    )
    question = _mean(hidden, (tokens >= 1) & (tokens < 1 + asked))
    sentence = _mean(hidden, (tokens >= 2 + asked) & (tokens < 2 + asked + said))
    both = torch.cat([hidden[:, 0], _mean(hidden, mask.bool())], -1)
    head = torch.nn.functional.linear(both, weight, bias).squeeze(-1)
    cosine = torch.cosine_similarity(question, sentence, dim=-1)
    return head + mix[0] * cosine + mix[1] * signals.squeeze(-1) + mix[2]


def _mean(hidden: Any, chosen: Any) -> Any:
    chosen = chosen.unsqueeze(-1).to(hidden.dtype)
    return (hidden * chosen).sum(1) / chosen.sum(1).clamp(min=1)


class CrossEncoder:
    """The trained model. Light to make: it loads when first used; threads may share it.

    Args:
        folder: adapter and record; None takes the ones that come with the package.
        device: `auto`, `cpu` or `cuda`.
    """

    def __init__(self, folder: Path | None = None, *, device: str = "auto") -> None:
        self._folder = folder
        self._device = device
        self._lock = threading.Lock()
        self._model: MiniLM | None = None

    def load(self) -> MiniLM:
        """The encoder with the adapter merged; loaded once.

        Raises:
            ModelCannotLoad: files are missing or damaged.
        """
        with self._lock:
            if self._model is None:
                with as_file(files("rag").joinpath("reader_adapter")) as bundled:
                    self._model = self._merge(*read_adapter(self._folder or bundled))
            return self._model

    def _merge(self, weights: dict[str, Any], record: dict[str, Any]) -> MiniLM:
        model = MiniLM(bundled_model_folder(), choose_device(self._device), "float32")
        for name in sorted(name.removesuffix(".lora_A") for name in weights if name.endswith(".lora_A")):
            product = weights[f"{name}.lora_B"].float() @ weights[f"{name}.lora_A"].float()
            model.add(f"{name}.weight", product * float(record["scale"]))
        model.round_to(usual_dtype(model.device))
        self._head = tuple(weights[name].float().to(model.device) for name in ("head.weight", "head.bias", "mix"))
        self._tokenizer = PairTokenizer()
        return model

    def score(self, question: str, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """How likely each sentence answers the question, 0 to 1, (pairs,)."""
        model = self.load()
        encoded = self._tokenizer.encode(question, pairs)
        order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index].ids))
        batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
        workers = encode_workers(model.device)
        running: list[Future[NDArray[np.float32]]] = [
            workers.submit(self._forward, model, [encoded[index] for index in batch]) for batch in batches
        ]
        scores = np.empty(len(encoded), dtype=np.float32)
        for batch, future in zip(batches, running, strict=True):
            scores[batch] = future.result()
        return scores

    def _forward(self, model: MiniLM, pairs: Sequence[EncodedPair]) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            ids, mask = pad(pairs, model.device)
            logits = score_hidden(model.hidden(ids, mask).float(), mask, pairs, *self._head)
            return np.asarray(torch.sigmoid(logits).cpu().numpy(), dtype=np.float32)


def write_adapter(folder: Path, weights: dict[str, Any], record: dict[str, Any]) -> None:
    """Writes the adapter and its record, digest included."""
    from safetensors.torch import save

    data = save(weights)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _WEIGHTS).write_bytes(data)
    record = {**record, "sha256": hashlib.sha256(data).hexdigest()}
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The adapter's weights and its record; raises ModelCannotLoad."""
    from safetensors.torch import load

    try:
        record: dict[str, Any] = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        data = (folder / _WEIGHTS).read_bytes()
    except (OSError, ValueError) as error:
        raise ModelCannotLoad(f"the sentence reader in {folder} cannot be read: {error}", hint=_REINSTALL) from error
    found = hashlib.sha256(data).hexdigest()
    if found != record["sha256"]:
        raise ModelCannotLoad(
            f"the sentence reader in {folder} is damaged: its digest is {found[:12]}, not {record['sha256'][:12]}",
            hint=_REINSTALL,
        )
    return load(data), record
