"""What answers look like by their form alone: a listing of what was asked for, a definition, a number.

Search ranks prose by how near it is to the question, and what answers is often not the nearest: 'How many threads can
a block have?' is nearer 'threads per block' than 'at most 1024 threads', and a question for code shares few words with
the prose around its listing. So listings are ranked on their own, by the names in them, the headings over them and the
sentence before them, and definitions and numbers are known by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from indexes.sentences import split_spans
from indexes.types import StoredNode
from indexes.words import TermWeights, terms_of
from rag.question import LONGEST_READ, QuestionKind, subject_of

NAME_WEIGHT = 0.5
"""For terms in the name of a function or kernel that a listing defines, over those anywhere in it."""
PLACE_WEIGHT = 0.8
"""For terms in the headings over a listing, that it and the sentence before it do not hold."""
OTHER_SORT = 0.5
"""Factor on the score of a listing of another sort than was asked for."""
WITHOUT_BOUND = 0.5
"""The weight of a number that is not a bound, where a maximum is asked for."""

_ASKING = re.compile(
    r"\b(?:show|give|write|see|need|want|get|make|sample|examples?|code|program|snippet|listing|syntax|function"
    r"|commands?|lines?|implement\w*|declare|define|looks?|type|please|simple|short|complete|full|someone|one)\b",
    re.IGNORECASE,
)
"""What a question for a listing says beside what the listing is about."""
_KERNEL = re.compile(r"\bkernels?\b", re.IGNORECASE)
_IS_KERNEL = re.compile(
    r"__global__|__kernel\b|@\w*\.?jit\b|@\w*vectorize\b|parallel_(?:for|reduce|scan)|<<<|omp target"
)
_LANGUAGE = re.compile(r"(?:`{3,}|~{3,})[ \t{.]*(?P<language>[\w+#-]*)")
_OUTPUT = frozenset({"none", "text", "output", "plain", "txt"})
_LANGUAGES = {"fortranfree": "fortran", "f90": "fortran", "c++": "cpp", "cu": "cuda", "py": "python", "sh": "bash"}
_CLOSES = re.compile(r"\A(?P<inside>(?:(?!```).)*?)^(?:```|~~~)[ \t]*\n(?=[ \t]*\n|\Z)", re.DOTALL | re.MULTILINE)
"""The end of a listing that began in an earlier node."""
_NAMED = re.compile(
    r"__(?:global|device)__[^;{(]*?(\w+)\s*\(|^\s*(?:def|class|struct|subroutine|function)\s+(\w+)"
    r"|^[A-Za-z][\w:<>*&, ]*?\s\*?(\w+)\s*\([^;]*\)\s*\{",
    re.MULTILINE,
)

_IS = re.compile(
    r"\s+(?:is|are|was|were|means?|refers? to|denotes?|describes?|stands? for|measures?)\s+(?P<what>\S.*)", re.DOTALL
)
_ACTED_ON = re.compile(
    r"(?:not|why|how|where|to)\b|(?:\w+ly )?\w+(?:ed|ing) (?:by|in|on|to|from|when|if|at|for|with|into|as|that)\b"
)
"""After 'is': what happens to it, instead of what it is."""
_BESIDE_NAME = re.compile(
    r"^(?:in [\w ]{2,30}, )?(?:the term |the word )?(?:an? |the |each |every |such (?:an? )?|so-called )?"
    r"|\([^)]*\)|,[^,]*,?$",
    re.IGNORECASE,
)
_COLON = re.compile(r":\s|：|\s[–—-]\s")
_MARKS = re.compile(r"[*_`\"“”'‘’]")
_EMPHASISED = re.compile(r"(?<![\w*])(\*{1,2}|_{1,2})(?=\S)([^*_]{2,60})(?<=\S)\1(?![\w*])|[“\"]([^“”\"]{2,40})[”\"]")
_CALLED = re.compile(r"\b(?:called|known as|termed|referred to as)\s+(?:an? |the )?(.{2,60})", re.IGNORECASE)
DEFINING_WORDS = 6
"""Fewest words after 'is' of a definition that says what a thing is: not 'Occupancy is a means of hiding latency'."""
SHORT_DEFINITION = 0.5
MOST_LETTERS = 5
"""Of an abbreviation."""
_DENIES = re.compile(r"\bnot\b|\bjust as\b", re.IGNORECASE)

_COUNTED = re.compile(
    r"\b(?:how many|(?:number|count) of) (?P<counted>(?:[\w-]+ ){0,2}?[\w-]+)(?= |\W*$)", re.IGNORECASE
)
_END = r"\W*(?:\?.*)?$"  # an option may follow
_THING = r"(?:[\w-]+ ){0,2}?[\w-]+"
_WHOLE = re.compile(
    r"\bhow many (?:[\w-]+ ){1,3}?(?:(?:(?:are|is)(?: there)? )?(?:in|per|inside)|make(?: up)?|form|does|do|has|have) "
    rf"(?:an? |the |one |each |every |single )*({_THING})(?: (?:have|contain|hold|consist of|comprise))?{_END}"
    rf"|^(?:each |every |one )?({_THING}) (?:include |contain |have |has |size )?how many(?: [\w-]+){{0,2}}{_END}",
    re.IGNORECASE,
)
"""What the parts counted are of; the second form is how a Chinese question reads in English words."""
_MEASURES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(asked, re.IGNORECASE), re.compile(rf"\d[\d.,{{}}]*\s?\$?[\s-]?(?:{units})(?![A-Za-z])", re.IGNORECASE))
    for asked, units in (
        (
            r"\bhow (?:fast|quick\w*)\b|\b(?:bandwidth|throughput|speed)\b",
            r"[KMGT]i?B\s?/\s?s|[MGTP]FLOPS?(?:/s)?|times|x|×|m?s|seconds?|cycles",
        ),
        (
            r"\bhow long\b|\b(?:latency|time)\b",
            r"[mµnu]?s|cycles?|seconds?|minutes?|hours?|(?:milli|micro|nano)seconds?|days?",
        ),
        (
            r"^(?=.*\b(?:memory|cache|file|buffer|ram|storage|space|data)\b)"
            r".*(?:\bhow (?:big|large|much|small)\b|\b(?:size|capacity) of\b)",
            r"[KMGT]i?B|bytes?|bits?|(?:kilo|mega|giga)bytes?|percent|%",
        ),
    )
)
"""What a question measures, and the numbers with a unit that answer it."""
_ASKS_BOUND = re.compile(
    r"\b(?:can|could|may|maxim\w+|max|most|limit\w*|largest|biggest|allowed|up to)\b", re.IGNORECASE
)
_BOUND = re.compile(
    r"\b(?:at most|up to|maxim\w+|limits? (?:is|are|of)|limited|no more than|not more than"
    r"|(?:can|may)(?:not| not) exceed|largest|as (?:large|many) as|upper bound)\b",
    re.IGNORECASE,
)
_HOW = re.compile(r"\bhow (?:big|large|much|small|fast|long|quick\w*|many)\b", re.IGNORECASE)
_CODE = re.compile(r"`(?!_*[a-z]+_*`)[^`]*`")
"""Code, unless it is one plain word: `__constant__` says 'constant'."""
_SEVERAL = re.compile(r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve|sixteen)\b", re.IGNORECASE)
_NUMBER = re.compile(rf"{_SEVERAL.pattern}|\b(?:one|half|twice)\b", re.IGNORECASE)


# --- listings


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing in its place: with its fences, the headings over it, and the sentence before it."""

    text: str
    headings: str
    before: str = ""


