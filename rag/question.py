"""What was asked: is the question allowed, is it a question at all, and what kind of answer does it want?

Checks come first: every entry point uses them. A message is a question for the books or talk about the conversation, in
English or Chinese; only a message that is nothing else counts as talk: 'thanks' does, 'thanks, and what is a warp?' is
a question. The kind of a question decides the form of its answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias, cast, get_args

from indexes.errors import InvalidInput, NotFound, TooLarge
from indexes.types import Document, Filters
from indexes.words import CJK, is_chinese, terms_of
from rag.errors import ArmUnavailable
from rag.types import ARMS, TUNED_ARMS, Arm, Question, SearchableLibrary, Turn
from rag.wording import translate_terms

MOST_CHARACTERS = 20_000
MOST_PASSAGES = 50
MOST_ANSWER_TOKENS = 32_768

_MOST_DIGITS = 9
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def whole_number(text: str) -> int | None:
    """The number in `text`; None when it is not digits alone, or has more digits than any page or chapter.

    `int` accepts signs and underscores, and raises ValueError beyond 4,300 digits.
    """
    digits = text.strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def reject_control_characters(text: str, name: str) -> str:
    """`text` unchanged; every entry point uses it to catch what a terminal or a form should not have sent.

    Raises:
        InvalidInput: it holds a control character other than tab and line ends, or half a surrogate pair.
    """
    found = _CONTROL.search(text)
    if found:
        raise InvalidInput(
            f"the {name} holds the control character U+{ord(found.group()):04X} at position {found.start()}",
            hint="remove it",
        )
    return text


def clean_text(text: str, name: str = "question") -> str:
    """`text` without invisible format characters and outer white space.

    Raises:
        InvalidInput: nothing is left, or it holds control characters.
        TooLarge: more than `MOST_CHARACTERS` characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise TooLarge(
            f"the {name} has {len(text):,} characters", hint=f"ask in at most {MOST_CHARACTERS:,} characters"
        )
    reject_control_characters(text, name)
    kept = "".join(c for c in text if unicodedata.category(c) != "Cf" or c in "\u200c\u200d").strip()
    if not kept:
        raise InvalidInput(f"the {name} is empty", hint="ask in at least one word")
    return kept


def check_question(question: Question) -> Question:
    """The question with its text cleaned.

    Raises:
        InvalidInput: text without words, control characters, an unknown arm, `top_k` or `max_tokens` out of range, bad
            filters, a sampling setting out of range, an empty stop string.
        TooLarge: too many characters.
    """
    if question.arm not in ARMS:
        raise InvalidInput(f"arm {question.arm!r} is not known", hint=f"use one of {', '.join(ARMS)}")
    check_top_k(question.top_k)
    if question.max_tokens is not None and not 1 <= question.max_tokens <= MOST_ANSWER_TOKENS:
        raise InvalidInput(f"max_tokens {question.max_tokens} is out of range", hint=f"use 1 to {MOST_ANSWER_TOKENS:,}")
    if not 0.0 <= question.temperature <= 2.0:
        raise InvalidInput(f"temperature {question.temperature} is out of range", hint="use 0 to 2")
    if not 0.0 < question.sampling_top_p <= 1.0:
        raise InvalidInput(f"top_p {question.sampling_top_p} is out of range", hint="use more than 0, up to 1")
    if not all(question.stop):
        raise InvalidInput("one of the stop strings is empty", hint="leave it out")
    pages = question.filters.pages
    if pages is not None and not 1 <= pages[0] <= pages[1]:
        raise InvalidInput(
            f"{pages[0]}-{pages[1]} is not a range of pages", hint="Give the first and the last page, from 1."
        )
    text = clean_text(question.text)
    if not has_words(text):
        raise InvalidInput(f"there are no words in the question {text[:40]!r}", hint="ask in at least one word")
    return replace(question, text=text)


def check_top_k(top_k: int) -> None:
    """Raises InvalidInput unless 1 <= `top_k` <= `MOST_PASSAGES`."""
    if not 1 <= top_k <= MOST_PASSAGES:
        raise InvalidInput(f"top_k {top_k} is out of range", hint=f"use 1 to {MOST_PASSAGES}")


