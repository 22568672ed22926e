"""Plain HTML elements for the views: light, reachable by keyboard, named for screen readers.

Text always goes in as text. Boxes keep their own value in the browser (the server would overwrite what is being
typed) and hand it over when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from api.pages.icons import ICONS

Handler = Callable[..., Any]


def tag(name: str, text: str = "", classes: str = "", /, **attributes: Any) -> TextElement:
    """An element; `aria_label="x"` becomes `aria-label`, `for_` becomes `for`, None and False are left out."""
    element = TextElement(tag=name, text=text)
    if classes:
        element.classes(classes)
    set_attributes(element, **attributes)
    return element


def set_attributes(element: Element, **attributes: Any) -> None:
    """Sets attributes, and removes those that are None or False."""
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is None or value is False:
            element.props.pop(attribute, None)
        else:
            element.props[attribute] = "" if value is True else value
    element.update()


def icon(name: str) -> None:
    """One of `ICONS`, for the eye only."""
    ui.html(ICONS[name], sanitize=False, tag="span").classes("icon").props["aria-hidden"] = "true"


def button(
    text: str, on_click: Handler | None = None, *, kind: str = "", icon_name: str = "", label: str = "", **more: Any
) -> TextElement:
    """A button; `label` names it where it shows only its icon. Kinds: `primary`, `quiet`, `danger`, or plain."""
    element = tag("button", "", f"button {kind}".strip(), type="button", **more)
    if label:
        set_attributes(element, aria_label=label, title=label)
    with element:
        if icon_name:
            icon(icon_name)
        if text:
            tag("span", text)
    if on_click is not None:
        element.on("click", on_click, args=[])
    return element


def link(text: str, target: str, classes: str = "", /, **more: Any) -> TextElement:
    """A link within the page."""
    return tag("a", text, classes, href=target, **more)


def field(label: str, *, hidden_label: bool = False) -> TextElement:
    """A label around its control: use as a context."""
    element = tag("label", "", "field")
    with element:
        tag("span", label, "sr-only" if hidden_label else "field-label")
    return element


def text_box(
    on_change: Handler, *, value: str = "", kind: str = "text", event: str = "change", **more: Any
) -> TextElement:
    """A box for one line; `on_change` gets its text."""
    element = tag("input", "", "box", type=kind, defaultValue=value, autocomplete="off", **more)
    return _reports(element, event, "e.target.value", on_change)


def text_area(on_change: Handler, *, value: str = "", event: str = "change", **more: Any) -> TextElement:
    """A box for several lines; `on_change` gets its text."""
    element = tag("textarea", "", "box", defaultValue=value, autocomplete="off", **more)
    return _reports(element, event, "e.target.value", on_change)


def select(options: Iterable[tuple[str, str]], on_change: Handler, *, value: str = "", **more: Any) -> TextElement:
    """A list to choose one of, `(value, text)` each; `on_change` gets the value."""
    element = tag("select", "", "box", **more)
    with element:
        for key, text in options:
            tag("option", text, value=key, selected=key == value)
    return _reports(element, "change", "e.target.value", on_change)


def check(label: str, on_change: Handler, *, checked: bool = False, kind: str = "checkbox", **more: Any) -> TextElement:
    """A check box (or `kind="radio"`) with its label; `on_change` gets whether it is checked. Gives the label."""
    outer = tag("label", "", "check")
    with outer:
        box = tag("input", type=kind, defaultChecked=checked, checked=checked, **more)
        tag("span", label)
    _reports(box, "change", "e.target.checked", on_change)
    return outer


def _reports(element: TextElement, event: str, value: str, handler: Handler) -> TextElement:
    element.on(event, lambda arguments: handler(arguments.args), js_handler=f"(e) => emit({value})")
    return element


def confirm(question: str, yes: str, no: str, on_yes: Handler, *, detail: str = "") -> None:
    """Asks before something is done that cannot be undone; the harmless answer has the focus."""
    client = ui.context.client
    dialog = tag("dialog", "", "dialog", aria_label=question)
    with dialog:
        tag("h2", question)
        if detail:
            tag("p", detail)
        with tag("div", "", "row end"):
            button(no, dialog.delete, kind="", autofocus=True)

            async def act() -> None:
                dialog.delete()
                with client:  # the dialog, in which this began, is gone
                    result = on_yes()
                    if result is not None:
                        await result

            button(yes, act, kind="danger")
    dialog.on("close", dialog.delete, args=[])
    show_dialog(dialog)


def show_dialog(dialog: Element) -> None:
    """Opens a `<dialog>` over the page, with the focus inside."""
    ui.run_javascript(f"coalesce.openDialog('c{dialog.id}')")


def toast(text: str, *, bad: bool = False) -> None:
    """Says something in passing."""
    ui.notify(
        text, position="bottom", multi_line=True, color="negative" if bad else "dark", timeout=8000 if bad else 3000
    )
