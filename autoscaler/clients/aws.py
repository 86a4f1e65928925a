"""Clients of AWS services: one session and a few threads for each region and identity, shared by all who ask there.

boto3 blocks, so it is called in threads of our own: some for the questions to each service, others for changes, so that
neither a change nor another service ever waits behind questions that hang. botocore tries a call again while it is
throttled, fails with 5xx or is cut off (adaptive mode, a bounded number of attempts), each attempt within a part of the
time-out; nothing is sent any more once the time-out is over.
"""

from __future__ import annotations

import asyncio
import functools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

from autoscaler.plugins import install_hint
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
SHARE = 0.45  # of the time-out for one attempt: a second one fits in
SHOWN = 300  # characters of AWS's own words that go into a message

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
STRANGER = frozenset(
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
    """AWS did not understand the question itself, or it is about something that does not exist."""


class Parameters(Protocol):
    """What plug-ins that ask AWS have in common."""

    @property
    def region(self) -> str: ...  # noqa: D102
    @property
    def profile(self) -> str | None: ...  # noqa: D102
    @property
    def role(self) -> str | None: ...  # noqa: D102
    @property
    def endpoint_url(self) -> str | None: ...  # noqa: D102
    @property
    def timeout(self) -> timedelta: ...  # noqa: D102


def validate(parameters: Parameters) -> None:
    """Check the common parameters. Raises ValueError naming what is wrong."""
    if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-\d+", parameters.region):
        raise ValueError(f"region must be the name of an AWS region such as eu-central-1, not {parameters.region!r}")
    if parameters.profile is not None and not parameters.profile:
        raise ValueError("profile must not be empty, expected the name of a profile in ~/.aws/config")
    if parameters.role is not None and not re.fullmatch(r"arn:aws[\w-]*:iam::\d{12}:role/\S+", parameters.role):
        raise ValueError(f"role must be an ARN such as arn:aws:iam::123456789012:role/name, not {parameters.role!r}")
    if parameters.endpoint_url is not None:
        address = urlsplit(parameters.endpoint_url)
        if address.username is not None or address.password is not None:
            raise ValueError("endpoint_url must not contain a user or password")
        if address.scheme not in {"http", "https"} or not address.hostname or address.port == 0:
            raise ValueError(f"endpoint_url must be http://host:port or https://host, not {parameters.endpoint_url!r}")
    if parameters.timeout <= timedelta(0):
        raise ValueError("timeout must be above 0s")


@dataclass(frozen=True, slots=True)
class Place:
    """Where AWS is asked, and as whom."""

    region: str
    profile: str | None
    role: str | None
    endpoint_url: str | None
    timeout: timedelta


def place_of(parameters: Parameters) -> Place:
    """The place that a plug-in asks at; plug-ins with equal places share one client."""
    return Place(parameters.region, parameters.profile, parameters.role, parameters.endpoint_url, parameters.timeout)


async def shared_aws(shared: Shared, place: Place) -> Aws:
    """The client of a place.

    Raises:
        PluginError: boto3 is not installed.
        RefusedError: the profile does not exist.
    """
    return await shared.enter(("autoscaler.clients.aws", place), lambda: _open(place))


@asynccontextmanager
async def _open(place: Place) -> AsyncIterator[Aws]:
    aws = Aws(place)
    try:
        yield aws
    finally:
        aws.close()


@dataclass(slots=True)
class _Work:
    """One call. `until` (monotonic): no attempt begins later; 0 when nobody waits for it any more."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    mode: str
    until: float


class _Late(Exception):  # noqa: N818 - it ends a call that nobody waits for; nobody sees it
    pass


class Aws:
    """The services of one region, asked as one identity. Use it through `shared_aws`."""

    def __init__(self, place: Place) -> None:
        try:
            import boto3  # noqa: PLC0415 - it belongs to an extra
            import botocore  # noqa: PLC0415 - likewise
            import botocore.exceptions  # noqa: PLC0415 - likewise
            import botocore.parsers  # noqa: PLC0415 - likewise
            from botocore.config import Config  # noqa: PLC0415 - likewise
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
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._here = threading.local()
        self._seconds = place.timeout.total_seconds()
        self._threads: dict[tuple[str, str], ThreadPoolExecutor] = {}

    def close(self) -> None:
        """Let go of threads and connections; a thread that still waits ends at its own time-out."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def prepare(self, service: str) -> None:
        """Make the client of a service, which takes up to a second, before the first call needs it.

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
            operation: its name; one that begins with Describe or Get is a question.
            parameters: its parameters.
            resource: ARN of what it is about, for the message when it is denied.
            once: never try it again: it must not be done twice.
            ended: called in the loop when the call has ended, which may be after it was given up.

        Raises:
            UnavailableError: AWS throttles, fails or cannot be reached, also after several attempts.
            EdgeTimeoutError: no answer within the time-out; it may have been done all the same.
            RefusedError: AWS said no; the message says which permission is missing, if that is why.
            AnswerError: the answer is not one of AWS.
        """
        loop = asyncio.get_running_loop()
        question = operation.startswith(("Describe", "Get"))
        mode = "read" if question else "once" if once else "write"
        work = _Work(service, operation, parameters, mode, time.monotonic() + 0.95 * self._seconds)
        future = self._pool(service, "read" if question else "write").submit(self._ask, work, resource)
        if ended is not None:
            future.add_done_callback(lambda _: None if loop.is_closed() else loop.call_soon_threadsafe(ended))
        try:
            async with asyncio.timeout(self._seconds):
                return await _wait(future)
        except TimeoutError:
            raise EdgeTimeoutError(
                f"{self._name(service)}: {operation} was not answered within {self._seconds:g} s"
            ) from None
        finally:
            work.until = 0.0

    async def pages(
        self, service: str, operation: str, parameters: Mapping[str, Any], key: str
    ) -> list[dict[str, Any]]:
        """All pages of an answer: the lists under `key`, one after the other. Raises like `call`."""
        found: list[dict[str, Any]] = []
        token: dict[str, Any] = {}
        while True:
            answer = await self.call(service, operation, {**parameters, **token})
            found += answer.get(key) or ()
            if not answer.get("NextToken"):
                return found
            token = {"NextToken": answer["NextToken"]}

    def _pool(self, service: str, mode: str) -> ThreadPoolExecutor:
        """Threads of its own for each service and for changes: what hangs in one does not hold up another."""
        key = (service, mode)
        if key not in self._threads:
            self._threads[key] = ThreadPoolExecutor(THREADS, f"aws-{self.place.region}-{service}-{mode}")
        return self._threads[key]

    def _prepare(self, service: str, mode: str) -> None:
        try:
            self._client(service, mode)
        except self._errors.BotoCoreError as error:
            raise self._told(error, service, "", "*") from None

    def _ask(self, work: _Work, resource: str) -> dict[str, Any]:
        self._here.work = work
        try:
            if time.monotonic() >= work.until:
                raise EdgeTimeoutError(f"{self._name(work.service)}: {work.operation}: no thread was free in time")
            client = self._client(work.service, work.mode)
            answer = getattr(client, self._method(work.operation))(**work.parameters)
        except _Late:
            raise EdgeTimeoutError(f"{self._name(work.service)}: {work.operation}: no time left to try again") from None
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise self._told(error, work.service, work.operation, resource) from None
        except self._unreadable as error:
            # What botocore's parsers make of an answer that is not one of AWS, such as a sign-in page.
            raise AnswerError(
                f"{self._name(work.service)}: {work.operation}: an answer that cannot be read: {short(repr(error))}"
            ) from error
        finally:
            self._here.work = None
        if not isinstance(answer, dict):
            raise AnswerError(f"{self._name(work.service)}: {work.operation} was answered with {type(answer).__name__}")
        return answer

    def _client(self, service: str, mode: str) -> Any:  # noqa: ANN401 - boto3 makes its classes while it runs
        with self._lock:
            client = self._clients.get((service, mode))
            if client is None:
                client = self._clients[service, mode] = self._make(service, mode)
            return client

    def _make(self, service: str, mode: str) -> Any:  # noqa: ANN401 - likewise
        if self._session is None:
            self._session = self._identity()
        retries = {"mode": "standard", "total_max_attempts": 1}
        if mode != "once":
            # The limiter of adaptive mode belongs to a client: throttled questions must not slow down changes.
            retries = {"mode": "adaptive", "total_max_attempts": ATTEMPTS}
        share = SHARE * self._seconds if mode != "once" else 0.9 * self._seconds
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

    def _in_time(self, **_: object) -> None:
        """Called by botocore before each attempt."""
        work = self._here.work
        if time.monotonic() >= work.until:
            raise _Late

    def _identity(self) -> Any:  # noqa: ANN401 - boto3's session
        place = self.place
        session = self._begin(None)
        if place.role is None:
            return session
        from botocore.credentials import (  # noqa: PLC0415 - it belongs to an extra
            AssumeRoleCredentialFetcher,
            DeferredRefreshableCredentials,
        )

        def sts(service: str, **options: Any) -> Any:  # noqa: ANN401 - boto3's client
            share = SHARE * self._seconds
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
        return self._begin(
            DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method="assume-role")
        )

    def _begin(self, credentials: Any) -> Any:  # noqa: ANN401 - botocore's credentials, boto3's session
        import botocore.session  # noqa: PLC0415 - it belongs to an extra

        inner = botocore.session.Session(profile=self.place.profile)
        inner.register_component("data_loader", _loader())
        if credentials is not None:
            inner._credentials = credentials  # type: ignore[attr-defined] # noqa: SLF001 - there is no other way
        return self._boto3.Session(botocore_session=inner, region_name=self.place.region)

    def _name(self, service: str) -> str:
        where = f" at {self.place.endpoint_url}" if self.place.endpoint_url else ""
        return f"AWS {service} in {self.place.region}{where}"

    def _told(self, error: Exception, service: str, operation: str, resource: str) -> EdgeError:
        """What an error of botocore means."""
        errors, what = self._errors, f"{self._name(service)}: {operation}".rstrip(": ")
        if isinstance(error, errors.ClientError):
            if error.operation_name not in {operation, ""}:
                # What botocore asks by itself, to assume the role.
                what = f"{self._name('sts')}: {error.operation_name}"
                return self._answered(error, what, f"sts:{error.operation_name}", self.place.role or "*")
            return self._answered(error, what, f"{service}:{operation}", resource)
        text = short(error)
        if isinstance(error, errors.ConnectTimeoutError | errors.ReadTimeoutError):
            return EdgeTimeoutError(f"{what}: no answer in time: {text}")
        if isinstance(error, errors.SSLError):
            return AnswerError(f"{what}: TLS failed: {text}")
        if isinstance(error, errors.HTTPClientError | errors.ConnectionError | errors.IncompleteReadError):
            return UnavailableError(f"{what}: no connection, or it broke off: {text}")
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
            return RefusedError(
                f"{what}: no credentials: {text}; give the machine an instance profile, or set profile, or the "
                "environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if isinstance(error, errors.ParamValidationError):
            return RefusedError(f"{what}: {text}")
        return AnswerError(f"{what}: {type(error).__name__}: {text}")

    def _answered(self, error: Any, what: str, action: str, resource: str) -> EdgeError:  # noqa: ANN401 - a ClientError
        details = error.response.get("Error") or {}
        code = str(details.get("Code") or "")
        status = (error.response.get("ResponseMetadata") or {}).get("HTTPStatusCode", 0)
        text = f"{what}: {code}: {short(details.get('Message') or 'no message')}"
        if code in THROTTLED:
            return UnavailableError(f"{text} (throttled)")
        if code in BUSY or status >= 500:  # noqa: PLR2004 - the HTTP statuses
            return UnavailableError(text)
        if code in DENIED:
            return RefusedError(f"{text}; allow the action {action} on {resource} (see deploy/aws)")
        if code in STRANGER:
            return RefusedError(f"{text}; check the credentials, and the machine's clock")
        if code.removesuffix("Fault").endswith("InternalError") or code == "InternalFailure":
            return UnavailableError(text)
        return InvalidRequestError(text) if code in INVALID else RefusedError(text)


@functools.cache
def _loader() -> Any:  # noqa: ANN401 - botocore's loader
    """Reads the descriptions of the services: once for all places, for they are large."""
    from botocore.loaders import create_loader  # noqa: PLC0415 - it belongs to an extra

    return create_loader()


async def _wait(future: Future[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.wrap_future(future)


def short(text: object) -> str:
    """Foreign text on one line, cut to a length that suits a message."""
    line = " ".join(str(text).split())
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
