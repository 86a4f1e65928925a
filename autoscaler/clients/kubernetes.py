"""One client of one API server: credentials, requests by verb and resource, retries, and what its refusals mean.

The package kubernetes_asyncio brings credentials (service account, kubeconfig with its plug-ins), TLS and transport.
Answers are read as plain JSON: objects of 2,000 Deployments as generated models would cost more than all the rest.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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

from autoscaler.plugins import install_hint
from autoscaler.ports import AnswerError, EdgeTimeoutError, PluginError, RefusedError, UnavailableError

_log = logging.getLogger("autoscaler.targets")

Json = dict[str, Any]

ATTEMPTS = 3
LARGEST_ANSWER = 64 * 2**20  # bytes
LONGEST_EVENT = 2 * 2**20  # bytes, a half of what is taken: an object may have 1.5 MiB
SHOWN = 300  # characters of the API server's own words that go into a message
MANAGER = "reactive-autoscaler"  # how `managedFields` of what we change names us
RENEW = 10.0  # seconds between two readings of credentials that were not accepted
RENEWING = 20.0  # seconds for one: a kubeconfig's plug-in may wait for somebody who is not there
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_METHODS = {"patch": "PATCH", "create": "POST", "delete": "DELETE"}
# What the library raises for a kubeconfig that is missing or odd, besides its ConfigException.
_UNREADABLE = (AttributeError, AssertionError, LookupError, OSError, TypeError, ValueError, yaml.YAMLError)
_PASSWORD = re.compile(r"//[^\s/@]*@")  # with the user's name, in an address
_BACKOFF = wait_random_exponential(multiplier=0.2, max=2)


class ConflictError(RefusedError):
    """409: the object is no longer as the request takes it to be."""


class GoneError(UnavailableError):
    """410: the version that was asked for is no longer kept; list again."""


class BusyError(UnavailableError):
    """429 or 5xx. `after`: seconds that the server asked us to wait, or None. `crowded`: it is 429."""

    def __init__(self, message: str, after: float | None, *, crowded: bool) -> None:
        super().__init__(message)
        self.after, self.crowded = after, crowded


class AbsentError(RefusedError):
    """404: there is no such object, or no such resource."""


@dataclass(frozen=True, slots=True)
class Access:
    """Which API server, as whom, and with how much patience: the key of the shared client.

    Attributes:
        kubeconfig: path of the file; empty: the pod's service account, or where kubectl looks.
        context: the context in it; empty: the current one.
        timeout: seconds for one question, its retries included.
        max_age: seconds after which what a watch has shown counts as stale.
    """

    kubeconfig: str
    context: str
    timeout: float
    max_age: float


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of thing, as the API's addresses name it. The group of the core API is empty."""

    group: str
    version: str
    plural: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The address of one of them, or of all in a namespace, or of all."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{base}{within}/{self.plural}" + "".join(f"/{part}" for part in (name, subresource) if part)


PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
HPAS = Resource("autoscaling", "v2", "horizontalpodautoscalers")
SCALED_OBJECTS = Resource("keda.sh", "v1alpha1", "scaledobjects")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, in the words of RBAC, so that a refusal can say which rule is missing."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """Its address. To list or watch one object is to do so with a field selector."""
        named = self.verb not in {"list", "watch", "create"}
        return self.resource.path(self.namespace, self.name if named else "", self.subresource)

    def __str__(self) -> str:
        sub = f"/{self.subresource}" if self.subresource else ""
        named = f" named {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else " in all namespaces"
        return f"{self.verb} on {self.resource}{sub}{named}{where}"


class Api:
    """A live client.

    Attributes:
        server: the API server's address.
        namespace: the one that kubectl would use.
    """

    def __init__(self, access: Access, client: Any, renew: Callable[[], Awaitable[None]], namespace: str) -> None:  # noqa: ANN401 - a library without types
        self.access = access
        self.namespace = namespace
        self.server: str = client.configuration.host
        self._client = client
        self._renew = renew
        self._renewed = -RENEW
        self._renewing = asyncio.Lock()
        self.lists = asyncio.Semaphore(20)  # at the start every cluster that is watched by name lists at once

    async def call(
        self, ask: Ask, query: Mapping[str, object] | None = None, body: object = None, limit: float | None = None
    ) -> Json:
        """Ask for a JSON object, again while the server cannot answer.

        Args:
            ask: what is asked.
            query: parameters of the address.
            body: sent as JSON; of a patch, a merge patch.
            limit: seconds for all of it; None: the time-out.

        Raises:
            EdgeError: what went wrong, and what to do.
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
                        async with self.stream(ask, query, body, patience=limit / 2) as response:
                            return await self._object(ask, response)
        except TimeoutError as error:
            raise EdgeTimeoutError(self._late(ask)) from error
        raise AssertionError("tenacity raises what failed last")  # pragma: no cover

    @asynccontextmanager
    async def stream(
        self, ask: Ask, query: Mapping[str, object] | None = None, body: object = None, patience: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask once and give the answer to read from.

        Args:
            ask: what is asked.
            query: parameters of the address.
            body: sent as JSON; of a patch, a merge patch.
            patience: seconds for the whole answer; None: it may last, and a quarter of `max_age` for its beginning.

        Raises:
            EdgeError: there is no good answer; also while it is read.
        """
        try:
            response = await self._send(ask, query, body, patience)
            if response.status == 401:  # noqa: PLR2004 - Unauthorized
                _let_go(response)
                await self._renew_credentials()
                response = await self._send(ask, query, body, patience)
            try:
                if response.status // 100 != 2:  # noqa: PLR2004 - the successes
                    raise await self._refusal(ask, response)
                yield response
            finally:
                _let_go(response)
        except TimeoutError as error:
            raise EdgeTimeoutError(self._late(ask)) from error
        except (aiohttp.ClientError, OSError) as error:
            text = _PASSWORD.sub("//***@", " ".join(str(error).split())) or type(error).__name__
            raise UnavailableError(f"the API server {self.server} cannot be asked to {ask}: {text}") from error

    def _late(self, ask: Ask) -> str:
        return f"the API server {self.server} did not answer in time to {ask}"

    async def _send(
        self, ask: Ask, query: Mapping[str, object] | None, body: object, patience: float | None
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if ask.verb == "patch":
            headers["Content-Type"] = "application/merge-patch+json"
            query = {"fieldManager": MANAGER, **(query or {})}
        connecting = self.access.timeout / 2
        # A long list begins when all of it was read, and a watch may have to queue.
        opening = max(connecting, self.access.max_age / 4 if patience is None else patience)
        # An asyncio.timeout, as aiohttp has none for the time until the answer begins.
        async with asyncio.timeout(opening):
            response: aiohttp.ClientResponse = await self._client.call_api(
                ask.path,
                _METHODS.get(ask.verb, "GET"),
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(total=patience, sock_connect=connecting),
            )
        return response

    async def _renew_credentials(self) -> None:
        """Read the credentials anew, but not more often than every ten seconds, for all who wait for it."""
        loop = asyncio.get_running_loop()
        async with self._renewing:
            if loop.time() - self._renewed >= RENEW:
                try:
                    async with asyncio.timeout(RENEWING):
                        await self._renew()
                except PluginError as error:
                    raise RefusedError(str(error)) from error
                self._renewed = loop.time()
                _log.info("credentials were read anew", extra={"server": self.server})

    async def _object(self, ask: Ask, response: aiohttp.ClientResponse) -> Json:
        try:
            found = json.loads(await _read(response))
        except ValueError as error:
            raise AnswerError(f"the API server {self.server} did not answer JSON to {ask}: {error}") from error
        if not isinstance(found, dict):
            raise AnswerError(f"the API server {self.server} did not answer an object to {ask}")
        return found

    async def _refusal(self, ask: Ask, response: aiohttp.ClientResponse) -> Exception:
        try:
            status = json.loads(await _read(response))
            said = str(status["message"])
        except (ValueError, KeyError, TypeError, AnswerError):
            status, said = {}, response.reason or "no reason given"
        return refusal(ask, response.status, said, self.server, _retry_after(response, status))


def refusal(ask: Ask, code: int, said: str, server: str, after: float | None = None) -> Exception:
    """What a refusal by the API server means for us, with what to do."""
    said = " ".join(said.split())
    said = said if len(said) <= SHOWN else said[: SHOWN - 1] + "…"
    match code:
        case 401:
            return RefusedError(
                f"the API server {server} does not accept our credentials (401: {said}): look at the kubeconfig's "
                "user, or at the pod's service account and its token"
            )
        case 403:
            return RefusedError(f"this needs {ask}: see deploy/kubernetes for the Role (403: {said})")
        case 404:
            what = f"{ask.resource} in {ask.resource.group or 'core'}/{ask.resource.version}"
            if ask.verb in {"list", "watch"}:
                return AbsentError(
                    f"the API server has no {what}: is the CRD installed, is the version right? (404: {said})"
                )
            return AbsentError(f"there is no {ask.name} among the {what}, namespace {ask.namespace} (404: {said})")
        case 409:
            return ConflictError(f"somebody changed it at the same time: {ask} (409: {said})")
        case 410:
            return GoneError(f"the version asked for is no longer kept: {ask} (410: {said})")
        case 422:
            return RefusedError(f"the API server finds the request invalid: {ask} (422: {said})")
    if code == 429 or code >= 500:  # noqa: PLR2004 - too many requests, and the server's own failures
        wait = "" if after is None else f", asks to wait {after:g} s"
        text = f"the API server {server} cannot answer now ({code}{wait}: {said})"
        return BusyError(text, after, crowded=code == 429)  # noqa: PLR2004 - see above
    return AnswerError(f"the API server {server} answered {code} to {ask}: {said}")


def _let_go(response: aiohttp.ClientResponse) -> None:
    """End an answer that was not read to its end at once, and not after a farewell that the other side may not give."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(256 * 1024):
        body += chunk
        if len(body) > LARGEST_ANSWER:
            raise AnswerError(f"{response.url.path} answered more than {LARGEST_ANSWER} bytes")
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
    """Open the client of one API server. Nothing is asked yet.

    Raises:
        PluginError: the package is not installed, or there are no credentials.
    """
    try:
        # In a thread: it takes half a second, in which the daemon would stand still.
        library = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.client")
        config = await asyncio.to_thread(importlib.import_module, "kubernetes_asyncio.config")
        config.exec_provider.ExecProvider.run = _run_plugin
    except ModuleNotFoundError as error:
        raise PluginError(
            f"the target kubernetes needs the package kubernetes_asyncio; install it with: {install_hint('kubernetes')}"
        ) from error
    settings = library.Configuration()
    settings.connection_pool_maxsize = 0  # no limit: a watch holds its connection
    settings.disable_strict_ssl_verification = True  # as kubectl, which takes cluster CAs that Python 3.13 would not

    async def renew() -> None:
        await _credentials(access, config, settings)

    await renew()
    settings.proxy = settings.proxy or proxy_of(settings.host)
    try:
        client = library.ApiClient(settings)
    except (OSError, ValueError) as error:
        raise PluginError(f"the certificates for {settings.host} cannot be used: {error}") from error
    client.user_agent = MANAGER
    # The library's session reads .netrc before each request, of which aiohttp refuses to use both that and a token.
    theirs = client.rest_client.pool_manager
    client.rest_client.pool_manager = aiohttp.ClientSession(connector=theirs.connector, read_bufsize=LONGEST_EVENT)
    theirs.detach()
    async with client:
        yield Api(access, client, renew, _namespace(access, config))
    await asyncio.sleep(0)  # in which connections that were ended are closed


async def _credentials(access: Access, config: Any, settings: Any) -> None:  # noqa: ANN401 - see Api
    """Read address and credentials into the settings. Raises PluginError."""
    try:
        if in_cluster(access):
            config.load_incluster_config(client_configuration=settings)
            _follow(settings, config)
        else:
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
            f"no credentials for Kubernetes ({where}{chosen}): {_shown(error)}; give kubeconfig and context, "
            "or run in a pod with a service account"
        ) from None  # see _shown


