"""Access control of the HTTP endpoints: bearer tokens, TLS, and no requests from pages of other sites."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from autoscaler.config.load import load_certificate, server_context
from autoscaler.config.model import DaemonSpec, Rights, describe_expiry
from autoscaler.core.foreign import foreign_text, shorten
from autoscaler.ports import AuditEntry, StoreError

log = logging.getLogger("autoscaler.daemon.http_access")

PUBLIC = ("/healthz", "/", "/assets/")
"""Paths that never need a token to read: liveness probes have no token, and the page asks its users for theirs."""

READING = "/what-if"
"""The suffix of paths whose POST changes nothing."""

MAX_REFUSALS = 10
"""Refused requests that are logged and audited within `REFUSALS_PERIOD`: guessing tokens must not fill log or audit."""

REFUSALS_PERIOD = 3600.0
"""In seconds."""

EXPIRY_POLL = 10.0
"""Seconds between two checks for expired tokens, which serve only the log."""

_LONGEST_PATH = 200
_SAFE = frozenset({"GET", "HEAD"})
_ANONYMOUS = "(no valid token)"


@dataclass(frozen=True, slots=True)
class _Token:
    name: str
    rights: Rights
    digest: bytes
    expires: datetime | None

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now


class Access:
    """The tokens and the certificate in use.

    Args:
        spec: the specification that the daemon starts with.
        audit: stores an audit entry for a refused request.
        utc: the clock.

    Attributes:
        tls: the context for the listener; None: no TLS.
        certificate: the file of its certificate, or None.
    """

    def __init__(
        self, spec: DaemonSpec, audit: Callable[[AuditEntry], Awaitable[None]], utc: Callable[[], datetime]
    ) -> None:
        self.tls = None if spec.tls is None else server_context(spec.tls)
        self.certificate = None if spec.tls is None else spec.tls.certificate
        self._loopback = spec.loopback
        self._audit = audit
        self._utc = utc
        self._refused: list[float] = []
        self._unreported = 0
        self._tokens: tuple[_Token, ...] = ()
        self._read_needs_token = False
        self._use(spec)

    def update(self, spec: DaemonSpec) -> None:
        """Use the tokens and the certificate of a reloaded configuration.

        The listener stays as it is. If it would receive tokens in clear text from other machines, the tokens stay too.
        """
        if self.tls is not None and spec.tls is not None:
            load_certificate(self.tls, spec.tls)
            self.certificate = spec.tls.certificate
        if self.tls is not None or self._loopback:
            self._use(spec)

    def _use(self, spec: DaemonSpec) -> None:
        # Commands that connect to nothing load tokens without a value.
        self._tokens = tuple(
            _Token(each.name, each.rights, _digest(each.token), each.expires)
            for each in spec.tokens
            if each.token is not None
        )
        self._read_needs_token = spec.read_needs_token

    async def log_expiries(self) -> None:
        """Log each token once when it has expired, until this is cancelled.

        This polls the clock instead of sleeping until the expiry, so that it notices when the clock is set.
        """
        logged: set[_Token] = set()
        while True:
            now = self._utc()
            for token in self._tokens:
                if token.expires is not None and token.has_expired(now) and token not in logged:
                    log.warning("a token has expired", extra={"error": describe_expiry(token.name, token.expires)})
                    logged.add(token)
            await asyncio.sleep(EXPIRY_POLL)

    async def check(self, request: web.Request) -> None:
        """Refuse a request that must not be answered. Raises HTTPForbidden or HTTPUnauthorized."""
        if _is_foreign(request):
            why = "it comes from a page of another site"
            raise await self._refusal(request, self.caller(request), web.HTTPForbidden, why)
        if request.method in _SAFE or request.path.endswith(READING):
            if self._read_needs_token and request.path not in PUBLIC and not request.path.startswith(PUBLIC[-1]):
                await self._holder(request)
            return
        if request.match_info.http_exception is not None:
            return  # no such path, or it does not accept this method: the answer says so
        if not self._tokens:
            raise web.HTTPForbidden(
                text="nothing can be changed over HTTP: the configuration has no daemon.tokens; add one with "
                "rights: write, and send SIGHUP"
            )
        token = await self._holder(request)
        if token.rights is not Rights.WRITE:
            why = f"the token of {token.name} may only read; this needs one with rights: write"
            raise await self._refusal(request, token.name, web.HTTPForbidden, why)

    @property
    def has_writers(self) -> bool:
        """Whether any token has the right to write."""
        return any(token.rights is Rights.WRITE for token in self._tokens)

    def may_write(self, request: web.Request) -> bool:
        """Whether a request has a valid token with the right to write."""
        token = self._valid(request)
        return token is not None and token.rights is Rights.WRITE

    def holder(self, request: web.Request) -> str | None:
        """The name of the valid token of a request, or None."""
        token = self._valid(request)
        return None if token is None else token.name

    def problem(self, request: web.Request) -> str | None:
        """Why the token of a request is not valid; None if it is valid or the request has none."""
        if not _credentials(request):
            return None
        token = self._presented(request)
        if token is None:
            return "the token is not one of daemon.tokens"
        if token.expires is not None and token.has_expired(self._utc()):
            return describe_expiry(token.name, token.expires)
        return None

    def time_left(self, request: web.Request) -> float | None:
        """Seconds until the token of a request expires; None if it never expires or the request has no valid token."""
        token = self._valid(request)
        return None if token is None or token.expires is None else (token.expires - self._utc()).total_seconds()

    def caller(self, request: web.Request) -> str:
        """The name of the valid token of a request, or a placeholder for none."""
        return self.holder(request) or _ANONYMOUS

    async def _holder(self, request: web.Request) -> _Token:
        """The valid token of a request. Raises HTTPUnauthorized."""
        if not _credentials(request):
            why = "this needs a token: send it as Authorization: Bearer TOKEN"
            raise web.HTTPUnauthorized(text=why, headers=_CHALLENGE)
        found, problem = self._presented(request), self.problem(request)
        if found is None or problem is not None:
            by = _ANONYMOUS if found is None else found.name
            raise await self._refusal(request, by, web.HTTPUnauthorized, problem or "")
        return found

    def _valid(self, request: web.Request) -> _Token | None:
        token = self._presented(request)
        return None if token is None or token.has_expired(self._utc()) else token

    def _presented(self, request: web.Request) -> _Token | None:
        digest = _digest(_credentials(request))
        # Compare with every token: the duration must not tell which one was nearly right.
        found = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        return found[0] if found else None

    async def _refusal(
        self, request: web.Request, by: str, error: type[web.HTTPForbidden | web.HTTPUnauthorized], why: str
    ) -> web.HTTPException:
        """The error to raise. It is logged and audited unless there were too many refusals."""
        now = asyncio.get_running_loop().time()
        self._refused = [at for at in self._refused if now - at < REFUSALS_PERIOD]
        if len(self._refused) < MAX_REFUSALS:
            self._refused.append(now)
            # The path stays percent-encoded, so that no character of it controls a terminal.
            what = shorten(foreign_text(f"{request.method} {request.rel_url.raw_path}"), _LONGEST_PATH)
            detail = f"{what} from {request.remote}: {why}"
            if self._unreported:
                detail += f"; {self._unreported} more were refused before"
            self._unreported = 0
            log.warning("HTTP request refused", extra={"by": by, "error": detail})
            entry = AuditEntry(
                at=self._utc(), by=by, action="request", scope="", detail=detail, reason=None, accepted=False
            )
            try:
                await self._audit(entry)
            except StoreError as failure:
                log.warning("refused HTTP request not audited", extra={"error": str(failure)})
        else:
            self._unreported += 1
        return error(text=why, headers=_CHALLENGE if error is web.HTTPUnauthorized else None)


ACCESS: web.AppKey[Access] = web.AppKey("access")
"""The access control of an application."""

_CHALLENGE = {hdrs.WWW_AUTHENTICATE: "Bearer"}


def _credentials(request: web.Request) -> str:
    """The bearer token of a request; empty if it has none."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    """The digest of a token. Digests are compared because all have the same length."""
    return sha256(token.encode(errors="surrogateescape")).digest()


def _is_foreign(request: web.Request) -> bool:
    """Whether a browser sends the request for a page of another site. Following a link to us does not count."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        try:
            found = urlsplit(origin)
        except ValueError:
            return True
        schemes = ("https",) if request.secure else ("http", "https")  # a proxy in front may terminate TLS
        return found.scheme not in schemes or found.netloc.lower() != request.headers.get(hdrs.HOST, "").lower()
    if request.headers.get("Sec-Fetch-Site") != "cross-site":
        return False
    return request.method not in _SAFE or request.headers.get("Sec-Fetch-Mode") != "navigate"
