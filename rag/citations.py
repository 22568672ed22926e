"""Citation markers of an answer, the quotes they point to, and whether a quote supports its sentence.

`[2]` behind a sentence names passage 2. Each marker gets the best verbatim quote of that passage and a verdict by terms
alone, so a made-up `cudaXyz` is caught without a model; markers that name no passage are removed. Square brackets of
code (`a[1]`, anything inside backticks or fences) are not markers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from indexes.sentences import Span, split_spans
from indexes.words import Terms, terms_of
from rag.types import Citation, Passage, Quoted, Verdict

MARKER = re.compile(r"\[(\d{1,3})\]")
"""The marker of one passage."""
_UNFINISHED = re.compile(r"\[[\d\s,;，、]*")
_MARKERS = re.compile(r"\[\d{1,3}(?:\s*[,;，、]\s*\d{1,3})*\]")
"""A marker of one passage or several."""
_RUN = re.compile(r"(?:\[\d{1,3}\])+")
_RUN_AT_END = re.compile(r"(?<!\])(?:\[\d{1,3}\])+$")
_GOES_ON = re.compile(r"[ \t]+\w")
_MARKS = " \t\n.,;:。，；：*_-"
_LONGEST_HELD = 64
_QUOTE_SENTENCES = 3
"""A quote may join up to this many neighbouring sentences when the answer's sentence draws on all of them."""
_JOIN_GAIN = 0.12
"""Least gain in word recall for which a quote takes one more sentence."""
SUPPORTED_RECALL = 0.6
"""Least share of a sentence's stems in its evidence to call it supported: a copied sentence has 1.0, a close paraphrase
about 0.7, an unrelated sentence of the same chapter about 0.2."""
PARTIAL_RECALL = 0.3


@dataclass(frozen=True, slots=True)
class Marked:
    """A marker and the text before it that it belongs to: `answer[marker_start:marker_end] == "[number]"`."""

    number: int
    claim: str
    marker_start: int
    marker_end: int


class MarkerFilter:
    """Lets an answer through piece by piece, without markers that name no passage.

    `[1, 2]` becomes `[1][2]`. Held back between pieces is only what may still become a marker. Several in a row
    inside a sentence that name no passage, as in 'the tile is [32][33] because', are sizes: they stay, as code.

    Args:
        num_passages: markers from 1 to this number stay.
    """

    def __init__(self, num_passages: int) -> None:
        self._num_passages = num_passages
        self._held = ""
        self._code = _CodeState()

    def feed(self, piece: str) -> str:
        """The part of the text so far that may be shown now."""
        text = self._held + piece
        cut = len(text)
        while (start := self._open_from(text, cut)) < cut and len(text) - start < _LONGEST_HELD:
            cut = start
        self._held = text[cut:]
        return self._clean(text[:cut])

    def finish(self) -> str:
        """What was held back when the answer ended."""
        text, self._held = self._held, ""
        return self._clean(text)

    def _open_from(self, text: str, end: int) -> int:
        """Where the space or the unfinished marker begins with which `text` ends."""
        bare = len(text[:end].rstrip(" \t"))
        start = text.rfind("[", 0, bare)
        if start >= 0 and _UNFINISHED.fullmatch(text, start, bare):
            return start
        run = _RUN_AT_END.search(text, max(0, bare - _LONGEST_HELD), bare)
        return run.start() if run and not self._named(run.group()) else bare

    def _named(self, marker: str) -> list[int]:
        """The passages that a marker names."""
        return [number for number in map(int, re.findall(r"\d+", marker)) if 1 <= number <= self._num_passages]

    def _clean(self, text: str) -> str:
        out: list[str] = []
        position = 0
        while position < len(text):
            character = text[position]
            match = None
            if character == "[" and not self._code.inside and not self._code.after_word:
                match = _MARKERS.match(text, position)
            if match is None:
                self._code.feed(character)
                out.append(character)
                position += 1
            elif kept := self._named(match.group()):
                out.extend(f"[{number}]" for number in dict.fromkeys(kept))
                self._code.marker()
                position = match.end()
            elif sizes := self._sizes(text, position):
                out.append(f"`{sizes}`")
                self._code.marker()
                position += len(sizes)
            else:
                if out and out[-1] in " \t":
                    out.pop()
                self._code.marker()
                position = match.end()
        return "".join(out)

    def _sizes(self, text: str, position: int) -> str:
        """The brackets in a row from a place on that can be no markers; "" where they are some, or one stands alone."""
        run = _RUN.match(text, position)
        if run is None or run.group().count("[") < 2 or self._named(run.group()):
            return ""
        return run.group() if self._num_passages and _GOES_ON.match(text, run.end()) else ""