async def _run_plugin(plugin: Any) -> Any:  # noqa: ANN401 - see Api
    """Run a kubeconfig's plug-in for the `status` of its answer; a plug-in that is given up is ended.

    It takes the place of the library's ExecProvider.run, which leaves such a plug-in running and its pipes open: in a
    daemon that asks again every few seconds they would become more and more.

    Raises:
        ValueError: the plug-in failed, or what it printed is no answer.
    """
    loop = asyncio.get_running_loop()
    asked = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = plugin.env | {"KUBERNETES_EXEC_INFO": json.dumps(asked)}
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(LONGEST_EVENT, loop),
        *plugin.args,
        stdin=None,
        stdout=PIPE,
        stderr=PIPE,
        env=env,
    )
    process = Process(transport, protocol, loop)
    try:
        printed, said = await process.communicate()
    finally:
        transport.close()
        await process.wait()
    if process.returncode:
        raise ValueError(f"exec: process returned {process.returncode}. {said.decode(errors='replace').strip()}")
    try:
        answer = json.loads(printed)
        version, status = answer["apiVersion"], answer["status"]
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"exec: what the process printed is no ExecCredential: {error!r}") from None
    if version != plugin.api_version:
        raise ValueError(f"exec: the process answered {version}, expected {plugin.api_version}")
    return status


def proxy_of(server: str) -> str | None:
    """The proxy that the environment names for a server, by kubectl's rules: none to loopback, networks in NO_PROXY."""
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
            with suppress(ValueError):  # others read it, too: kubectl passes over what is no network
                yield ipaddress.ip_network(part.strip(), strict=False)


def _shown(error: Exception) -> str:
    """The library's words without the part of the kubeconfig, tokens included, that it likes to show with them."""
    return re.sub(r"\{.*\}", "{…}", f"{error}" or type(error).__name__, flags=re.DOTALL)


def _trim(settings: Any) -> None:  # noqa: ANN401 - see Api
    """Take a token as kubectl does: a file of it may end with a newline, which no header may."""
    token = settings.api_key.get("BearerToken")
    if token:
        settings.api_key["BearerToken"] = token.strip()


def _follow(settings: Any, config: Any) -> None:  # noqa: ANN401 - see Api
    """Let a pod's token be taken from its file before each request, where it is replaced every hour."""
    read = settings.refresh_api_key_hook

    def refresh(settings: Any) -> None:  # noqa: ANN401 - see Api
        try:
            read(settings)
        except (config.ConfigException, OSError) as error:
            raise UnavailableError(f"the token of the pod's service account cannot be read: {error}") from error
        _trim(settings)

    settings.refresh_api_key_hook = refresh


def in_cluster(access: Access) -> bool:
    """Whether the service account of the pod that we run in is used."""
    return not (access.kubeconfig or access.context) and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _namespace(access: Access, config: Any) -> str:  # noqa: ANN401 - see Api
    """The namespace that kubectl would use: the pod's own, that of the context, or `default`. Raises PluginError."""
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
        raise PluginError(f"the kubeconfig cannot be read: {_shown(error)}") from None
    return namespace
