"""Drafts of questions by rule, from a book's own sentences, without a language model.

Six kinds: a definition ('What is a warp?'), an abbreviation ('What does SM stand for?'), a name of code, a number or a
key term left out of a sentence, and a sentence that is true or whose twin with another term is false. Every sentence
gives what it can, but for numbers, which one must give that can be understood alone. How much a draft promises is its
`worth`, by which `evals/made_questions.py` ranks.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal, TypeAlias

from indexes.embedder import bundled_model_folder
from indexes.sentences import SpanKind, split_spans
from indexes.types import StoredNode
from indexes.words import STOP_WORDS, count_words, is_chinese, is_identifier, terms_of

MadeKind: TypeAlias = Literal["definition", "abbreviation", "name", "number", "term", "statement"]
BLANK = "____"
RULES = "rules"
"""Who wrote a question that no language model did."""

MOST_SENTENCES = 6000
"""Of a longer book so many sentences are read, spread evenly."""
_WORDS = (4, 60)
"""Fewest and most words of a sentence that anything is asked about."""
_USUAL_WORDS = (8, 32)
_TERM_WORDS = 3
_LEAST_LEFT = 4
"""Content words that must stay when something is left out."""
_HEADING_WORDS = 8
_RARE = 1e-4
"""A word with less than this share of everyday English may be a term: the 1,000th word has it."""
_UNKNOWN = 8.0
"""The weight of a term that a book defines and uses no second time."""
_IS_SUBJECT = 1.5
"""What it is worth that a term left out is the subject of its sentence."""

_LEANS = (
    r"this|that|these|those|it|its|they|them|their|he|she|his|her|such|here|there|so|and|but|or|then|thus|hence|also|"
    r"however|therefore|otherwise|instead|another|both|either|neither|one|some|others?|what|which|who|if so|"
    r"for example|first(?:ly)?|second(?:ly)?|finally|in fact|note|notice|moreover|furthermore|similarly|likewise|"
    r"as usual|let|suppose|hint|make sure|don.t|do|for (?:more|further)"
)
_FAULTS = (
    re.compile(rf"(?:{_LEANS})\b", re.IGNORECASE),  # leans on the sentence before
    re.compile(r"(?:\S+ ){1,4}(?:it|they|them|he|she|his|her)\b", re.IGNORECASE),  # so does this
    re.compile(r"The [a-z]+ (?!of\b)[a-z]"),  # so may this: 'The function returns …'
    re.compile(r"(?![A-Z`])|.*[^.)”\"]$"),  # no whole sentence
    re.compile(r"[A-Z][a-z]+ (?:the|an?|your|all|each|up|out) (?<!ing the )"),  # an order: 'Use the …'
)
_POINTS = (
    re.compile(
        r".*\b(?:this|these|those|above|below|following|previous(?:ly)?|earlier|later|here|former|latter|next|now|again|"
        r"figure|fig|table|listing|chapter|section|exercise|example|page|see|shown?|same|other|also|too)\b",
        re.IGNORECASE,
    ),  # points elsewhere
    re.compile(r".*\b(?:we|our|us|i|my|me|you|your|let|please)\b", re.IGNORECASE),  # speaks to somebody
    re.compile(r".*(?:[\\{}…•#?!\[\]]|://|\w/\w|(?:\d.*\D){3}\d)"),  # more than words
)
"""What makes a sentence hard to understand alone, or no statement."""
_ASIDE = re.compile(
    r"\b(?:exercises?|solutions?|quiz|install\w*|licen[cs]\w*|copyright|acknowledg\w*|contribut\w*|changelog|"
    r"releases?|versions?|what's new|history|bibliography|references?|further reading|prerequisites|preface|index|"
    r"about|contents|credits|objectives)\b",
    re.IGNORECASE,
)
"""Headings of sections that teach little."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_MARKS = re.compile(r"(?<![\w*`])(\*{1,3}|_{1,2})(?=\S)([^*`_]+?)(?<=\S)\1(?![\w*])")
_LINK = re.compile(r"\[([^\]\[]+)\]\([^)]*\)")
_CODE = re.compile(r"(?<!`)`([^`\n]{2,60})`(?!`)")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[\-+][A-Za-z0-9]+)*")
_BEFORE_NOUN = frozenset("a an the each every per any no of".split())
_BEFORE_VERB = frozenset("to can will not may must should could would cannot we you they i".split())
_FINITE = frozenset(
    "is are was were has have had can could may might must will would should shall does do did cannot means".split()
)
_DEFINED = re.compile(
    r"(?:(?:In|On|For|With) [^,]{3,40}, )?(?:(?P<article>[Aa]n?|[Tt]he) )?"
    r"(?P<term>[A-Za-z][\w\-+/]*(?: [\w\-+/]+){0,3}?)(?: \((?P<short>[A-Z][A-Za-z]{1,7})\))?"
    r" (?P<verb>is|are|means?|refers? to|denotes?)(?: defined as)? "
    r"(?P<what>(?:an?|the|any|one|that|when|how) .{12,240}?)\.?$"
)
_ENTRY = re.compile(r"(?P<term>[A-Z`][\w\-+/`() ]{2,45}?)(?: \([^()]{1,30}\))?(?::| [-–—]{1,3}) (?P<what>\S.{20,260})$")
_SPELT = re.compile(r"\b(?P<long>[A-Za-z]+(?:[ \-][A-Za-z]+){1,6}) \((?P<short>[A-Z][A-Za-z]{1,6}?)(?P<plural>s?)\)")
_SPELT_AFTER = re.compile(r"\b(?P<short>[A-Z]{2,6})(?P<plural>s?) \((?P<long>[A-Za-z]+(?:[ \-][A-Za-z]+){1,6})\)")
_NUMBER = re.compile(
    r"(?<![\w.\-–/:,(\[])(?P<number>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
    r"(?:[ \-](?P<unit>[A-Za-zµ][\w/]*)|(?P<percent> ?%)|(?![\w.\-–/:]\w)(?!\w))"
)
_NAMED = re.compile(r"\b([A-Z]\w*) $")


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence or list item.

    Attributes:
        quote: verbatim in its node's text.
        text: without emphasis and links, white space collapsed.
        faults: how many things make it hard to understand alone.
    """

    node: StoredNode
    quote: str
    text: str
    kind: SpanKind
    faults: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that is not checked yet.

    Attributes:
        answer: a term, a name, a number, what a definition says.
        options: the class of answers that wrong options are drawn from; empty where it is only asked openly.
        accepted: other wordings of the answer.
        worth: how much it promises; only the order counts.
        stands_alone: nothing of what it shows leans on the text around it.
    """

    kind: MadeKind
    question: str
    answer: str
    statement: Statement
    options: str = ""
    accepted: tuple[str, ...] = ()
    worth: float = 0.0
    stands_alone: bool = True
    made_by: str = RULES


