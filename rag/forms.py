"""What answers look like by their form alone: a listing of what was asked for, a definition.

Search ranks prose by how near it is to the question, and what answers is often not the nearest: a question for code
shares few words with the prose around its listing. So listings are ranked on their own, by the names in them, the
headings over them and the sentence before them, and definitions are known by their form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from indexes.sentences import split_spans
from indexes.types import StoredNode
from indexes.words import TermWeights, terms_of
from rag.question import LONGEST_READ

OTHER_SORT = 0.5
"""Factor on the score of a listing of another sort than was asked for."""

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
    """The listings of a node."""
    text = node.text
    if "```" not in text and "~~~" not in text:
        return []
    headings = " ".join((node.title, *node.heading_path))
    found: list[Listing] = []
    before = ""
    for span in split_spans(text):
        said = text[span.start : span.end]
        if span.kind == "code":
            found.append(Listing(said, headings, before))
        before = said if span.kind in ("sentence", "item") else ""
    return found


def rank_listings(question: str, listings: Sequence[Listing]) -> list[float]:
    """How well each listing shows what an English question asks for: 1 holds all of its terms, 0 none."""
    wants_kernel = _KERNEL.search(question) is not None
    asked = terms_of(about_listing(question)).pieces
    asked = frozenset(piece for piece in asked if len(piece) > 1) or asked
    held = [terms_of(one.text).pieces | terms_of(one.before).pieces | {_language(one.text)} for one in listings]
    near = [terms_of(one.headings).pieces for one in listings]
    weights = TermWeights([own | beside for own, beside in zip(held, near, strict=True)])
    scores = []
    for listing, own, beside in zip(listings, held, near, strict=True):
        score = weights.share(asked, own) + weights.share(asked, beside, beside=own)
        scores.append(score * OTHER_SORT if _is_other_sort(listing.text, wants_kernel) else score)
    return scores


def _is_other_sort(listing: str, wants_kernel: bool) -> bool:
    """Whether a listing is an output, or no kernel where one is asked for."""
    return _language(listing) in _OUTPUT or (wants_kernel and not _IS_KERNEL.search(listing))


def _language(listing: str) -> str:
    match = _LANGUAGE.match(listing)
    return match["language"].lower() if match else ""


# --- definitions


def definition_share(subject: str, sentence: str) -> float:
    """How much a sentence defines `subject`: 1, `SHORT_DEFINITION` for one that says little, 0 for none.

    A definition is 'X is …', '… is called X', 'X: …', or an emphasised first use.
    """
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
