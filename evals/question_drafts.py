"""Drafts of questions by rule, from a book's own sentences, without a language model.

Six kinds: a definition ('What is a warp?'), an abbreviation ('What does SM stand for?'), a sentence that is true or
says the opposite, a name of code, a key term or a number left out of a sentence. What a draft promises, its `worth`, is
the share of its kind that two blind readers called good; `evals/made_questions.py` ranks by it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal, TypeAlias

from indexes.embedder import bundled_model_folder
from indexes.sentences import split_spans
from indexes.types import StoredNode
from indexes.words import STOP_WORDS, count_words, is_chinese, is_identifier, terms_of

MadeKind: TypeAlias = Literal["definition", "abbreviation", "name", "number", "term", "statement"]
BLANK = "____"
RULES = "rules"
"""Who wrote a question that no language model did."""
YIELD: Mapping[MadeKind, float] = {
    "abbreviation": 0.85,
    "definition": 0.6,
    "name": 0.55,
    "statement": 0.5,
    "term": 0.4,
    "number": 0.25,
}
"""What share of a kind is good: 480 questions of twelve books, two readers each (`evals/question_sets/fresh/verdicts`);
of terms, those that are neither subjects, names nor compounds."""
_PLAIN_TERM = 0.2
"""What a definition loses that says what its term is like instead, or whose term the text before must have named."""
_BETTER_TERM = 0.12
"""What a term left out gains as its sentence's subject, as a proper name, and as a compound, by the same readers."""
_FAULT = 0.3

MOST_SENTENCES = 6000
"""Of a longer book so many sentences are read, spread evenly."""
_WORDS = (4, 60)
"""Fewest and most words of a sentence that anything is asked about."""
_USUAL_WORDS = (8, 32)
_TERM_WORDS = 3
_LEAST_LEFT = 4
"""Content words that must stay when something is left out."""
_HEADING_WORDS = 8

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
_WORD = re.compile(r"[^\W\d_][^\W_]*(?:[\-+][^\W_]+)*")
_BEFORE_NOUN = frozenset("a an the each every per any no of".split())
_BEFORE_VERB = frozenset("to can will not may must should could would cannot we you they i".split())
_FINITE = frozenset(
    "is are was were has have had can could may might must will would should shall does do did cannot means".split()
)
_AFTER_VERB = frozenset("a an the in to by of for on from with be been used".split())
_IN_SUBJECT = frozenset("a an the each its of in for to on with and or by from between".split())
_DEFINED = re.compile(
    r"(?:(?:In|On|For|With) [^,]{3,40}, )?(?:(?P<article>[Aa]n?|[Tt]he) )?"
    r"(?P<term>[A-Za-z][\w\-+/]*(?: [\w\-+/]+){0,3}?)(?: \([A-Z][A-Za-z]{1,7}\))?"
    r" (?P<verb>is|are|means?|refers? to|denotes?)(?: defined as)? "
    r"(?P<what>(?:an?|the|any|one|that|when|how) .{12,240}?)\.?$"
)
_ENTRY = re.compile(r"(?P<term>[A-Z`][\w\-+/`() ]{2,45}?)(?: \([^()]{1,30}\))?(?::| [-–—]{1,3}) (?P<what>\S.{20,260})$")
_SPELT = re.compile(r"\b(?P<long>[A-Za-z]+(?:[ \-][A-Za-z]+){1,6}) \((?P<short>[A-Z][A-Za-z]{1,6}?)(?P<plural>s?)\)")
_SPELT_AFTER = re.compile(r"\b(?P<short>[A-Z]{2,6})(?P<plural>s?) \((?P<long>[A-Za-z]+(?:[ \-][A-Za-z]+){1,6})\)")
_NUMBER = re.compile(r"(?<![\w.\-–/:,(\[^])(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?=(?: ?%| [a-zµ]|\.?$))")
_PAIRS = [
    pair.split("/")
    for pair in "more/less before/after always/never often/rarely higher/lower highest/lowest larger/smaller "
    "largest/smallest longer/shorter faster/slower fastest/slowest easier/harder better/worse increase/decrease "
    "increases/decreases maximum/minimum most/least upper/lower early/late earlier/later greater/smaller "
    "bigger/smaller reduce/increase reduces/increases".split()
]
_OPPOSITES = {second: first for first, second in reversed(_PAIRS)} | dict(_PAIRS)
_OPPOSITE = re.compile(rf"(?<!not )(?<!no )\b(?:{'|'.join(_OPPOSITES)})\b")
_NOT = r"(?:n['’]t| not)"
_SAID = re.compile(
    r"(?P<before>[A-Z`][^,;:()]{2,80}?) (?P<verb>is|are|was|were|can|must|will|should"
    rf"|(?:has|have)(?={_NOT}? been)|does(?={_NOT})|do(?={_NOT}))(?P<no>n['’]t| ?not)? (?P<next>\w+)"
)
"""A sentence up to its first auxiliary, which `not` follows or could."""


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
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that is not checked yet.

    Attributes:
        answer: a term, a name, a number, what a definition says; of a statement, "True".
        options: the class of answers that wrong options are drawn from; empty where it is only asked openly.
        accepted: other wordings of the answer.
        worth: the share of questions like it that are good, less what its sentence leans on.
        stands_alone: nothing of what it shows leans on the text around it.
        opposite: of a statement, the question about what is not so.
    """

    kind: MadeKind
    question: str
    answer: str
    statement: Statement
    options: str = ""
    accepted: tuple[str, ...] = ()
    worth: float = 0.0
    stands_alone: bool = True
    opposite: str = ""
    made_by: str = RULES


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of a book, best first, and what wrong options are drawn from: texts by class."""

    drafts: tuple[Draft, ...]
    pool: Mapping[str, tuple[str, ...]]