def about_listing(question: str) -> str:
    """What to search for: the question without 'show me the code'; all of it where nothing is left."""
    rest = _KERNEL.sub(" ", _ASKING.sub(" ", question))
    return rest if terms_of(rest).pieces else question


def listings_in(node: StoredNode) -> list[Listing]:
    """The listings of a node, also those that begin or go on in another node."""
    text = node.text
    if "```" not in text and "~~~" not in text:
        return []
    headings = " ".join((node.title, *node.heading_path))
    found: list[Listing] = []
    if closing := _CLOSES.search(text):
        found.append(Listing(closing["inside"], headings))
        text = text[closing.end() :]
    before = ""
    for span in split_spans(text):
        said = text[span.start : span.end]
        if span.kind == "code":
            found.append(Listing(said, headings, before))
        before = said if span.kind in ("sentence", "item") else ""
    return found


def rank_listings(question: str, listings: Sequence[Listing]) -> list[float]:
    """How well each listing shows what an English question asks for: about 1 holds all of its terms, 0 none."""
    wants_kernel = _KERNEL.search(question) is not None
    asked = terms_of(about_listing(question)).pieces
    asked = frozenset(piece for piece in asked if len(piece) > 1) or asked
    held = [terms_of(one.text).pieces | terms_of(one.before).pieces | {_language(one.text)} for one in listings]
    near = [terms_of(one.headings).pieces for one in listings]
    weights = TermWeights([own | beside for own, beside in zip(held, near, strict=True)])
    scores = []
    for listing, own, beside in zip(listings, held, near, strict=True):
        names = terms_of(" ".join(name for match in _NAMED.findall(listing.text) for name in match if name)).pieces
        score = (
            weights.share(asked, own)
            + NAME_WEIGHT * weights.share(asked, names)
            + PLACE_WEIGHT * weights.share(asked, beside, beside=own)
        )
        scores.append(score * OTHER_SORT if _is_other_sort(listing.text, question, wants_kernel) else score)
    return scores


def _is_other_sort(listing: str, question: str, wants_kernel: bool) -> bool:
    """Whether a listing is an output, no kernel where one is asked for, or Fortran where that is not named."""
    language = _language(listing)
    if language in _OUTPUT or (wants_kernel and not _IS_KERNEL.search(listing)):
        return True
    return language == "fortran" and "fortran" not in question.lower()


def _language(listing: str) -> str:
    match = _LANGUAGE.match(listing)
    named = match["language"].lower() if match else ""
    return _LANGUAGES.get(named, named)


# --- definitions


def defines(subject: str, sentence: str) -> bool:
    """Whether a sentence says what `subject` is: 'X is …', '… is called X', 'X: …', or an emphasised first use."""
    return definition_share(subject, sentence) > 0


