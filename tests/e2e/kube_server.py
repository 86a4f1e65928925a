"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and kube-controller-manager, with nodes of kwok.

The programs are built from the Go module proxy, once, and kept in a cache directory of the user. There is no scheduler:
pods name their node themselves, and become ready as soon as kwok knows a Node of that name, which a test creates. The
daemon's identity is a real service account under RBAC, and every request is in the audit log.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from autoscaler.demo.processes import free_port

Json = dict[str, Any]

MODULE = Path(__file__).parent / "data" / "kubernetes"
PACKAGES = {
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
BUILD_SECONDS = 3600
START_SECONDS = 120
STOP_SECONDS = 20
IDLE_SECONDS = 30
ADMIN, CONTROLLERS = "an-administrator", "the-controllers"
# The other controllers need nodes, clouds and certificates.
BASIC_CONTROLLERS = ("namespace-controller", "serviceaccount-controller", "garbage-collector-controller")
WORKLOAD_CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "resourcequota-controller",
)
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["controllers", "system:apiserver"]},
        {"level": "Metadata"},
    ],
}


def missing(reason: str) -> None:
    """Skip the test, or fail it if all servers must be installed."""
    if os.environ.get("AUTOSCALER_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def programs() -> Path:
    """The directory with the programs; they are built if they are missing."""
    if shutil.which("etcd") is None:
        missing("no etcd on the PATH (Debian: apt-get install etcd-server)")
    texts = b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "reactive-autoscaler-tests" / f"kubernetes-{hashlib.sha256(texts).hexdigest()[:12]}"
    directory.mkdir(parents=True, exist_ok=True)
    found = directory / "bin"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building: this takes as long as that
        if not all((found / name).exists() for name in PACKAGES):
            _build(directory)
    return found


def _build(directory: Path) -> None:
    if shutil.which("go") is None:
        missing("no go on the PATH to build kube-apiserver with")
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, directory)
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    # Into a separate directory: an interrupted build leaves nothing that looks complete.
    command = ["go", "build", "-mod=readonly", "-o", "building/", *PACKAGES.values()]
    shutil.rmtree(directory / "building", ignore_errors=True)
    try:
        subprocess.run(
            command, cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        missing(f"kube-apiserver cannot be built: {str(error.stderr or error)[-500:]}")
    (directory / "building").rename(directory / "bin")


@dataclass
class Requests:
    """The requests of one user to the API server, from its audit log."""

    entries: list[Json] = field(default_factory=list)

    def count(self, verb: str, resource: str) -> int:
        """Requests of a verb on a resource, such as `deployments` or `deployments/scale`."""
        return sum(used == (verb, resource) for used in map(_used, self.entries))

    @property
    def used(self) -> set[tuple[str, str]]:
        """The allowed verbs and resources, including those that do not exist."""
        return {_used(entry) for entry in self.entries if entry["responseStatus"]["code"] != 403}

    @property
    def refused(self) -> set[tuple[str, str]]:
        """The forbidden verbs and resources."""
        return {_used(entry) for entry in self.entries if entry["responseStatus"]["code"] == 403}


def _used(entry: Json) -> tuple[str, str]:
    found = entry.get("objectRef") or {}
    below = f"/{found['subresource']}" if found.get("subresource") else ""
    return entry["verb"], f"{found.get('resource', entry['requestURI'])}{below}"


class RefusedRequest(OSError):  # noqa: N818 - an answer
    """An answer with an error: its code and its message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class KubeServer:
    """A running control plane.

    Attributes:
        url: the API server's address.
        directory: for its files and those of tests.
        admin: the path of a kubeconfig of an administrator.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        # Connections, and until when they may be reused: thousands of handshakes take long.
        self._idle: list[tuple[HTTPSConnection, float]] = []
        self.admin = self.kubeconfig("admin", ADMIN)

    def kubeconfig(self, name: str, token: str, namespace: str = "default") -> str:
        """Write a kubeconfig with a token."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority-data": self._authority},
                }
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}],
            "current-context": "test",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    @property
    def _authority(self) -> str:
        return base64.b64encode((self.directory / "ca.crt").read_bytes()).decode()

    @property
    def _trust(self) -> SSLContext:
        return create_default_context(cafile=str(self.directory / "ca.crt"))

    def request(self, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
        """Send a request as the administrator; returns the object, or raises RefusedRequest."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": content}
        connection, until = self._idle.pop() if self._idle else (self._connection(), math.inf)
        if time.monotonic() > until:
            connection.close()  # the server may be about to close it: the request opens it again
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append((connection, time.monotonic() + IDLE_SECONDS))
        if answer.status // 100 != 2:
            raise RefusedRequest(answer.status, text.decode())
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def _connection(self) -> HTTPSConnection:
        server = urlsplit(self.url)
        return HTTPSConnection(str(server.hostname), server.port, timeout=120, context=self._trust)

    def close(self) -> None:
        """Close its connections."""
        while self._idle:
            self._idle.pop()[0].close()

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        command = ["kubectl", f"--kubeconfig={self.admin}", *arguments]
        environment = {**os.environ, "HOME": str(self.directory), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def node(self, name: str) -> None:
        """Create a node; pods that name it become ready."""
        self.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def account(self, namespace: str, name: str) -> str:
        """A kubeconfig with a token of an existing service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.request("POST", path, body)["status"]["token"]
        return self.kubeconfig(f"{namespace}-{name}", token, namespace)

    def requests(self, user: str) -> Requests:
        """The requests of a user so far, including watches that still run."""
        lines = (self.directory / "audit.log").read_text().splitlines()
        entries: dict[str, Json] = {}
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line may be incomplete
                entry = json.loads(line)
                if entry["user"]["username"] == user:
                    entries[entry["auditID"]] = entry  # a watch has two entries: when it starts and when it ends
        return Requests(list(entries.values()))


@contextmanager
def kube_server(directory: Path, *, workloads: bool = True) -> Iterator[KubeServer]:
    """Start an empty control plane.

    Args:
        directory: for its files.
        workloads: whether Deployments and StatefulSets have controllers, which create pods, and nodes run these.
    """
    binaries = programs()
    etcd, peer, port = free_port(), free_port(), free_port()
    _certificates(directory)
    (directory / "tokens.csv").write_text(
        f'{ADMIN},admin,1,"system:masters"\n{CONTROLLERS},controllers,2,"system:masters"\n'
    )
    (directory / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
    at = f"http://127.0.0.1:{etcd}"
    with ExitStack() as stack:
        stack.enter_context(
            _process(
                directory,
                [
                    "etcd",
                    f"--data-dir={directory}/etcd",
                    f"--listen-client-urls={at}",
                    f"--advertise-client-urls={at}",
                    f"--listen-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                    f"--initial-cluster=default=http://127.0.0.1:{peer}",
                    "--unsafe-no-fsync",
                ],
            )
        )
        server = KubeServer(f"https://127.0.0.1:{port}", directory)
        stack.callback(server.close)
        api = stack.enter_context(_process(directory, _api_server(binaries, directory, at, port)))
        _await_ready(server, api)
        kubeconfig = server.kubeconfig("controllers", CONTROLLERS)
        controllers = (*BASIC_CONTROLLERS, *(WORKLOAD_CONTROLLERS if workloads else ()))
        stack.enter_context(
            _process(
                directory,
                [
                    str(binaries / "kube-controller-manager"),
                    f"--kubeconfig={kubeconfig}",
                    f"--controllers={','.join(controllers)}",
                    f"--service-account-private-key-file={directory}/accounts.key",
                    f"--root-ca-file={directory}/ca.crt",
                    "--leader-elect=false",
                    "--secure-port=0",
                    "--kube-api-qps=1000",
                    "--kube-api-burst=2000",
                    "--concurrent-deployment-syncs=20",
                    "--concurrent-replicaset-syncs=20",
                ],
            )
        )
        if workloads:
            command = [
                str(binaries / "kwok"),
                f"--kubeconfig={kubeconfig}",
                "--manage-all-nodes",
                "--node-lease-duration-seconds=0",
            ]
            stack.enter_context(_process(directory, command))
        _await_account(server)
        yield server


def _api_server(binaries: Path, directory: Path, etcd: str, port: int) -> Sequence[str]:
    return [
        str(binaries / "kube-apiserver"),
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--tls-cert-file={directory}/server.crt",
        f"--tls-private-key-file={directory}/server.key",
        f"--client-ca-file={directory}/ca.crt",
        f"--token-auth-file={directory}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={directory}/accounts.pub",
        f"--service-account-signing-key-file={directory}/accounts.key",
        f"--audit-policy-file={directory}/audit.yaml",
        f"--audit-log-path={directory}/audit.log",
        "--audit-log-mode=blocking",
        "--event-ttl=1h",
        "--profiling=false",
    ]


@contextmanager
def _process(directory: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    log = directory / f"{Path(command[0]).name}.log"
    environment: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(directory), "NO_PROXY": "127.0.0.1"}
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(server: KubeServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    problem: object = None
    while time.monotonic() < deadline:
        assert process.poll() is None, (server.directory / "kube-apiserver.log").read_text()[-3000:]
        try:
            server.request("GET", "/readyz")
        except OSError as error:  # refused, or 500 while it starts
            problem = error
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"kube-apiserver was not ready within {START_SECONDS} s: {problem}")


def _await_account(server: KubeServer) -> None:
    """Wait for the service account that pods need: then the controllers work."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            server.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except RefusedRequest:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"the controllers did not work within {START_SECONDS} s")


def _certificates(directory: Path) -> None:
    """Create an authority, a certificate of the server, and the keys that sign tokens of service accounts."""
    now = datetime.fromtimestamp(time.time(), UTC)
    authority, key, accounts = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority for one test")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])

    def signed(
        subject: x509.Name, public: ec.EllipticCurvePublicKey, extension: x509.ExtensionType, *, critical: bool
    ) -> bytes:
        made = (
            x509.CertificateBuilder(root, subject, public, x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=critical)
            .sign(authority, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        form = serialization.PrivateFormat.TraditionalOpenSSL
        return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    public = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    ca = signed(root, authority.public_key(), x509.BasicConstraints(ca=True, path_length=None), critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for file, content in {
        "ca.crt": ca,
        "server.crt": signed(name, key.public_key(), names, critical=False),
        "server.key": private(key),
        "accounts.key": private(accounts),
        "accounts.pub": public,
    }.items():
        (directory / file).write_bytes(content)