def check_filters(filters: Filters, library: SearchableLibrary) -> None:
    """Raises NotFound when a book or chapter is named that the library does not have; needs no model."""
    documents = [library.document(name) for name in filters.document_ids]
    if filters.chapters:
        _check_chapters(filters.chapters, documents or library.documents(), library)


def _check_chapters(named: Sequence[int | str], documents: Sequence[Document], library: SearchableLibrary) -> None:
    if not documents:
        return  # the refusal says that the library is empty
    chapters = [chapter for document in documents for chapter in library.chapters(document.document_id)]
    known: set[int | str] = {chapter.ordinal for chapter in chapters} | {chapter.title for chapter in chapters}
    for wanted in named:
        if wanted not in known:
            where = "this book has" if len(documents) == 1 else "the longest of these books has"
            last = max((chapter.ordinal for chapter in chapters), default=0)
            raise NotFound(f"no chapter {wanted}; {where} {last}", hint="give a number from 1, or an exact title")


def choose_adapter(arm: Arm, named: str | None, known: Sequence[str]) -> str | None:
    """The adapter that answers: the named one, or the only one; None in arms without an adapter.

    Raises:
        InvalidInput: an adapter is named for an arm that uses none.
        ArmUnavailable: the arm needs one, and it is not loaded, or several are and none is named.
    """
    if arm not in TUNED_ARMS:
        if named is not None:
            raise InvalidInput(
                f"arm {arm!r} uses no adapter, but {named!r} was asked for", hint="ask with arm `tuned` or `rag+tuned`"
            )
        return None
    if not known:
        raise ArmUnavailable(
            f"arm {arm!r} needs a language model and a LoRA adapter, and no adapter is loaded",
            hint="start with `--generator local --model PATH_OR_NAME --adapter NAME=FOLDER`, or ask with `--arm rag`",
        )
    if named is None and len(known) > 1:
        raise ArmUnavailable(f"several adapters are loaded: {', '.join(known)}", hint="name one with `adapter`")
    if named is not None and named not in known:
        raise ArmUnavailable(f"adapter {named!r} is not loaded; loaded: {', '.join(known)}", hint="name one of these")
    return named or known[0]


# --- messages: a question, or talk

MessageKind: TypeAlias = Literal[
    "question",
    "greeting",
    "thanks",
    "about",
    "recall",
    "shorter",
    "reword",
    "listing",
    "where",
    "doubt",
    "quiz",
    "chapter",
    "library",
]
"""`about`: who answers, and what it can do. `recall`: what was asked before. `shorter`, `reword` (simpler, in another
language), `listing` (code, an example), `where` (its pages) and `doubt` are about the last answer. `quiz` wants to be
examined. `chapter` and `library` ask what they are about.
"""

MOST_PARTS = 5
"""Questions of one message that are answered apart."""
MOST_SEARCHED_CHARACTERS = 2000
"""A longer question is searched for by its beginning: an embedder reads no more of it."""
_FEW_STEMS = 6
_FEWEST_STEMS = 2
"""Of a question that begins with 'why' and does not point back: 'why three?', not 'why does MPI need datatypes?'."""

_AROUND = " ,.;:!?~…，。！？；：、()\"'“”"
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
    r"\b(?:it|its|they|them|their|this|that|these|those|he|she|same(?! time)|such|former|latter|above|previous|one|ones"
    r"|each|both)\b|它|他们|它们|这|那|该|上述|前者|后者|刚才",
    re.IGNORECASE,
)
_IT = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)
_WHY_CARE = re.compile(r"\bwhy (?:\w+ ){1,3}(?:care|bother)\b", re.IGNORECASE)
"""Asks what a thing is good for, in words that no book has."""
_RELATIVE = re.compile(
    r"\b(?!(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have|about|of|for|in|on|to|with|by|from|at|into"
    r"|than|like|after|before|and|but|so|or|why|how|what|when|where|explain|show|give|mean|means)\b)\w+ that(?= \w)",
    re.IGNORECASE,
)
"""'a kernel that adds': a 'that' which points at the word before it."""
_GOES_ON = re.compile(
    r"^(?:(?:ok|okay|well|hmm?|yes|alright|right|cool|great|thanks?),?\s+)?"
    r"(?P<lead>and|but|so|or|then|also|(?P<why>why)|how so|how come|what about|how about|what if|any|more|another|else"
    r"|tell me more|go on)\b|为什么呢|还有|呢[？?]?$",
    re.IGNORECASE,
)
_NAMES_ITS_SUBJECT = re.compile(
    r"^(?:what(?:'s| is| are| does)|who is|define|explain|describe) (?!the\b)\w|什么(?:是|叫)|是什么|解释",
    re.IGNORECASE,
)
"""Asks what one thing is, and so names it: 'What is occupancy?', but not 'what is the syntax?'."""

