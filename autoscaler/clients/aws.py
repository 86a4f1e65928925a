"""A client of AWS services: one session and a few threads for each region and identity, shared by all plug-ins.

boto3 blocks, so it runs in threads. Each service has one thread pool for reads and one for changes, so that reads that
hang delay neither changes nor other services. botocore retries a call that is throttled, fails with 5xx or loses its
connection (adaptive mode, a limited number of attempts). Each attempt gets a share of the time-out. After the time-out,
no attempt starts.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from autoscaler.clients.shared_requests import one_line
from autoscaler.core.parameters import ParameterError
from autoscaler.plugins import guess, install_hint
from autoscaler.ports import (
    AnswerError,
    EdgeError,
    EdgeTimeoutError,
    PluginError,
    RefusedError,
    Shared,
    UnavailableError,
)

ATTEMPTS = 3
THREADS = 4
ATTEMPT_SHARE = 0.45  # of the time-out, so that there is time for a second attempt
RENEWAL_INTERVAL = 60.0  # seconds between two renewals of missing or rejected credentials

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "LimitExceeded",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
INVALID = frozenset(
    {
        "InvalidFormat",
        "InvalidParameterCombination",
        "InvalidParameterCombinationException",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MissingParameter",
        "MissingRequiredParameterException",
        "ValidationError",
        "ValidationException",
    }
)
BUSY = frozenset({"ScalingActivityInProgress", "ResourceContention", "RequestTimeout", "RequestTimeoutException"})
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
UNAUTHENTICATED = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "NotAuthorized",
        "OptInRequired",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


class InvalidRequestError(RefusedError):
    """AWS reports that the request is invalid, or that something it names does not exist."""


@dataclass(frozen=True, slots=True)
class Place:
    """A region and an identity: plug-ins with equal places share one client. Raises ParameterError."""

    region: str
    profile: str | None
    role: str | None
    endpoint_url: str | None
    timeout: timedelta

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-\d+", self.region):
            raise ParameterError(
                "region", f"must be the name of an AWS region such as eu-central-1, not {self.region!r}"
            )
        known = known_regions() if self.endpoint_url is None else ()
        if known and self.region not in known:
            raise ParameterError(
                "region",
                f"{self.region!r} is not a region of AWS that botocore {version('botocore')} knows"
                f"{guess(self.region, known)}; for a newer region install a newer boto3",
            )
        if self.profile is not None and not self.profile:
            raise ParameterError("profile", "must not be empty, expected the name of a profile in ~/.aws/config")
        if self.role is not None and not re.fullmatch(r"arn:aws[\w-]*:iam::\d{12}:role/\S+", self.role):
            raise ParameterError(
                "role", f"must be an ARN such as arn:aws:iam::123456789012:role/name, not {self.role!r}"
            )
        if self.endpoint_url is not None:
            address = urlsplit(self.endpoint_url)
            if address.username is not None or address.password is not None:
                raise ParameterError("endpoint_url", "must not contain a user or password")
            if address.scheme not in {"http", "https"} or not address.hostname or address.port == 0:
                raise ParameterError(
                    "endpoint_url", f"must be http://host:port or https://host, not {self.endpoint_url!r}"
                )
        if self.timeout <= timedelta(0):
            raise ParameterError("timeout", "must be above 0s")


async def shared_aws(shared: Shared, place: Place) -> Aws:
    """The client of a place.

    Raises:
        PluginError: boto3 is not installed.
        RefusedError: the profile does not exist.
    """
    return await shared.enter(("autoscaler.clients.aws", place), lambda: aclosing(Aws(place)))


@dataclass(slots=True)
class _Call:
    """One call. No attempt starts after `until` (monotonic clock); it is 0 once the call has ended or is cancelled."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    mode: str
    until: float


class _Late(Exception):  # noqa: N818 - ends a call that timed out, and never leaves this module
    pass


