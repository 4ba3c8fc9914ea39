"""The pages of a worker: a playground and the description of its API, all from this package."""

import hashlib
import mimetypes
from importlib.resources import files

from fastapi import FastAPI, Request, Response

_GUARD = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGES = {"/": "index.html", "/docs": "docs.html"}
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


def add_pages(app: FastAPI) -> None:
    """Add the pages and what they load."""
    folder = files("agentrl_env_sdk.worker") / "playground"
    assets = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    def serve(request: Request, name: str) -> Response:
        content = assets.get(name)
        if content is None:
            return Response("there is no such file", 404, media_type="text/plain")
        etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
        headers = {**_GUARD, "ETag": etag}
        if request.headers.get("If-None-Match") == etag:
            return Response(status_code=304, headers=headers)
        suffix = name[name.rfind(".") :]
        media_type = _MEDIA_TYPES.get(suffix) or mimetypes.guess_type(name)[0]
        return Response(content, headers=headers, media_type=media_type)

    async def asset(request: Request, name: str) -> Response:
        return serve(request, name)

    async def page(request: Request) -> Response:
        return serve(request, _PAGES[request.url.path])

    for path in _PAGES:
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/playground/{name}", asset, methods=["GET"], include_in_schema=False)
