"""`GET /docs`: every call with its fields, made of `/openapi.json` on the server; no script, nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)
_STYLE = """body{font:1rem/1.6 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1c1c1c;background:#fff}pre{background:#f4f4f2;padding:.75rem;overflow:auto;font-size:.85rem}
details{border-top:1px solid #ddd;padding:.5rem 0}summary{cursor:pointer}code{font-size:.95em}
@media(prefers-color-scheme:dark){body{color:#e8e8e6;background:#1b1b1a}pre{background:#262624}
details{border-color:#444}a{color:#9cc4ff}}"""


@router.get("/docs")
async def show_docs(request: Request) -> HTMLResponse:
    """The page."""
    document = request.app.openapi()
    calls = [
        _call(document, path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(document["info"]["title"])
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} API</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
        f"<h1>{title} {escape(document['info']['version'])}</h1><p>{escape(document['info'].get('summary', ''))} "
        f'<a href="/openapi.json">openapi.json</a></p>{"".join(calls)}</body></html>'
    )


def _call(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation.get('description', ''))}</p>"]
    for parameter in operation.get("parameters", []):
        shown = json.dumps(parameter["schema"])
        parts.append(f"<p><code>{escape(parameter['name'])}</code> ({parameter['in']}) {escape(shown)}</p>")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>body, {escape(kind)}</p><pre>{_schema(document, content['schema'])}</pre>")
    for status, response in operation["responses"].items():
        for content in response.get("content", {}).values():
            name = _name(content.get("schema", {}))
            if name == "ErrorOut":
                parts.append(f"<p>{status}: error</p>")
            else:
                parts.append(f"<p>{status}</p><pre>{_schema(document, content.get('schema', {}))}</pre>")
    head = f"<summary><strong>{method.upper()}</strong> <code>{escape(path)}</code></summary>"
    return f"<details>{head}{''.join(parts)}</details>"


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rsplit("/", 1)[-1]


def _schema(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A schema as indented JSON, the names it refers to resolved, each once on a way down."""
    return escape(json.dumps(_resolved(document, schema, ()), indent=1, ensure_ascii=False))


def _resolved(document: dict[str, Any], value: Any, seen: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_resolved(document, item, seen) for item in value]
    if not isinstance(value, dict):
        return value
    name = _name(value)
    if name and name not in seen:
        return _resolved(document, document["components"]["schemas"][name], (*seen, name))
    return {key: _resolved(document, item, seen) for key, item in value.items() if key != "title"}
