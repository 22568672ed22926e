"""The one module of words: tokens, identifiers and their parts, stems, stop words, Chinese words.

The lexical index, the search, the choice of sentences and the checks on citations all read texts through it, so that
they agree on what "the same word" is. An identifier is kept whole and by part, so `cudaMemcpyAsync` is found by its
name, by `memcpy` and by `async`; one with a dash or an at-sign before it, `-E` or `@cuda.jit`, also with that.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

CJK = r"\u3400-\u9fff\uf900-\ufaff"
"""Chinese characters, for a character class of a regular expression."""

_CJK = re.compile(f"[{CJK}]")
_LATIN_WORD = re.compile(r"[A-Za-z]{2,}")
_TOKEN = re.compile(
    r"(?P<sign>(?<![\w@/-])(?:--?|@)(?=[A-Za-z_]))"
    r"|(?P<number>0[xX][0-9a-fA-F]+|\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?(?:x\d+)*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:(?:::|\.|->)[A-Za-z_][A-Za-z0-9_]*)*(?:\(\))?)"
    rf"|(?P<cjk>[{CJK}]+)"
    rf"|(?P<other>(?:(?![{CJK}A-Za-z])[^\W\d_])+)"
)
_SIGNED = re.compile(r"\w+(?:[-.:]\w+)*")
_INDEX_MARK = re.compile(r"(?<=[A-Za-z0-9])_(?=\d)")
_CAMEL = re.compile(r"[a-z0-9][A-Z]")
_DESIGNATION = re.compile(r"(?=\w*\d)(?=\w*[A-Za-z])\w{3,}$")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SEPARATORS = re.compile(r"::|->|\.|_+")
_TO_I = ("ications", "ication", "icating", "icates", "icated", "icate", "ies", "ied")
"""Suffixes in whose place an i stays: applications, applies and apply are one."""
_OF_ATE = ("ations", "ation", "ators", "ator", "ately", "ating", "ates", "ated", "ate")
_OF_ION = ("ioning", "ioned", "ions", "ion")
_SUFFIXES = (*_TO_I[:-2], *_OF_ATE, *_OF_ION, *"ings ing edly ies ied ers er ed es ly s e".split())
_OTHER_ROOTS = {"addit": "add", "reduct": "reduc", "introduct": "introduc", "definit": "defin", "content": "contend"}
"""What is left of nouns in -ion whose verb has another root; contention is not content."""

# Words of the trade that a general dictionary would tear apart.
_CHINESE_TERMS = """
线程束 线程块 线程格 共享内存 全局内存 常量内存 纹理内存 本地内存 统一内存 显存 寄存器 合并访问 占用率 核函数 内核函数
流多处理器 流式多处理器 主机端 设备端 原子操作 归约 前缀和 扫描 直方图 卷积 分块 平铺 延迟隐藏 带宽 吞吐量 屏障同步
存储体冲突 分支发散 线程束分歧 张量核心 异步拷贝 页锁定内存 固定内存 计算能力 算术强度 屋顶线 量化 低秩 键值缓存
"""
_STOP_WORDS = """
a about above after again all also although am an and any are as at be because been before being below between both
but by can cannot could did do does doing done down during e.g each either else ever every few for from further get
gets give given gives had has have having he her here hers him his how however i i.e if in into is it its itself just
let like made make makes many may me might more most much must my neither no nor not now of off often on once one only
onto or other our ours out over own per quite rather s said same say see shall she should since so some such t than
that the their theirs them then there therefore these they this those though through thus to too un under until up upon
us use used uses using very via want was way we well were what whatever when where whether which while who whom whose
why will with within without would yet you your yours
explain describe mean means called name named tell please happen happens difference example following kind reason
thing things
一 的 了 和 是 在 有 就 不 也 都 而 及 与 或 它 我 你 他 们 这 那 吗 呢 吧 啊 么 什么 怎么 如何 为什么 哪些 哪个
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that carry no evidence; `difference`, `example` and the like are question words."""
NEGATIONS = frozenset("no not never none neither nor nothing nobody nowhere without cannot".split())

_UNDER_20 = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
CARDINALS = {word: value for value, word in enumerate(_UNDER_20)} | {w: 10 * n for n, w in enumerate(_TENS, 2)}
SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_CARDINAL = "|".join((*CARDINALS, *SCALES))
_AND = "|".join(rf"(?<={scale}) and (?!(?:\w+[ -]){{1,2}}{scale}\b)" for scale in ("hundred", "thousand"))
NUMBER_WORDS = re.compile(rf"\b(?:{_CARDINAL})(?:(?:[ -]|{_AND})(?:{_CARDINAL}))*\b", re.IGNORECASE)
"""A number in words, whose value `number_value` gives; 'one hundred and two hundred' are two."""


MOST_KEPT_CHARACTERS = 1000
"""Terms of longer texts are not kept: an answer's passages come together once, and are 30 kB with their terms."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a text says, as pieces that can be compared.

    Attributes:
        stems: content words and parts of identifiers, stemmed, lower case; Chinese words.
        identifiers: names as written (`cudaMemcpyAsync`, `blockIdx.x`, `gfx90a`), lower case, without `()` and without
            underscores before digits.
        numbers: as text, thousands separators removed.
    """

    stems: frozenset[str]
    identifiers: frozenset[str]
    numbers: frozenset[str]

    @property
    def pieces(self) -> frozenset[str]:
        """Everything that can be matched."""
        return self.stems | self.identifiers | self.numbers


def terms_of(text: str) -> Terms:
    """The terms of `text`; kept for recent sentences."""
    return _kept_terms(text) if len(text) <= MOST_KEPT_CHARACTERS else _read_terms(text)


def _read_terms(text: str) -> Terms:
    stems: set[str] = set()
    identifiers: set[str] = set()
    numbers: set[str] = set()
    for kind, token in _tokens(text):
        if kind == "number":
            numbers.add(token)
        elif kind == "identifier":
            identifiers.add(without_index_marks(token.lower()))
            stems.update(identifier_parts(token))
        else:
            stems.update(_terms(kind, token))
    return Terms(frozenset(stems), frozenset(identifiers), frozenset(numbers))


_kept_terms = lru_cache(maxsize=16384)(_read_terms)


def index_terms(text: str) -> list[str]:
    """Terms of a text in order, for the lexical index: stems, identifiers whole and by part, Chinese words, numbers."""
    return [term for kind, token in _tokens(text) for term in _terms(kind, token)]


def without_index_marks(text: str) -> str:
    """A text without underscores before digits: who asks for CO2 means what readers write as `CO_2`."""
    return _INDEX_MARK.sub("", text)


def query_terms(text: str) -> list[str]:
    """Different terms of a question, in order, without stop words (unless it has nothing else)."""
    found = dict.fromkeys(index_terms(text)) or dict.fromkeys(stem(token.lower()) for _, token in _tokens(text))
    return list(found)


def signed_names(text: str) -> frozenset[str]:
    """The terms of names with a dash or an at-sign before them, `-E` or `@cuda.jit`: such a name is exact."""
    return frozenset(token for kind, token in _tokens(text) if kind == "sign")


class TermWeights:
    """Inverse frequency of terms among some texts: rare terms weigh more.

    Args:
        texts: the terms of each text.
    """

    def __init__(self, texts: Sequence[frozenset[str]]) -> None:
        self._frequency = Counter(piece for text in texts for piece in text)
        self._num_texts = len(texts)

    def share(self, wanted: frozenset[str], held: frozenset[str], *, beside: frozenset[str] = frozenset()) -> float:
        """Weighted share, 0 to 1, of `wanted` that `held` holds and `beside` does not; 0.0 when nothing is wanted."""
        total = math.fsum(map(self._weight, wanted))  # fsum: sets have no order
        return math.fsum(map(self._weight, (wanted & held) - beside)) / total if total else 0.0

    def _weight(self, piece: str) -> float:
        return math.log(1 + self._num_texts / (0.5 + self._frequency[piece]))


def number_value(words: str) -> int:
    """The value of a number in words: `sixty-four`, `two hundred and fifty-six`."""
    total = current = 0
    for word in re.findall(r"[a-z]+", words.lower()):
        if word in CARDINALS:
            current += CARDINALS[word]
        elif word == "hundred":
            current = (current or 1) * 100
        elif word in SCALES:
            total, current = total + (current or 1) * SCALES[word], 0
    return total + current


def count_words(text: str) -> int:
    """Words of a text; two Chinese characters count as one."""
    return len(text.split()) + len(_CJK.findall(text)) // 2


def is_chinese(text: str) -> bool:
    """Whether `text` reads as Chinese; English terms inside a Chinese question do not make it English.

    A Chinese word has about two characters, so pairs of characters are weighed against Latin words.
    """
    characters = len(_CJK.findall(text))
    return characters >= 2 and characters / 2 >= 0.25 * len(_LATIN_WORD.findall(text))


def chinese_words(run: str) -> list[tuple[str, bool]]:
    """A run of Chinese characters cut into words of the dictionary, each with whether it is a noun there."""
    return [(pair.word, pair.flag.startswith("n")) for pair in _tagger()(run, HMM=False)]


def is_identifier(token: str) -> bool:
    """Whether a token is a name from code: underscores, inner capitals, `::`, `->`, an inner dot, digits, or `()`."""
    bare = token.removesuffix("()")
    if bare != token or "::" in bare or "->" in bare or "_" in bare.strip("_") or bare.startswith("__"):
        return True
    if "." in bare:
        return not bare[0].isupper()
    return bool(_CAMEL.search(bare) or _DESIGNATION.match(bare))


@lru_cache(maxsize=50_000)
def identifier_parts(name: str) -> tuple[str, ...]:
    """What an identifier is made of: its segments, then the words inside them, stemmed."""
    segments = [segment for segment in _SEPARATORS.split(name) if segment]
    found = [stem(segment.lower()) for segment in segments if len(segments) == 1 and segment != name]
    for segment in segments:
        if len(segments) > 1 and not segment.isdigit():
            found.append(stem(segment.lower()))
        parts = _PARTS.findall(segment)
        if len(parts) > 1:
            found.extend(stem(part.lower()) for part in parts if not part.isdigit())
    return tuple(dict.fromkeys(part for part in found if len(part) > 1 and part not in STOP_WORDS))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """A light English stem: the longest common suffix off, as long as three letters stay.

    Snowball's English stems find the evidence less often in the first passage (`docs/decisions.md`).
    """
    if len(word) <= 3 or not word.isalpha() or not word.isascii():
        return word
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            root = word[: -len(suffix)]
            if suffix in _TO_I:
                return root + "i"
            if suffix in _OF_ATE and root[-1] in "eo":
                continue  # treated, floating
            if suffix in _OF_ION:
                if root[-1] not in "st":
                    continue  # region
                return _OTHER_ROOTS.get(root, root)
            if suffix == "s" and root.endswith("s"):
                return word
            if len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz":
                root = root[:-1]
            return root[:-1] + "i" if root.endswith("y") and len(root) > 3 else root.rstrip("e") or root
    return word[:-1] + "i" if word.endswith("y") and len(word) > 3 else word


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token: `number`, `identifier` (without `()`), `word`, `cjk` or `other`.

    A `sign` comes before the name that it stands at, and is a term of both.
    """
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match.group()
        if kind == "sign" and (name := _SIGNED.match(text, match.end())):
            yield kind, _signed(token, name.group())
        elif kind == "cjk":
            yield kind, token
        else:
            yield from _tokens_of(kind, token)


