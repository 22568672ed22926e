"""The page: the files of `api/page/` as they are. Everything that it shows it asks REST for; Python draws nothing.

`index.html` names the files by a digest of them all, so that browsers may keep them for ever.
"""

from __future__ import annotations

import gzip
import mimetypes
import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

router = APIRouter(include_in_schema=False)
PAGE = "/next"
"""Where the page is; "" puts it at the root."""
VIEWS = frozenset({"", "c", "compare", "reports", "library", "book", "study", "settings"})
"""The first part of each address that the page has something to show for."""
FOLDER = Path(__file__).parent / "page"
KATEX = Path(__file__).parent / "pages" / "static" / "katex"
FOR_EVER = "public, max-age=31536000, immutable"
PACKED = (".css", ".html", ".js", ".json")
POLICY = (
    "default-src 'none'; script-src 'self' 'sha256-{imports}'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, no inline script or style but the list of imports, and no text is ever read as markup."""
_IMPORTS = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)


def is_page(path: str) -> bool:
    """Whether this is the page's own, a view or a file: neither holds anything that needs a key."""
    return _view(path) in VIEWS or path.startswith(f"{PAGE}/files/")


def _view(path: str) -> str | None:
    """The first part of an address within the page; None outside it."""
    inside = path.startswith(f"{PAGE}/") or path == PAGE
    return path.removeprefix(PAGE).removeprefix("/").split("/", 1)[0] if inside else None


@router.api_route(PAGE + "/files/{digest}/{name:path}", methods=["GET", "HEAD"])
async def page_file(digest: str, name: str, request: Request) -> Response:
    """One of the page's files; another version's is not here."""
    files = _newest[0] if _newest else _files()
    if digest != files.digest or name not in files.content:
        return PlainTextResponse("The page has no such file; load it again.", 404)
    return _reply(request, files, name, FOR_EVER)


@router.api_route(PAGE or "/", methods=["GET", "HEAD"])
@router.api_route(PAGE + "/{path:path}", methods=["GET", "HEAD"])
def page(request: Request) -> Response:
    """The page, whatever it will show; an address that it has nothing for is a 404."""
    files = _files()
    reply = _reply(request, files, "index.html", "no-cache")
    reply.status_code = 200 if _view(request.url.path) in VIEWS else 404
    reply.headers["Content-Security-Policy"] = files.policy
    return reply


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
        index = content["index.html"].replace(b"{files}", f"{PAGE}/files/{self.digest}".encode())
        self.content = content | {"index.html": index}
        imports = _IMPORTS.search(index)
        allowed = sha256(imports[1] if imports else b"").digest()
        self.policy = POLICY.format(imports=b64encode(allowed).decode())
        self._packed: dict[str, bytes] = {}

    def packed(self, name: str) -> bytes:
        """A file compressed."""
        if name not in self._packed:
            self._packed[name] = gzip.compress(self.content[name], mtime=0)
        return self._packed[name]


def _files() -> Files:
    """The files as they are now: who changes one only loads the page again."""
    # KaTeX is that of the page that this one will replace.
    found = [("", FOLDER, path) for path in FOLDER.rglob("*")]
    found += [("vendor/katex/", KATEX, path) for path in KATEX.rglob("*")]
    named = {f"{under}{path.relative_to(root).as_posix()}": path for under, root, path in found if path.is_file()}
    _newest[:] = [_read(tuple((name, path, path.stat().st_mtime_ns) for name, path in sorted(named.items())))]
    return _newest[0]


_newest: list[Files] = []
"""The files as they were when the page was last asked for: its modules are looked up in these alone."""


@lru_cache(maxsize=1)
def _read(files: tuple[tuple[str, Path, int], ...]) -> Files:
    return Files({name: path.read_bytes() for name, path, _ in files})
