"""The page: the files of `api/page/` as they are. Everything that it shows it asks REST for; Python draws nothing.

`index.html` names the files by a digest of them all, so that browsers may keep them for ever.
"""

from __future__ import annotations

import gzip
import mimetypes
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

router = APIRouter(include_in_schema=False)
PAGE = "/next"
"""Where the page is; "" puts it at the root."""
VIEWS = frozenset({"", "c", "library", "book", "study"})
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
_IMPORTS = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


def is_page(path: str) -> bool:
    """Whether this is the page's own, a view or a file: neither holds anything that needs a key."""
    return _view(path) in VIEWS or path.startswith(f"{PAGE}/files/")


def _view(path: str) -> str | None:
    """The first part of an address within the page; None outside it."""
    inside = path.startswith(f"{PAGE}/") or path == PAGE
    return path.removeprefix(PAGE).removeprefix("/").split("/", 1)[0] if inside else None


@router.api_route(PAGE + "/files/{digest}/{name:path}", methods=["GET", "HEAD"])
def page_file(digest: str, name: str, request: Request) -> Response:
    """One of the page's files; another version's is not here."""
    if digest != _digest() or name not in _files():
        return PlainTextResponse("The page has no such file; load it again.", 404)
    return _reply(request, name, FOR_EVER)


@router.api_route(PAGE or "/", methods=["GET", "HEAD"])
@router.api_route(PAGE + "/{path:path}", methods=["GET", "HEAD"])
def page(request: Request) -> Response:
    """The page, whatever it will show; an address that it has nothing for is a 404."""
    reply = _reply(request, "index.html", "no-cache")
    reply.status_code = 200 if _view(request.url.path) in VIEWS else 404
    reply.headers["Content-Security-Policy"] = _policy()
    return reply


def _reply(request: Request, name: str, keep: str) -> Response:
    packed = name.endswith(PACKED) and "gzip" in request.headers.get("accept-encoding", "")
    headers = {"Cache-Control": keep, "Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if packed else {})
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(_packed(name) if packed else _content(name), media_type=kind, headers=headers)


@cache
def _files() -> dict[str, Path]:
    """Every file by its name in an address. KaTeX is that of the page that this one will replace."""
    own = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*")}
    katex = {f"vendor/katex/{path.relative_to(KATEX).as_posix()}": path for path in KATEX.rglob("*")}
    return {name: path for name, path in sorted((own | katex).items()) if path.is_file()}


@cache
def _digest() -> str:
    found = sha256()
    for name, path in _files().items():
        found.update(name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


@cache
def _content(name: str) -> bytes:
    content = _files()[name].read_bytes()
    if name == "index.html":
        content = content.replace(b"{files}", f"{PAGE}/files/{_digest()}".encode())
    return content


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_content(name), mtime=0)


@cache
def _policy() -> str:
    found = _IMPORTS.search(_content("index.html").decode())
    imports = found[1] if found else ""
    return POLICY.format(imports=b64encode(sha256(imports.encode()).digest()).decode())
