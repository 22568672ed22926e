"""Nothing foreign runs, nothing leaves, everybody can read: markup, widths, access, languages, themes."""

from __future__ import annotations

import pytest
from api_fakes import SAMPLE_ID, WARP, Live
from browser_help import QUESTION, Open, ask
from playwright.sync_api import Page, expect

axe_sync = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")


EVIL = "<img src=x onerror=\"window.ran=1\"><script>window.ran=1</script><svg onload='window.ran=1'>"
EVIL_MARKDOWN = (
    "[click](javascript:window.ran=1) ![pixel](http://example.invalid/pixel.png) [1](http://example.invalid) "
    "`</code><script>window.ran=1</script>` $\\href{javascript:window.ran=1}{x}$ $\\htmlClass{x}{y}$"
)


def test_markup_of_questions_answers_and_books_stays_text_and_formulas_and_code_are_set(
    site: Live, open_page: Open
) -> None:
    site.shelf.clear()
    site.shelf.put(SAMPLE_ID, f"{WARP} {EVIL}", source=f"{EVIL}.pdf", sample=True, pages=True)
    site.generator.pieces = (
        f"A warp has 32 threads [1]. {EVIL}\n\n{EVIL_MARKDOWN}\n\n$$\n\\frac{{a}}{{b}}\n$$\n\n",
        "```cuda\n__global__ void add(float* x) { x[0] = 1.0f; }\n```\n\n| a | b |\n| :-- | --: |\n| 1 | 2 |\n",
    )
    page = open_page()
    ask(page, f"What is a warp? {EVIL}")
    answer = page.locator(".answer")
    expect(page.locator(".asked")).to_contain_text("<script>")
    expect(answer).to_contain_text("onerror")
    assert answer.locator("img, script, a[href^=javascript]").count() == 0
    expect(answer.locator("a")).to_have_text(["pixel"])  # a bare number would look like a citation
    expect(answer.locator(".katex-display")).to_have_count(1)
    expect(answer.locator(".listing .k")).to_have_text(["__global__"])
    assert answer.locator("td.right").inner_text() == "2"
    page.click(".answer .cite")
    expect(page.locator("#source .passage")).to_contain_text("<svg onload")
    expect(page.locator("#source h2")).to_contain_text("<img")
    page.reload()
    expect(page.locator(".conversation .name")).to_contain_text("<img")
    expect(answer).to_contain_text("onerror")
    assert page.locator("main").locator("img, script").count() == 0
    assert page.evaluate("window.ran") is None


STUDY = ("/study", "/study/cards", "/study/progress", f"/study/guide/{SAMPLE_ID}")
VIEWS = ("/", "/settings", "/compare", "/reports", "/library", f"/book/{SAMPLE_ID}", *STUDY)
WIDTHS = (320, 390, 768, 1152)
_TOO_WIDE = """async () => {
  await new Promise((done) => requestAnimationFrame(() => done()));
  return document.documentElement.scrollWidth > document.documentElement.clientWidth;
}"""


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_view_scrolls_sideways_or_has_a_serious_fault_of_access_in_light_or_dark(
    site: Live, open_page: Open, locale: str
) -> None:
    page = open_page(locale=locale)
    ask(page, QUESTION)
    page.click(".answer .cite")
    expect(page.locator("#source mark")).to_be_visible()
    found = {"an answer": _faults(page)}
    for view in VIEWS:
        page.goto(f"{site.address}{view}")
        page.locator("main > * > *").first.wait_for()
        found[view] = _faults(page)
    assert {where: faults for where, faults in found.items() if faults} == {}


def _faults(page: Page) -> list[str]:
    found = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 740})
        if page.evaluate(_TOO_WIDE):
            found.append(f"too wide at {width}")
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        options = {"resultTypes": ["violations"], "preload": False}
        violations = axe_sync.Axe().run(page, options=options).response["violations"]
        found += [f"{theme} {one['id']}: {one['nodes'][0]['html'][:200]}" for one in violations
                  if one["impact"] in ("serious", "critical")]  # fmt: skip
    return found