def without_markers(text: str) -> str:
    """`text` without bracketed numbers outside code: a book's own references would read as markers."""
    markers = MarkerFilter(0)
    return markers.feed(text) + markers.finish()


def take_markers(text: str, num_passages: int) -> tuple[str, tuple[int, ...]]:
    """`text` without markers, and the numbers of passages that stand behind words of it, not before its first."""
    markers = MarkerFilter(num_passages)
    text = markers.feed(text) + markers.finish()
    kept, numbers, at = "", [], 0
    for match in _outside_code(text):
        if 1 <= int(match[1]) <= num_passages:
            kept += text[at : match.start()].rstrip(" \t")
            numbers += [int(match[1])] if kept.strip(_MARKS) else []
            at = match.end()
    return kept + text[at:], tuple(numbers)


class _CodeState:
    """Whether the text read so far ends inside backticks, and whether its last character is part of a word."""

    def __init__(self) -> None:
        self._ticks = 0
        self._run = 0
        self.after_word = False

    @property
    def inside(self) -> bool:
        """Inside a code span or listing, or right behind an opening run of backticks."""
        self._settle()
        return self._ticks > 0

    def feed(self, character: str) -> None:
        if character == "`":
            self._run += 1
        else:
            self._settle()
            if character == "\n" and self._ticks in (1, 2):
                self._ticks = 0
        self.after_word = character.isascii() and (character.isalnum() or character in "_)")

    def marker(self) -> None:
        self._settle()
        self.after_word = False

    def _settle(self) -> None:
        if self._run:
            if self._ticks == 0:
                self._ticks = self._run
            elif self._run >= self._ticks:
                self._ticks = 0
            self._run = 0


def find_markers(answer: str) -> Iterator[Marked]:
    """Every marker outside code with the sentence, list item or listing before it.

    In an answer that begins with a marker ('[1] A. [2] B.') they stand before what they belong to.
    """
    matches = list(_outside_code(answer))
    bounds = [0, *(place for match in matches for place in match.span()), len(answer)]
    texts = [answer[start:end].strip() for start, end in zip(bounds[::2], bounds[1::2], strict=True)]
    leads = not texts[0].strip(_MARKS)
    for place in reversed(range(len(matches) if leads else 0)):
        if not texts[place].strip(_MARKS):  # of several markers together, all have the text behind the last
            texts[place] = texts[place + 1]
    claim = ""
    for place, match in enumerate(matches):
        text = texts[place + leads]
        if text.strip(_MARKS):
            spans = split_spans(text)
            span = spans[0 if leads else -1] if spans else Span(0, len(text), "sentence", 0)
            claim = text[span.start : span.end]
        yield Marked(int(match.group(1)), claim, *match.span())


def _outside_code(answer: str) -> Iterator[re.Match[str]]:
    """The markers outside code, in order."""
    state = _CodeState()
    position = 0
    while position < len(answer):
        match = None
        if answer[position] == "[" and not state.inside and not state.after_word:
            match = MARKER.match(answer, position)
        if match is None:
            state.feed(answer[position])
            position += 1
        else:
            yield match
            state.marker()
            position = match.end()


def resolve(
    answer: str,
    passages: Sequence[Passage],
    quoted: Mapping[int, Quoted] | None = None,
    is_relevant: Callable[[Quoted], bool] | None = None,
) -> tuple[Citation, ...]:
    """One citation for every marker of `answer` that names one of `passages`, in the answer's order.

    Args:
        quoted: the stretch that a marker points to, by the marker's end offset; quotes of other markers are searched
            for.
        is_relevant: whether a quote that was searched for bears on the question; one that does not is `partial` at
            most: a true sentence beside the question supports no answer.
    """
    citations = []
    for marked in find_markers(answer):
        if not 1 <= marked.number <= len(passages):
            continue
        passage = passages[marked.number - 1]
        known = (quoted or {}).get(marked.marker_end)
        if known is not None and known.passage == marked.number:
            citations.append(_citation(passage, known, "supported"))
        elif marked.claim:
            cited = cite(marked.number, marked.claim, passage)
            if (
                cited.verdict == "supported"
                and is_relevant
                and not is_relevant(Quoted(cited.marker, cited.char_start, cited.char_end))
            ):
                cited = replace(cited, verdict="partial")
            citations.append(cited)
    return tuple(citations)


