"""Fetches a page of the web, or those of a sitemap: bounded in size and time, never from this machine or its network.

The name is looked up once and the connection goes to that very address, so that a name cannot point elsewhere when it
is used (DNS rebinding). Redirects are followed by hand, each checked like the first address.
"""

from __future__ import annotations

import asyncio
import html
import io
import ipaddress
import re
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from indexes.errors import Cancelled, InvalidInput, TooLarge
from indexes.messages import msg

if TYPE_CHECKING:
    import httpx

MOST_REDIRECTS = 5
TIME_LIMIT_S = 30.0
SILENCE_S = 10.0
MOST_PAGES = 300
SITE_TIME_LIMIT_S = 180.0
PAGES_AT_ONCE = 4
MOST_SITEMAPS = 20
MOST_SITEMAP_BYTES = 10_000_000
_EMBEDDING = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""Networks whose addresses hold an IPv4 address in their last 32 bits."""
_SITEMAP = re.compile(rb"<(urlset|sitemapindex)[\s>]")
_LOCATION = re.compile(r"<loc>\s*(?:<!\[CDATA\[)?\s*([^<>\]]+?)\s*(?:\]\]>)?\s*</loc>")
ENDINGS = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "application/pdf": ".pdf",
    "application/epub+zip": ".epub",
}
"""File endings by type, where the address has none."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page: its content from the beginning, a file name whose ending says its format, and the address it came from.

    After redirects that is not the one asked.
    """

    content: IO[bytes]
    name: str
    url: str


def listed_pages(page: Fetched, *, private: bool = False) -> tuple[str, ...]:
    """The addresses that a sitemap lists of its own site, in its order; none where the page is no sitemap.

    Raises:
        InvalidInput, TooLarge: it lists none, or too many; as `fetch` for the maps that it names.
    """
    kind, listed = _listed(page)
    if not kind:
        return ()
    host = _host(page.url)
    if kind == "sitemapindex":
        maps = [one for one in listed if _host(one) == host][:MOST_SITEMAPS]
        listed = [one for part in maps for one in _listed(fetch(part, MOST_SITEMAP_BYTES, private=private))[1]]
    pages = tuple(dict.fromkeys(one for one in listed if _host(one) == host))
    if not 0 < len(pages) <= MOST_PAGES:
        raise InvalidInput(
            msg("{} lists {} pages of {}", f"{page.url:.200}", len(pages), host),
            hint=msg("Give a sitemap of 1 to {} pages of its own site, or the address of one page.", MOST_PAGES),
        )
    return pages


def fetch_pages(
    pages: Sequence[str],
    most_bytes: int,
    *,
    private: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[Fetched, ...]:
    """The pages of one site, in order; one that cannot be fetched is empty.

    Args:
        progress: called with how many are there.

    Raises:
        TooLarge: together they have more than `most_bytes`, or take too long.
        Cancelled: `cancelled` became true.
    """
    deadline = time.monotonic() + SITE_TIME_LIMIT_S
    host = _host(pages[0])
    sizes: list[int] = []

    def fetch_one(place: int, address: str) -> Fetched:
        if cancelled():
            raise Cancelled("stopped while the pages were fetched; nothing was added")
        if time.monotonic() > deadline:
            raise TooLarge(
                msg("the pages of {} took more than {} s", host, f"{SITE_TIME_LIMIT_S:.0f}"), hint="Add fewer pages."
            )
        try:
            page = fetch(address, most_bytes, private=private)
        except InvalidInput:  # the book's reading errors name it
            sizes.append(0)
            return Fetched(io.BytesIO(), f"{place:03}-{_name(address, 'text/html')}", address)
        opened.callback(page.content.close)
        sizes.append(page.content.seek(0, io.SEEK_END))
        page.content.seek(0)
        if sum(sizes) > most_bytes:
            raise TooLarge(
                msg("the pages of {} have more than {} bytes", host, f"{most_bytes:,}"), hint="Add fewer pages."
            )
        progress(len(sizes))
        return replace(page, name=f"{place:03}-{page.name}")

    with ExitStack() as opened:
        with ThreadPoolExecutor(PAGES_AT_ONCE) as threads:
            fetched = tuple(threads.map(fetch_one, range(1, len(pages) + 1), pages))
        opened.pop_all()  # all are there: they stay open
        return fetched


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _listed(page: Fetched) -> tuple[str, list[str]]:
    """Which kind of sitemap a page is, "" for any other page, and the addresses it lists; a sitemap is closed."""
    found = _SITEMAP.search(page.content.read(2000))
    page.content.seek(0)
    if found is None:
        return "", []
    with page.content:
        text = page.content.read(MOST_SITEMAP_BYTES).decode("utf-8", "replace")
    return found[1].decode(), [html.unescape(one) for one in _LOCATION.findall(text)]


def fetch(url: str, most_bytes: int, *, private: bool = False) -> Fetched:
    """One page.

    Args:
        private: whether addresses of this machine and its network may be asked.

    Raises:
        InvalidInput: the address is not one of the web, is private, or gives no page in `TIME_LIMIT_S`.
        TooLarge: the page has more than `most_bytes`.
    """
    try:
        return asyncio.run(asyncio.wait_for(_fetch(url, most_bytes, private=private), TIME_LIMIT_S))
    except TimeoutError as error:
        raise InvalidInput(
            msg("{} took more than {} s", f"{url:.200}", f"{TIME_LIMIT_S:.0f}"), hint="Download it, and add the file."
        ) from error


async def _fetch(url: str, most_bytes: int, *, private: bool) -> Fetched:
    import httpx

    async with httpx.AsyncClient(timeout=SILENCE_S, trust_env=False) as client:
        for _ in range(MOST_REDIRECTS + 1):
            host, address = _checked(url, private=private)
            parts = urlsplit(url)
            pinned = parts._replace(netloc=_netloc(address, parts.port), fragment="").geturl()
            # Unpacked, a few bytes may be gigabytes before their length is known.
            headers = {"Host": _netloc(host, parts.port), "User-Agent": "coalesce", "Accept-Encoding": "identity"}
            try:
                request = client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": host})
                response = await client.send(request, stream=True)
                with_content = await _read(response, url, most_bytes)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise InvalidInput(
                    msg("{} cannot be fetched: {}", f"{url:.200}", f"{type(error).__name__}: {error}"),
                    hint="Check the address.",
                ) from error
            if with_content is not None:
                return with_content
            url = urljoin(url, response.headers["location"])
    raise InvalidInput(
        msg("{} redirects more than {} times", f"{url:.200}", MOST_REDIRECTS), hint="Give the last address."
    )


def _netloc(host: str, port: int | None) -> str:
    bare = f"[{host}]" if ":" in host else host
    return bare if port is None else f"{bare}:{port}"


def _checked(url: str, *, private: bool) -> tuple[str, str]:
    """The host of an address, in ASCII, and the one network address to ask; raises InvalidInput."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInput(
            msg("{} is not an address of the web", f"{url!r:.200}"), hint="It begins with http:// or https://."
        )
    try:
        found = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(msg("there is no host {}", f"{host!r:.200}"), hint="Check the address.") from error
    addresses = [str(one[4][0]) for one in found]
    if not private and not all(map(_is_public, addresses)):
        raise InvalidInput(
            msg("{} is an address of this machine or its network", f"{host!r:.200}"),
            hint="Allow such addresses with COALESCE_PRIVATE_URLS=true.",
        )
    return host if host.isascii() else host.encode("idna").decode(), addresses[0]


