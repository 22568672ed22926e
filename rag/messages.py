"""What kind of message a reader sent: a question for the books, or talk about the conversation, in English or Chinese.

Only a message that is nothing else counts as talk: 'thanks' does, 'thanks, and what is a warp?' is a question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias, cast, get_args

from indexes.words import CJK, is_chinese, terms_of
from rag.glossary import translate_terms
from rag.types import Turn

Kind: TypeAlias = Literal[
    "question", "greeting", "thanks", "about", "recall", "shorter", "reword", "listing", "chapter", "library"
]
"""`about`: who answers, and what it can do. `recall`: what was asked before. `shorter`, `reword` (simpler, in another
language) and `listing` (code, an example) are about the last answer. `chapter` and `library` ask what they are about.
"""

MOST_PARTS = 5
"""Questions of one message that are answered apart."""
MOST_SEARCHED_CHARACTERS = 2000
"""A longer question is searched for by its beginning: an embedder reads no more of it."""
_FEW_STEMS = 6

_WITH_TRAIL = re.compile(r"^[\s,.;:!?~…，。！？；：、()\"'“”]+|[\s,.;:!?~…，。！？；：、()\"'“”]+$")
_AND_THANKS = re.compile(
    r"^(?:ok|okay|alright|right|well|great|cool|thanks?(?: you)?|yes|sure|hmm?|oh|and|but|so|now|好的?|嗯)"
    r"[\s,.!，。！]+(?=\S)",
    re.IGNORECASE,
)

_ORDINALS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
_CARDINALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()
_CHINESE_DIGITS = "零一二三四五六七八九"
_NUMBER = rf"\d{{1,4}}|{'|'.join(reversed(_CARDINALS))}"
_CHAPTER = re.compile(
    rf"\b(?:chapter|ch\.?|chap\.?)\s*(?:number |no\.? ?|#)?(?P<number>{_NUMBER})\b"
    rf"|\b(?P<ordinal>{'|'.join(reversed(_ORDINALS))}|last|final|\d{{1,3}}(?:st|nd|rd|th)) chapter\b"
    r"|第\s*(?P<chinese>[零一二三四五六七八九十百\d]{1,5})\s*章|(?P<last>最后一章)"
    r"|\bchapter (?:on|about|called|titled) (?P<title>[^?.!,]{2,80})",
    re.IGNORECASE,
)
_ABOUT_WHAT = (
    r"summar\w+|sum\w*|overview|outline\w*|cover\w*|about|contents?|contain\w*|key (?:points?|ideas?)|take-?aways?"
    r"|topics?|main (?:points?|ideas?|topics?)|recap\w*|gist|abstract|deal\w*|discuss\w*|teach\w*|tl;?dr|describe"
    r"|explain|say|in"
)
_ASKS_WHAT_IT_IS_ABOUT = re.compile(
    rf"\b(?:{_ABOUT_WHAT})\b|讲|内容|概括|总结|介绍|概述|概要|主要|要点|摘要|说了", re.IGNORECASE
)
_NO_SUBJECT = re.compile(
    rf"\b(?:{_ABOUT_WHAT}|books?|librar\w+|chapters?|text|manual|brief\w*|short\w*|quick\w*|sentences?|words?|give|tell"
    r"|learn|section|ask|whole|entire|document\w*|know|you|me|i|have|available|loaded|list|please|up|with)\b",
    re.IGNORECASE,
)
_NO_SUBJECT_ZH = re.compile(
    r"讲了?|内容|概括|总结|介绍|概述|概要|主要|要点|摘要|说了?|什么|哪些|这|本|书|全|的|了|一下|请|是|关于|章|有|书库|里|你|啥|呢|吗|和|有关|整"
)
_LIBRARY = re.compile(
    r"\b(?:(?:this|the|your|my|these|those|all) (?:whole |entire )?(?:books?|librar\w+|documents?|manuals?)"
    r"|(?:which|what|list) (?:\w+ )?books)\b"
    r"|这(?:本|些)书|本书|全书|书库|有哪些书|哪些书",
    re.IGNORECASE,
)

_CLAUSE = re.compile(r"[,.;!，。；！]\s*")
_ASKS_WHICH_BOOKS = re.compile(r"(?:which|what|list) (?:\w+ )?books\b|哪些书", re.IGNORECASE)

_POINTS_BACK = re.compile(
    r"\b(?:it|its|they|them|their|this|that|these|those|he|she|same|such|former|latter|above|previous|one|ones|each|both"
    r")\b|它|他们|它们|这|那|该|上述|前者|后者|刚才",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"^(?:(?:ok|okay|well|hmm?|yes|alright|right|cool|great|thanks?),?\s+)?"
    r"(?P<lead>and|but|so|or|then|also|why|how so|how come|what about|how about|what if|any|more|another|else"
    r"|tell me more|go on)\b|为什么呢|还有|呢[？?]?$",
    re.IGNORECASE,
)
_DEFINES = re.compile(
    r"^(?:what(?:'s| is| are| does)|who is|define|explain|describe) (?!the\b)\w|什么(?:是|叫)|是什么|解释",
    re.IGNORECASE,
)
"""Asks what one thing is, and so names it: 'What is occupancy?', but not 'what is the syntax?'."""

_STYLE = re.compile(
    r"[,:;]?\s*\b(?:please )?(?:(?:can|could) you )?(?:(?:explain|tell me|describe)(?: (?:it|to me))? )?"
    r"(?:(?:like|as if) i(?:'m| am| were|m) (?:a )?(?:five|5|child|kid|beginner)(?: years? old)?|eli5"
    r"|in (?:very )?(?:simple|simpler|plain|easy|layman'?s?) (?:words|terms|english))\b[,:;]?",
    re.IGNORECASE,
)

_ITEM = re.compile(r"^\s*(?:\(?\d{1,2}[.)、]|[-*•])\s*(?=\S)", re.MULTILINE)
_QUESTION_END = re.compile(r"(?<=[?？])[\s\"')”’]*")
_ASKS = re.compile(
    r"^(?:(?:and|but|so|or|also|then|ok|okay|please|hi|hello)[,\s]+)*"
    r"(?:what|how|why|when|where|which|who|whose|is|are|was|were|do|does|did|can|could|should|would|will|has|have|may|must|"
    r"explain|describe|define|list|name|compare|give|show|tell)\b",
    re.IGNORECASE,
)

_ASKS_ZH = re.compile(r"什么|怎么|怎样|如何|为何|多少|多大|多长|哪|几|是否|啥|区别")
_FENCED = re.compile(r"```[^\n`]*\n.*?(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(
    r"[;{}]\s*(?://.*|/\*.*)?$|^\s*(?:#\s*(?:include|pragma|define|if|endif)|__\w+__|import \w|from \w+ import"
    r"|def \w+\(|class \w+[:(]|@\w+[.(]|(?:for|while|if)\s*\(|return\b|//|template\s*<|\w[\w.\[\]]*\s*[-+*/]?=\s*\S"
    r"|\w[\w.:]*\(.*\)\s*$|>>> )"
)
_STATEMENT = re.compile(r"[=(].*[;{}]\s*$")
_ABOUT_CODE = re.compile(
    r"\b(?:what|explain|describe|does|do|is|this|the|following|code|kernel|program|function|snippet|here|wrong|with|it|in|my|why|slow|bug|fix|"
    r"mean|please|can|you|me|how|work|works|tell|help|about|review|there|any|errors?|problem|understand|i|for|to|a|of|optimi[sz]e|faster|make|"
    r"improve)\b|[\W_]|这|段|个|代码|程序|是|做|什么|的|有|问题|解释|一下|请|错|哪里|吗|在|干|怎么|为|慢|了|意思",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class ChapterAsked:
    """A chapter as a message names it: its number (-1 is the last), or words of its title."""

    number: int | None = None
    title: str = ""


@cache
def _patterns() -> tuple[tuple[Kind, re.Pattern[str]], ...]:
    """Kinds and wordings of `messages.tsv`."""
    parts: dict[str, str] = {}
    found: list[tuple[Kind, re.Pattern[str]]] = []
    for line in files("rag").joinpath("messages.tsv").read_text(encoding="utf-8").splitlines():
        name, tab, wording = line.partition("\t")
        if not tab:
            continue
        if name.startswith("{"):
            parts[name] = f"(?:{parts[name]}|{wording})" if name in parts else wording
            continue
        if name not in get_args(Kind):
            raise ValueError(f"messages.tsv: {name!r} is not a kind of message")
        for part, pattern in parts.items():
            wording = wording.replace(part, pattern)
        polite = parts["{please}"]
        whole = rf"(?:{polite},? )*(?:{parts['{can_you}']} )?(?:{wording})(?:[, ]+{polite})*"
        found.append((cast("Kind", name), re.compile(whole, re.IGNORECASE)))
    return tuple(found)


def kind_of(text: str) -> Kind:
    """The kind of a message, by its whole wording."""
    bare = _bare(text)
    if len(bare) > 200:
        return "question"
    for candidate in (bare, _AND_THANKS.sub("", bare)):
        if kind := _talk(candidate):
            return kind
    clauses = [_talk(_bare(clause)) for clause in _CLAUSE.split(bare)]
    if len(clauses) > 1 and all(clauses):
        return clauses[-1] or "question"
    if _CHAPTER.search(bare):
        return "question" if _subject(_CHAPTER.sub(" ", bare)) else "chapter"
    if not _ASKS_WHAT_IT_IS_ABOUT.search(bare) and not _ASKS_WHICH_BOOKS.search(bare):
        return "question"
    return "library" if _LIBRARY.search(bare) and not _subject(bare) else "question"


def _talk(bare: str) -> Kind | None:
    """The kind of a wording of `messages.tsv`."""
    return next((kind for kind, pattern in _patterns() if pattern.fullmatch(bare)), None)


def asks_which_books(text: str) -> bool:
    """Whether a message of kind `library` wants the books by name."""
    return bool(_ASKS_WHICH_BOOKS.search(text))


def has_words(text: str) -> bool:
    """Whether a message holds a letter or digit of any script, or an emoji that says thanks."""
    return any(character.isalnum() for character in text) or kind_of(text) != "question"


def chapter_asked(text: str) -> ChapterAsked:
    """The chapter that a message of kind `chapter` names."""
    match = _CHAPTER.search(text)
    if match is None:
        return ChapterAsked()
    number, ordinal, chinese = match["number"], match["ordinal"], match["chinese"]
    if match["title"]:
        return ChapterAsked(title=_ASKS_WHAT_IT_IS_ABOUT.sub(" ", match["title"]).strip(" \"'“”"))
    if match["last"] or (ordinal or "").lower() in ("last", "final"):
        return ChapterAsked(-1)
    if chinese:
        return ChapterAsked(_chinese_number(chinese))
    if ordinal:
        digits = re.match(r"\d+", ordinal)
        return ChapterAsked(int(digits.group()) if digits else _ORDINALS.index(ordinal.lower()))
    return ChapterAsked(int(number) if number.isdecimal() else _CARDINALS.index(number.lower()))


def refers_to_earlier(text: str) -> bool:
    """Whether a follow-up question is too short, or points back too much, to be searched for alone."""
    stems = len(terms_of(translate_terms(text) if is_chinese(text) else text).pieces)
    points_back = bool(_POINTS_BACK.search(text))
    if stems and _DEFINES.search(text) and not points_back:
        return False
    return stems < 2 or (stems <= _FEW_STEMS and (points_back or bool(_GOES_ON.search(text))))


def standing_question(turns: Sequence[Turn], follow_up: str = "") -> str:
    """What a follow-up is about: the newest question that stands alone; "" where there is none.

    One without words of its own ('why?') is about the newest follow-up, too.
    """
    asked = [turn.question for turn in turns if kind_of(turn.question) == "question"]
    alone = next((question for question in reversed(asked) if not refers_to_earlier(question)), "")
    more = asked and asks_for_more(follow_up) and asked[-1] != alone
    return f"{alone} {asked[-1]}".strip() if more else alone


def asks_for_more(follow_up: str) -> bool:
    """Whether a follow-up has no words of its own ('why?', 'go on'), and so asks for more than was said."""
    return not terms_of(translate_terms(follow_up) if is_chinese(follow_up) else follow_up).pieces


def without_style(text: str) -> str:
    """A question without 'explain like I'm five' and the like; unchanged where nothing would be left."""
    rest = _STYLE.sub(" ", text).strip(" ,:;-")
    return rest if rest != text and len(terms_of(rest).pieces) > 0 else text


