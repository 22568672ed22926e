"""Answers in the book's own sentences, each with its marker: no language model, nothing that the book does not say."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indexes.errors import Cancelled
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.sentence_scores import Embed, ScoredUnits, SentenceScorer, Unit, units_of
from rag.retrieval.glossary import translate_terms
from rag.retrieval.language import is_chinese
from rag.types import Arm, Passage, Usage

WORDS = 120
"""Longest answer in words when the request names no `max_tokens`."""
WORDS_PER_TOKEN = 0.75
REPEAT_WEIGHT = 0.35
"""How much likeness to what was chosen costs (maximal marginal relevance)."""
LEAST_SHARE = 0.45
"""A sentence scoring under this share of the best one is left out."""
LISTING_WORDS = 400

_ASKS_FOR_CODE = re.compile(
    r"\b(code|kernel function|snippet|listing|implement(ed|ation)?|syntax|write|program|source)\b"
    r"|代码|程序|写出|实现|语法",
    re.IGNORECASE,
)
_LEANS_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:this|these|that|those|it|its|they|their|them|he|she|such|here|both|the (?:former|latter|same)|"
    r"however|therefore|thus|hence|consequently|as a result|otherwise|instead|moreover|furthermore|"
    r"in (?:this|that|such) (?:case|way|example)|for this reason|then|so|but|and|also|similarly|likewise|conversely)\b",
    re.IGNORECASE,
)
_NO_PLAIN_SENTENCE = frozenset({"heading", "code", "table"})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring units of one passage that are said together."""

    passage: int
    first: int
    last: int


class ExtractiveGenerator:
    """The embedded default. Arm `rag` only: it has nothing to say without passages and nothing to tune."""

    def __init__(self, embed: Embed, model_name: str) -> None:
        self._scorer = SentenceScorer(embed)
        self._model_name = model_name

    @property
    def name(self) -> str:
        """`extractive`."""
        return "extractive"

    @property
    def model_name(self) -> str:
        """The embedder that chooses the sentences."""
        return self._model_name

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Only `rag`."""
        return ("rag",)

    @property
    def adapters(self) -> tuple[str, ...]:
        """None."""
        return ()

    def check(self, request: GenerationRequest) -> None:
        """Refuses the arms that need a language model.

        Raises:
            ArmUnavailable: any arm but `rag`.
        """
        if request.arm == "rag":
            return
        needs = "a language model" if request.arm == "base" else "a language model and a LoRA adapter"
        adapter = "" if request.arm == "base" else " --adapter NAME=FOLDER"
        raise ArmUnavailable(
            f"arm {request.arm!r} needs {needs}; the extractive generator only answers from passages",
            hint=f"start with `--generator local --model PATH_OR_NAME{adapter}`, or ask with `--arm rag`",
        )

    def stream(self, request: GenerationRequest) -> Iterator[TextPiece | GenerationDone]:
        """Yields one piece a sentence or listing, in reading order, then the figures."""
        self.check(request)
        started = time.perf_counter()
        question = request.question
        english = translate_terms(question) if is_chinese(question) else ""
        texts = self.choose(english or question, request.passages, request.max_tokens, code=asks_for_code(question))
        written = 0
        for index, text in enumerate(texts):
            if request.cancelled():
                raise Cancelled("the answer was stopped")
            piece = text if index == 0 else _separator(texts[index - 1], text) + text
            written += count_tokens(text)
            yield TextPiece(piece)
        seconds = time.perf_counter() - started
        read = count_tokens(question) + sum(count_tokens(passage.text) for passage in request.passages)
        yield GenerationDone(
            usage=Usage(prompt_tokens=read, completion_tokens=written),
            tokens_per_s=written / seconds if written > 1 and seconds > 0 else 0.0,
            peak_memory_bytes=peak_process_bytes(),
            refused=not texts,
            passages_used=len(request.passages),
        )

    def choose(
        self, question: str, passages: Sequence[Passage], max_tokens: int | None = None, *, code: bool = False
    ) -> list[str]:
        """The chosen sentences with their markers, in reading order.

        Args:
            question: in the language of the passages.
            max_tokens: longest answer; None is about `WORDS` words.
            code: whether a listing is asked for; it may exceed the usual length, a whole listing is worth it.
        """
        scored = self._scorer.score(question, passages)
        if not scored.units:
            return []
        words = WORDS if max_tokens is None else max(int(max_tokens * WORDS_PER_TOKEN), 1)
        spans = _all_units(passages)
        chosen: list[_Piece] = []
        if code:
            listing = _best_listing(scored, words if max_tokens is not None else LISTING_WORDS)
            if listing is not None:
                chosen.append(_Piece(listing.passage, listing.place, listing.place))
        chosen.extend(_choose_sentences(scored, spans, words))
        return [_say(piece, spans) for piece in _in_reading_order(chosen)]

    def close(self) -> None:
        """Nothing to free: the embedder belongs to the library."""


def asks_for_code(question: str) -> bool:
    """Whether a listing would be the answer."""
    return bool(_ASKS_FOR_CODE.search(question))


def count_tokens(text: str) -> int:
    """Tokens by the rule of thumb of `WORDS_PER_TOKEN`; this generator has no tokenizer of its own."""
    return round(len(text.split()) / WORDS_PER_TOKEN)


def peak_process_bytes() -> int:
    """Most memory this process has held, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _choose_sentences(scored: ScoredUnits, spans: dict[tuple[int, int], Unit], words: int) -> list[_Piece]:
    """Greedy maximal marginal relevance within `words`, each choice with what it leans on."""
    plain = [i for i, unit in enumerate(scored.units) if unit.span.kind not in _NO_PLAIN_SENTENCE]
    if not plain:
        return []
    best = max(scored.scores[i] for i in plain)
    likeness = scored.vectors @ scored.vectors.T
    taken: set[tuple[int, int]] = set()
    picked: list[int] = []
    pieces: list[_Piece] = []
    left = words
    while plain:
        value = {
            i: scored.scores[i] - REPEAT_WEIGHT * max((likeness[i, j] for j in picked), default=0.0) for i in plain
        }
        i = max(plain, key=lambda item: (value[item], -item))
        plain.remove(i)
        unit = scored.units[i]
        if scored.scores[i] < LEAST_SHARE * best or (unit.passage, unit.place) in taken:
            continue
        first = _start_of(unit, spans)
        places = [(unit.passage, place) for place in range(first, unit.place + 1)]
        cost = sum(len(spans[key].text.split()) for key in places if key not in taken)
        if cost > left and pieces:
            continue
        picked.append(i)
        pieces.append(_Piece(unit.passage, first, unit.place))
        taken.update(places)
        left -= cost
        if left <= 8:
            break
    return pieces


