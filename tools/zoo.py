"""Reads every file of some folders through the product, and counts what came of it.

    python tools/zoo.py FOLDER… [--out RESULTS.jsonl] [--sample N] [--formats pdf,epub] [--workers N]
    python tools/zoo.py --compare OLD.jsonl NEW.jsonl

Each file is read in a process of its own, forked from this one, which ends at a limit of time or memory.

The share of words kept compares a book, headings included, with a plain extraction: PDFium's own text of a PDF, the
text between the tags of a web page, an EPUB's spine or a document's parts, the cells of a notebook, a text file as it
is. Words are runs of letters and digits without case, each as often as it occurs; a CJK letter is a word. Running heads
and page numbers are left out: lines in the outer eighth of a page's height, digits aside, that the same edge of two
other pages has too; so are words that PDFium takes for broken at a line's end. A word that was cut in another place
counts as kept where the letters of the whole book, spaces aside, have it, and so does one with an exponent or index,
which a plain extraction runs into it.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bs4 import BeautifulSoup

from indexes.errors import CoalesceError
from indexes.readers.book import TEXT_FORMATS, WHOLE_BOOKS, read_book
from indexes.types import Book

LOW, WORST = 0.8, 15
WAITING = 10
"""Seconds of the clock for each second of the processor that a file may take, on a machine that does other work."""
EDGE = 1 / 8
"""Share of a page's height, at its top and at its foot, where running heads are looked for."""
NAMES = {"pages_without_text", "pages_with_lost_text", "skipped_files", "notes"}
"""Entries of a book's health that name what was lost."""
LEAST_LETTERS = 4
"""Shorter words are found in the letters of any book."""
LOST_PAGE, LEAST_WORDS = 0.6, 10
"""A page of at least so many words is named when a smaller share of them is anywhere in the book."""
FORMATS = {ending: form.name for ending, form in {**TEXT_FORMATS, **WHOLE_BOOKS}.items() if form.name != "code"}
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_BROKEN = re.compile("\\S*(?:[\x02\xad\ufffe]|-(?=\r?\n))\\s*\\S*")
_UNSEEN = re.compile("[\xad\u200b]")
_MARK = re.compile(r"(?<=\S)[\^_]\(?(?=\S)")
_HALF = re.compile("[\ud800-\udfff]")


def words_of(text: str) -> list[str]:
    """Words for counting: compatible forms of letters are one, case is none."""
    return _WORD.findall(unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold())


# --- plain extractions


def pdf_pages(path: Path) -> list[list[str]]:
    """PDFium's words, page by page, without running heads."""
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    texts: list[str] = []
    edges: list[dict[str, Counter[str]]] = []
    for number in range(len(document)):
        try:
            page = document[number]
            text_page = page.get_textpage()
            left, bottom, right, top = page.get_bbox()
            band = EDGE * (top - bottom)
            parts = {"foot": (left, bottom, right, bottom + band), "head": (left, top - band, right, top)}
            found = {name: text_page.get_text_bounded(*box, errors="replace") for name, box in parts.items()}
            texts.append(text_page.get_text_range(errors="replace"))
        except pypdfium2.PdfiumError:
            texts.append("")
            found = {}
        edges.append({name: Counter(_BROKEN.sub(" ", text).splitlines()) for name, text in found.items()})
    on_pages = Counter(
        key for page_edges in edges for key in {(n, _key(one)) for n in page_edges for one in page_edges[n]}
    )
    pages: list[list[str]] = []
    for text, page_edges in zip(texts, edges, strict=True):
        running = Counter(
            word
            for name, lines in page_edges.items()
            for line in lines
            if on_pages[name, _key(line)] > 2
            for word in words_of(line)
        )
        pages.append(list((Counter(words_of(_BROKEN.sub(" ", text))) - running).elements()))
    return pages


def _key(line: str) -> str:
    return " ".join(re.sub(r"\d+|\b[ivxlc]+\b", "#", line.casefold()).split())