def parts_of(text: str) -> tuple[str, ...]:
    """The questions of a message that asks several, at most `MOST_PARTS`; the message alone where it asks one."""
    if "```" in text or len(text) > MOST_SEARCHED_CHARACTERS:
        return (text,)
    starts = [match.start() for match in _ITEM.finditer(text)]
    if len(starts) > 1:
        lead = text[: starts[0]].strip()
        pieces = [_ITEM.sub("", text[a:b]).strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
        asked = pieces if all(map(_is_question, pieces)) and not lead.endswith("?") else []
    else:
        pieces = [piece.strip() for piece in _QUESTION_END.split(text) if piece.strip()]
        asked = pieces if all(piece[-1] in "?？" and _is_question(piece) for piece in pieces) else []
    return tuple(asked[:MOST_PARTS]) if len(asked) > 1 else (text,)


def code_in(text: str) -> tuple[str, str]:
    """A message as its prose and the code pasted into it, "" for none."""
    fenced = _FENCED.findall(text)
    if fenced:
        return _FENCED.sub(" ", text).strip(), "\n".join(fenced)
    lines = text.splitlines()
    code = [line for line in lines if _CODE_LINE.search(line)]
    if not code or (len(code) == 1 and not (len(lines) == 1 and _STATEMENT.search(text))):
        return text, ""
    kept = set(code)
    return "\n".join(line for line in lines if line not in kept).strip(), "\n".join(code)


def only_about_code(prose: str) -> bool:
    """Whether what stands beside pasted code asks about that code alone: 'what does this code do?', or nothing."""
    return not _ABOUT_CODE.sub("", prose).strip()


def names_in(code: str) -> tuple[str, ...]:
    """The names of some code in order, each once."""
    return tuple(dict.fromkeys(_NAME.findall(code)))


def _bare(text: str) -> str:
    return " ".join(_WITH_TRAIL.sub("", text.replace("’", "'")).split())


def _subject(text: str) -> bool:
    """Whether words are left that say more than 'summarise the book'."""
    rest = _NO_SUBJECT_ZH.sub("", text) if is_chinese(text) or re.search(f"[{CJK}]", text) else text
    return bool(terms_of(_NO_SUBJECT.sub(" ", rest)).pieces)


def _is_question(piece: str) -> bool:
    if is_chinese(piece):
        return bool(_ASKS_ZH.search(piece)) and len(terms_of(translate_terms(piece)).pieces) > 0
    return bool(_ASKS.match(piece)) and len(terms_of(piece).pieces) > 0


def _chinese_number(text: str) -> int:
    """Up to 99: 五, 十, 十二, 二十, 二十三; digits as they are."""
    if text.isdecimal():
        return int(text)
    tens, ten, ones = text.partition("十")
    high = (_CHINESE_DIGITS.find(tens) if tens else 1) if ten else 0
    low = ones if ten else tens
    return max(high, 0) * 10 + (max(_CHINESE_DIGITS.find(low), 0) if low else 0)
