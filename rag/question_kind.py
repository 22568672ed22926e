"""What kind of answer a question asks for, by its words in English or Chinese; and what a definition looks like."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from indexes.words import terms_of

QuestionKind: TypeAlias = Literal["define", "number", "fact", "why", "how", "compare", "list", "code", "yes_no"]

LONGEST_READ = 300
"""Only the beginning of a longer question or sentence is looked at, in characters."""

_PATTERNS: dict[QuestionKind, tuple[str, ...]] = {
    "why": (r"\b(?:why|how come|what(?:'s| is) the reason|reasons? for|what causes)\b", "为什么|为何|原因"),
    "compare": (
        r"\bdiffer(?:s|ence|ences|ent)?\b|\bcompare[ds]?\b|\bversus\b|\bvs\b|\bunlike\b|\bas opposed to\b",
        "区别|不同|差别|差异|比较|相比|不一样",
    ),
    "number": (
        r"\bhow (?:many|much|large|big|long|fast|wide|high|deep|often|small)\b",
        "多少|几个|几次|多大|多长|多快",
    ),
    "code": (
        r"\b(?:code|snippet|listing|syntax)\b|\bimplement(?:ed|ation)?\b|\blooks? like\b",
        r"^\W*(?:please |can you |could you )?(?:write|show)\b",
        r"\bhow (?:do|can|would|should) (?:i|you|we|one) (?:write|declare|call|launch)\b",
        "代码|怎么写|写一个|写出|实现|语法|命令",
    ),
    "list": (
        r"^\W*(?:list|name|enumerate)\b|\bwhat are the\b",
        r"\b(?:which|what) (?:two|three|four|five|six|kinds?|types?|sorts?|steps?|options?)\b",
        r"\b(?:which|what) (?:\w+ ){0,2}\w+s (?:are|can|do|does|were|exist|have)\b",
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
    r"(?:what(?:'s|s| is| are| was|re|'re) (?:meant by |called )?|who(?:'s| is) |define |definition of "
    r"|(?:the )?meaning of |explain (?:to me )?(?:what )?|describe |tell me about "
    r"|what do(?:es)? (?:you |they )?mean by )"
    r"(?:a |an |the |this |that )?(?P<subject>[^,;.?!]+?)(?: (?:is|are|means?))?"
    r"(?:,? (?:in|on|for|with|when|if|and|exactly|actually|anyway|again|please)\b[^.?!]*)?\W*$"
    r"|^\W*what do(?:es)? (?P<meant>[^,;.?!]+?) (?:mean|stand for|refer to)\W*$"
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

_IS = re.compile(
    r"\s+(?:is|are|was|were|means?|refers? to|denotes?|describes?|stands? for|measures?)\s+(?P<what>\S.*)", re.DOTALL
)
_ACTED_ON = re.compile(
    r"(?:not|why|how|where)\b|(?:\w+ly )?\w+(?:ed|ing) (?:by|in|on|to|from|when|if|at|for|with|into|as|that)\b"
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


def kind_of(question: str) -> QuestionKind:
    """The kind of a question in the user's words; `fact` where its words do not say."""
    question = question[:LONGEST_READ]
    if _ASKS_MORE.search(question):
        return "how"
    if subject_of(question) or _DEFINES_ZH.search(question):
        return "define"
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(question)), "fact")


def subject_of(question: str) -> str:
    """The name that an English question wants defined ('What is a warp?': 'warp'); "" for other questions."""
    match = _DEFINES.match(question) if len(question) <= LONGEST_READ else None
    if match is None:
        return ""
    subject = next(filter(None, match.groups())).strip()
    few = bool(terms_of(subject).stems) and len(subject.split()) <= _MOST_TERMS
    return subject if few and not _NOT_A_NAME.search(subject) else ""


def defines(subject: str, sentence: str) -> bool:
    """Whether a sentence says what `subject` is: 'X is …', '… is called X', 'X: …', or an emphasised first use."""
    wanted = terms_of(subject).stems
    if not wanted:
        return False
    sentence = sentence[:LONGEST_READ]
    plain = _MARKS.sub("", sentence).strip(" -")
    verb, colon = _IS.search(plain), _COLON.search(plain)
    if verb is not None and _is_name(plain[: verb.start()], wanted) and not _ACTED_ON.match(verb["what"]):
        return True
    if colon is not None and colon.end() < len(plain) and _is_name(plain[: colon.start()], wanted):
        return True
    words = len(subject.split())
    if any(_is_name(" ".join(match[1].split()[:words]), wanted) for match in _CALLED.finditer(plain)):
        return True
    return any(terms_of(match[2] or match[3]).stems == wanted for match in _EMPHASISED.finditer(sentence))


def _is_name(text: str, wanted: frozenset[str]) -> bool:
    """Whether a text, without its article and what stands in brackets, is the name of these stems."""
    return terms_of(_BESIDE_NAME.sub("", text)).stems == wanted