def cite(number: int, claim: str, passage: Passage) -> Citation:
    """The best verbatim quote of `passage` for `claim`, with its own pages and the verdict on it."""
    start, end = best_quote(claim, passage.text)
    return _citation(passage, Quoted(number, start, end), support_of(claim, passage.text[start:end]).verdict)


def _citation(passage: Passage, quoted: Quoted, verdict: Verdict) -> Citation:
    start, end = quoted.start, quoted.end
    page_start = passage.page_of(start)
    part = passage.part_at(start)
    return Citation(
        marker=quoted.passage,
        node_id=passage.node_id,
        document_id=passage.document_id,
        title=passage.title,
        section=part.section,
        page_label=passage.label_of(page_start),
        page_start=page_start,
        page_end=passage.page_of(max(end - 1, start)),
        quote=passage.text[start:end],
        char_start=start,
        char_end=end,
        verdict=verdict,
    )


def best_quote(claim: str, text: str) -> tuple[int, int]:
    """Offsets of the stretch of `text` that says most of what `claim` says in the fewest sentences."""
    exact = _find_verbatim(claim, text)
    if exact:
        return exact
    spans = [span for span in split_spans(text) if span.kind != "heading"] or [Span(0, len(text), "sentence", 0)]
    wanted = terms_of(claim)
    scored = [_coverage(wanted, terms_of(text[span.start : span.end])) for span in spans]
    best = max(range(len(spans)), key=lambda i: (scored[i], -i))
    first = last = best
    value = scored[best]
    for _ in range(_QUOTE_SENTENCES - 1):
        options = []
        if first > 0:
            options.append((first - 1, last))
        if last + 1 < len(spans):
            options.append((first, last + 1))
        gains = [(_coverage(wanted, terms_of(text[spans[a].start : spans[b].end])), a, b) for a, b in options]
        if not gains or max(gains)[0] < value + _JOIN_GAIN:
            break
        value, first, last = max(gains)
    return spans[first].start, spans[last].end


@dataclass(frozen=True, slots=True)
class Support:
    """How evidence covers a sentence.

    Attributes:
        recall: share of the sentence's stems that occur, 1.0 when it has none.
        missing: identifiers and numbers of the sentence that do not occur.
    """

    recall: float
    missing: frozenset[str]

    @property
    def verdict(self) -> Verdict:
        """`supported` needs all identifiers and numbers and most words; `partial` a fair share of the words."""
        if not self.missing and self.recall >= SUPPORTED_RECALL:
            return "supported"
        return "partial" if self.recall >= PARTIAL_RECALL else "unsupported"


def support_of(sentence: str, evidence: str) -> Support:
    """Support of `sentence` by `evidence`, by their terms."""
    return _support(terms_of(sentence), terms_of(evidence))


def _support(sentence: Terms, evidence: Terms) -> Support:
    missing = (sentence.identifiers - evidence.identifiers - evidence.stems) | (sentence.numbers - evidence.numbers)
    stems = sentence.stems
    recall = len(stems & evidence.stems) / len(stems) if stems else 1.0
    return Support(recall, frozenset(missing))


def _find_verbatim(claim: str, text: str) -> tuple[int, int] | None:
    """Offsets of `claim` in `text`, whatever the white space between its words."""
    words = claim.strip().split()
    if not words or len(words) > 400:
        return None
    match = re.search(r"\s+".join(map(re.escape, words)) + "[.!?。！？]?", text)
    return match.span() if match else None


def _coverage(wanted: Terms, evidence: Terms) -> float:
    support = _support(wanted, evidence)
    hard = len(wanted.identifiers) + len(wanted.numbers)
    return support.recall + (0.5 * (hard - len(support.missing)) / hard if hard else 0.0)