def plain_pages(path: Path, form: str) -> list[list[str]]:
    """The words of a plain extraction; formats without pages are one page."""
    if form == "pdf":
        return pdf_pages(path)
    if form in ("epub", "docx", "pptx"):
        return [words_of("\n".join(_zipped(path, form)))]
    data = path.read_bytes()
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", errors="replace")
    if form == "html":
        text = _text_of(text)
    elif form == "ipynb":
        book = json.loads(text)
        cells = book.get("cells") or [cell for sheet in book.get("worksheets", ()) for cell in sheet.get("cells", ())]
        sources = ["".join(cell.get("source", cell.get("input", ""))) for cell in cells]
        text = _text_of(re.sub(r"data:image/[^)\s\"']*", "", "\n\n".join(sources)))
    elif form == "rst":
        text = re.sub(
            r"^\s*(?:\.\.|:[\w-]+:).*$|:[\w:.+-]+:(?=`)|<[^>\s]*>`|</?\w[^>]*>", " ", text, flags=re.MULTILINE
        )
    return [words_of(text)]


def _zipped(path: Path, form: str) -> Iterator[str]:
    parts = {"docx": r"word/document\d*\.xml$", "pptx": r"ppt/slides/slide\d+\.xml$", "epub": r".*\.x?html?$"}
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if re.match(parts[form], name)]
        for name in sorted(names):
            markup = archive.read(name).decode("utf-8", errors="replace")
            if form == "epub":
                yield _text_of(markup)
                continue
            markup = re.sub(r"(?s)<mc:Fallback.*?</mc:Fallback>|<a:fld.*?</a:fld>", "", markup)
            text = re.sub(r"</[wa]:(?:p|tc)>|<[wa]:(?:br|tab)/>", "\n", markup)
            runs = re.findall(r"<[wam]:t(?: [^>]*)?>([^<]*)<|(\n)", text)
            yield BeautifulSoup("".join(run + end for run, end in runs), "html.parser").get_text()


def _text_of(markup: str) -> str:
    soup = BeautifulSoup(markup, "lxml")
    for tag in soup(
        ["script", "style", "head", "nav", "header", "footer", "template", "noscript", "svg", "annotation"]
    ):
        tag.decompose()
    return soup.get_text(" ")


# --- one file


def read_one(path: Path, form: str) -> dict[str, Any]:
    """Read a file through the product: what came of it, seconds of the processor, peak memory, words kept, health."""
    unforeseen: list[str] = []
    listener = _Listener(unforeseen)
    logging.getLogger("coalesce").addHandler(listener)
    begun = time.process_time()
    found: dict[str, Any] = {"outcome": "read"}
    book = None
    try:
        book = read_book(path, name=f"FILE{path.suffix}")
    except CoalesceError as error:
        found.update(outcome="refused", reason=re.sub(r"\d[\d,]*", "N", re.sub(r"^'.*?'(?= )", "FILE", error.message)))
    except Exception as error:  # noqa: BLE001  what the tool is for
        unforeseen.append(f"{type(error).__name__}: {error}"[:300])
    finally:
        logging.getLogger("coalesce").removeHandler(listener)
    found["cpu_s"] = round(time.process_time() - begun, 3)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if unforeseen:
        found.update(outcome="internal", reason=unforeseen[0])
    if book is not None:
        found.update(_counted(book, path, form))
    return found


class _Listener(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "error"):
            self.heard.append(record.getMessage())


