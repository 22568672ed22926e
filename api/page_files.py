"""The page: the files of `api/page/` as they are. Everything that it shows it asks REST for; Python draws nothing.

`index.html` names the files by a digest of them all, so that browsers may keep them for ever.
"""

from __future__ import annotations

import gzip
import json
import mimetypes
import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

VIEWS = frozenset({"", "c", "compare", "reports", "library", "book", "study", "settings", "login"})
"""The first part of each address that the page has something to show for."""
ICON_PATH = "/favicon.ico"
API_PREFIX = "/v1"
FOLDER = Path(__file__).parent / "page"
FOR_EVER = "public, max-age=31536000, immutable"
PACKED = (".css", ".html", ".js", ".json", ".svg")
POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, no inline script or style but the list of imports, and no text is ever read as markup."""
_INLINE = {
    kind: re.compile(rf"<{kind}(?: type=\"importmap\")?>(.*?)</{kind}>", re.DOTALL) for kind in ("script", "style")
}
_BEFORE = re.compile(r"/next(/.*)?")
"""Where the page was for a while."""


def is_page(path: str) -> bool:
    """Whether this is the page's own, a view or a file: neither holds anything that needs a key."""
    first = _first(path)
    return first in VIEWS or first == "files" or path == ICON_PATH or _BEFORE.fullmatch(path) is not None


def _looks(request: Request) -> bool:
    """Whether a browser asks for something to show."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(f"{API_PREFIX}/")


def _first(path: str) -> str:
    """The first part of an address."""
    return path.removeprefix("/").split("/", 1)[0]


def hashes(page: str, kind: str) -> str:
    """The inline scripts or styles of a page as its policy allows them, by their digests."""
    found = (sha256(inline.encode()).digest() for inline in _INLINE[kind].findall(page))
    return " ".join(f"'sha256-{b64encode(digest).decode()}'" for digest in found)


def page_texts(language: str) -> dict[str, str]:
    """What the page says in a language, by its keys."""
    texts: dict[str, str] = json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))
    return texts


def page_or(not_found: ASGIApp) -> ASGIApp:
    """What answers where no route does: the page; unknown calls of the API, and of programs, stay unknown."""

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        # An unknown address is a page for who looks at pages, and an error like others for a program.
        if reads and (is_page(scope["path"]) or _looks(Request(scope))):
            await (await _page(Request(scope)))(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    return choose


async def _page(request: Request) -> Response:
    """The page, whatever it will show, or one of its files; an address that it has nothing for is a 404."""
    path = request.url.path
    if path.startswith("/files/"):
        return await _file(request, *path.removeprefix("/files/").partition("/")[::2])
    if moved := _BEFORE.fullmatch(path):
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(quote(f"/{(moved[1] or '').lstrip('/')}") + query, 308)
    files = await run_in_threadpool(_files)
    if path == ICON_PATH:
        return _reply(request, files, "icon.svg", "no-cache")
    reply = _reply(request, files, "index.html", "no-cache")
    reply.status_code = 200 if _first(path) in VIEWS else 404
    reply.headers["Content-Security-Policy"] = files.policy
    return reply


async def _file(request: Request, digest: str, name: str) -> Response:
    """One of the page's files; another version's is not here."""
    files = _newest[0] if _newest else await run_in_threadpool(_files)
    if digest != files.digest or name not in files.content:
        return PlainTextResponse("The page has no such file; load it again.", 404)
    return _reply(request, files, name, FOR_EVER)


def _reply(request: Request, files: Files, name: str, keep: str) -> Response:
    packed = name.endswith(PACKED) and "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Cache-Control": keep, "Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if packed else {})
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(files.packed(name) if packed else files.content[name], media_type=kind, headers=headers)


class Files:
    """The page's files as they were read.

    Attributes:
        digest: of them all; content: of each, by its name in an address; policy: of the page.
    """

    def __init__(self, content: dict[str, bytes]) -> None:
        whole = sha256()
        for name, one in content.items():
            whole.update(name.encode() + one)
        self.digest = whole.hexdigest()[:16]
        index = content["index.html"].replace(b"{files}", f"/files/{self.digest}".encode())
        self.content = content | {"index.html": index}
        self.policy = POLICY.format(scripts=hashes(index.decode(), "script"))
        self._packed: dict[str, bytes] = {}

    def packed(self, name: str) -> bytes:
        """A file compressed."""
        if name not in self._packed:
            self._packed[name] = gzip.compress(self.content[name], mtime=0)
        return self._packed[name]


def _files() -> Files:
    """The files as they are now: who changes one only loads the page again."""
    found = sorted((path.relative_to(FOLDER).as_posix(), path) for path in FOLDER.rglob("*") if path.is_file())
    _newest[:] = [_read(tuple((name, path, path.stat().st_mtime_ns) for name, path in found))]
    return _newest[0]


_newest: list[Files] = []
"""The files as they were when the page was last asked for: its modules are looked up in these alone."""


@lru_cache(maxsize=1)
def _read(files: tuple[tuple[str, Path, int], ...]) -> Files:
    return Files({name: path.read_bytes() for name, path, _ in files})