def draft_questions(nodes: Sequence[StoredNode]) -> Drafts:
    """All drafts of a book's nodes, those that promise most first."""
    read = list(_statements(nodes))
    words = _Words(read)
    terms = words.terms()
    statements = [_judged(statement, words) for statement in read]
    pool: dict[str, dict[str, None]] = defaultdict(dict)
    for term in terms.values():
        pool[term_class(term)].setdefault(term)
    for statement in statements:
        for match in _CODE.finditer(statement.text):
            if _is_name(match[1]):
                pool[name_class(match[1])].setdefault(match[1])
    drafts = [draft for statement in statements for draft in _drafts_of(statement, terms)]
    drafts.sort(key=lambda draft: -draft.worth)
    return Drafts(tuple(drafts), {group: tuple(texts) for group, texts in pool.items()})


def _drafts_of(statement: Statement, terms: Mapping[str, str]) -> Iterator[Draft]:
    yield from _abbreviations(statement)
    yield from _turned(statement)
    yield from _definitions(statement, terms)
    yield from _names(statement)
    yield from _left_out(statement, terms)
    yield from _numbers(statement)


def points_elsewhere(question: str) -> bool:
    """Whether a question speaks of a text or to somebody, and is no question by itself."""
    return any(pattern.match(_CODE.sub("x", question).rstrip("?")) for pattern in _POINTS)


# --- sentences


def _statements(nodes: Sequence[StoredNode]) -> Iterator[Statement]:
    found = [
        Statement(node, node.text[span.start : span.end], _plain(node.text[span.start : span.end]))
        for node in nodes
        if not is_chinese(node.text)
        for span in split_spans(node.text)
        if span.kind in ("sentence", "item")
    ]
    found = [one for one in found if _WORDS[0] <= count_words(one.text) <= _WORDS[1] and not _CONTROL.search(one.quote)]
    yield from found[:: max(1, math.ceil(len(found) / MOST_SENTENCES))]


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


