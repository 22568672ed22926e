"""Answers in the book's own sentences, each with its marker: no language model, nothing that the book does not say."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indexes.errors import Cancelled
from rag.citations import without_markers
from rag.errors import ArmUnavailable
from rag.generators.protocol import GenerationDone, GenerationRequest, TextPiece
from rag.generators.sentence_scores import ScoredUnits, SentenceScorer, Unit, is_signature, units_of
from rag.generators.vector_memory import Embed
from rag.retrieval.glossary import translate_terms
from rag.retrieval.language import is_chinese
from rag.types import Arm, Passage, Usage
from rag.wording import count_words

WORDS = 116
"""Longest answer in words when the request names no `max_tokens`."""
WORDS_PER_TOKEN = 0.75
REPEAT_WEIGHT = 0.15
"""How much likeness to what was chosen costs (maximal marginal relevance)."""
REPEATED = 0.93
"""A sentence this like one that was chosen says it again."""
LEAST_SHARE = 0.4
"""A sentence scoring under this share of the best one is left out."""
LISTING_WORDS = 400
"""Longest listing given when code is asked for: a whole one is worth more than its half."""
MARKER_WORDS = 1
"""What the marker behind a sentence counts."""
FOLLOWING_WORDS = 25
"""Most words of a sentence brought along because it goes on about the one before ('this can …')."""
LIST_WORDS = 40
"""Most words of a list, table or listing that is brought along with the sentence that announces it."""

_ASKS_FOR_CODE = re.compile(
    r"\b(code|snippet|listing|implement(ed|ation)?|syntax|write|source)\b|代码|程序|写出|实现|语法", re.IGNORECASE
)
_LEANS_BACK = re.compile(
    r"^(?:[*_`\"'(]*)(?:this|these|that|those|it|its|they|their|them|he|she|such|here|both|the (?:former|latter|same)|"
    r"however|therefore|thus|hence|consequently|as a result|otherwise|instead|moreover|furthermore|"
    r"in (?:this|that|such) (?:case|way|example)|for this reason|then|so|but|and|also|similarly|likewise|conversely)\b"
    r"|^(?:这|那|它|该|此|因此|所以|但|然而|否则)",
    re.IGNORECASE,
)

Place = tuple[int, int]
"""A unit's passage, and its place in it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring units of one passage that are said together, both ends included."""

    passage: int
    first: int
    last: int

    def places(self) -> list[Place]:
        return [(self.passage, place) for place in range(self.first, self.last + 1)]


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
        """Yields one piece a run of sentences, listing or table, in reading order, then the figures."""
        self.check(request)
        started = time.perf_counter()
        question = request.question
        english = translate_terms(question) if is_chinese(question) else ""
        texts = self.choose(english or question, request.passages, request.max_tokens, code=asks_for_code(question))
        written = 0
        for index, text in enumerate(texts):
            if request.cancelled():
                raise Cancelled("the answer was stopped")
            written += count_tokens(text)
            yield TextPiece(text if index == 0 else _separator(texts[index - 1], text) + text)
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
            code: whether a listing is asked for.
        """
        scored = self._scorer.score(question, passages)
        if not scored.units:
            return []
        words = WORDS if max_tokens is None else max(int(max_tokens * WORDS_PER_TOKEN), 1)
        book = {(unit.passage, unit.place): unit for unit in (*units_of(passages), *scored.units)}
        runs: list[_Run] = []
        if code and (listing := _best_listing(scored, words if max_tokens is not None else LISTING_WORDS)):
            runs.append(_Run(listing.passage, listing.place, listing.place))
        runs.extend(_choose_runs(scored, book, words))
        return [_say(run, book) for run in _in_reading_order(runs, book)]

    def close(self) -> None:
        """Nothing to free: the embedder belongs to the library."""


def asks_for_code(question: str) -> bool:
    """Whether a listing would be the answer."""
    return bool(_ASKS_FOR_CODE.search(question))


def count_tokens(text: str) -> int:
    """Tokens by the rule of thumb of `WORDS_PER_TOKEN`; this generator has no tokenizer of its own."""
    return round(count_words(text) / WORDS_PER_TOKEN)


def peak_process_bytes() -> int:
    """Most memory this process has held, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _choose_runs(scored: ScoredUnits, book: dict[Place, Unit], words: int) -> list[_Run]:
    """Greedy maximal marginal relevance within `words`, each choice with what it cannot be understood without."""
    waiting = [i for i, unit in enumerate(scored.units) if unit.span.kind != "code" and scored.scores[i] > 0]
    if not waiting:
        return []
    best = max(scored.scores[i] for i in waiting)
    likeness = scored.vectors @ scored.vectors.T
    taken: set[Place] = set()
    picked: list[int] = []
    runs: list[_Run] = []
    left = words
    while waiting:
        repeated = {i: max((float(likeness[i, j]) for j in picked), default=0.0) for i in waiting}
        i = max(waiting, key=lambda item: (scored.scores[item] - REPEAT_WEIGHT * repeated[item], -item))
        waiting.remove(i)
        unit = scored.units[i]
        if scored.scores[i] < LEAST_SHARE * best or repeated[i] > REPEATED or (unit.passage, unit.place) in taken:
            continue
        run = _whole_thought(unit, book)
        cost = sum(count_words(book[place].text) + MARKER_WORDS for place in run.places() if place not in taken)
        if cost > left and runs:
            continue
        picked.append(i)
        runs.append(run)
        taken.update(run.places())
        left -= cost
        if left <= 0:
            break
    return runs