def definition_share(subject: str, sentence: str) -> float:
    """How much a sentence defines `subject`: 1, `SHORT_DEFINITION` for one that says little, 0 for none."""
    wanted = terms_of(subject).stems
    if not wanted:
        return 0.0
    sentence = sentence[:LONGEST_READ]
    if not all(stem[:2] in sentence.lower() for stem in wanted):
        return 0.0
    plain = _MARKS.sub("", sentence).strip(" -")
    verb, colon = _IS.search(plain), _COLON.search(plain)
    if verb is not None and _is_name(plain[: verb.start()], wanted) and not _ACTED_ON.match(verb["what"]):
        long = len(verb["what"].split()) >= DEFINING_WORDS and not _DENIES.search(verb["what"])
        return 1.0 if long else SHORT_DEFINITION
    if colon is not None and colon.end() < len(plain) and _is_name(plain[: colon.start()], wanted):
        return 1.0
    words = len(subject.split())
    if any(_is_name(" ".join(match[1].split()[:words]), wanted) for match in _CALLED.finditer(plain)):
        return 1.0
    if len(wanted) == 1 and _spells_out(subject, plain):
        return 1.0
    emphasised = (terms_of(match[2] or match[3]).stems for match in _EMPHASISED.finditer(sentence))
    return 1.0 if wanted in emphasised else 0.0


def _spells_out(subject: str, sentence: str) -> bool:
    """Whether a sentence gives the words behind an abbreviation: 'streaming multiprocessors, SMs for short'."""
    letters = subject.split()[-1].removesuffix("s").upper()
    if not (2 <= len(letters) <= MOST_LETTERS and letters.isalpha()):
        return False
    name = rf"(?:\({letters}s?\)|,? (?:or )?{letters}s?,? for short)"
    initials = r"[\s-]+".join(rf"{letter}\w*" for letter in letters)
    spelled = re.search(rf"\b{initials}\s*{name}|\b{letters}s?\s*\({initials}\)", sentence, re.IGNORECASE)
    return spelled is not None


def _is_name(text: str, wanted: frozenset[str]) -> bool:
    """Whether a text, without article and brackets, is the name with these stems."""
    return terms_of(_BESIDE_NAME.sub("", text)).stems == wanted


# --- numbers


def gives_number(question: str, sentence: str) -> float:
    """How much a sentence has the form of an answer to a question for a number, 0 to 1.

    It holds a number outside code, with the unit asked for or beside the word for what is counted, and counts by its
    share of the question's terms; where the most of something is asked for, a bound counts fully.
    """
    number = _number_asked(question)
    sentence = _CODE.sub(" ", sentence[:LONGEST_READ])
    if not number.form.search(sentence):
        return 0.0
    said = terms_of(sentence)
    if number.counted and number.counted.isdisjoint(said.stems):
        return 0.0
    share = len(number.asked & said.pieces) / len(number.asked) if number.asked else 1.0
    return share if not number.bound or _BOUND.search(sentence) else WITHOUT_BOUND * share


def says_of_what(question: str, sentence: str) -> bool:
    """Whether a sentence defines with a number what the question wants the parts of: 'groups of 32, called warps'."""
    whole = _whole_of(question)
    return bool(whole) and defines(whole, sentence) and _SEVERAL.search(_CODE.sub(" ", sentence)) is not None


@lru_cache(maxsize=64)
def _whole_of(question: str) -> str:
    match = _WHOLE.search(question) if len(question) <= LONGEST_READ else None
    return next(filter(None, match.groups()), "") if match is not None else ""


@dataclass(frozen=True, slots=True)
class _Number:
    """The number that a question asks for: its form, what it counts, the question's terms, whether it is a bound."""

    form: re.Pattern[str]
    counted: frozenset[str]
    asked: frozenset[str]
    bound: bool


@lru_cache(maxsize=64)
def _number_asked(question: str) -> _Number:
    counted = _COUNTED.search(question)
    return _Number(
        _NUMBER if counted else next((units for asked, units in _MEASURES if asked.search(question)), _NUMBER),
        terms_of(counted["counted"]).stems if counted else frozenset(),
        terms_of(_HOW.sub(" ", question)).pieces,
        _ASKS_BOUND.search(question) is not None,
    )


def _number_form(question: str, sentence: str) -> float:
    return 1.0 if says_of_what(question, sentence) else gives_number(question, sentence)


def rank_by_form(kind: QuestionKind, question: str, texts: Sequence[str]) -> list[float]:
    """For each text how much its best sentence has the form of an answer, 0 to 1; 0 for kinds without a form."""
    if kind == "number":
        return [max((_number_form(question, one) for one in _sentences(text)), default=0.0) for text in texts]
    subject = subject_of(question) if kind == "define" else ""
    if not subject:
        return [0.0] * len(texts)
    return [max((definition_share(subject, one) for one in _sentences(text)), default=0.0) for text in texts]


def _sentences(text: str) -> Iterator[str]:
    return (text[span.start : span.end] for span in split_spans(text) if span.kind in ("sentence", "item"))