class _Words:
    """What a book's sentences tell of its words: which are verbs, and which groups of them are terms."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._nouns: Counter[str] = Counter()
        self._verbs: Counter[str] = Counter()
        self._as_noun: Counter[str] = Counter()
        self._written: dict[str, Counter[str]] = defaultdict(Counter)
        for statement in statements:
            for words, before in _runs(statement.text):
                noun, verb, run = before in _BEFORE_NOUN, before in _BEFORE_VERB, " ".join(words)
                if not words[0].endswith("s"):  # 'to threads'
                    self._verbs[words[0].lower()] += verb - noun
                if len(words) <= _TERM_WORDS:
                    self._as_noun[run.lower()] += noun - verb
                    self._written[run.lower()][run if before else ""] += 1  # a sentence gives its first word a capital
                if noun and len(words) == 1:
                    self._nouns[run.lower()] += 1

    def is_verb(self, word: str) -> bool:
        """Whether a word, or what is left without `s`, more often follows `to` and `can` than `the` and `of`."""
        return any(self._verbs[form] > 0 for form in (word, word.removesuffix("s"), word.removesuffix("es")))

    def terms(self) -> dict[str, str]:
        """The key terms as the book writes them, by their lower case, the most used first: what stands between stop
        words and marks (Rose and others, 2010: RAKE) and is used as a noun."""
        found = {}
        for lower, written in sorted(self._written.items(), key=lambda item: -item[1].total()):
            if self._as_noun[lower] > 0 and self._nouns[lower.split()[-1]] and len(lower) > 3:
                del written[""]
                found[lower] = written.most_common(1)[0][0] if written else lower
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
    everyday = _everyday_words()
    bases = (word[:-1], word.removesuffix("es"), re.sub("ies$", "y", word))
    return any(f"{form}ing" in everyday for base in bases for form in (base, base.removesuffix("e"), base + base[-1:]))


@lru_cache(maxsize=1)
def _everyday_words() -> frozenset[str]:
    listed = (bundled_model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(listed[listed.index("the") :])


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
                yield Draft(
                    "abbreviation",
                    f"What {verb} stand for?",
                    long,
                    statement,
                    "",
                    (long.lower(),),
                    _worth("abbreviation", statement),
                )
                break


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words).upper()


def _turned(statement: Statement) -> Iterator[Draft]:
    """A sentence, no question, and the same with a word's opposite in its place, or `not` put in or taken out."""
    text = statement.text
    if text.endswith("?"):
        return
    plain = _without_code(text)
    if word := _OPPOSITE.search(plain):
        side, opposite = "word", f"{text[: word.start()]}{_OPPOSITES[word[0]]}{text[word.end() :]}"
    elif (said := _SAID.match(plain)) and not _is_idle(said):
        side = "not" if said["no"] else "so"
        opposite = f"{text[: said.end('before')]} {_turned_verb(said)}{text[said.end('next') :]}"
    else:
        return
    ask = "True or false? “{}”".format
    worth = _worth("statement", statement)
    yield Draft("statement", ask(text), "True", statement, side, (), worth, not statement.faults, ask(opposite))


def _is_idle(said: re.Match[str]) -> bool:
    """Whether something else than a sentence's own verb may be denied: 'All that are …', '… is only …'."""
    before = {word.lower() for word in _WORD.findall(said["before"])}
    return bool(before & (STOP_WORDS - _IN_SUBJECT)) or said["next"].lower() in STOP_WORDS - _AFTER_VERB


def _turned_verb(said: re.Match[str]) -> str:
    verb, after = said["verb"], said["next"]
    if not said["no"]:
        return f"{verb}not {after}" if verb == "can" else f"{verb} not {after}"
    if verb == "does":
        after = re.sub("(?<![aeiou])y$", "ie", after) + ("es" if re.search("(?:[sxzo]|ch|sh)$", after) else "s")
    return after if verb in ("do", "does") else f"{verb} {after}"


def _definitions(statement: Statement, terms: Mapping[str, str]) -> Iterator[Draft]:
    text = statement.text
    if defined := _DEFINED.match(text):
        term, article, what = defined["term"], (defined["article"] or "").lower(), defined["what"]
        if _starts_idle(term):
            return
        known = terms.get(term.lower()) or terms.get(term.lower().removesuffix("s"))
        named = f"{article} {term}" if article else term if known is None or known[0].isupper() else _in_sentence(term)
        verb = "are" if defined["verb"] in ("are", "mean", "refer to", "denote") else "is"
        says_kind = article != "the" and re.match(r"(?:an?|one of|any) ", what) and (known or article)
        leans = sum(fault.match(_CODE.sub("x", what)) is not None for fault in _POINTS) + text[0].islower()
        worth = _worth("definition", replace(statement, faults=leans)) - _PLAIN_TERM * (not says_kind)
        yield Draft(
            "definition", f"What {verb} {named}?", what, statement, "", (), worth, bool(says_kind) and not leans
        )
    elif (entry := _ENTRY.match(text)) and count_words(entry["term"]) <= 5 and not _starts_idle(entry["term"]):
        term, what = entry["term"].strip("` "), entry["what"].rstrip(".")
        marked = statement.quote.lstrip().startswith(("*", "`", "_"))
        group = name_class(term) if _is_name(term) and "`" in entry["term"] else term_class(term)
        worth = _worth("definition", statement) - _PLAIN_TERM * (not marked)
        question = f"Which term is described by “{what}”?"
        yield Draft("definition", question, term, statement, group, (), worth, not statement.faults and marked)


