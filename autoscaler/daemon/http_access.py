"""Who may ask the HTTP endpoints for what: bearer tokens, TLS, and no pages of other sites."""

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
"""What never needs a token to be read: what restarts the daemon has none, and the page asks people for theirs."""

READING = "/what-if"
"""The end of paths whose POST changes nothing."""

MAX_REFUSALS = 10
"""Refused requests that are logged and audited within the period below: who guesses tokens must not fill either."""

REFUSALS_PERIOD = 3600.0
"""In seconds."""

EXPIRY_POLL = 10.0
"""Seconds between two looks for tokens that have expired, which are only for the log."""

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
    """The tokens and the certificate that are in use.

    Args:
        spec: what the daemon starts with.
        audit: keeps an entry of a refused request.
        utc: the time.

    Attributes:
        tls: for the listener; None: it speaks no TLS.
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
        """Use the tokens and the certificate of a configuration that was loaded again.

        What is listened on stays: tokens that this would send in clear text stay as they are too.
        """
        if self.tls is not None and spec.tls is not None:
            load_certificate(self.tls, spec.tls)
            self.certificate = spec.tls.certificate
        if self.tls is not None or self._loopback:
            self._use(spec)

    def _use(self, spec: DaemonSpec) -> None:
        # Those of a command that connects to nothing have no value.
        self._tokens = tuple(
            _Token(each.name, each.rights, _digest(each.token), each.expires)
            for each in spec.tokens
            if each.token is not None
        )
        self._read_needs_token = spec.read_needs_token

    async def log_expiries(self) -> None:
        """Log each token once when it has expired, until this is cancelled.

        A clock that is put right must not miss one: the time is looked at again and again, not waited for.
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
            return  # there is no such path, or it is to be read only: the answer says so
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
        """Whether there is any token that may change something."""
        return any(token.rights is Rights.WRITE for token in self._tokens)

    def may_write(self, request: web.Request) -> bool:
        """Whether a request has a token that may change something."""
        token = self._valid(request)
        return token is not None and token.rights is Rights.WRITE

    def holder(self, request: web.Request) -> str | None:
        """The name of the token that a request has, or None where it has none, or none of ours."""
        token = self._valid(request)
        return None if token is None else token.name

    def problem(self, request: web.Request) -> str | None:
        """Why the token that a request has is refused where one is needed, or None."""
        if not _credentials(request):
            return None
        token = self._presented(request)
        if token is None:
            return "the token is not one of daemon.tokens"
        if token.expires is not None and token.has_expired(self._utc()):
            return describe_expiry(token.name, token.expires)
        return None

    def time_left(self, request: web.Request) -> float | None:
        """Seconds until the token that a request has expires; None: it does not, or it has none that is valid."""
        token = self._valid(request)
        return None if token is None or token.expires is None else (token.expires - self._utc()).total_seconds()

    def caller(self, request: web.Request) -> str:
        """The name of the token that a request has which was checked."""
        return self.holder(request) or _ANONYMOUS

    async def _holder(self, request: web.Request) -> _Token:
        """Whose token a request has. Raises HTTPUnauthorized."""
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
        # All of them: how long it takes says nothing of which was nearly right.
        found = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        return found[0] if found else None

    async def _refusal(
        self, request: web.Request, by: str, error: type[web.HTTPForbidden | web.HTTPUnauthorized], why: str
    ) -> web.HTTPException:
        """The error to raise, logged and audited unless there were too many."""
        now = asyncio.get_running_loop().time()
        self._refused = [at for at in self._refused if now - at < REFUSALS_PERIOD]
        if len(self._refused) < MAX_REFUSALS:
            self._refused.append(now)
            # Percent-encoded as it came: no character of it does anything to a terminal.
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
"""Who may ask an application for what."""

_CHALLENGE = {hdrs.WWW_AUTHENTICATE: "Bearer"}


def _credentials(request: web.Request) -> str:
    """The bearer token of a request, or nothing."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    """What is compared: all are of the same length."""
    return sha256(token.encode(errors="surrogateescape")).digest()


def _is_foreign(request: web.Request) -> bool:
    """Whether a browser sends it for a page of another site. Following a link to us is no such request."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        try:
            found = urlsplit(origin)
        except ValueError:
            return True
        schemes = ("https",) if request.secure else ("http", "https")  # a proxy before us may have the certificate
        return found.scheme not in schemes or found.netloc.lower() != request.headers.get(hdrs.HOST, "").lower()
    if request.headers.get("Sec-Fetch-Site") != "cross-site":
        return False
    return request.method not in _SAFE or request.headers.get("Sec-Fetch-Mode") != "navigate"
