"""Nothing foreign runs, nothing leaves, everybody can read: escaping, policy, axe, phone, languages, themes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_fakes import SAMPLE_ID, Live
from browser_help import Open, ask, drawn
from playwright.sync_api import Page, expect

axe_sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

EVIL = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script><svg onload='window.ran=1'>"
EVIL_MARKDOWN = (
    "[click](javascript:window.ran=1) ![pixel](http://example.invalid/pixel.png) "
    "`</code><script>window.ran=1</script>` $\\href{javascript:window.ran=1}{x}$ $\\htmlClass{x}{y}$"
)
VIEWS = ("/", "/compare", "/library", "/study", "/study/cards", "/study/progress", "/reports", "/settings")
PHONE = {"viewport": {"width": 360, "height": 740}}


def assert_nothing_ran(page: Page) -> None:
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert page.locator("main script, main img[src*='example']").count() == 0


def test_markup_of_questions_answers_and_books_is_shown_as_text(site: Live, open_page: Open) -> None:
    site.shelf.clear()
    site.shelf.put(SAMPLE_ID, f"A warp has 32 threads. {EVIL}", source=f"{EVIL}.pdf", sample=True, pages=True)
    site.generator.pieces = (f"A warp has 32 threads [1]. {EVIL}\n\n", EVIL_MARKDOWN)
    page = open_page()
    ask(page, f"What is a warp? {EVIL}")
    expect(page.locator(".asked")).to_contain_text("<script>")
    expect(page.locator(".answer")).to_contain_text("onerror")
    assert page.locator(".answer a[href^=javascript]").count() == 0
    page.click(".answer .cite")
    expect(page.locator("#source .passage")).to_contain_text("<svg onload")
    expect(page.locator("#source h2")).to_contain_text("<img")
    assert_nothing_ran(page)
    page.reload()
    expect(page.locator(".conversation .name")).to_contain_text("<img")
    assert_nothing_ran(page)


def test_markup_of_file_names_and_learners_is_shown_as_text(site: Live, open_page: Open) -> None:
    page = open_page("/library")
    name = "<img src=x onerror=window.ran=1>.txt"
    page.set_input_files("input[type=file][accept]", {"name": name, "mimeType": "text/plain", "buffer": b"A book."})
    expect(page.locator(".book").nth(1)).to_contain_text("onerror")
    page.get_by_role("button", name="Remove <img").click()
    expect(page.locator("dialog")).to_contain_text("onerror")
    assert_nothing_ran(page)
    page.context.add_cookies(
        [{"name": "coalesce_learner", "value": "%3Cimg src=x onerror=ran=1%3E", "url": site.address}]
    )
    page.goto(site.address + "/study")
    expect(page.locator(".learner")).to_contain_text("<img")
    assert_nothing_ran(page)


def test_markup_of_exam_questions_is_shown_as_text(site: Live, open_page: Open) -> None:
    folder = site.services.settings.home / "questions"
    folder.mkdir(exist_ok=True)
    question = {"id": "evil", "question": EVIL, "answer": EVIL, "type": "short"}
    (folder / "evil.jsonl").write_text(json.dumps(question), encoding="utf-8")
    body = {"count": 1, "question_file": "evil.jsonl", "learner": "evil"}
    exam = site.client.post("/v1/exams", json=body).json()
    page = open_page("/study")
    page.context.add_cookies([{"name": "coalesce_learner", "value": "evil", "url": site.address}])
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    page.fill(".question textarea", EVIL)
    expect(page.locator(".step.done")).to_have_count(1)
    page.get_by_role("button", name="Hand in").click()
    page.locator("dialog").get_by_role("button", name="Hand in").click()
    expect(page.locator(".mark")).to_contain_text("<script>")
    assert_nothing_ran(page)


def test_a_policy_keeps_the_browser_on_this_server(site: Live) -> None:
    policy = site.client.get("/").headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy


def test_code_is_coloured_and_formulas_are_set(site: Live, open_page: Open) -> None:
    site.generator.pieces = (
        "The work is $n \\log_2 n$ [1].\n\n",
        "$$\n\\frac{a}{b}\n$$\n\n```cuda\n__global__ void add(float* x) { x[0] = 1.0f; }\n```\n",
    )
    page = open_page()
    ask(page, "How much work?")
    expect(page.locator(".answer .katex")).to_have_count(2)
    expect(page.locator(".listing code span").first).to_be_visible()
    expect(page.locator(".listing")).to_contain_text("x[0] = 1.0f")


def test_no_view_has_a_serious_fault_of_access_in_light_or_dark_colours(site: Live, open_page: Open) -> None:
    page = open_page(color_scheme="light")
    ask(page, "How many threads are in a warp?")
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_be_visible()
    found = {"an answer": _faults(page)}
    for view in VIEWS:
        page.goto(site.address + view)
        drawn(page)
        found[view] = _faults(page)
    exam = site.client.post("/v1/exams", json={"count": 2, "types": ["choice", "short"]}).json()
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    page.locator(".question").wait_for()
    found["an exam"] = _faults(page)
    site.client.post(f"/v1/exams/{exam['id']}/answers", json={"answers": {}})
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    page.locator(".result").wait_for()
    found["marks"] = _faults(page)
    page.goto(f"{site.address}/study/cards")
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    page.locator(".rate").first.wait_for()
    found["a card"] = _faults(page)
    assert {where: faults for where, faults in found.items() if faults} == {}


def _faults(page: Page) -> list[dict[str, Any]]:
    """Serious faults in light colours, and those of contrast in dark ones, where nothing else differs."""
    faults = _violations(page, {})
    page.emulate_media(color_scheme="dark")
    faults += _violations(page, {"runOnly": ["color-contrast"]})
    page.emulate_media(color_scheme="light")
    return faults


def _violations(page: Page, options: dict[str, Any]) -> list[dict[str, Any]]:
    page.wait_for_function("document.getAnimations().length === 0")
    violations = axe_sync.Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        {"id": one["id"], "nodes": [node["html"][:160] for node in one["nodes"][:3]]}
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]


WIDTHS = (320, 360, 390, 600, 768, 769, 800, 832, 896, 897, 1152, 1920)
_TOO_WIDE = """async () => {
  await new Promise((done) => requestAnimationFrame(() => done()));
  const wider = (element) => element.scrollWidth > element.clientWidth;
  return wider(document.documentElement) || wider(document.querySelector('.views'));
}"""
"""Whether the page scrolls sideways, or its navigation is cut off."""


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_view_scrolls_sideways_and_the_navigation_is_whole_at_any_width(
    site: Live, open_page: Open, locale: str
) -> None:
    page = open_page(locale=locale)
    too_wide = []
    for view in VIEWS:
        page.goto(site.address + view)
        drawn(page)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 740})
            if page.evaluate(_TOO_WIDE):
                too_wide.append((view, width))
    assert too_wide == []


def test_a_phone_asks_and_opens_a_citation(site: Live, open_page: Open) -> None:
    site.generator.pieces = ("A warp has 32 threads [1].\n\n```\n" + "x" * 200 + "\n```\n",)
    page = open_page(**PHONE)
    ask(page, "How many threads are in a warp?")
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_be_in_viewport()
    page.wait_for_function("document.documentElement.scrollWidth <= 360")
    page.locator("#source").get_by_role("button", name="Close").click()
    expect(page.locator("#source")).to_be_hidden()


def test_a_chinese_browser_gets_chinese_and_the_switch_is_kept(open_page: Open) -> None:
    page = open_page("/", locale="zh-CN")
    expect(page.locator(".views")).to_contain_text("提问")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.locator("#language").select_option("en")
    expect(page.locator(".views")).to_contain_text("Ask")
    page.reload()
    expect(page.locator(".views")).to_contain_text("Library")


def test_an_english_browser_may_switch_to_chinese(site: Live, open_page: Open) -> None:
    page = open_page("/study")
    page.locator("#language").select_option("zh")
    expect(page.get_by_role("button", name="开始考试")).to_be_visible()
    page.goto(site.address)
    ask(page, "一个线程束有多少个线程？")
    expect(page.locator(".answer-tools")).to_be_visible()
    expect(page.get_by_role("button", name="打开出处 1")).to_be_visible()


def test_the_theme_is_chosen_and_kept(open_page: Open) -> None:
    page = open_page()
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    page.wait_for_function("document.cookie.includes('coalesce_theme=light')")
    page.locator("#theme[aria-label^=Light]").click()
    page.wait_for_function("document.cookie.includes('coalesce_theme=dark')")
    page.locator("#theme[aria-label^=Dark]").wait_for()
    assert page.evaluate(background) != light


def test_the_keyboard_reaches_the_content_first(open_page: Open) -> None:
    page = open_page("/settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.goto(page.url.split("#")[0].replace("/settings", "/"))
    page.locator("h1").first.wait_for(state="attached")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    expect(page.locator("#question")).to_be_focused()