_STYLE = re.compile(
    r"(?:[,:;]|(?<!\s))\s*\b(?:please )?(?:(?:can|could) you )?(?:(?:explain|tell me|describe)(?: (?:it|to me))? )?"
    r"(?:(?:like|as if) i(?:'m| am| were|m) (?:a )?(?:five|5|child|kid|beginner)(?: years? old)?|eli5"
    r"|in (?:very )?(?:simple|simpler|plain|easy|layman'?s?) (?:words|terms|english))\b[,:;]?",
    re.IGNORECASE,
)

_GREETED = re.compile(
    r"^\W*(?:hi|hello|hey|good (?:morning|afternoon|evening|day))(?: there| all| everyone| coalesce)?"
    r"(?:\s*[,.!:;]+\s*|\s+(?=(?:what|how|why|when|which|where|can|could|please|is|are|i)\b))"
    r"|^\W*(?:你好|您好|嗨)(?:呀|啊)?\s*[，,。.！!、\s]\s*",
    re.IGNORECASE,
)

_TYPED = {
    "wat": "what",
    "wht": "what",
    "waht": "what",
    "hwat": "what",
    "wats": "what's",
    "hw": "how",
    "hwo": "how",
    "wy": "why",
}
_FIRST_WORD = re.compile(rf"^(?:{'|'.join(_TYPED)})\b", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:\(?\d{1,2}[.)、]|[-*•])\s*(?=\S)", re.MULTILINE)
_QUESTION_END = re.compile(r"(?<=[?？])[\s\"')”’]*")
_ASKS = re.compile(
    r"^(?:(?:and|but|so|or|also|then|ok|okay|please|hi|hello)[,\s]+)*"
    r"(?:what|how|why|when|where|which|who|whose|is|are|was|were|do|does|did|can|could|should|would|will|has|have|may|must|"
    r"explain|describe|define|list|name|compare|give|show|tell)\b",
    re.IGNORECASE,
)

