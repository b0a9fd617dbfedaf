"""The page at /: a few files of the package, which hold no data and need no key."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI, Request, Response

# A script of the page can come from this server only, and can ask this server only; text never becomes markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FILES = {
    "/": "index.html",
    **{
        f"/page/{name}": name
        for name in ("style.css", "page.js", "asking.js", "shown.js", "latency.js", "elements.js", "icon.svg")
    },
}


def add_page(app: FastAPI) -> dict[str, str | None]:
    """Add the routes of the page; the result is the role that each of them needs, which is none."""
    folder = resources.files("topshelf.serving") / "static"
    for path, name in FILES.items():
        _add(app, path, (folder / name).read_bytes(), _TYPES[name.rpartition(".")[2]])
    return dict.fromkeys(FILES)


def _add(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    headers = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin"}

    async def give(_request: Request) -> Response:
        return Response(content, headers=headers, media_type=media_type)

    app.add_route(path, give, methods=["GET"], include_in_schema=False)
