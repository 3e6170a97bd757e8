"""The pages and what they are made of, read once from static/: no path is ever made from a request."""

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import Response

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGES = {"/": "predict.html", "/label": "label.html", "/api": "api.html"}
ASSETS = ("style.css", "common.js", "predict.js", "label.js", "api.js", "icon.svg")


def add_pages(app: FastAPI) -> None:
    static = files("semisight.server") / "static"
    for path, name in {**PAGES, **{f"/static/{name}": name for name in ASSETS}}.items():
        _add(app, path, name, (static / name).read_bytes())


def _add(app: FastAPI, path: str, name: str, content: bytes) -> None:
    kind = _KINDS[name[name.rindex(".") :]]
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'

    async def page(request: Request) -> Response:  # from memory: no thread is needed, so none is waited for
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(content, media_type=kind, headers={"ETag": tag})

    app.add_api_route(path, page, include_in_schema=False)