@dataclass(frozen=True, slots=True)
class Term:
    """A key term as the book writes it, and how much it is one: rarer in everyday English, headed, used often."""

    text: str
    weight: float
    uses: int


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a book, best first, and what wrong options are drawn from: texts by class."""

    drafts: tuple[Draft, ...]
    pool: Mapping[str, tuple[str, ...]]


def draft_questions(nodes: Sequence[StoredNode]) -> Drafts:
    """All drafts of a book's nodes, those that promise most first."""
    read = list(_statements(nodes))
    words = _Words(read)
    terms = _key_terms(nodes, read, words)
    statements = [_judged(statement, words) for statement in read]
    pool: dict[str, dict[str, None]] = defaultdict(dict)
    by_weight = sorted(terms.values(), key=lambda term: (term.uses == 1, -term.weight))
    for term in by_weight:
        pool[term_class(term.text)].setdefault(term.text)
    pool = defaultdict(dict, {group: dict.fromkeys([*held][: max(12, len(held) // 2)]) for group, held in pool.items()})
    for statement in statements:
        for match in _NUMBER.finditer(statement.text):
            pool[_number_class(match)].setdefault(match["number"])
        for match in _CODE.finditer(statement.text):
            if _is_name(match[1]):
                pool[name_class(match[1])].setdefault(match[1])
    drafts = [draft for statement in statements for draft in _drafts_of(statement, terms)]
    drafts.sort(key=lambda draft: -draft.worth)
    return Drafts(tuple(drafts), {group: tuple(texts) for group, texts in pool.items()})


def _drafts_of(statement: Statement, terms: Mapping[str, Term]) -> Iterator[Draft]:
    yield from _abbreviations(statement)
    yield from _definitions(statement, terms)
    yield from _names(statement)
    yield from _numbers(statement)
    yield from _left_out(statement, terms)
    yield from _statement_drafts(statement, terms)


def points_elsewhere(question: str) -> bool:
    """Whether a question speaks of a text or to somebody, and is no question by itself."""
    return any(pattern.match(_CODE.sub("x", question).rstrip("?")) for pattern in _POINTS)


# --- sentences


def _statements(nodes: Sequence[StoredNode]) -> Iterator[Statement]:
    found = [
        Statement(node, node.text[span.start : span.end], _plain(node.text[span.start : span.end]), span.kind, 0)
        for node in nodes
        if not is_chinese(node.text)
        for span in split_spans(node.text)
        if span.kind in ("sentence", "item")
    ]
    found = [one for one in found if _WORDS[0] <= count_words(one.text) <= _WORDS[1] and not _CONTROL.search(one.quote)]
    step = max(1, math.ceil(len(found) / MOST_SENTENCES))
    yield from found[::step]


def _plain(text: str) -> str:
    """A text in one line without emphasis and addresses."""
    return " ".join(_MARKS.sub(r"\2", _LINK.sub(r"\1", text)).split())


def _without_code(text: str) -> str:
    """A text with marks in the place of code, as long as before."""
    return _CODE.sub(lambda code: "`" * len(code[0]), text)


def _judged(statement: Statement, words: _Words) -> Statement:
    """The statement with its faults counted."""
    text = _CODE.sub("x", statement.text)
    faults = sum(fault.match(text) is not None for fault in (*_FAULTS, *_POINTS))
    faults += any(unicodedata.category(character) in ("Sm", "Sc", "So") for character in text)
    faults += words.is_verb(text.split()[0].lower())  # an order, too
    faults += not _is_whole(text)
    faults += not _USUAL_WORDS[0] <= count_words(text) <= _USUAL_WORDS[1]
    faults += 2 * any(_ASIDE.search(heading) for heading in statement.node.heading_path[-2:])
    return replace(statement, faults=faults)


# --- terms and names of a book


@dataclass(slots=True)
class _Use:
    count: int = 0
    as_noun: int = 0
    as_verb: int = 0
    nodes: set[int] = field(default_factory=set)
    written: Counter[str] = field(default_factory=Counter)


class _Words:
    """What a book's sentences tell of its words: which are verbs, and which groups of them are terms."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.uses: dict[str, _Use] = defaultdict(_Use)
        self.nouns: Counter[str] = Counter()
        self._verbs: Counter[str] = Counter()
        self.total = 0
        for statement in statements:
            self.total += count_words(statement.text)
            for words, before in _runs(statement.text):
                if not words[0].endswith("s"):  # 'to threads'
                    self._verbs[words[0].lower()] += (before in _BEFORE_VERB) - (before in _BEFORE_NOUN)
                if len(words) <= _TERM_WORDS:
                    use = self.uses[" ".join(words).lower()]
                    use.count += 1
                    use.as_noun += before in _BEFORE_NOUN
                    use.as_verb += before in _BEFORE_VERB
                    use.nodes.add(statement.node.ordinal)
                    if before:  # at its beginning, a sentence gives a capital
                        use.written[" ".join(words)] += 1
                if before in _BEFORE_NOUN and len(words) == 1:
                    self.nouns[words[0].lower()] += 1

    def is_verb(self, word: str) -> bool:
        """Whether a word, or what is left without `s`, more often follows `to` and `can` than `the` and `of`."""
        return any(self._verbs[form] > 0 for form in (word, word.removesuffix("s"), word.removesuffix("es")))


def _is_whole(text: str) -> bool:
    """Whether a text has a verb for itself and for each clause in it, as far as their forms show."""
    words = re.findall(r"[a-z]+", text.lower())
    verbs = sum(word in _FINITE or _is_third_person(word) for word in words[1:])
    if not verbs:
        return any(word.endswith("ed") for word in words[1:])
    return verbs > sum(word in ("that", "which", "who", "whose") for word in words[1:])


@lru_cache(maxsize=100_000)
def _is_third_person(word: str) -> bool:
    """Whether a word is what a verb with an `-ing` in the encoder's vocabulary becomes after `it`."""
    if not word.endswith("s") or word.endswith("ss"):
        return False
    ranks = _everyday_ranks()
    bases = (word[:-1], word.removesuffix("es"), re.sub("ies$", "y", word))
    return any(f"{form}ing" in ranks for base in bases for form in (base, base.removesuffix("e"), base + base[-1:]))


def _key_terms(nodes: Sequence[StoredNode], statements: Sequence[Statement], known: _Words) -> dict[str, Term]:
    """The terms of a book by their lower case: what stands between stop words and marks (Rose and others, 2010: RAKE),
    weighed by how much oftener the book uses it than everyday English (Ahmad and others, 1999: weirdness)."""
    headings = {" ".join(re.findall(r"[a-z0-9\-+]+", heading.lower())) for n in nodes for heading in n.heading_path}
    marked = {match[2].lower() for statement in statements for match in _MARKS.finditer(statement.quote)}
    title = nodes[0].title.lower() if nodes else ""
    found = {}
    for lower, use in known.uses.items():
        words = lower.split()
        if use.as_noun <= use.as_verb or not known.nouns[words[-1]] or (len(words) == 1 and len(lower) < 4):
            continue
        often = max(math.log2(use.count / known.total / _everyday_share(word)) for word in words)
        weight = 1.5 * min(often, 9) + 3 * (len(words) > 1) + min(math.log2(use.count), 3) / 2
        weight += 2 * (lower in headings or lower in marked)
        weight -= 6 * (lower in title or len(use.nodes) > max(3, len(nodes) / 6))  # what the book is about
        written = use.written.most_common(1)[0][0] if use.written else lower
        found[lower] = Term(written, weight, use.count)
    return found


def _runs(text: str) -> Iterator[tuple[list[str], str]]:
    """Every stretch of content words of a sentence, and the word before it; "" at the sentence's beginning."""
    words: list[str] = []
    before, last_end = "", 0
    for match in _WORD.finditer(_without_code(text)):
        joined = last_end > 0 and text[last_end : match.start()] == " "
        stop = match[0].lower() in STOP_WORDS
        if words and (stop or not joined):
            yield words, before
            words = []
        if stop:
            before = match[0].lower()
        else:
            if not words and not joined and last_end:
                before = ","
            words.append(match[0])
        last_end = match.end()
    if words:
        yield words, before


@lru_cache(maxsize=100_000)
def _everyday_share(word: str) -> float:
    """How much of everyday English a word is, from its rank in the encoder's vocabulary (Zipf: a tenth of 1/rank)."""
    ranks = _everyday_ranks()
    return 0.1 / (ranks.get(word) or ranks.get(word.removesuffix("s")) or len(ranks))


@lru_cache(maxsize=1)
def _everyday_ranks() -> dict[str, int]:
    listed = (bundled_model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {word: rank for rank, word in enumerate(listed[listed.index("the") :], 1)}


def term_class(term: str) -> str:
    """Terms of one class can replace each other: number, capitals, one word or more."""
    last = term.split()[-1]
    plural = "s" if last.endswith("s") and not last.endswith(("ss", "us", "is", "ics")) else ""
    form = plural or ("ing" if last.endswith("ing") else "")
    return f"term {'C' if term[0].isupper() else 'c'}{min(len(term.split()), 2)}{form}"


def name_class(name: str) -> str:
    """What a name of code is by its form."""
    if name.endswith("()"):
        return "function"
    return {"@": "decorator", "-": "option"}.get(name[0], "name")


def _numbers_of(statement: Statement) -> list[re.Match[str]]:
    """The numbers of a sentence that can be understood alone: not those in code, nor those that end a name (`EPUB 3`).

    In others most are figures, sections, years of citations: readers found none of nine such questions good.
    """
    if statement.faults:
        return []
    text = _without_code(statement.text)
    named = ((match, _NAMED.search(text, 0, match.start())) for match in _NUMBER.finditer(text))
    return [match for match, name in named if name is None or name[1].lower() in STOP_WORDS]


def _number_class(match: re.Match[str]) -> str:
    """Numbers of one class have the same unit and the same places."""
    unit = (match["percent"] or match["unit"] or "").lower().removesuffix("s")
    places = len(match["number"].partition(".")[2])
    year = len(match["number"]) == 4 and match["number"][0] in "12" and not unit
    return f"number {'year' if year else unit if unit not in STOP_WORDS else ''} {places}"


def _is_name(text: str) -> bool:
    return len(text) > 3 and bool(re.fullmatch(r"(?:@|--?)?[A-Za-z_][\w.:\-]*(?:\(\))?", text))


# --- the kinds


def _abbreviations(statement: Statement) -> Iterator[Draft]:
    for match in (*_SPELT.finditer(statement.text), *_SPELT_AFTER.finditer(statement.text)):
        short, words = match["short"], re.split(r"[ \-]", match["long"])
        for first in range(len(words) - 1):
            tail = words[first:]
            content = [word for word in tail if word.lower() not in STOP_WORDS]
            if short.upper() in (_initials(tail), _initials(content)) and tail[0].lower() not in STOP_WORDS:
                long = match["long"][len(match["long"]) - len(" ".join(tail)) :]
                verb = f"do {short}s" if match["plural"] else f"does {short}"
                yield Draft("abbreviation", f"What {verb} stand for?", long, statement, "", (long.lower(),), 5.0)
                break


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words).upper()


def _definitions(statement: Statement, terms: Mapping[str, Term]) -> Iterator[Draft]:
    text = statement.text
    if defined := _DEFINED.match(text):
        term, article, what = defined["term"], defined["article"], defined["what"]
        known = terms.get(term.lower()) or terms.get(term.lower().removesuffix("s"))
        if _starts_idle(term):
            return
        if article:
            said = f"{_in_sentence(article)} {term}"
        else:
            said = _in_sentence(term) if known is not None and known.text[:1].islower() else term
        plural = defined["verb"] in ("are", "mean", "refer to", "denote")
        told = terms_of(term).pieces & terms_of(what).pieces
        rare = min(map(_everyday_share, term.lower().split())) < _RARE
        introduced = known is not None or (article in ("A", "An", "a", "an") and rare)
        kind = (
            3.0
            - bool(told)
            - 1.5 * (article in ("The", "the"))
            - 2 * (not introduced)
            - (count_words(what) < _LEAST_LEFT)
        )
        leans = sum(fault.match(_CODE.sub("x", what)) is not None for fault in _POINTS) + text[0].islower()
        weight = known.weight if known is not None else _UNKNOWN * introduced
        worth = _worth(replace(statement, faults=leans), kind, weight)
        question = f"What {'are' if plural else 'is'} {said}?"
        yield Draft("definition", question, what, statement, "", (), worth, introduced and not leans)
    elif (entry := _ENTRY.match(text)) and count_words(entry["term"]) <= 5 and not _starts_idle(entry["term"]):
        term, what = entry["term"].strip("` "), entry["what"].rstrip(".")
        marked = statement.quote.lstrip().startswith(("*", "`", "_"))
        worth = _worth(statement, 0.5 + marked + (statement.kind == "item"), _weight(term, terms))
        group = name_class(term) if _is_name(term) and "`" in entry["term"] else term_class(term)
        question = f"Which term is described by “{what}”?"
        yield Draft("definition", question, term, statement, group, (), worth, not statement.faults and marked)


def _starts_idle(term: str) -> bool:
    words = term.lower().split()
    return words[0] in STOP_WORDS or words[-1] in STOP_WORDS


def _names(statement: Statement) -> Iterator[Draft]:
    names = [match for match in _CODE.finditer(statement.text) if _is_name(match[1])]
    for match in names[:1]:
        name = match[1]
        if is_identifier(name) or name[0] in "-@":
            worth = _worth(statement, 1.5 + 0.5 * (match.start() < 5) - 0.3 * (len(names) - 1), 12.0)
            bare = name.removesuffix("()")
            yield from _cloze("name", "name", statement, match.span(), name, name_class(name), worth, (bare,))


def _numbers(statement: Statement) -> Iterator[Draft]:
    numbers = _numbers_of(statement)
    if len(numbers) == 1 and len(re.findall(r"\d+", _without_code(statement.text))) == 1:
        (match,) = numbers
        worth = _worth(statement, 1.5 + ((match["unit"] or match["percent"] or "in").lower() not in STOP_WORDS), 9.0)
        group = _number_class(match)
        yield from _cloze("number", "number", statement, match.span("number"), match["number"], group, worth)


def _left_out(statement: Statement, terms: Mapping[str, Term]) -> Iterator[Draft]:
    for weight, start, end in _terms_in(statement, terms)[:2]:
        answer = terms[statement.text[start:end].lower()].text
        subject = _is_subject(statement.text, start, end)
        if not start and not subject and answer[0].islower():
            continue  # an order: 'Record how long …'
        plain = " " not in answer and answer.islower()  # such a one has many neighbours that fit as well
        worth = _worth(statement, _IS_SUBJECT * subject - (plain and not subject), weight)
        yield from _cloze("term", "term", statement, (start, end), answer, term_class(answer), worth)


def _is_subject(text: str, start: int, end: int) -> bool:
    """Whether a sentence begins with a term, an article apart, and a verb follows: it says what the term is or does."""
    if re.fullmatch(r"(?:An?|The|Each|Every|All|Most)? ?", text[:start]) is None:
        return False
    after = re.match(r" (?:also |often |usually |only )?([a-z]+)\b", text[end:])
    return after is not None and (after[1] in _FINITE or _is_third_person(after[1]) or _is_third_person(f"{after[1]}s"))


def _terms_in(statement: Statement, terms: Mapping[str, Term]) -> list[tuple[float, int, int]]:
    """Weight and place of the terms that stand whole in a sentence, subjects and the weightiest first."""
    text, found, place = statement.text, [], 0
    for words, before in _runs(text):
        for part in (words,) if " ".join(words).lower() in terms else _around_verbs(words):
            run = " ".join(part)
            start = text.find(run, place)
            place = start + len(run)
            term = terms.get(run.lower())
            if term is not None and before not in _BEFORE_VERB:
                found.append((term.weight, start, place))
    return sorted(found, key=lambda place: -place[0] - 4 * _IS_SUBJECT * _is_subject(text, *place[1:]))


def _around_verbs(words: Sequence[str]) -> Iterator[list[str]]:
    """The words between those that look like `carries`."""
    for is_verb, part in groupby(words, key=lambda word: _is_third_person(word.lower())):
        if not is_verb:
            yield list(part)


def _cloze(
    kind: MadeKind,
    noun: str,
    statement: Statement,
    place: tuple[int, int],
    answer: str,
    group: str,
    worth: float,
    accepted: tuple[str, ...] = (),
) -> Iterator[Draft]:
    """The sentence with something left out, unless the rest says little, or what was left out."""
    before, after = statement.text[: place[0]], statement.text[place[1] :]
    rest = terms_of(f"{before} {after}")
    if terms_of(answer).pieces & rest.pieces or len(rest.stems) < _LEAST_LEFT or re.match(r"[.@/]\w", after):
        return
    before = re.sub(r"\b([Aa])n? $", r"\1(n) ", before)
    question = f"Fill in the {noun}: “{before}{BLANK}{after}”"
    question = _under_heading(question, answer, statement)
    yield Draft(kind, question, answer, statement, group, accepted, worth, not statement.faults)


def _statement_drafts(statement: Statement, terms: Mapping[str, Term]) -> Iterator[Draft]:
    """The sentence, with a place where its twin has another number or term of the same class."""
    text = statement.text
    if numbers := _numbers_of(statement):
        number = numbers[0]
        place, group, weight = number.span("number"), _number_class(number), 9.0
    elif held := _terms_in(statement, terms):
        weight, place = held[0][0], held[0][1:]
        group = term_class(terms[text[slice(*place)].lower()].text)
    else:
        return
    question = f"True or false? “{text[: place[0]]}{BLANK}{text[place[1] :]}”"
    worth = _worth(statement, _IS_SUBJECT * (bool(numbers) or _is_subject(text, *place)) - 0.4, weight)
    yield Draft("statement", question, text[slice(*place)], statement, group, (), worth, not statement.faults)


# --- helpers


def _weight(term: str, terms: Mapping[str, Term]) -> float:
    known = terms.get(term.lower())
    return known.weight if known is not None else 0.0


def _worth(statement: Statement, kind: float, weight: float) -> float:
    """What a draft promises: by its kind, by the term asked for, less what its sentence leans on."""
    return kind + weight / 4 - 2.5 - 1.2 * statement.faults - 0.3 * (statement.kind == "item")


def _under_heading(question: str, answer: str, statement: Statement) -> str:
    """The question with the heading over its sentence, unless that says nothing new or holds the answer."""
    heading = _plain(statement.node.heading_path[-1] if statement.node.heading_path else "")
    heading = re.sub(r"^[\d.\s]+", "", heading).strip(" :.")
    said, told = terms_of(heading).stems, terms_of(answer).pieces
    if not re.search(r"[a-z]{3}", heading) or said <= terms_of(question).stems or told & terms_of(heading).pieces:
        return question
    return f"{question} ({heading})" if count_words(heading) <= _HEADING_WORDS else question


def _in_sentence(text: str) -> str:
    first = text.split()[0]
    return text[:1].lower() + text[1:] if first[1:].islower() or first in ("A", "An") else text
