"""The page's files: kept for ever under the name of their digest, under a strict policy, as they are on disk."""

from __future__ import annotations

import json
import re

import pytest
from api_fakes import Live

from api.page_files import FOLDER


def test_the_page_is_its_file_and_names_files_that_browsers_keep_for_ever(shared: Live) -> None:
    page = shared.client.get("/")
    (files,) = set(re.findall(r'"(/files/\w+)/', page.text))
    assert page.text == (FOLDER / "index.html").read_text(encoding="utf-8").replace("{files}", files)
    assert page.headers["cache-control"] == "no-cache"
    for name in ("app.js", "style.css", "en.json", "views/ask.js", "vendor/preact.js"):
        reply = shared.client.get(f"{files}/{name}")
        assert reply.content == (FOLDER / name).read_bytes()
        assert "immutable" in reply.headers["cache-control"]
        assert reply.headers["content-encoding"] == "gzip"
    plain = shared.client.get(f"{files}/app.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.content == (FOLDER / "app.js").read_bytes()
    assert plain.headers["content-type"].startswith("text/javascript")
    for name in ("nothing.js", "../page_files.py", "views", "%2e%2e/security.py"):
        assert shared.client.get(f"{files}/{name}").status_code == 404
    assert shared.client.get("/files/0000000000000000/app.js").status_code == 404


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/c/abc", 200), ("/nowhere", 404), ("/nowhere/c", 404)])
def test_an_address_of_the_page_is_the_page_and_any_other_is_a_404(shared: Live, path: str, status: int) -> None:
    reply = shared.client.get(path, headers={"accept": "text/html"})
    assert (reply.status_code, reply.headers["content-type"]) == (status, "text/html; charset=utf-8")


def test_an_unknown_call_is_a_word_of_the_api_and_no_page(shared: Live) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/nowhere", 404),
        ("POST", "/nowhere", 404),
        ("POST", "/study", 404),
        ("GET", "/v1/ask", 405),
    ):
        reply = shared.client.request(method, path)
        assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json"), path


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/next", "/"),
        ("/next/", "/"),
        ("/next/study?book=a%20b", "/study?book=a%20b"),
        ("/next//evil.test", "/evil.test"),
    ],
)
def test_an_address_that_the_page_had_leads_to_the_one_it_has(shared: Live, before: str, now: str) -> None:
    reply = shared.client.get(before)
    assert (reply.status_code, reply.headers["location"]) == (308, now)


def test_the_policy_allows_no_inline_script_no_eval_and_no_other_host(shared: Live) -> None:
    for path in ("/", "/nowhere", "/docs", "/v1/documents", "/v1/nothing"):
        policy = shared.client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert not re.search(r"unsafe|https?:|blob:|\*", policy), path
    assert "require-trusted-types-for 'script'" in shared.client.get("/").headers["content-security-policy"]


def test_both_languages_have_the_texts_that_the_modules_name_and_no_others() -> None:
    modules = [path for path in FOLDER.rglob("*.js") if "vendor" not in path.parts]
    code = "".join(path.read_text(encoding="utf-8") for path in modules)
    named = set(re.findall(r'"([a-z_]+(?:\.[\w+]+)*)"', code))
    begun = tuple(re.findall(r"`([a-z_.]+\.)\$\{", code))  # the rest of the key is the server's word
    english, chinese = (
        json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8")) for language in ("en", "zh")
    )
    plain = {_without_one(key, english) for key in english}
    assert plain == {_without_one(key, chinese) for key in chinese}
    assert {key for key in plain if key not in named and not key.startswith(begun)} == set()
    called = set(re.findall(r'\b(?:t|count)\("([\w.+]+)"', code))
    assert called and called <= plain
    for key, text in (english | chinese).items():
        values = set(re.findall(r"\{(\w+)\}", english.get(key, text)))
        assert set(re.findall(r"\{(\w+)\}", text)) == values, key


def _without_one(key: str, keys: dict[str, str]) -> str:
    """A key without the form for the number 1, which not every language has."""
    short = key.removesuffix(".one")
    return short if short in keys else key


def test_the_page_names_the_modules_of_its_first_view_so_that_they_come_at_once() -> None:
    wanted: set[str] = set()
    waiting = ["app.js", "vendor/preact.js"]
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        code = (FOLDER / name).read_text(encoding="utf-8")
        for imported in re.findall(r'^import [^"]*?"(\.[^"]+)";', code, re.MULTILINE):
            path = (FOLDER / name).parent.joinpath(imported).resolve().relative_to(FOLDER.resolve()).as_posix()
            waiting += [] if path in wanted else [path]
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'"modulepreload" href="{files}/([^"]+)"', page)) == wanted - {"app.js"}
