"""The page's own icons: strokes on a 24 by 24 grid."""

from __future__ import annotations

_SHAPES = {
    "send": '<path d="M5 12h14M13 6l6 6-6 6"/>',
    "stop": '<rect x="7" y="7" width="10" height="10" rx="1.5" fill="currentColor"/>',
    "new": '<path d="M12 5v14M5 12h14"/>',
    "edit": '<path d="M4 20l4-1L19 8l-3-3L5 16z"/>',
    "trash": '<path d="M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5"/>',
    "copy": '<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V5a1 1 0 0 1 1-1h9"/>',
    "up": '<path d="M7 11v9H4v-9zM7 11l4-7c1.5 0 2.5 1 2 3l-.7 3H19c1 0 1.7 1 1.4 2l-1.6 6.5c-.2.9-.8 1.5-1.8 1.5H7"/>',
    "down": '<path d="M17 13V4h3v9zM17 13l-4 7c-1.5 0-2.5-1-2-3l.7-3H5c-1 0-1.7-1-1.4-2l1.6-6.5C5.4 4.6 6 4 7 4h10"/>',
    "close": '<path d="M6 6l12 12M18 6L6 18"/>',
    "filter": '<path d="M4 6h16M7 12h10M10 18h4"/>',
    "list": '<path d="M4 6h16M4 12h16M4 18h10"/>',
    "book": '<path d="M5 5c3-1.2 5-.8 7 1 2-1.8 4-2.2 7-1v13c-3-1.2-5-.8-7 1-2-1.8-4-2.2-7-1zM12 6v13"/>',
    "sun": '<circle cx="12" cy="12" r="4"/><path d="M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4"/>',
    "upload": '<path d="M12 16V5M7.5 9.5L12 5l4.5 4.5M5 19h14"/>',
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