def test_settings_are_shown_while_a_language_model_loads(site: Live, open_page: Open) -> None:
    page = open_page()
    loading = {"error": {"type": "not_ready", "message": "", "hint": ""}, "status": "starting", "answering": True}
    page.route("**/readyz", lambda route: route.fulfill(status=503, json=loading | {"waiting_for": "a step"}))
    page.goto(f"{site.address}/settings")
    expect(page.locator(".facts-of-server")).to_contain_text("one book")


def test_the_exam_and_its_marks_have_no_serious_fault_of_access(site: Live, open_page: Open) -> None:
    given = site.post("/v1/class-exams", count=2, learners=["Ada"], time_limit_s=60)
    exam = site.post("/v1/exams", count=2, types=["choice", "short"])
    page = open_page(f"/study/class/{given['id']}")
    page.locator("tbody").wait_for()
    found = _faults(page)
    page.goto(f"{site.address}/study/exam/{exam['id']}")
    page.locator(".question").wait_for()
    found += _faults(page)
    site.post(f"/v1/exams/{exam['id']}/answers", answers={})
    page.reload()
    page.locator(".result").wait_for()
    found += _faults(page)
    page.goto(f"{site.address}/study/cards")
    page.locator(".flashcard").wait_for()
    page.keyboard.press(" ")
    page.locator(".rate").first.wait_for()
    assert found + _faults(page) == []


def test_the_theme_and_the_language_are_chosen_and_kept(open_page: Open) -> None:
    page = open_page()
    page.click("#theme")
    page.click("#theme")
    page.locator("#language").select_option("zh")
    expect(page.locator(".views")).to_contain_text("提问")
    page.reload()
    expect(page.locator(".views")).to_contain_text("提问")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 22, 20)"


DRAWN = """async (texts) => {
  const { draw } = await import(new URL("markdown.js", document.querySelector("script[type=module]").src));
  const { h, render } = await import("preact");
  return texts.map((text) => {
    const place = document.createElement("div");
    render(h("div", null, draw(text, { passages: [{}, {}, {}] }).elements), place);
    return place.firstChild.innerHTML;
  });
}"""
CITE = '<button type="button" class="cite" aria-label="Open source {0}">{0}</button>'
MARKDOWN = {
    "a[1] = b;": "<p>a[1] = b;</p>",
    "`x [1]`": "<p><code>x [1]</code></p>",
    "[4] and [0]": "<p>[4] and [0]</p>",
    "[1](https://example.org)": "<p>1</p>",
    "A. [2] B [1]": f"<p>A. {CITE.format(1)} B {CITE.format(2)}</p>",
    "A. [2] [2] B": f"<p>A. {CITE.format(1)} B</p>",
    "Use __shared__ memory and **note**.": "<p>Use <code>__shared__</code> memory and <strong>note</strong>.</p>",
    "It costs $5 and then $6.": "<p>It costs $5 and then $6.</p>",
    "So $a_i * b_i$.": '<p>So <span class="formula"></span>.</p>',
    "$$\nx < y\n$$": '<span class="formula display"></span>',
    "So\n\\[\na\n- b\n\\]": '<p>So</p><span class="formula display"></span>',
    "![pixel](http://example.org/p.png) [file](chapter.md)": '<p>!<a href="http://example.org/p.png" target="_blank" '
    'rel="noopener noreferrer">pixel</a> [file](chapter.md)</p>',
    "<b>x</b>": "<p>&lt;b&gt;x&lt;/b&gt;</p>",
    "Look:\n```cuda\n__global__ void f(": '<p>Look:</p><div class="listing"><pre tabindex="0"><code>'
    '<span class="k">__global__</span> <span class="kt">void</span> <span class="nf">f</span>(</code></pre></div>',
}
"""What a text of a model becomes, before KaTeX sets its formulas."""


def test_markdown_becomes_elements_with_markers_formulas_and_listings_in_their_places(open_page: Open) -> None:
    drawn = open_page().evaluate(DRAWN, list(MARKDOWN))
    assert dict(zip(MARKDOWN, drawn, strict=True)) == MARKDOWN


def test_the_keyboard_reaches_the_content_first(open_page: Open) -> None:
    page = open_page("/settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.get_by_role("link", name="Ask", exact=True).click()
    page.locator("#question").wait_for()
    ask(page, QUESTION)
    page.get_by_role("link", name="Skip to content").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(".cite").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#question")).to_be_focused()