def _counted(book: Book, path: Path, form: str) -> dict[str, Any]:
    headings = dict.fromkeys(
        section.heading_path[:end] for section in book.sections for end in range(1, len(section.heading_path) + 1)
    )
    text = "\n".join((*(heading[-1] for heading in headings), *(section.text for section in book.sections)))
    health = {field.name: entries for field in fields(book.health) if (entries := getattr(book.health, field.name))}
    found: dict[str, Any] = {"surrogates": len(_HALF.findall(text)), "health": health}
    try:
        pages = plain_pages(path, form)
    except Exception as error:  # noqa: BLE001  the plain extraction is not the product
        return {**found, "plain": f"{type(error).__name__}: {error}"[:200]}
    of_book = words_of(text)
    left, there = Counter(of_book), set(of_book)
    left += Counter(words_of(_MARK.sub("", text))) - left
    letters = "".join((*of_book, *words_of(_MARK.sub("", text))))
    kept, lost_pages = 0, []
    for number, page in enumerate(pages, 1):
        whole = cut = present = 0
        for word in page:
            inside = word in there or (len(word) >= LEAST_LETTERS and word in letters)
            present += inside
            if left[word] > 0:
                left[word] -= 1
                whole += 1
            elif inside and word not in there:
                cut += 1
        kept += whole + cut
        if len(page) >= LEAST_WORDS and present < LOST_PAGE * len(page):
            lost_pages.append(number)
    return {**found, "words": sum(map(len, pages)), "kept": kept, "lost_pages": lost_pages}


# --- many files