class Aws:
    """The services of one region, called as one identity. Use it through `shared_aws`."""

    def __init__(self, place: Place) -> None:
        try:
            import boto3  # noqa: PLC0415 - it belongs to an extra
            import botocore  # noqa: PLC0415 - as above
            import botocore.exceptions  # noqa: PLC0415 - as above
            import botocore.parsers  # noqa: PLC0415 - as above
            from botocore.config import Config  # noqa: PLC0415 - as above
        except ImportError as error:
            raise PluginError(
                f"AWS needs the package boto3 ({error}); install it with: {install_hint('aws')}"
            ) from error
        self.place = place
        self._errors: Any = botocore.exceptions
        self._unreadable: Any = (
            botocore.parsers.ResponseParserError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        )
        self._config: Any = Config
        self._method: Any = botocore.xform_name
        self._boto3: Any = boto3
        self._session: Any = None
        self._identified_at = -RENEWAL_INTERVAL
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._seconds = place.timeout.total_seconds()
        self._threads: dict[tuple[str, str], ThreadPoolExecutor] = {}

    async def aclose(self) -> None:
        """Release threads and connections. A thread that still waits for an answer ends at its own time-out."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in [*self._clients.values()]:  # a copy, because a thread that still waits may change the dict
            client.close()

    async def prepare(self, service: str) -> None:
        """Create the boto3 clients of a service before the first call needs them. This takes up to a second.

        Raises:
            RefusedError: the profile does not exist.
        """
        for mode in ("read", "write"):
            await asyncio.wrap_future(self._pool(service, mode).submit(self._prepare, service, mode))

    async def call(
        self,
        service: str,
        operation: str,
        parameters: Mapping[str, Any],
        *,
        resource: str = "*",
        once: bool = False,
        ended: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Call an operation by its name in AWS's documentation, such as DescribeAutoScalingGroups.

        Args:
            service: `autoscaling`, `cloudwatch` or `ec2`.
            operation: the operation's name; if it begins with Describe or Get, the call is a read.
            parameters: the operation's parameters.
            resource: ARN of the resource, for the message when access is denied.
            once: do not retry, because the operation must not be done twice.
            ended: called in the event loop when the call has ended, which may be after the time-out.

        Raises:
            UnavailableError: every attempt failed: AWS throttles, fails or cannot be reached.
            EdgeTimeoutError: no answer within the time-out. The call may still have succeeded.
            RefusedError: AWS refused the call. The message names the missing permission, if that is the reason.
            AnswerError: the answer does not come from AWS.
        """
        loop = asyncio.get_running_loop()
        read = operation.startswith(("Describe", "Get"))
        mode = "read" if read else "once" if once else "write"
        call = _Call(service, operation, parameters, mode, time.monotonic() + 0.95 * self._seconds)
        future = self._pool(service, "read" if read else "write").submit(self._run, call, resource)
        if ended is not None:
            future.add_done_callback(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(ended))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise EdgeTimeoutError(
                f"{self._name(service)}: {operation} was not answered within {self._seconds:g} s"
            ) from None
        finally:
            call.until = 0.0

    async def pages(
        self, service: str, operation: str, parameters: Mapping[str, Any], key: str
    ) -> list[dict[str, Any]]:
        """Read all pages of an answer and return their lists under `key` as one list. Raises the errors of `call`."""
        found: list[dict[str, Any]] = []
        token: dict[str, Any] = {}
        while True:
            answer = await self.call(service, operation, {**parameters, **token})
            found += answer.get(key) or ()
            if not answer.get("NextToken"):
                return found
            token = {"NextToken": answer["NextToken"]}

    def _pool(self, service: str, mode: str) -> ThreadPoolExecutor:
        """The thread pool for the reads or the writes of one service. Pools are separate, see the module."""
        key = (service, mode)
        if key not in self._threads:
            self._threads[key] = ThreadPoolExecutor(THREADS, f"aws-{self.place.region}-{service}-{mode}")
        return self._threads[key]

    def _prepare(self, service: str, mode: str) -> None:
        try:
            self._client(service, mode)
        except self._errors.BotoCoreError as error:
            raise self._translated(error, service, "", "*") from None

    def _run(self, call: _Call, resource: str) -> dict[str, Any]:
        self._thread.call = call
        try:
            if time.monotonic() >= call.until:
                raise EdgeTimeoutError(f"{self._name(call.service)}: {call.operation}: no thread was free in time")
            client = self._client(call.service, call.mode)
            answer = getattr(client, self._method(call.operation))(**call.parameters)
        except _Late:
            raise EdgeTimeoutError(f"{self._name(call.service)}: {call.operation}: no time left to try again") from None
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise self._translated(error, call.service, call.operation, resource) from None
        except self._unreadable as error:
            # botocore's parsers raise these errors for an answer that is not from AWS, such as a login page.
            raise AnswerError(
                f"{self._name(call.service)}: {call.operation}: the answer cannot be read: {one_line(repr(error))}"
            ) from error
        finally:
            self._thread.call = None
        if not isinstance(answer, dict):
            raise AnswerError(f"{self._name(call.service)}: {call.operation} was answered with {type(answer).__name__}")
        return answer

    def _client(self, service: str, mode: str) -> Any:  # noqa: ANN401 - boto3 creates its classes at run time
        with self._lock:
            client = self._clients.get((service, mode))
            if client is None:
                client = self._clients[service, mode] = self._make(service, mode)
            return client

    def _make(self, service: str, mode: str) -> Any:  # noqa: ANN401 - as above
        if self._session is None:
            self._session, self._identified_at = self._identity(), time.monotonic()
        retries = {"mode": "standard", "total_max_attempts": 1}
        if mode != "once":
            # Adaptive mode limits the rate per client. Reads and writes have their own clients, so throttled reads do
            # not slow down writes.
            retries = {"mode": "adaptive", "total_max_attempts": ATTEMPTS}
        share = ATTEMPT_SHARE * self._seconds if mode != "once" else 0.9 * self._seconds
        config = self._config(
            connect_timeout=share,
            read_timeout=share,
            retries=retries,
            max_pool_connections=THREADS,
            user_agent_extra="reactive-autoscaler",
        )
        client = self._session.client(service, endpoint_url=self.place.endpoint_url, config=config)
        client.meta.events.register("before-send", self._in_time)
        return client

    def _forget_identity(self) -> None:
        """Make the next call read the credentials again.

        boto3 renews the credentials of a machine or of a role by itself. But a session keeps credentials from a file,
        although temporary ones are replaced before they expire. And a session that has found no credentials, perhaps
        because the metadata service of a starting machine did not answer yet, does not search again.
        """
        with self._lock:
            if time.monotonic() - self._identified_at >= RENEWAL_INTERVAL:
                for client in self._clients.values():
                    client.close()  # a pending call still gets its answer
                self._clients.clear()
                self._session = None

    def _in_time(self, **_: object) -> None:
        """Stop a call whose time is over; botocore calls this before each attempt."""
        call = self._thread.call
        if time.monotonic() >= call.until:
            raise _Late

    def _identity(self) -> Any:  # noqa: ANN401 - boto3's session
        place = self.place
        session = self._new_session(None)
        if place.role is None:
            return session
        from botocore.credentials import (  # noqa: PLC0415 - it belongs to an extra
            AssumeRoleCredentialFetcher,
            DeferredRefreshableCredentials,
        )

        def sts(service: str, **options: Any) -> Any:  # noqa: ANN401 - boto3's client
            share = ATTEMPT_SHARE * self._seconds
            retries = {"mode": "standard", "total_max_attempts": 2}
            config = self._config(connect_timeout=share, read_timeout=share, retries=retries)
            return session.client(service, endpoint_url=place.endpoint_url, config=config, **options)

        source = session.get_credentials()
        if source is None:
            raise self._errors.NoCredentialsError
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=sts,
            source_credentials=source,
            role_arn=place.role,
            extra_args={"RoleSessionName": "reactive-autoscaler"},
        )
        return self._new_session(
            DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
        )

    def _new_session(self, credentials: Any) -> Any:  # noqa: ANN401 - botocore's credentials, boto3's session
        import botocore.session  # noqa: PLC0415 - it belongs to an extra

        inner = botocore.session.Session(profile=self.place.profile)
        inner.register_component("data_loader", _loader())
        if credentials is not None:
            inner._credentials = credentials  # type: ignore[attr-defined] # noqa: SLF001 - there is no other way
        return self._boto3.Session(botocore_session=inner, region_name=self.place.region)

    def _name(self, service: str) -> str:
        where = f" at {self.place.endpoint_url}" if self.place.endpoint_url else ""
        return f"AWS {service} in {self.place.region}{where}"

    def _translated(self, error: Exception, service: str, operation: str, resource: str) -> EdgeError:
        """The EdgeError for an error of botocore."""
        errors, what = self._errors, f"{self._name(service)}: {operation}".rstrip(": ")
        if isinstance(error, errors.ClientError):
            if error.operation_name not in {operation, ""}:
                # botocore itself made this call, to assume the role.
                what = f"{self._name('sts')}: {error.operation_name}"
                return self._client_error(error, what, f"sts:{error.operation_name}", self.place.role or "*")
            return self._client_error(error, what, f"{service}:{operation}", resource)
        text = one_line(error)
        if isinstance(error, errors.ConnectTimeoutError | errors.ReadTimeoutError):
            return EdgeTimeoutError(f"{what}: no answer in time: {text}")
        if isinstance(error, errors.SSLError):
            return AnswerError(f"{what}: TLS failed: {text}")
        if isinstance(error, errors.HTTPClientError | errors.ConnectionError | errors.IncompleteReadError):
            return UnavailableError(f"{what}: no connection, or it was closed: {text}")
        if isinstance(error, errors.ProfileNotFound):
            return RefusedError(f"{what}: {text}; expected it in ~/.aws/config or ~/.aws/credentials")
        if isinstance(
            error,
            errors.NoCredentialsError
            | errors.PartialCredentialsError
            | errors.CredentialRetrievalError
            | errors.TokenRetrievalError
            | errors.SSOError
            | errors.InvalidConfigError,
        ):
            self._forget_identity()
            return RefusedError(
                f"{what}: no credentials: {text}; give the machine an instance profile, or set profile, or the "
                "environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if isinstance(error, errors.ParamValidationError):
            return RefusedError(f"{what}: {text}")
        return AnswerError(f"{what}: {type(error).__name__}: {text}")

    def _client_error(self, error: Any, what: str, action: str, resource: str) -> EdgeError:  # noqa: ANN401 - a ClientError
        details = error.response.get("Error") or {}
        code = str(details.get("Code") or "")
        status = (error.response.get("ResponseMetadata") or {}).get("HTTPStatusCode", 0)
        # The code is empty if a proxy between us and AWS answered with its own page.
        text = f"{what}: {code or f'HTTP {status}'}: {one_line(details.get('Message') or 'no message')}"
        if code in THROTTLED:
            return UnavailableError(f"{text} (throttled)")
        if code in BUSY or status >= 500:  # noqa: PLR2004 - the HTTP statuses
            return UnavailableError(text)
        if code in DENIED:
            return RefusedError(f"{text}; allow the action {action} on {resource} (see deploy/aws)")
        if code in UNAUTHENTICATED:
            self._forget_identity()
            return RefusedError(f"{text}; check the credentials, and the machine's clock")
        if code.removesuffix("Fault").endswith("InternalError") or code == "InternalFailure":
            return UnavailableError(text)
        return InvalidRequestError(text) if code in INVALID else RefusedError(text)


@functools.cache
def known_regions() -> frozenset[str]:
    """The regions of all partitions; empty if botocore, which has the list, is not installed."""
    try:
        partitions = _loader().load_data("partitions")["partitions"]
    except ImportError:
        return frozenset()
    return frozenset(region for partition in partitions for region in partition["regions"])


@functools.cache
def _loader() -> Any:  # noqa: ANN401 - botocore's loader
    """The loader of the service descriptions. All clients share it, because the descriptions are large."""
    from botocore.loaders import create_loader  # noqa: PLC0415 - it belongs to an extra

    return create_loader()
