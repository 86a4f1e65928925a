"""A client of one API server: credentials, requests by verb and resource, retries and errors.

The package kubernetes_asyncio provides credentials (service account, kubeconfig with its plug-ins), TLS and transport.
Answers are read as plain JSON: to build generated models of 2,000 Deployments would cost more than everything else.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import json
import logging
import os
import re
import urllib.request
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import yaml
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_before_delay,
    wait_random_exponential,
)

from autoscaler.clients.connection_errors import describe_connection_error
from autoscaler.clients.shared_requests import one_line
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import install_hint
from autoscaler.ports import AnswerError, EdgeError, EdgeTimeoutError, PluginError, RefusedError, UnavailableError

_log = logging.getLogger("autoscaler.clients")

Json = dict[str, Any]

ATTEMPTS = 3
MAX_ANSWER = 64 * 2**20  # bytes
READ_BUFFER = 2 * 2**20  # bytes, half of the longest event that can be read: an object may have 1.5 MiB
MANAGER = "reactive-autoscaler"  # our name in `managedFields`
FIRST_HOLD = 1.0  # seconds before a forbidden request may be sent again; doubled at each refusal
MAX_HOLD = 60.0  # seconds: the longest hold, also for a Retry-After
RENEWAL_INTERVAL = 10.0  # seconds between two renewals of rejected credentials
RENEWAL_TIMEOUT = 20.0  # seconds, because a kubeconfig's plug-in may wait for a user to log in
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_METHODS = {"patch": "PATCH", "create": "POST", "delete": "DELETE"}
# The exceptions that the library raises for a missing or malformed kubeconfig, besides its ConfigException.
_UNREADABLE = (AttributeError, AssertionError, LookupError, OSError, TypeError, ValueError, yaml.YAMLError)
# The message of RBAC and other authorizers. Admission (policies, webhooks, quotas) also answers 403, with other texts.
_UNAUTHORIZED = re.compile(r'User "[^"]*" cannot [a-z]+ (resource|path) ')
_RESOURCE = re.compile(r"(?P<group>[a-z0-9][-a-z0-9.]*)/(?P<version>v[a-z0-9]+)/(?P<plural>[a-z][a-z0-9]*)")
_PASSWORD = re.compile(r"//[^\s/@]*@")  # the user and password in an address
_BACKOFF = wait_random_exponential(multiplier=0.2, max=2)


class ConflictError(RefusedError):
    """409: the object has another version than the request expects."""


class GoneError(UnavailableError):
    """410: the API server no longer keeps the requested version; list again."""


class BusyError(UnavailableError):
    """429 or 5xx. `after`: the Retry-After in seconds, or None. `throttled`: whether it is 429."""

    def __init__(self, message: str, after: float | None, *, throttled: bool) -> None:
        super().__init__(message)
        self.after, self.throttled = after, throttled


class ForbiddenError(RefusedError):
    """403: a permission is missing, or admission denied the request."""


class NotFoundError(RefusedError):
    """404: there is no such object, or no such resource."""


@dataclass(frozen=True, slots=True)
class Access:
    """An API server, an identity and the time-outs: the key of the shared client. `check_times` checks the time-outs.

    Attributes:
        kubeconfig: path of the file; empty: the pod's service account, or the kubeconfig that kubectl would use.
        context: the context in the kubeconfig; empty: the current context.
        timeout: seconds for one request, including retries.
        max_age: seconds after which the state of a watch is stale.
    """

    kubeconfig: str
    context: str
    timeout: float
    max_age: float


def check_times(timeout: timedelta, max_age: timedelta) -> None:
    """Check the time-outs that a plug-in passes to `Access`. Raises ParameterError."""
    if timeout <= timedelta(0):
        raise ParameterError("timeout", "must be above 0s")
    if max_age < timedelta(seconds=2):
        raise ParameterError("max_age", "must be 2s or more: a watch lasts half of it, in whole seconds")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type by the names in API paths. The group of the core API is empty."""

    group: str
    version: str
    plural: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The resource type of `group/version/plural`, or None if the text does not have this form."""
        match = _RESOURCE.fullmatch(text)
        return cls(**match.groupdict()) if match else None

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object, of all objects in a namespace, or of all objects in the cluster."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{base}{within}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part)


PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers")
SCALED_OBJECTS = Resource("keda.sh", "v1alpha1", "scaledobjects")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Request:
    """One request in terms of RBAC, so that an error can name the missing rule."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """The path. It has no name for list and watch, which select one object by a field selector."""
        named = self.verb not in {"list", "watch", "create"}
        return self.resource.path(self.namespace, self.name if named else "", self.subresource)

    def __str__(self) -> str:
        sub = f"/{self.subresource}" if self.subresource else ""
        named = f" named {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else " in all namespaces"
        return f"{self.verb} on {self.resource}{sub}{named}{where}"


@dataclass(frozen=True, slots=True)
class _Hold:
    """A request that must not be sent before the loop time `until`, its last error, and the errors in a row."""

    until: float
    error: EdgeError
    times: int


class Api:
    """A connected client.

    Attributes:
        server: the API server's address.
        namespace: the namespace that kubectl would use.
    """

    def __init__(self, access: Access, client: Any, renew: Callable[[], Awaitable[None]], namespace: str) -> None:  # noqa: ANN401 - a library without types
        self.access = access
        self.namespace = namespace
        self.server: str = client.configuration.host
        self._client = client
        self._renew = renew
        self._renewed = -RENEWAL_INTERVAL
        self._renewing = asyncio.Lock()
        self._held: dict[object, _Hold] = {}
        self.lists = asyncio.Semaphore(20)  # at the start, all clusters that are watched by name list at once

    async def call(self, request: Request, query: Mapping[str, object] | None = None, body: Json | None = None) -> Json:
        """Like `fetch`, but do not repeat a request too soon that was forbidden or got a Retry-After.

        Until its hold is over, such a request raises its last error again and is not sent. A request that was forbidden
        is held only with the same `spec`, because another `spec` may be allowed.
        """
        loop = asyncio.get_running_loop()
        keys = request, (request, repr((body or {}).get("spec")))
        for held in map(self._held.get, keys):
            if held is not None and loop.time() < held.until:
                raise held.error.with_traceback(None)
        try:
            answer = await self.fetch(request, query, body)
        except BusyError as error:
            if error.after is not None:
                self._held[request] = _Hold(loop.time() + min(error.after, MAX_HOLD), error, 1)
            raise
        except ForbiddenError as error:
            before = self._held.get(keys[1])
            times = 1 if before is None else before.times + 1
            pause = min(MAX_HOLD, FIRST_HOLD * 2.0 ** min(times - 1, 10))
            kept = {key: held for key, held in self._held.items() if loop.time() < held.until + MAX_HOLD}
            self._held = {**kept, keys[1]: _Hold(loop.time() + pause, error, times)}
            raise
        for key in keys:
            self._held.pop(key, None)
        return answer

    async def fetch(
        self,
        request: Request,
        query: Mapping[str, object] | None = None,
        body: Json | None = None,
        limit: float | None = None,
    ) -> Json:
        """Send a request and return its JSON object. Retry while the server is unavailable.

        Args:
            request: the request.
            query: query parameters.
            body: sent as JSON; for a patch, it is a merge patch.
            limit: seconds for all attempts together; None: the time-out.

        Raises:
            EdgeError: the message says what failed and what to do.
        """
        limit = self.access.timeout if limit is None else limit
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(UnavailableError),
            stop=stop_after_attempt(ATTEMPTS) | stop_before_delay(limit),
            wait=_pause,
            reraise=True,
        )
        try:
            async with asyncio.timeout(limit):
                async for attempt in retrying:
                    with attempt:
                        async with self.stream(request, query, body, total=limit / 2) as response:
                            return await self._object(request, response)
        except TimeoutError as error:
            raise EdgeTimeoutError(self._late(request)) from error
        raise AssertionError("tenacity raises what failed last")  # pragma: no cover

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        query: Mapping[str, object] | None = None,
        body: object = None,
        total: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once (once more after a 401) and yield the response to read from.

        Args:
            request: the request.
            query: query parameters.
            body: sent as JSON; for a patch, it is a merge patch.
            total: seconds for the whole answer; None: no limit, but it must begin within a quarter of `max_age`.

        Raises:
            EdgeError: the answer is not a success, or the connection broke while it was read.
        """
        try:
            response = await self._send(request, query, body, total)
            if response.status == 401:  # noqa: PLR2004 - Unauthorized
                _abort(response)
                await self._renew_credentials()
                response = await self._send(request, query, body, total)
            try:
                if response.status // 100 != 2:  # noqa: PLR2004 - the successes
                    raise await self._refusal(request, response)
                yield response
            finally:
                _abort(response)
        except TimeoutError as error:
            raise EdgeTimeoutError(self._late(request)) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientSSLError):
                await self._renew_credentials()  # for the next request, in case the CA certificate was renewed
            text = _PASSWORD.sub("//***@", describe_connection_error(error))
            raise UnavailableError(f"the API server {self.server} cannot be reached for {request}: {text}") from error

    def _late(self, request: Request) -> str:
        return f"the API server {self.server} did not answer in time: {request}"

    async def _send(
        self, request: Request, query: Mapping[str, object] | None, body: object, total: float | None
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if request.verb == "patch":
            headers["Content-Type"] = "application/merge-patch+json"
            query = {"fieldManager": MANAGER, **(query or {})}
        connecting = self.access.timeout / 2
        # The API server starts to answer a long list only after it has read all of it, and it may queue a watch.
        begin = max(connecting, self.access.max_age / 4 if total is None else total)
        # aiohttp has no time-out for the start of the answer.
        async with asyncio.timeout(begin):
            response: aiohttp.ClientResponse = await self._client.call_api(
                request.path,
                _METHODS.get(request.verb, "GET"),
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(total=total, sock_connect=connecting),
            )
        return response

    async def _renew_credentials(self) -> None:
        """Read the credentials again, at most every ten seconds. Concurrent requests share one renewal."""
        loop = asyncio.get_running_loop()
        async with self._renewing:
            if loop.time() - self._renewed >= RENEWAL_INTERVAL:
                try:
                    async with asyncio.timeout(RENEWAL_TIMEOUT):
                        await self._renew()
                except TimeoutError as error:
                    raise RefusedError(
                        f"the credentials for {self.server} were not renewed within {RENEWAL_TIMEOUT:g} s: a plug-in "
                        "of the kubeconfig may wait for a user to log in"
                    ) from error
                except (PluginError, OSError) as error:
                    raise RefusedError(str(error)) from error
                self._renewed = loop.time()

    async def _object(self, request: Request, response: aiohttp.ClientResponse) -> Json:
        try:
            found = json.loads(await _read(response))
        except ValueError as error:
            raise AnswerError(f"the API server {self.server} did not answer with JSON: {request}: {error}") from error
        if not isinstance(found, dict):
            raise AnswerError(f"the API server {self.server} did not answer with an object: {request}")
        return found

    async def _refusal(self, request: Request, response: aiohttp.ClientResponse) -> Exception:
        try:
            status = json.loads(await _read(response))
            message = str(status["message"])
        except (ValueError, KeyError, TypeError, AnswerError):
            status, message = {}, response.reason or "no reason given"
        return refusal(request, response.status, message, self.server, _retry_after(response, status))


def refusal(request: Request, code: int, message: str, server: str, after: float | None = None) -> Exception:
    """The error for a status of the API server. Its message says what to do."""
    unauthorized = _UNAUTHORIZED.search(message)
    message = one_line(message)
    match code:
        case 401:
            return RefusedError(
                f"the API server {server} does not accept the credentials (401: {message}): check the user of the "
                "kubeconfig, or the pod's service account and its token"
            )
        case 403:
            if unauthorized:
                return ForbiddenError(f"this needs {request}: see deploy/kubernetes for the Role (403: {message})")
            return ForbiddenError(
                f"{request} was denied, but no permission is missing: see the admission policy, webhook, quota or "
                f"proxy that denies it (403: {message})"
            )
        case 404:
            what = f"{request.resource} in {request.resource.group or 'core'}/{request.resource.version}"
            if request.verb in {"list", "watch"}:
                return NotFoundError(
                    f"the API server has no {what}: is the CRD installed, is the version right? (404: {message})"
                )
            without = f", or its CRD has no subresource {request.subresource}" if request.subresource else ""
            return NotFoundError(
                f"there is no {request.name} among the {what}, namespace {request.namespace}{without} (404: {message})"
            )
        case 409:
            return ConflictError(f"another client changed it at the same time: {request} (409: {message})")
        case 410:
            return GoneError(f"the requested version is no longer kept: {request} (410: {message})")
        case 422:
            return RefusedError(f"the API server finds the request invalid: {request} (422: {message})")
    if code == 429 or code >= 500:  # noqa: PLR2004 - too many requests, and the server's own failures
        wait = "" if after is None else f", asks to wait {after:g} s"
        text = f"the API server {server} is unavailable ({code}{wait}: {message})"
        return BusyError(text, after, throttled=code == 429)  # noqa: PLR2004 - see above
    return AnswerError(f"the API server {server} answered {code} : {request}: {message}")


def _abort(response: aiohttp.ClientResponse) -> None:
    """Close a response at once, even if it was not read completely, without waiting for the server."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(256 * 1024):
        body += chunk
        if len(body) > MAX_ANSWER:
            raise AnswerError(f"{response.url.path} answered more than {MAX_ANSWER} bytes")
    return bytes(body)


def _retry_after(response: aiohttp.ClientResponse, status: Json) -> float | None:
    details = status.get("details")
    asked = response.headers.get("Retry-After") or (isinstance(details, dict) and details.get("retryAfterSeconds"))
    try:
        return max(0.0, float(asked)) if asked else None
    except (TypeError, ValueError):  # a date, which the API server does not send
        return None


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    after = error.after if isinstance(error, BusyError) else None
    return max(_BACKOFF(state), after or 0.0)


@asynccontextmanager
async def connect_api(access: Access) -> AsyncIterator[Api]:
    """Open the client of one API server. This sends no request.

    Raises:
        PluginError: the package is not installed, or there are no credentials.
    """
    try:
        # Import in a thread: it takes half a second and would block the daemon.
        library = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.client")
        config = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config")
        config.exec_provider.ExecProvider.run = _run_plugin
    except ModuleNotFoundError as error:
        raise PluginError(
            f"Kubernetes needs the package kubernetes_asyncio; install it with: {install_hint('kubernetes')}"
        ) from error
    settings = library.Configuration()
    settings.connection_pool_maxsize = 0  # no limit: each watch uses a connection
    settings.disable_strict_ssl_verification = True  # kubectl accepts cluster CAs that Python 3.13 rejects by default

    await _credentials(access, config, settings)
    settings.proxy = settings.proxy or proxy_of(settings.host)
    client, used = _client(library, settings)

    async def renew() -> None:
        nonlocal used
        known = used, dict(settings.api_key)
        await _credentials(access, config, settings)
        if _certificates(settings) != used:
            # Open connections keep their old certificates, so replace the session.
            before = client.rest_client.pool_manager
            made, used = _client(library, settings)
            client.rest_client = made.rest_client
            # Close only the connector: aiohttp 3.11 fails when it retries a request of a session that is closed.
            await before.connector.close()
        if known != (used, settings.api_key):
            _log.info("credentials renewed", extra={"server": settings.host})

    async with client:
        yield Api(access, client, renew, _namespace(access, config))
    await asyncio.sleep(0)  # lets asyncio clean up the closed connections


async def _credentials(access: Access, config: Any, settings: Any) -> None:  # noqa: ANN401 - see Api
    """Read the server's address and the credentials into the settings. Raises PluginError."""
    try:
        if in_cluster(access):
            config.load_incluster_config(client_configuration=settings)
            _reread_token(settings, config)
        else:
            _check_exists(access.kubeconfig or config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
            await config.load_kube_config(
                config_file=access.kubeconfig or None,
                context=access.context or None,
                client_configuration=settings,
                persist_config=False,
            )
        settings.host = settings.host.rstrip("/")
        _trim(settings)
    except (config.ConfigException, *_UNREADABLE) as error:
        where = "the pod's service account" if in_cluster(access) else access.kubeconfig or "KUBECONFIG, ~/.kube/config"
        chosen = f", context {access.context}" if access.context else ""
        raise PluginError(
            f"no credentials for Kubernetes ({where}{chosen}): {_redacted(error)}; give kubeconfig and context, "
            "or run in a pod with a service account"
        ) from None  # the original error may contain secrets, see _redacted


def _client(library: Any, settings: Any) -> tuple[Any, Sequence[bytes]]:  # noqa: ANN401 - see Api
    """Make the library's client and return it with its certificates. Raises PluginError if they cannot be used."""
    try:
        used = _certificates(settings)
        client = library.ApiClient(settings)
    except (OSError, ValueError) as error:
        raise PluginError(f"the certificates for {settings.host} cannot be used: {error}") from error
    client.user_agent = MANAGER
    # The library's session reads .netrc before each request, and aiohttp refuses to send both its login and a token.
    session = client.rest_client.pool_manager
    client.rest_client.pool_manager = aiohttp.ClientSession(connector=session.connector, read_bufsize=READ_BUFFER)
    session.detach()
    return client, used


def _certificates(settings: Any) -> Sequence[bytes]:  # noqa: ANN401 - see Api
    """The certificates of the CA and of the user, and the user's key. Raises OSError."""
    files = (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
    return [Path(file).read_bytes() if file else b"" for file in files]


def _check_exists(paths: str) -> None:
    """Raise FileNotFoundError if no kubeconfig exists. The library would report a missing `current-context` instead."""
    if not any(path and Path(path).expanduser().exists() for path in paths.split(os.pathsep)):
        raise FileNotFoundError(f"the file {paths} does not exist")


async def _run_plugin(plugin: Any) -> Any:  # noqa: ANN401 - see Api
    """Run a kubeconfig's plug-in and return the `status` of its answer. On a time-out, end the plug-in.

    This replaces the library's ExecProvider.run. On a time-out that method would leave the plug-in running with its
    pipes open, and each renewal would add another one.

    Raises:
        ValueError: the plug-in failed, or did not print an ExecCredential.
    """
    loop = asyncio.get_running_loop()
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = plugin.env | {"KUBERNETES_EXEC_INFO": json.dumps(request)}
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(READ_BUFFER, loop),
        *plugin.args,
        stdin=None,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
    )
    process = Process(transport, protocol, loop)
    try:
        printed, errors = await process.communicate()
    finally:
        transport.close()
        await process.wait()
    if process.returncode:
        raise ValueError(f"exec: process returned {process.returncode}. {errors.decode(errors='replace').strip()}")
    try:
        answer = json.loads(printed)
        version, status = answer["apiVersion"], answer["status"]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"exec: the output is not an ExecCredential: {error!r}") from None
    if version != plugin.api_version:
        raise ValueError(f"exec: the process answered {version}, expected {plugin.api_version}")
    return status


def proxy_of(server: str) -> str | None:
    """The server's proxy from the environment, by kubectl's rules: none for loopback, and NO_PROXY accepts networks."""
    address = urlsplit(server)
    host = address.hostname or ""
    proxies = urllib.request.getproxies_environment()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        direct = host == "localhost"
    else:
        direct = number.is_loopback or any(number in network for network in _networks(proxies.get("no", "")))
    if direct or urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
        return None
    return proxies.get(address.scheme)


def _networks(excepted: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for part in excepted.split(","):
        if "/" in part:
            with suppress(ValueError):  # kubectl also ignores entries that are not a network
                yield ipaddress.ip_network(part.strip(), strict=False)


def _redacted(error: Exception) -> str:
    """The library's message without any part of the kubeconfig, which may contain tokens."""
    return re.sub(r"\{.*\}", "{…}", f"{error}" or type(error).__name__, flags=re.DOTALL)


def _trim(settings: Any) -> None:  # noqa: ANN401 - see Api
    """Strip white space from the token, as kubectl does: its file may end with a newline, a header must not."""
    token = settings.api_key.get("BearerToken")
    if token:
        settings.api_key["BearerToken"] = token.strip()


def _reread_token(settings: Any, config: Any) -> None:  # noqa: ANN401 - see Api
    """Read a pod's token from its file before each request, because Kubernetes replaces it every hour."""
    read = settings.refresh_api_key_hook

    def refresh(settings: Any) -> None:  # noqa: ANN401 - see Api
        try:
            read(settings)
        except (config.ConfigException, OSError) as error:
            raise UnavailableError(f"the token of the pod's service account cannot be read: {error}") from error
        _trim(settings)

    settings.refresh_api_key_hook = refresh


def in_cluster(access: Access) -> bool:
    """Whether to use the service account of the pod that this process runs in."""
    return not (access.kubeconfig or access.context) and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _namespace(access: Access, config: Any) -> str:  # noqa: ANN401 - see Api
    """The namespace that kubectl would use: the pod's, the context's, or `default`. Raises PluginError."""
    if in_cluster(access):
        try:
            return (ACCOUNT / "namespace").read_text().strip() or "default"
        except OSError:
            return "default"
    try:
        contexts, current = config.list_kube_config_contexts(config_file=access.kubeconfig or None)
        chosen = next((found for found in contexts if found["name"] == access.context), current)
        namespace: str = chosen["context"].get("namespace") or "default"
    except (config.ConfigException, *_UNREADABLE) as error:
        raise PluginError(f"the kubeconfig cannot be read: {_redacted(error)}") from None
    return namespace
