"""The endpoints with the files of the page. The files contain no data: the page requests it, with a token if needed."""

from __future__ import annotations

from aiohttp import hdrs, web

from autoscaler.web import INDEX, files

ASSETS = "/assets/"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    # A browser must revalidate each time: file names stay the same when the daemon is updated.
    hdrs.CACHE_CONTROL: "no-cache",
    hdrs.VARY: hdrs.ACCEPT_ENCODING,
}


def page_routes() -> list[web.RouteDef]:
    """The endpoints of the page."""
    return [web.get("/", _page), web.get(f"{ASSETS}{{file}}", _asset)]


async def _page(request: web.Request) -> web.Response:
    return _answer(request, INDEX)


async def _asset(request: web.Request) -> web.Response:
    name = request.match_info["file"]
    if name == INDEX or name not in files():
        raise web.HTTPNotFound(text=f"the page has no file {name[:100]!r}")
    return _answer(request, name)


def _answer(request: web.Request, name: str) -> web.Response:
    file = files()[name]
    headers = {**_HEADERS, hdrs.ETAG: file.etag}
    # A proxy may send several tags; ours may be one of them.
    if file.etag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=web.HTTPNotModified.status_code, headers=headers)
    headers[hdrs.CONTENT_TYPE] = file.content_type
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        return web.Response(body=file.compressed, headers={**headers, hdrs.CONTENT_ENCODING: "gzip"})
    return web.Response(body=file.body, headers=headers)