@lru_cache(maxsize=50_000)
def _tokens_of(kind: str, token: str) -> tuple[tuple[str, str], ...]:
    if kind == "number":
        return ((kind, re.sub(r",(?=\d{3}(?!\d))", "", token).lower()),)
    if kind != "word":
        return ((kind, token),)
    if token.lower() not in STOP_WORDS and is_identifier(token):
        return (("identifier", token.removesuffix("()")),)
    return tuple(("word", part) for part in token.removesuffix("()").split(".") if part)


def _signed(sign: str, name: str) -> str:
    """A name with its dash or at-sign, in letters that the lexical index keeps; it tells `-e` from `-E`."""
    term = re.sub(r"[-:]", "_", name)
    return f"{'..' if sign == '@' else '._'}{term.lower()}{'.' if len(term) == 1 and term.isupper() else ''}"


def _terms(kind: str, token: str) -> Sequence[str]:
    """What the index knows a token by."""
    if kind == "cjk":  # a whole clause, which hardly comes again
        return [word for word in _jieba().cut_for_search(token) if word not in STOP_WORDS and word.strip()]
    return _remembered_terms(kind, token)


@lru_cache(maxsize=50_000)
def _remembered_terms(kind: str, token: str) -> tuple[str, ...]:
    if kind == "number":
        return token, *(token.split("x")[1:] if "x" in token[2:] else ())
    if kind == "identifier":
        whole = without_index_marks(re.sub(r"::|->|\.", "_", token.lower()))
        return tuple(dict.fromkeys((whole, *identifier_parts(token))))
    if kind == "sign":
        return (token,)
    return (stem(token.lower()),) if token.lower() not in STOP_WORDS else ()


@lru_cache(maxsize=1)
def _jieba():  # type: ignore[no-untyped-def]  # jieba carries no types
    import logging
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba's own, when Python compiles it for the first time
        import jieba

    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    for word in _CHINESE_TERMS.split():
        jieba.add_word(word)
    return jieba


@lru_cache(maxsize=1)
def _tagger():  # type: ignore[no-untyped-def]
    import warnings

    _jieba()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jieba import posseg

    return posseg.cut
