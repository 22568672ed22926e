"""What was asked: is the question allowed, is it a question at all, and what kind of answer does it want?

Every entry point uses the checks. Greetings, thanks, 'who are you' and wishes about the last answer ('shorter') are
talk, where a message is nothing else: 'thanks' is, 'thanks, and what is a warp?' is a question. Talk is
replied to here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from indexes.errors import InvalidInput, NotFound, TooLarge
from indexes.messages import msg
from indexes.types import Document, Filters
from indexes.words import NUMBER_WORDS, is_chinese, number_value, terms_of
from rag.errors import ArmUnavailable
from rag.types import ARMS, TUNED_ARMS, Arm, Question, SearchableLibrary, TalkKind, Turn
from rag.wording import translate_terms

MOST_CHARACTERS = 20_000
MOST_PASSAGES = 50
MOST_ANSWER_TOKENS = 32_768
MOST_SEARCHED_CHARACTERS = 2000
"""A longer question is searched for by its beginning: an embedder reads no more of it."""
MOST_TALK_CHARACTERS = 80
NAMED_BOOKS = 20
"""Books named by the reply that says what Coalesce is."""

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
            msg(
                "the {} holds the control character {} at position {}",
                name,
                f"U+{ord(found.group()):04X}",
                found.start(),
            ),
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
            msg("the {} has {} characters", name, f"{len(text):,}"),
            hint=msg("ask in at most {} characters", f"{MOST_CHARACTERS:,}"),
        )
    reject_control_characters(text, name)
    kept = "".join(c for c in text if unicodedata.category(c) != "Cf" or c in "\u200c\u200d").strip()
    if not kept:
        raise InvalidInput(msg("the {} is empty", name), hint="ask in at least one word")
    return kept


def check_question(question: Question) -> Question:
    """The question with its text cleaned.

    Raises:
        InvalidInput: text without words, control characters, an unknown arm, `top_k` or `max_tokens` out of range, bad
            filters, a sampling setting out of range, an empty stop string.
        TooLarge: too many characters.
    """
    if question.arm not in ARMS:
        raise InvalidInput(f"arm {question.arm!r} is not known", hint=msg("use one of {}", ", ".join(ARMS)))
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
            msg("{}-{} is not a range of pages", pages[0], pages[1]), hint="Give the first and the last page, from 1."
        )
    text = clean_text(question.text)
    if not has_words(text):
        raise InvalidInput(
            msg("there are no words in the question {}", repr(text[:40])), hint="ask in at least one word"
        )
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
            told = "no chapter {}; this book has {}"
            if len(documents) > 1:
                told = "no chapter {}; the longest of these books has {}"
            last = max((chapter.ordinal for chapter in chapters), default=0)
            raise NotFound(msg(told, wanted, last), hint="give a number from 1, or an exact title")


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

_AROUND = " ,.;:!?~…，。！？；：、()\"'“”"
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CLAUSE = re.compile(r"[,.;!，。；！]+\s*")
_TALK: dict[TalkKind, str] = {
    "greeting": r"(?:hi|hello|hey|good (?:morning|afternoon|evening|day))(?: there| all| everyone| coalesce)?"
    r"|how are you|(?:你好|您好|嗨|大家好|早上好|下午好|晚上好)(?:呀|啊)?",
    "thanks": r"ok|okay|great|cool|nice|perfect|got it|i see|understood|makes sense|(?:good ?)?bye"
    r"|(?:many )?thanks?(?: you)?(?: (?:very|so) much| a lot)?|thx|cheers"
    r"|谢谢(?:你|您)?|多谢|感谢|好的|明白了|懂了|知道了|再见|[👍🙏❤🎉😀-😄😊👌💯♥️\s]+",
    "about": r"(?:who|what) are you|what(?:'s| is) (?:your name|coalesce|this)|what can (?:you|i) (?:do|ask)"
    r"|help(?: me)?|are you (?:an? )?(?:ai|bot|robot|human|llm|language model|chatgpt)"
    r"|(?:你|您)是谁|你叫什么(?:名字)?|(?:你|您)(?:能|会|可以)(?:做|干)(?:什么|啥)|怎么用|帮助",
    "exam": r"(?:please )?(?:quiz|test|examine) me(?: (?:on|about) .+)?(?: please)?"
    r"|请?(?:(?:考|测试|测验)(?:一?考|一下)?我|(?:给我)?出(?:几道|些)?题(?:考我)?)(?:吧|一下)?",
}
_WISHES = frozenset(
    "short shorter brief briefly concise simple simpler simply easier plain plainly summary summarise summarize "
    "shorten simplify rephrase reword paraphrase translate tl tldr eli5 five beginner long sentence example examples "
    "english chinese".split()
)
"""What a language model can do with the last answer, or with a whole chapter."""
_BESIDE_WISHES = frozenset(
    "a again an and answer another as book can chapter could do dr explain for from give i i'm i'd if in into it like "
    "line lines make me more much number of one please put say section sentences show tell terms text that the this to "
    "too up version want with words would you your".split()
)
_WISHES_ZH = re.compile(
    r"简单|简短|简洁|短|通俗|大白话|翻译|总结|概括|归纳|换(?:一?个|一?种)说法|举例|例子|示例|一句话|英文|英语|中文"
)
_BESIDE_WISHES_ZH = re.compile(
    r"[用请再更能可以不吗你您给我们说讲解释表达一下点些地得的把它这那个本章节书一二三四五六七八九十来成为上面刚才回答案内容太长了举吧呢第\d\s]"
)
_NUMERALS = "零一二三四五六七八九"
_CHAPTER = re.compile(
    rf"\bchapter\s+(\d{{1,{_MOST_DIGITS}}})\b"
    rf"|第\s*(\d{{1,{_MOST_DIGITS}}}|[{_NUMERALS}]?十[{_NUMERALS}]?|[{_NUMERALS}])\s*章",
    re.IGNORECASE,
)

_REPLIES: dict[TalkKind, tuple[str, str]] = {
    "greeting": (
        "Hello! Ask me a question: I answer from the books in the library and say where it is written.",
        "您好！请提问，我根据书库中的书回答，并注明出处。",
    ),
    "thanks": ("You are welcome. Ask again whenever you like.", "不客气，欢迎继续提问。"),
    "about": (
        "I am Coalesce. I answer questions from the books in the library ({books}) and show the quote behind every "
        "sentence. You can ask on: 'why?', 'and on AMD?', 'show me the code'.",
        "我是 Coalesce，根据书库中的书（{books}）回答问题，每句话都附上原文。您可以追问：“为什么？”、“看看代码”。",
    ),
    "exam": (
        "Exams are under Study: choose a book and its chapters, and every mark comes with the passage that proves it.",
        "考试在“学习”里：选择书和章节，每个评分都附有证明它的段落。",
    ),
    "rewrite": (
        "Rewording, summaries and examples need a language model (see Settings); without one, answers are the books' "
        "own sentences.",
        "改写、总结和举例需要语言模型（见“设置”）；没有语言模型时，回答由书中的原句组成。",
    ),
}
_NO_BOOKS = ("none yet", "暂无")


def talk_kind(text: str) -> TalkKind | None:
    """The kind of a message that is no question for the books; None for a question."""
    bare = " ".join(text.replace("’", "'").split()).strip(_AROUND)
    if len(bare) > MOST_TALK_CHARACTERS:
        return None
    if _is_wish(bare):
        return "rewrite"
    said = [_talk(clause.strip(_AROUND)) for clause in _CLAUSE.split(bare)]
    return said[-1] if all(said) else None


def _talk(bare: str) -> TalkKind | None:
    return next((kind for kind, pattern in _TALK.items() if re.fullmatch(pattern, bare, re.IGNORECASE)), None)


def _is_wish(bare: str) -> bool:
    """Whether a message names only what should be done with an answer: 'in simple words', '用大白话解释一下'."""
    if is_chinese(bare):
        rest, wishes = _WISHES_ZH.subn("", bare)
        return wishes > 0 and not _BESIDE_WISHES_ZH.sub("", rest).strip(_AROUND)
    words = {word for word in re.findall(r"[^\s,.;:!?()\"]+", bare.lower()) if not word.isdecimal()}
    return bool(words & _WISHES) and words <= _WISHES | _BESIDE_WISHES


def chapter_of(wish: str) -> int | None:
    """The chapter that a wish is about (`summarise chapter 5`, `总结第十二章`); None for the last answer."""
    named = _CHAPTER.search(NUMBER_WORDS.sub(lambda words: str(number_value(words[0])), wish))
    if named is None:
        return None
    number = named[1] or named[2]
    if number.isdecimal():
        return int(number)
    tens, ten, ones = number.rpartition("十")
    return _NUMERALS.index(ones or "零") + (10 * _NUMERALS.index(tens or "一") if ten else 0)


def reply_to(kind: TalkKind, library: SearchableLibrary, *, chinese: bool) -> str:
    """What is said to a message that needs no search."""
    titles = [document.title for document in library.documents()]
    named = [*titles[:NAMED_BOOKS], *(["…"] if len(titles) > NAMED_BOOKS else [])]
    books = ("、" if chinese else ", ").join(named) or _NO_BOOKS[chinese]
    return _REPLIES[kind][chinese].format(books=books)


def has_words(text: str) -> bool:
    """Whether a message holds a letter or digit of any script, or an emoji that says thanks."""
    return any(character.isalnum() for character in text) or talk_kind(text) is not None


def prose_of(text: str) -> str:
    """A message without the code pasted into it: fenced blocks, and lines that end as statements do."""
    unfenced = _FENCED.sub(" ", text)
    lines = unfenced.splitlines()
    prose = [line for line in lines if not line.rstrip().endswith((";", "{", "}"))]
    return (text if unfenced == text and prose == lines else "\n".join(prose)).strip()


def asks_in_chinese(message: str) -> bool:
    """Whether a message is Chinese, whatever code is pasted into it."""
    return is_chinese(prose_of(message) or message)


def options_of(text: str) -> tuple[str, tuple[str, ...]]:
    """A pasted exam question without its lettered options, and these without their letters; () for fewer than two."""
    starts: list[re.Match[str]] = []
    for letter in "ABCDEFGH":
        mark = re.compile(rf"(?:(?<=[\s?？:：;；,，])|^)[（(]?{letter}[)）.、．:：]\s*(?=\S)")
        found = mark.search(text, starts[-1].end() if starts else 0)
        if found is None:
            break
        starts.append(found)
    if len(starts) < 2 or not text[: starts[0].start()].strip():
        return text, ()
    ends = [start.start() for start in starts[1:]] + [len(text)]
    options = tuple(text[start.end() : end].strip(" \t\n;；,，") for start, end in zip(starts, ends, strict=True))
    return text[: starts[0].start()].strip(), options


# --- questions: what kind of answer

QuestionKind: TypeAlias = Literal["define", "list", "code", "fact"]
"""Sets how long an answer is, and which forms of answer are looked for."""

LONGEST_READ = 300
"""Only the beginning of a longer question or sentence is looked at, in characters."""

_PATTERNS: dict[QuestionKind, tuple[str, ...]] = {
    "code": (
        r"^\W*(?:an? |some )?(?:code |sample )?(?:examples?|code|samples?) (?:of|for|with|using|that|to)\b",
        r"^\W*(?:please |can you |could you )?(?:write|show|implement)\b",
        r"\bhow (?:do|can|would|should) (?:i|you|we|one) (?:write|declare|define|call|launch|allocate|print)\b",
        r"(?:什么|哪条|哪个|用来.*的)命令|命令\s*(?:是什么|怎么|[。？?]|$)|敲什么|(?:示例|例子)\s*[。？?]?$",
        "(?:给|看|展示|示例|例子).*(?:代码|核函数|内核|kernel|程序|函数)",
    ),
    "list": (
        r"^\W*(?:list|name|enumerate)\b",
        r"\bwhat (?:are|were) (?:all )?(?:the|some|typical|common|possible|my|our|your)\b",
        r"\b(?:which|what) (?:two|three|four|five|six|kinds?|types?|sorts?|steps?|options?|ways?)\b",
        "哪些|哪几|列出",
    ),
}
_KINDS = {kind: re.compile("|".join(patterns), re.IGNORECASE) for kind, patterns in _PATTERNS.items()}
_DEFINES = re.compile(
    r"^\W*(?:so |and |but |exactly )*(?:what(?:'s|s|'re| is| are| was| exactly is)|define|explain|describe) "
    r"(?:a |an |the )?(?P<subject>[^,;.?!]+?)(?:,? (?:to me|in|on|for|with|exactly|and)\b[^.?!]*)?\W*$"
    r"|^\W*what do(?:es)? (?P<meant>[^,;.?!]+?) (?:mean|stand for|do)\W*$"
    r"|^\W*(?P<terse>[\x2f-\x7e]+(?: [\x2f-\x7e]+){0,2})\W*$",
    re.IGNORECASE,
)
_DEFINES_ZH = re.compile(
    r"什么是|什么叫|何谓|是什么(?:意思|东西)?[？?]?$|是指什么|指的是什么|的含义|的定义|^(?:请)?解释"
)
_COMPARES_ZH = re.compile("区别|不同|差别|差异|比较|相比|不一样")
_MOST_TERMS = 4
"""Words of the longest name that is defined; more than these are a question about something."""
_NOT_A_NAME = re.compile(
    r"\b(?:of|to|that|which|what|who|when|where|if|between|than|and|or|from|by|how|why|used|is|are|do|does|did|can|show"
    r"|write|vs|versus|it|this|these|those|there|you|i|more)\b",
    re.IGNORECASE,
)


def question_kind(question: str) -> QuestionKind:
    """The kind of a question in the user's words; `fact` where its words do not say."""
    question = question[:LONGEST_READ]
    if subject_of(question) or (_DEFINES_ZH.search(question) and not compares(question)):
        return "define"
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(question)), "fact")