def _start_of(unit: Unit, spans: dict[tuple[int, int], Unit]) -> int:
    """Where to begin so that a sentence that opens with `this` or a pronoun can be understood."""
    place = unit.place
    for _ in range(2):
        here = spans[(unit.passage, place)]
        before = spans.get((unit.passage, place - 1))
        if before is None or before.span.kind not in ("sentence", "item") or not _LEANS_BACK.match(here.text):
            break
        place -= 1
    return place


def _best_listing(scored: ScoredUnits, words: int) -> Unit | None:
    listings = [
        (score, unit)
        for score, unit in zip(scored.scores, scored.units, strict=True)
        if unit.span.kind == "code" and len(unit.text.split()) <= words
    ]
    return max(listings, key=lambda item: item[0])[1] if listings else None


def _all_units(passages: Sequence[Passage]) -> dict[tuple[int, int], Unit]:
    return {(unit.passage, unit.place): unit for unit in units_of(passages)}


def _in_reading_order(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Pieces merged where they touch; passages in order of rank, sentences as the book has them."""
    merged: list[_Piece] = []
    for piece in sorted(pieces, key=lambda item: (item.passage, item.first)):
        last = merged[-1] if merged else None
        if last is not None and last.passage == piece.passage and piece.first <= last.last + 1:
            merged[-1] = _Piece(piece.passage, last.first, max(last.last, piece.last))
        else:
            merged.append(piece)
    return merged


def _say(piece: _Piece, spans: dict[tuple[int, int], Unit]) -> str:
    """Each sentence with its marker; a listing keeps its lines, with the marker on a line below."""
    out: list[str] = []
    for place in range(piece.first, piece.last + 1):
        unit = spans[(piece.passage, place)]
        if unit.span.kind in ("code", "table"):
            out.append(f"\n\n{unit.text}\n\n[{piece.passage + 1}]\n\n")
        elif unit.span.kind != "heading":
            out.append(f"{' '.join(unit.text.split())} [{piece.passage + 1}] ")
    return re.sub(r"\n{3,}", "\n\n", "".join(out)).strip()


def _separator(before: str, after: str) -> str:
    return "\n\n" if "\n" in before or "\n" in after else " "