def _whole_thought(unit: Unit, book: dict[Place, Unit]) -> _Run:
    """The unit with what it leans on, what leans on it, the signature that it describes, the list that it announces."""
    first = last = unit.place
    for _ in range(2):
        before = book.get((unit.passage, first - 1))
        leans = _LEANS_BACK.match(book[unit.passage, first].text)
        if before is None or before.span.kind not in ("sentence", "item") or not leans:
            break
        first -= 1
    above = book.get((unit.passage, first - 1))
    if above is not None and is_signature(above):
        first -= 1
    following = book.get((unit.passage, last + 1))
    if following is not None and _goes_on(unit, following):
        last += 1
    if unit.text.endswith((":", "：")):
        left = LIST_WORDS
        while (after := book.get((unit.passage, last + 1))) is not None and after.span.kind in (
            "item",
            "table",
            "code",
        ):
            left -= count_words(after.text)
            if left < 0:
                break
            last += 1
            if after.span.kind == "code":
                break
    return _Run(unit.passage, first, last)


def _goes_on(unit: Unit, following: Unit) -> bool:
    """Whether a short sentence of the same paragraph says more of what the unit says."""
    same = following.span.paragraph == unit.span.paragraph and following.span.kind in ("sentence", "item")
    return same and bool(_LEANS_BACK.match(following.text)) and count_words(following.text) <= FOLLOWING_WORDS


def _best_listing(scored: ScoredUnits, words: int) -> Unit | None:
    listings = [
        (score, -number, unit)
        for number, (score, unit) in enumerate(zip(scored.scores, scored.units, strict=True))
        if unit.span.kind == "code" and count_words(unit.text) <= words
    ]
    return max(listings)[2] if listings else None


def _in_reading_order(runs: Sequence[_Run], book: dict[Place, Unit]) -> list[_Run]:
    """Runs merged where they touch; passages in order of rank, sentences as the book has them."""
    merged: list[_Run] = []
    for run in sorted(runs, key=lambda item: (item.passage, item.first)):
        last = merged[-1] if merged else None
        touching = last is not None and last.passage == run.passage and run.first <= last.last + 1
        if last is not None and touching and book[run.passage, run.first].span.kind != "code":
            merged[-1] = _Run(run.passage, last.first, max(last.last, run.last))
        else:
            merged.append(run)
    return merged


def _say(run: _Run, book: dict[Place, Unit]) -> str:
    """Each sentence with its marker; a listing or table keeps its lines, with the marker on a line below."""
    out: list[str] = []
    for place in run.places():
        unit = book[place]
        if unit.span.kind in ("code", "table"):
            out.append(f"\n\n{unit.text}\n\n[{run.passage + 1}]\n\n")
        elif unit.span.kind != "heading":
            text = " ".join(without_markers(unit.text).split())
            bullet = "\n- " if unit.span.kind == "item" else ""
            out.append(f"{bullet}{text} [{run.passage + 1}] ")
    return re.sub(r" *\n{3,}", "\n\n", "".join(out)).strip()


def _separator(before: str, after: str) -> str:
    if before.endswith("```") or after.startswith(("```", "|", "+")) or "\n\n" in before:
        return "\n\n"
    return "\n" if before.startswith("- ") or after.startswith("- ") or "\n" in before else " "