def compares(question: str) -> bool:
    """Whether a Chinese question compares things."""
    return _COMPARES_ZH.search(question) is not None


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


# --- follow-ups

_FEW_STEMS = 6
_POINTS_BACK = re.compile(
    r"\b(?:it|its|they|them|their|this|that|these|those|such|ones?|both)\b|它|这|那|该",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"^(?:(?:ok|okay|well|yes|great|thanks?),?\s+)?(?:and|but|so|or|then|also|how so|what about|how about|what if"
    r"|any|more|another|else|tell me more|go on)\b|为什么呢|还有|呢[？?]?$",
    re.IGNORECASE,
)
_IT = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)


def refers_to_earlier(text: str) -> bool:
    """Whether a question in a conversation is too short, or points back too much, to be searched for alone."""
    stems = len(own_terms(text))
    points_back = bool(_POINTS_BACK.search(text))
    if stems and question_kind(text) == "define" and not points_back:
        return False
    return stems < 2 or (stems <= _FEW_STEMS and (points_back or bool(_GOES_ON.search(text))))


def standing_question(turns: Sequence[Turn], follow_up: str) -> str:
    """What a follow-up is about: the newest question that stands alone, else the first; "" where there is none.

    One without words of its own ('why?') is about the newest follow-up, too. Of a long question it is the beginning.
    """
    beginnings = (turn.question[:MOST_SEARCHED_CHARACTERS] for turn in turns)
    asked = [question for question in beginnings if talk_kind(question) is None]
    first = asked[0] if asked else ""  # nothing stands before it that 'its' could mean
    alone = next((question for question in reversed(asked) if not refers_to_earlier(question)), first)
    more = asked and not own_terms(follow_up) and asked[-1] != alone
    return f"{alone} {asked[-1]}".strip() if more else alone


def after_standing(standing: str, follow_up: str) -> str:
    """A follow-up with the question that it is about, whose subject stands in place of 'it' where it defines one."""
    subject = subject_of(standing)
    if subject and _IT.search(follow_up):
        return _IT.sub(lambda _: subject, follow_up, count=1)
    return f"{standing} {follow_up}"


def own_terms(text: str) -> frozenset[str]:
    """The terms of a question in English words: none for 'why?' and 'go on'."""
    return terms_of(translate_terms(text) if is_chinese(text) else text).pieces