def read_all(files: list[tuple[Path, str]], workers: int, limit_s: int, limit_mib: int) -> Iterator[dict[str, Any]]:
    """Read files in forked processes, so many at once; each is killed at its limits."""
    for reader in {*TEXT_FORMATS.values(), *WHOLE_BOOKS.values()}:
        import_module(f"indexes.readers.{reader.reader.split(':')[0]}")  # once, before the forks
    waiting = files[::-1]
    running: dict[int, tuple[Path, str, Path, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < workers:
                path, form = waiting.pop()
                result = Path(folder, str(len(waiting)))
                sys.stdout.flush()
                child = os.fork()
                if not child:
                    _child(path, form, result, limit_s, limit_mib)
                running[child] = (path, form, result, time.monotonic())
            for child, (path, form, result, begun) in list(running.items()):
                late = time.monotonic() - begun > WAITING * limit_s
                if late:
                    os.kill(child, signal.SIGKILL)
                done, status, _ = os.wait4(child, 0 if late else os.WNOHANG)
                if done:
                    del running[child]
                    how = (
                        "waited without end"
                        if late
                        else "over the limit"
                        if status == signal.SIGXCPU
                        else f"ended {status}"
                    )
                    found = json.loads(result.read_text()) if result.exists() else {"outcome": "killed", "reason": how}
                    yield {"file": "/".join(path.parts[-2:]), "format": form, "path": str(path), **found}
            time.sleep(0.005)


def _child(path: Path, form: str, result: Path, limit_s: int, limit_mib: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit_mib << 20,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            found = read_one(path, form)
        except MemoryError:
            found = {"outcome": "killed", "reason": f"over {limit_mib} MiB"}
        part = result.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(result)
    finally:
        os._exit(0)


def files_of(folders: list[Path], formats: set[str], sample: int) -> list[tuple[Path, str]]:
    """The files below some folders; with `sample` so many of each format, those whose paths' digests are lowest."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            form = FORMATS.get(path.suffix.casefold())
            if form and (not formats or form in formats) and path.is_file():
                found.setdefault(form, []).append(path)
    if sample:
        found = {form: sorted(sorted(paths, key=_digest)[:sample]) for form, paths in found.items()}
    return [(path, form) for form, paths in found.items() for path in paths]


def _digest(path: Path) -> bytes:
    return hashlib.sha256("/".join(path.parts[-2:]).encode()).digest()


def share(row: dict[str, Any]) -> float | None:
    """The share of a file's plain words that was kept, if it has words and was read."""
    return row["kept"] / row["words"] if row.get("words") else None


def table(rows: list[dict[str, Any]]) -> None:
    """Print a line for each format."""
    print(f"{'format':<9}{'files':>6}{'read':>6}{'refused':>8}{'internal':>9}{'killed':>7}{'halves':>7}"
          f"{'words':>10}{'kept':>8}{'< 80 %':>7}{'named':>6}{'s':>8}{'max s':>7}{'MiB':>6}")  # fmt: skip
    for form in sorted({row["format"] for row in rows}):
        own = [row for row in rows if row["format"] == form]
        how = Counter(row["outcome"] for row in own)
        words, kept = (sum(row.get(name, 0) for row in own) for name in ("words", "kept"))
        halves = sum(row.get("surrogates", 0) > 0 for row in own)
        low = [row for row in own if (one := share(row)) is not None and one < LOW]
        seconds = [row.get("cpu_s", 0.0) for row in own]
        print(f"{form:<9}{len(own):>6}{how['read']:>6}{how['refused']:>8}{how['internal']:>9}{how['killed']:>7}"
              f"{halves:>7}{words:>10}{kept / max(words, 1):>8.4f}{len(low):>7}"
              f"{sum(not NAMES.isdisjoint(row['health']) for row in low):>6}{sum(seconds):>8.1f}{max(seconds):>7.1f}"
              f"{max(row.get('peak_mib', 0) for row in own):>6}")  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table, the reasons of refusals and errors, and the worst files."""
    table(rows)
    for outcome in ("refused", "internal", "killed"):
        reasons = Counter((row["format"], row["reason"]) for row in rows if row["outcome"] == outcome)
        for (form, reason), count in reasons.most_common():
            print(f"{outcome} {count:>4} {form}: {reason}")
    for row in sorted((row for row in rows if share(row) is not None), key=lambda row: (share(row), row["file"]))[
        :WORST
    ]:
        print(f"{share(row):.3f} of {row['words']:>6} words  {row['path']}  lost pages {row['lost_pages'][:8]}"
              f"  health {sorted(row['health'])}")  # fmt: skip


def compare(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """Print which files came out better and worse, by outcome and by words kept."""
    for rows in (old, new):
        table(rows)
    before = {row["path"]: row for row in old}
    pairs = [(before[row["path"]], row) for row in new if row["path"] in before]
    moved = []
    for one, other in pairs:
        if one["outcome"] != other["outcome"]:
            print(f"{one['outcome']} -> {other['outcome']}  {other['path']}  {other.get('reason', '')}")
        if (first := share(one)) is not None and (second := share(other)) is not None and first != second:
            moved.append((second - first, one, other))
    for name, changes in (("better", [m for m in moved if m[0] > 0]), ("worse", [m for m in moved if m[0] < 0])):
        words = sum(other["kept"] - one["kept"] for _, one, other in changes)
        print(f"{name}: {len(changes)} of {len(pairs)} files, {words:+} words kept")
        for by, one, other in sorted(changes, key=lambda change: -abs(change[0]))[:WORST]:
            print(f"  {share(one):.3f} -> {share(other):.3f} ({by:+.3f})  {other['path']}")
    for side, name in ((0, "old"), (1, "new")):
        print(f"{name}: {sum(pair[side].get('cpu_s', 0) for pair in pairs):.1f} s of processor time")


def main(argv: list[str] | None = None) -> None:
    """Read folders, or compare two results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="a line of JSON for each file")
    parser.add_argument("--sample", type=int, default=0, help="so many files of each format, chosen by digest")
    parser.add_argument("--formats", default="", help="only these, with commas between")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit-s", type=int, default=120, help="of the processor")
    parser.add_argument("--limit-mib", type=int, default=4096)
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    options = parser.parse_args(argv)
    if options.compare:
        old, new = ([json.loads(line) for line in path.read_text().splitlines()] for path in options.compare)
        compare(old, new)
        return
    files = files_of(options.folders, set(filter(None, options.formats.split(","))), options.sample)
    rows = []
    with (options.out or Path(os.devnull)).open("w") as out:
        for row in read_all(files, options.workers, options.limit_s, options.limit_mib):
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {len(files)}", end="", file=sys.stderr)
    show(rows)


if __name__ == "__main__":
    main()