def _starts_idle(term: str) -> bool:
    words = term.lower().split()
    return words[0] in STOP_WORDS or words[-1] in STOP_WORDS


def _names(statement: Statement) -> Iterator[Draft]:
    name = next((match for match in _CODE.finditer(statement.text) if _is_name(match[1])), None)
    if name is not None and (is_identifier(name[1]) or name[1][0] in "-@"):
        worth, bare = _worth("name", statement), name[1].removesuffix("()")
        yield from _cloze("name", statement, name.span(), name[1], name_class(name[1]), worth, (bare,))


def _numbers(statement: Statement) -> Iterator[Draft]:
    text = _without_code(statement.text)
    number = _NUMBER.search(text)
    if number is None or statement.faults or len(re.findall(r"\d+", text)) > 1:
        return  # figures, sections, years of citations: readers found none of nine such questions good
    name = re.search(r"\b([A-Z]\w*) $", text[: number.start()])
    if name is None or name[1].lower() in STOP_WORDS:
        yield from _cloze("number", statement, number.span(), number[0], "", _worth("number", statement))


def _left_out(statement: Statement, terms: Mapping[str, str]) -> Iterator[Draft]:
    found = []
    for start, end in _terms_in(statement, terms):
        answer = terms[statement.text[start:end].lower()]
        subject = _is_subject(statement.text, start, end)
        if start or subject or answer[0].isupper():  # else an order: 'Record how long …'
            found.append((subject + answer[0].isupper() + (" " in answer), start, end, answer))
    for better, start, end, answer in sorted(found, reverse=True)[:2]:
        worth = _worth("term", statement) + _BETTER_TERM * better
        yield from _cloze("term", statement, (start, end), answer, term_class(answer), worth)


def _is_subject(text: str, start: int, end: int) -> bool:
    """Whether a sentence begins with a term, an article apart, and a verb follows: it says what the term is or does."""
    if re.fullmatch(r"(?:An?|The|Each|Every|All|Most)? ?", text[:start]) is None:
        return False
    after = re.match(r" (?:also |often |usually |only )?([a-z]+)\b", text[end:])
    return after is not None and (after[1] in _FINITE or _is_third_person(after[1]) or _is_third_person(f"{after[1]}s"))


def _terms_in(statement: Statement, terms: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """Where the terms stand whole in a sentence."""
    text, place = statement.text, 0
    for words, before in _runs(text):
        for part in (words,) if " ".join(words).lower() in terms else _around_verbs(words):
            run = " ".join(part)
            start = text.find(run, place)
            place = start + len(run)
            if run.lower() in terms and before not in _BEFORE_VERB:
                yield start, place


def _around_verbs(words: Sequence[str]) -> Iterator[list[str]]:
    """The words between those that look like `carries`."""
    for is_verb, part in groupby(words, key=lambda word: _is_third_person(word.lower())):
        if not is_verb:
            yield list(part)


def _cloze(
    kind: MadeKind,
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
    if terms_of(answer).pieces & rest.pieces or len(rest.stems) < _LEAST_LEFT or re.match(r"\w|[-–.@/_]\w", after):
        return
    before = re.sub(r"\b([Aa])n? $", r"\1(n) ", before)
    question = _under_heading(f"Fill in the {kind}: “{before}{BLANK}{after}”", answer, statement)
    yield Draft(kind, question, answer, statement, group, accepted, worth, not statement.faults)


# --- helpers


def _worth(kind: MadeKind, statement: Statement) -> float:
    return YIELD[kind] - _FAULT * statement.faults


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
