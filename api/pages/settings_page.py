"""`/settings`: what answers, and a switch to something else; what runs, with the command that changes it."""

from __future__ import annotations

from fastapi import Request
from nicegui import ui
from nicegui.element import Element

from api.pages.answering_choice import AnsweringChoice
from api.pages.controls import button, link, set_attributes, tag
from api.pages.frame import Visit, open_view, sign_out

COMMANDS = {
    "generator": "coalesce serve --generator local --model PATH",
    "model": "coalesce serve --generator remote --base-url URL --model NAME",
    "quantization": "coalesce serve --generator local --model PATH --quantization none|int8|nf4",
    "adapters": "coalesce serve --generator local --model PATH --adapter NAME=FOLDER",
    "arms": "coalesce tune --model PATH --data FILE --out FOLDER",
    "embedder": "COALESCE_EMBEDDER=NAME coalesce serve",
    "faiss": "make serve GPU=1",
    "books": "coalesce add PATH",
    "home": "COALESCE_HOME=FOLDER coalesce serve",
    "address": "coalesce serve --host HOST --port PORT",
    "keys": "COALESCE_API_KEYS=KEY COALESCE_LEARNER_KEYS=NAME=KEY,NAME=KEY coalesce serve",
}


@ui.page("/settings")
def settings(request: Request) -> None:
    open_view(request, "settings", _show)


def _show(visit: Visit) -> None:
    t = visit.t
    tag("h1", t("nav.settings"))
    if visit.owner is None:
        choice = AnsweringChoice(visit, lambda: _fill(visit, body))
        choice.resume()
        ui.timer(0, choice.look, once=True)
    tag("p", t("settings.lead"), "lead")
    with (
        tag(
            "div",
            "",
            "card table-box stacked settings-table",
            tabindex="0",
            role="region",
            aria_label=t("nav.settings"),
        ),
        tag("table"),
    ):
        with tag("thead"), tag("tr"):
            for name in ("what", "now", "change"):
                tag("th", t(f"settings.{name}"), scope="col")
        body = tag("tbody")
    _fill(visit, body)
    with tag("div", "", "row"):
        link(t("settings.api"), "/docs")
        sign_out(visit)


def _fill(visit: Visit, body: Element) -> None:
    """Draws the rows of what runs now."""
    t = visit.t
    body.clear()
    with body:
        for name, value in _values(visit).items():
            if value is None:
                continue
            with tag("tr"):
                tag("th", t(f"settings.{name}"), scope="row")
                tag("td", value)
                with tag("td", "", "command-cell"):
                    tag("code", COMMANDS[name])
                    copy = button("", kind="quiet", icon_name="copy", label=t("settings.copy", command=COMMANDS[name]))
                    set_attributes(copy, data_copy=COMMANDS[name], data_copied=t("copied"))


def _values(visit: Visit) -> dict[str, str | None]:
    """What runs now, by the names of `COMMANDS`; None where it has no meaning."""
    t = visit.t
    running = visit.services.runtime_info()
    server = visit.services.settings
    return {
        "generator": t.either(f"generator.{running['generator']}", running["generator"]),
        "model": running["model"] if running["generator"] != "extractive" else None,
        "quantization": running["quantization"],
        "adapters": ", ".join(running["adapters"]) or t("settings.no_adapter"),
        "arms": ", ".join(t(f"arm.{arm}") for arm in running["arms"]),
        "embedder": running["embedder"],
        "faiss": t(f"faiss.{running['faiss_device']}"),
        "books": t(
            "settings.book_count",
            books=t.count("library.books_count", running["documents"]),
            nodes=t.count("library.nodes", running["nodes"]),
        ),
        "home": str(server.home),
        "address": f"{server.host}:{visit.services.generators.own_port}",
        "keys": t(f"settings.{_key_state(visit)}", name=visit.owner or ""),
    }


def _key_state(visit: Visit) -> str:
    if not visit.services.settings.asks_for_keys:
        return "without_key"
    return "with_key" if visit.owner is None else "learner_key"
