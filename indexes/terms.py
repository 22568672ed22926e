"""Text to lexical terms, the same for books and for questions. Knows identifiers, English and Chinese.

An identifier is kept whole and by part, so `cudaMemcpyAsync` is found by its name, by `memcpy` and by `async`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_TOKEN = re.compile(
    r"[\u3400-\u9fff\uf900-\ufaff]+|[A-Za-z_]\w*(?:(?:::|\.|->)[A-Za-z_]\w*)*|0[xX][0-9a-fA-F]+|\d+(?:[.,]\d+)*|[^\W\d_]+"
)
_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SEPARATORS = re.compile(r"::|->|\.|_+")
# Lower-case names that are written as one word but made of words a reader would ask for.
_COMPOUND = re.compile(
    r"^(sync|mem|grid|block|thread|warp|lane|launch|device|host|shared|atomic|stream|event|texture|cache|local|global)"
    r"(threads?|warps?|cpy|set|copy|alloc|dim|idx|id|size|group|bounds|memory|add|sub|max|min|cas|exch|wait|record)$"
)
_SPOKEN = {
    "cpy": "copy",
    "idx": "index",
    "dim": "dimension",
    "mem": "memory",
    "sync": "synchronize",
    "alloc": "allocate",
}

# Words of the trade that a general dictionary would tear apart.
_CHINESE_TERMS = """
线程束 线程块 线程格 共享内存 全局内存 常量内存 纹理内存 本地内存 统一内存 显存 寄存器 合并访问 占用率 核函数 内核函数
流多处理器 流式多处理器 主机端 设备端 原子操作 归约 前缀和 扫描 直方图 卷积 分块 平铺 延迟隐藏 带宽 吞吐量 屏障同步
存储体冲突 分支发散 线程束分歧 张量核心 异步拷贝 页锁定内存 固定内存 计算能力 算术强度 屋顶线 量化 低秩 键值缓存
"""
_STOPWORDS = """
a about above after again all also am an and any are as at be because been before being below between both but by can
could did do does doing down during each few for from further had has have having he her here hers him his how i if in
into is it its itself just let me more most my no nor not now of off on once only or other our ours out over own s same
she should so some such t than that the their theirs them then there these they this those through to too under until
up us very was we were what when where which while who whom why will with would you your yours
一 的 了 和 是 在 有 就 不 也 都 而 及 与 或 它 我 你 他 们 这 那 吗 呢 吧 啊 么 什么 怎么 如何 为什么 哪些 哪个
"""
STOPWORDS = frozenset(_STOPWORDS.split())


def terms(text: str) -> list[str]:
    """Terms of a text in order, for indexing: stemmed words, identifiers whole and by part, Chinese words."""
    return list(_terms(text))


def query_terms(text: str) -> list[str]:
    """Different terms of a question, in order, without stop words (unless it has nothing else)."""
    found = list(dict.fromkeys(_terms(text)))
    return found or list(dict.fromkeys(_stem(word.casefold()) for word in _TOKEN.findall(text)))


def _terms(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        if _CJK.match(token):
            yield from _chinese(token)
        elif token[0].isdigit():
            yield token.replace(",", "").casefold()
        elif _is_identifier(token):
            yield from identifier_terms(token)
        else:
            word = token.casefold()
            if word not in STOPWORDS:
                yield _stem(word)


def _is_identifier(token: str) -> bool:
    inner = token[1:]
    return (
        "_" in token
        or not token.isalpha()
        or (inner != inner.lower() and inner != inner.upper())
        or bool(_COMPOUND.match(token))
    )


@lru_cache(maxsize=50_000)
def identifier_terms(token: str) -> tuple[str, ...]:
    """An identifier whole (as written and without its underscores), then its parts."""
    whole = token.casefold()
    found = [re.sub(r"::|->|\.", "_", whole)]
    segments = [segment for segment in _SEPARATORS.split(token) if segment]
    if len(segments) == 1 and segments[0].casefold() != whole:
        found.append(segments[0].casefold())
    for segment in segments:
        if len(segments) > 1 and not segment.isdigit():
            found.append(_stem(segment.casefold()))
        parts = _PARTS.findall(segment)
        for part in parts if len(parts) > 1 or _COMPOUND.match(segment.casefold()) else ():
            found.extend(_subwords(part.casefold()))
    return tuple(dict.fromkeys(term for term in found if term and (len(term) > 1 or len(found) == 1)))


def _subwords(part: str) -> Iterator[str]:
    compound = _COMPOUND.match(part)
    pieces = (compound[1], compound[2]) if compound else (part,)
    if compound:
        yield part
    for piece in pieces:
        if piece in STOPWORDS or (piece.isdigit() and len(pieces) == 1):
            continue
        yield _stem(piece)
        if piece in _SPOKEN:
            yield _stem(_SPOKEN[piece])


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    """A light English stem: plurals, -ing, -ed and a final e; never below three letters, never on short words."""
    if len(word) < 4 or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and re.search(r"[aeiouy]", base):
            word = base[:-1] if len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def _chinese(text: str) -> Iterator[str]:
    for word in _segmenter()(text):
        if word not in STOPWORDS and word.strip():
            yield word


@lru_cache(maxsize=1)
def _segmenter():  # type: ignore[no-untyped-def]  # jieba carries no types
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    for word in _CHINESE_TERMS.split():
        jieba.add_word(word)
    return jieba.cut_for_search