def _is_public(address: str) -> bool:
    """Whether a network address is one of the web, and so is the IPv4 address that it may hold."""
    bare = ipaddress.ip_address(address.partition("%")[0])
    if bare.is_multicast or not bare.is_global:
        return False
    if isinstance(bare, ipaddress.IPv4Address):
        return True
    embeds = any(bare in network for network in _EMBEDDING)
    inside = bare.sixtofour or (ipaddress.IPv4Address(int(bare) & 0xFFFFFFFF) if embeds else None)
    return inside is None or _is_public(str(inside))


async def _read(response: httpx.Response, url: str, most_bytes: int) -> Fetched | None:
    """The page of a response; None for a redirect."""
    try:
        if response.is_redirect and "location" in response.headers:
            return None
        if response.status_code != 200:
            raise InvalidInput(msg("{} answered {}", f"{url:.200}", response.status_code), hint="Check the address.")
        if (packed := response.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            raise InvalidInput(
                msg("{} comes packed as {}, which was not asked for", f"{url:.200}", f"{packed!r:.40}"),
                hint="Download it, and add the file.",
            )
        content = tempfile.SpooledTemporaryFile(max_size=2**20)  # noqa: SIM115  handed on open
        try:
            async for block in response.aiter_raw():
                content.write(block)
                if content.tell() > most_bytes:
                    raise TooLarge(
                        msg("{} has more than {} bytes", f"{url:.200}", f"{most_bytes:,}"),
                        hint="Raise COALESCE_MAX_UPLOAD_BYTES.",
                    )
        except BaseException:
            content.close()
            raise
    finally:
        await response.aclose()
    content.seek(0)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return Fetched(content, _name(url, kind), url)


def _name(url: str, kind: str) -> str:
    """A file name: the address's last part with the ending of its type; a text keeps its own, which says its format."""
    parts = urlsplit(url)
    last = PurePosixPath(unquote(parts.path)).name
    suffix, ending = PurePosixPath(last).suffix, ENDINGS.get(kind)
    if ending == ".html":  # `page.php` is a page too
        return f"{PurePosixPath(last).stem or parts.hostname}.html"
    if ending is None or suffix.lower() == ending or (suffix and kind.startswith("text/")):
        return last
    return f"{last or parts.hostname}{ending}"
