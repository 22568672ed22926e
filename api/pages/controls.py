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

_SHAPES = {
    "send": '<path d="M5 12h14M13 6l6 6-6 6"/>',
    "stop": '<rect x="7" y="7" width="10" height="10" rx="1.5" fill="currentColor"/>',
    "new": '<path d="M12 5v14M5 12h14"/>',
    "edit": '<path d="M4 20l4-1L19 8l-3-3L5 16z"/>',
    "trash": '<path d="M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5"/>',
    "copy": '<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V5a1 1 0 0 1 1-1h9"/>',
    "again": '<path d="M5 12a7 7 0 1 1 2.2 5.1M5 12V7m0 5h5"/>',
    "up": '<path d="M7 11v9H4v-9zM7 11l4-7c1.5 0 2.5 1 2 3l-.7 3H19c1 0 1.7 1 1.4 2l-1.6 6.5c-.2.9-.8 1.5-1.8 1.5H7"/>',
    "down": '<path d="M17 13V4h3v9zM17 13l-4 7c-1.5 0-2.5-1-2-3l.7-3H5c-1 0-1.7-1-1.4-2l1.6-6.5C5.4 4.6 6 4 7 4h10"/>',
    "close": '<path d="M6 6l12 12M18 6L6 18"/>',
    "filter": '<path d="M4 6h16M7 12h10M10 18h4"/>',
    "list": '<path d="M4 6h16M4 12h16M4 18h10"/>',
    "book": '<path d="M5 5c3-1.2 5-.8 7 1 2-1.8 4-2.2 7-1v13c-3-1.2-5-.8-7 1-2-1.8-4-2.2-7-1zM12 6v13"/>',
    "sun": '<circle cx="12" cy="12" r="4"/><path d="M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4"/>',
    "upload": '<path d="M12 16V5M7.5 9.5L12 5l4.5 4.5M5 19h14"/>',
    "download": '<path d="M12 5v11M7.5 11.5L12 16l4.5-4.5M5 19h14"/>',
    "back": '<path d="M19 12H5M11 6l-6 6 6 6"/>',
    "search": '<circle cx="11" cy="11" r="6"/><path d="M16 16l4 4"/>',
}
ICONS = {
    name: '<svg viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="1.7" '
    f'stroke-linecap="round" stroke-linejoin="round" focusable="false">{shape}</svg>'
    for name, shape in _SHAPES.items()
}
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><rect width="24" height="24" rx="5" fill="#14594d"/>'
    '<path d="M5 7c3-1.2 5-.8 7 1 2-1.8 4-2.2 7-1v10c-3-1.2-5-.8-7 1-2-1.8-4-2.2-7-1zM12 8v10" fill="none" '
    'stroke="#fff" stroke-width="1.6" stroke-linejoin="round"/></svg>'
)


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
    ui.notify(text, position="top", multi_line=True, color="negative" if bad else "dark", timeout=8000 if bad else 3000)