_AND_ASKS = re.compile(r",? and (?P<more>(?:what|how|why|when|where) \w)", re.IGNORECASE)
_ASKS_ZH = re.compile(r"什么|怎么|怎样|如何|为何|多少|多大|多长|哪|几|是否|啥|区别")
_ASKS_WHERE = re.compile(
    r"(?:which|what) (?:chapters?|sections?|pages?)(?: of the books?)? (?:(?:is|are) (?=about|on)|talks?|speaks?|"
    r"covers?|explains?|discuss(?:es)?|deals?|describes?|treats?|mentions?|introduces?)"
    r"(?: ?(?:about|on|with|of))? (.+?)\W*"
    r"|(?:in|on) (?:which|what) (?:chapters?|sections?|pages?)(?: of the books?)? (?:is|are|(?:can|do) (?:i|we) find) "
    r"(.+?)(?: (?:explained|discussed|covered|described|introduced))?\W*"
    r"|(?:where (?:in the books? )?(?:can|do|should) (?:i|we) (?:read|find|learn)|what (?:can|do|should) (?:i|we) read)"
    r"(?: more)? (?:about|on) (.+?)\W*"
    r"|(.+?)(?:是)?在?(?:书(?:中|里)的?)?(?:哪一?[章节页]|第几[章节页])(?:里?(?:讲|介绍|提到|谈|有))?(?:的|到|了|过)?\W*"
    r"|哪一?[章节页]里?(?:讲|介绍|提到|谈|说|有)(?:到|了|过|的是)?(.+?)\W*",
    re.IGNORECASE,
)
_BEGINS_ASKING = re.compile(r"(?:how|why|when|where|what|which|whether)\b", re.IGNORECASE)
_NUMBERED = re.compile(r"^\s*(?:Q(?:uestion)?\s*\d{0,3}\s*[.:)]|\d{1,3}\s*[.)、])\s*(?=\D)", re.IGNORECASE)
_LETTER = r"[（(]?{}[)）.:：、．]\s*(?=\S)"
_OPTIONS = re.compile(
    rf"(?<=[?？:：.。\n])\s*{_LETTER.format('A')}.*?(?<!\w){_LETTER.format('B')}.*", re.IGNORECASE | re.DOTALL
)
_ASKS_ABOUT_OPTIONS = re.compile(
    r"\b(?:following|these|below|options?|true|false|correct|incorrect|not|except)\b|下列|以下|下面|哪一?[个项种些]|正确|错误",
    re.IGNORECASE,
)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE_LINE = re.compile(
    r"[;{}]\s*(?://.*|/\*.*)?$|^\s*(?:#\s*(?:include|pragma|define|if|endif)|__\w+__|import \w|from \w+ import"
    r"|def \w+\(|class \w+[:(]|@\w+[.(]|(?:for|while|if)\s*\(|return\b|//|template\s*<|\w[\w.\[\]]*\s*[-+*/]?=\s*\S"
    r"|\w[\w.:]*\(.*\)\s*$|>>> )"
)
_ABOUT_CODE = re.compile(
    r"\b(?:what|explain|describe|does|do|is|this|the|following|code|kernel|program|function|snippet|here|wrong|with|it|in|my|why|slow|bug|fix|"
    r"mean|please|can|you|me|how|work|works|tell|help|about|review|there|any|errors?|problem|understand|i|for|to|a|of|optimi[sz]e|faster|make|"
    r"improve|use|used|purpose|output|prints?)\b|[\W_]|这|段|个|代码|程序|核函数|函数|作用|是|做|什么|的|有|问题|解释|一下|请|错|哪里|吗|在|干|怎么|为|慢|了|意思",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class ChapterAsked:
    """A chapter as a message names it: its number (-1 is the last), or words of its title."""

    number: int | None = None
    title: str = ""


@cache
def _patterns() -> tuple[tuple[MessageKind, re.Pattern[str]], ...]:
    """Kinds and wordings of `messages.tsv`."""
    parts: dict[str, str] = {}
    found: list[tuple[MessageKind, re.Pattern[str]]] = []
    for line in files("rag").joinpath("messages.tsv").read_text(encoding="utf-8").splitlines():
        name, tab, wording = line.partition("\t")
        if not tab:
            continue
        if name.startswith("{"):
            parts[name] = f"(?:{parts[name]}|{wording})" if name in parts else wording
            continue
        if name not in get_args(MessageKind):
            raise ValueError(f"messages.tsv: {name!r} is not a kind of message")
        for part, pattern in parts.items():
            wording = wording.replace(part, pattern)
        polite = parts["{please}"]
        whole = rf"(?:{polite},? )*(?:{parts['{can_you}']} )?(?:{wording})(?:[, ]+{polite})*"
        found.append((cast("MessageKind", name), re.compile(whole, re.IGNORECASE)))
    return tuple(found)


def message_kind(text: str) -> MessageKind:
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


def _talk(bare: str) -> MessageKind | None:
    """The kind of a wording of `messages.tsv`."""
    return next((kind for kind, pattern in _patterns() if pattern.fullmatch(bare)), None)


def asks_which_books(text: str) -> bool:
    """Whether a message of kind `library` wants the books by name."""
    return bool(_ASKS_WHICH_BOOKS.search(text))


def has_words(text: str) -> bool:
    """Whether a message holds a letter or digit of any script, or an emoji that says thanks."""
    return any(character.isalnum() for character in text) or message_kind(text) != "question"


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
    points_back = bool(_POINTS_BACK.search(_RELATIVE.sub(" ", text)))
    if stems and _NAMES_ITS_SUBJECT.search(text) and not points_back:
        return False
    goes_on = _GOES_ON.search(text)
    few = _FEW_STEMS if goes_on is None or not goes_on["why"] else _FEWEST_STEMS
    return stems < 2 or (stems <= _FEW_STEMS and points_back) or (stems <= few and goes_on is not None)


def standing_question(turns: Sequence[Turn], follow_up: str = "") -> str:
    """What a follow-up is about: the newest question that stands alone; "" where there is none.

    One without words of its own ('why?') is about the newest follow-up, too. Of a long question it is the beginning.
    """
    beginnings = (turn.question[:MOST_SEARCHED_CHARACTERS] for turn in turns)
    asked = [question for question in beginnings if message_kind(question) == "question"]
    alone = next((question for question in reversed(asked) if not refers_to_earlier(question)), "")
    more = asked and asks_for_more(follow_up) and asked[-1] != alone
    return f"{alone} {asked[-1]}".strip() if more else alone


def after_standing(standing: str, follow_up: str) -> str:
    """A follow-up together with the question that it is about.

    Where that asks what a thing is, the thing stands in place of 'it', and 'why should I care' is asked about it.
    """
    standing = looked_up(standing) or standing
    subject = subject_of(standing)
    if subject and (match := _IT.search(follow_up) or _WHY_CARE.search(follow_up)):
        named = subject if match.re is _IT else f"why use {subject}"
        return f"{follow_up[: match.start()]}{named}{follow_up[match.end() :]}"
    return f"{standing} {follow_up}"


def asks_for_more(follow_up: str) -> bool:
    """Whether a follow-up has no words of its own ('why?', 'go on'): it asks for more about the same."""
    return not terms_of(translate_terms(follow_up) if is_chinese(follow_up) else follow_up).pieces


def without_greeting(text: str) -> str:
    """A question without the greeting before it, its first word as it is spelt: 'hello, wat is a kernel?'."""
    rest = _GREETED.sub("", text, count=1) or text
    return _FIRST_WORD.sub(lambda match: _TYPED[match[0].lower()], rest, count=1)


def without_style(text: str) -> str:
    """A question without 'explain like I'm five' and the like; unchanged where nothing would be left."""
    rest = _STYLE.sub(" ", text).strip(" ,:;-")
    return rest if rest != text and len(terms_of(rest).pieces) > 0 else text


def looked_up(text: str) -> str:
    """A question for the place of something as one for what it is, which is searched for: 'Which chapter talks about
    tiling?' as 'What is tiling?'; "" for other questions.
    """
    match = _ASKS_WHERE.fullmatch(text.strip()) if len(text) <= LONGEST_READ else None
    subject = next(filter(None, match.groups()), "") if match is not None else ""
    if not terms_of(translate_terms(subject) if is_chinese(subject) else subject).pieces:
        return ""
    if is_chinese(text):
        return f"{subject}？" if _ASKS_ZH.search(subject) else f"什么是{subject}？"
    return f"{subject}?" if _BEGINS_ASKING.match(subject) else f"What is {subject}?"


def stem_of(text: str) -> str:
    """A pasted exam question without its number and its lettered options."""
    return _stem_and_options(text)[0]


def _stem_and_options(text: str) -> tuple[str, str]:
    whole = _NUMBERED.sub("", text[:MOST_SEARCHED_CHARACTERS])
    block = _OPTIONS.search(whole)
    return (whole[: block.start()].strip(), block[0]) if block is not None else (whole.strip(), "")


def options_of(text: str) -> tuple[str, ...]:
    """The lettered options of a pasted exam question, without their letters."""
    block = _stem_and_options(text)[1]
    if not block:
        return ()
    starts: list[re.Match[str]] = []
    for letter in "ABCDEFGH":
        mark = re.compile(rf"(?:^|(?<=[\s;；,，])){_LETTER.format(letter)}", re.IGNORECASE)
        if (found := mark.search(block, starts[-1].end() if starts else 0)) is None:
            break
        starts.append(found)
    ends = [each.start() for each in starts[1:]] + [len(block)]
    return tuple(block[start.end() : end].strip(" \t\n;；,，") for start, end in zip(starts, ends, strict=True))


def without_options(text: str) -> str:
    """A pasted exam question without its number and its lettered options; whole where it asks about them."""
    stem = stem_of(text)
    return stem if terms_of(stem).pieces and not _ASKS_ABOUT_OPTIONS.search(stem) else text


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
        asked = _defined_and_more(text) if len(asked) < 2 else asked
    return tuple(asked[:MOST_PARTS]) if len(asked) > 1 else (text,)


def _defined_and_more(text: str) -> list[str]:
    """'What is occupancy and how do I improve it?' in two; nothing where the first part asks for no definition."""
    match = _AND_ASKS.search(text)
    if match is None:
        return []
    first, second = text[: match.start()].strip(" ,"), text[match.start("more") :].strip()
    return [first, second] if subject_of(first) and _is_question(first) and _is_question(second) else []


def code_in(text: str) -> tuple[str, str]:
    """A message as its prose and the code pasted into it, "" for none."""
    fenced = _FENCED.findall(text)
    if fenced:
        return _FENCED.sub(" ", text).strip(), "\n".join(fenced)
    lines = text.splitlines()
    code = [line for line in lines if _CODE_LINE.search(line)]
    taken = set(code)
    prose = "\n".join(line for line in lines if line not in taken).strip()
    alone = _is_statement(text) if len(lines) == 1 else only_about_code(prose)
    if not code or (len(code) == 1 and not alone):
        return text, ""
    return prose, "\n".join(code)


def asks_in_chinese(message: str) -> bool:
    """Whether a message is Chinese, whatever code is pasted into it."""
    return is_chinese(code_in(message)[0] or message)


def _is_statement(line: str) -> bool:
    """Whether a line assigns or calls, and ends as code does."""
    body = line.rstrip()  # a regular expression took seconds for 20,000 brackets
    return body.endswith((";", "{", "}")) and ("=" in body or "(" in body)


def only_about_code(prose: str) -> bool:
    """Whether the text around pasted code asks only about that code ('what does this code do?') or is empty."""
    return not _ABOUT_CODE.sub("", prose).strip()


def names_in(code: str) -> tuple[str, ...]:
    """The identifiers in code, in order, each once."""
    return tuple(dict.fromkeys(_NAME.findall(code)))


def _bare(text: str) -> str:
    return " ".join(text.replace("’", "'").split()).strip(_AROUND)


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


# --- questions: what kind of answer

QuestionKind: TypeAlias = Literal["define", "number", "fact", "why", "how", "compare", "list", "code", "yes_no"]

LONGEST_READ = 300
"""Only the beginning of a longer question or sentence is looked at, in characters."""

_PATTERNS: dict[QuestionKind, tuple[str, ...]] = {
    "why": (r"\b(?:why|how come|what(?:'s| is) the reason|reasons? for|what causes)\b", "为什么|为何|原因"),
    "compare": (
        r"\bdiffer(?:s|ently)?\b|\bdiff?e?r[ae]?n[cs]es?\b|\bseparates? .* from\b"
        r"|\bdifferent (?:from|than|to)\b|\b(?:are|is) .*\bdifferent\W*$"
        r"|\bcompare[ds]?\b|\bversus\b|\bvs\b|\bunlike\b|\bas opposed to\b",
        "区别|不同|差别|差异|比较|相比|不一样",
    ),
    "number": (
        r"\bhow (?:many|much|large|big|long|fast|wide|high|deep|often|small)\b",
        r"\b(?:max(?:imum|imal)?|minimum|largest|smallest)\b.*\b(?:number|size|count|amount|dimensions?)\b",
        r"^\W*(?:what(?:'s| is| are) )?(?:the )?(?:number|size|count) of\b",
        "多少|几个|几次|多大|多长|多快",
    ),
    "code": (
        r"\b(?:snippet|listing|syntax|signature|pseudo-?code)\b|\blooks? like\b",
        r"^\W*(?:an? |some )?(?:code |sample )?(?:examples?|code|samples?) (?:of|for|with|using|that|to)\b",
        r"^(?!\W*(?:wh\w+|how|can|do|does|is|are|to|in)\b).*\b(?:command|example|code)\W*$|\bcode (?:for|to|that)\b",
        r"^\W*(?:please |can you |could you )?(?:write|show|implement)\b",
        r"^(?!\W*(?:do|does|did|should|is|are|when|must)\b).*\b(?:show|see|give|need|want|write|sample|example)\b"
        r".{0,40}\b(?:code|kernel|program|loop|function|command|@?\w+ize)\b",
        r"\b(?:what(?:'?s| is| are)|which) (?:(?!an? )\w+ ){0,3}(?:command|pragma|line)\b(?! (?:queue|buffer)s?\b)"
        r"|\bi (?:type|add)\b",
        r"\bhow (?:do|can|would|should) (?:i|you|we|one) (?:write|declare|define|call|launch|allocate|print)\b",
        r"代码\s*(?:怎么|如何|是什么|[。？?，,]|$)|怎[么样](?:写|声明|定义|分配|打印|构造)|写一个|写出|语法",
        r"(?:什么|哪条|哪个|用来.*的)命令|命令\s*(?:是什么|怎么|[。？?]|$)|敲什么|(?:示例|例子)\s*[。？?]?$",
        "(?:给|看|展示|示例|例子).*(?:代码|核函数|内核|kernel|程序|函数)",
    ),
    "list": (
        r"^\W*(?:list|name|enumerate)\b",
        r"\bwhat (?:are|were) (?:all )?(?:the|some|typical|common|possible|my|our|your)\b",
        r"\b(?:which|what) (?:two|three|four|five|six|kinds?|types?|sorts?|steps?|options?|ways?)\b",
        r"\b(?:which|what) (?:[\w-]+ ){0,2}\w+s (?:are|can|could|do|does|were|exist|have|must|should|may|will)\b",
        "哪些|哪几|列出",
    ),
    "how": (r"\bhow\b|\bsteps\b|\bprocedure\b", "怎么|如何|怎样|步骤"),
    "yes_no": (
        r"^\W*(?:so |and |but |then )?"
        r"(?:is|are|does|do|did|can|could|will|would|should|has|have|was|were|must|may)\b",
        "吗[？?]?$|是否|能不能|可不可以|是不是",
    ),
}
_KINDS = {kind: re.compile("|".join(patterns), re.IGNORECASE) for kind, patterns in _PATTERNS.items()}
_ASKS_MORE = re.compile(r"\band (?:what|why|how|when|which|where)\b", re.IGNORECASE)
"""Two questions in one are answered at length."""
_DEFINES = re.compile(
    r"^\W*(?:[^:?]{1,40}: )?(?:so |and |but |then |please |ok |hey |hi |well |exactly |can you |could you |just )*"
    r"(?:what(?:'s|s|re|'re| (?:exactly |actually |really )?(?:is|are|was)) (?:meant by |called )?|who(?:'s| is) "
    r"|define |definition of "
    r"|(?:the )?meaning of |explain (?:to me )?(?:what )?|describe |tell me about "
    r"|what do(?:es)? (?:you |they )?mean by |help me (?:to )?understand |teach me (?:about )?"
    r"|i (?:do not|don'?t|can(?:no|')?t) (?:really )?understand )"
    r"(?:a |an |the |this |that )?(?P<subject>[^,;.?!]+?)(?: (?:is|are|means?))?"
    r"(?:,? (?:to me|in|on|for|with|when|if|and|exactly|actually|anyway|again|please)\b[^.?!]*)?\W*$"
    r"|^\W*what do(?:es)? (?P<meant>[^,;.?!]+?) (?:mean|stand for|refer to|do)\W*$"
    r"|^(?:.{0,40}\b)?(?:tell me|know|explain(?: to me)?|understand|wonder(?:ing)?|remind me) what (?:a |an |the )?"
    r"(?P<clause>[^,;.?!]+?) (?:is|are|means?|does)\W*$"
    r"|^\W*(?P<asked>[^,;.?!]+?),? (?:meaning|definition|what is (?:it|that|this))\W*$"
    r"|^\W*(?P<terse>[\x2f-\x7e]+(?: [\x2f-\x7e]+){0,2})\W*$",
    re.IGNORECASE,
)
_DEFINES_ZH = re.compile(
    r"什么是|什么叫|何谓|是什么(?:意思|东西)?[？?]?$|是指什么|指的是什么|的含义|的定义|^(?:请)?解释"
)
_MOST_TERMS = 4
"""Words of the longest name that is defined; more than these are a question about something."""
_NOT_A_NAME = re.compile(
    r"\b(?:of|to|that|which|what|who|when|where|if|between|than|and|or|from|by|how|why|used|is|are|do|does|did|can|show"
    r"|write|vs|versus|it|this|these|those|there|you|i|more)\b",
    re.IGNORECASE,
)
_STEPS = re.compile(
    r"\bhow (?:to|(?:do|can|could|would|should|must) (?:i|you|we|one))\b"
    r"(?! (?:choose|decide|know|pick|tell|find|improve|avoid|learn|understand|think|remember|get better)\b)"
    r"|\bhow (?:is|are) .* (?:declared|written|called|compiled|launched|allocated|created|done|used)\b"
    r"|^\W*(?:compile|declare|launch|allocate|create|build|install|run)\b",
    re.IGNORECASE,
)
_COMPARED = re.compile(
    r"\b(?:between|compare|diff?e?r[ae]?n[cs]es? of)\s+(.+?)\s+(?:and|with|to)\s+(.+)"
    r"|\bdo\s+(.+?)\s+and\s+(.+?)\s+(?:differ|compare|\w+ differently)\b|\bseparates?\s+(.+?)\s+from\s+(.+)"
    r"|(.+?)\s+and\s+(.+?),?\s+(?:what(?:'s| is) the )?differences?\W*$"
    r"|(.+?)[\s,]+(?:vs\.?|versus|or|than|instead of|unlike"
    r"|(?:differs?|different|compared?)\s+(?:from|to|with))\s+(.+)",
    re.IGNORECASE,
)
_AROUND_SIDE = re.compile(
    r"^(?:(?:how|what|which|why|is|are|do|does|did|should|i|use|the|an?|in|when|would|can|it|better|to|tell|me|please)\s+)+"
    r"|\s+(?:in|on|for|when|with)\b.*$",
    re.IGNORECASE,
)
"""What stands around the name of a side."""


def question_kind(question: str) -> QuestionKind:
    """The kind of a question in the user's words; `fact` where its words do not say."""
    question = without_options(question[:LONGEST_READ])
    if _ASKS_MORE.search(question):
        return "how"
    if (subject_of(question) and not _KINDS["number"].search(question)) or _defines_in_chinese(question):
        return "define"
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(question)), "fact")


def _defines_in_chinese(question: str) -> bool:
    return bool(_DEFINES_ZH.search(question)) and not _KINDS["compare"].search(question)


def subject_of(question: str) -> str:
    """The name that an English question wants defined ('What is a warp?': 'warp'); "" for other questions."""
    match = _DEFINES.match(question) if len(question) <= LONGEST_READ else None
    if match is None:
        return ""
    subject = next(filter(None, match.groups())).strip()
    if match["terse"] and _KINDS["code"].search(question):
        return ""
    few = bool(terms_of(subject).stems) and len(subject.split()) <= _MOST_TERMS
    return subject if few and not _NOT_A_NAME.search(subject) else ""


def wants_steps(question: str) -> bool:
    """Whether a question asks how something is done, so that the code that does it helps."""
    return _STEPS.search(question) is not None


def sides_of(question: str) -> tuple[str, ...]:
    """The two things that an English question compares, without articles; empty where it names no two."""
    match = _COMPARED.search(question[:LONGEST_READ])
    if match is None:
        return ()
    sides = [_AROUND_SIDE.sub("", side.strip(" ,.?!")) for side in match.groups() if side]
    return tuple(sides) if len(sides) == 2 and all(terms_of(side).pieces for side in sides) else ()
