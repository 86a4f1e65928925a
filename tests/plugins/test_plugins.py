"""Plug-ins, loaded by real entry points of distributions that the tests write onto the path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autoscaler import plugins
from autoscaler.plugins import Kind
from autoscaler.ports import PluginError
from tests.plugins.distributions import write_distribution

Install = Callable[..., None]

GOOD = '''
from __future__ import annotations
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

class Mode(Enum):
    FAST = "fast"

@dataclass(frozen=True)
class Steady:
    """Keeps what there is.

    It never asks for anything
    else.

    Attributes:
        within: how long it
            looks back, above 0s.
        low, high (float): bounds, records/s.
        mode: how it works: `fast` is the only way.

    Nothing after this is a parameter:
        other: no.
    """

    within: timedelta
    low: float = 0.5
    high: float = 1.5
    mode: Mode = Mode.FAST
    wait: timedelta = timedelta(seconds=90)
    names: tuple[str, ...] = field(default_factory=tuple)
    hidden: int = field(default=0, init=False)

    def evaluate(self, view): ...

@dataclass(frozen=True)
class Source:
    @dataclass(frozen=True)
    class Query:
        """A query.

        Args:
            name: what to read.
        """
        name: str
    def connect(self, shared): ...
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Write a distribution onto the path."""

    def write(name: str, points: Mapping[str, Mapping[str, str]], **more: Any) -> None:
        site = tmp_path / f"site-{name}-{more.get('version', '1.0')}"
        write_distribution(site, name, points, **more)
        monkeypatch.syspath_prepend(str(site))

    return write


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the imported modules of each test, which are all called tried_something."""
    for module in [name for name in sys.modules if name.startswith("tried_")]:
        monkeypatch.delitem(sys.modules, module)


def failure(kind: Kind, name: str) -> str:
    with pytest.raises(PluginError) as caught:
        plugins.load(kind, name)
    return str(caught.value)


def described(name: str) -> plugins.Description:
    (description,) = [found for found in plugins.installed() if found.name == name]
    return description


def test_a_plug_in_is_loaded_by_its_name(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD})
    assert plugins.load(Kind.POLICY, "steady").__name__ == "Steady"
    assert "steady" in plugins.names(Kind.POLICY)


def test_nothing_is_imported_before_it_is_used(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD})
    plugins.names(Kind.POLICY)
    failure(Kind.POLICY, "unknown")
    assert "tried_good" not in sys.modules


def test_an_unknown_name_gets_a_suggestion_and_the_installed_ones_are_listed(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD})
    message = failure(Kind.POLICY, "Steddy")
    installed = message.removeprefix("unknown policy 'Steddy'; installed: ").removesuffix("; did you mean 'steady'?")
    assert {"steady", "threshold"} <= set(installed.split(", "))
    assert "did you mean" not in failure(Kind.ENGINE, "qqqqqq")


def test_a_name_claimed_twice_is_refused_with_both_owners(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD})
    install("rival", {"policies": {"steady": "tried_rival:Steady"}}, modules={"tried_rival": GOOD}, version="2.1")
    message = failure(Kind.POLICY, "steady")
    assert "the policy 'steady' is claimed by 2 packages" in message
    assert "good 1.0 (tried_good:Steady)" in message
    assert "rival 2.1 (tried_rival:Steady)" in message
    assert [found.problem for found in plugins.installed() if found.name == "steady"] == [message, message]


def test_the_same_name_for_two_kinds_is_not_a_clash(install: Install) -> None:
    points = {"sources": {"same": "tried_good:Source"}, "engines": {"same": "tried_good:Source"}}
    install("good", points, modules={"tried_good": GOOD})
    assert plugins.load(Kind.SOURCE, "same") is plugins.load(Kind.ENGINE, "same")


def test_one_distribution_found_twice_is_not_a_clash(install: Install) -> None:
    points = {"policies": {"steady": "tried_good:Steady"}}
    install("good-one", points, modules={"tried_good": GOOD}, version="1.0")
    install("good_one", points, modules={"tried_good": GOOD}, version="1.1")  # editable beside installed
    assert plugins.load(Kind.POLICY, "steady").__name__ == "Steady"
    assert described("steady").version == "1.1"  # the one that is first on the path, as for an import


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemError('boom')", "SystemError: boom"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("def (", "SyntaxError"),
        ("", "AttributeError: module 'tried_broken' has no attribute 'Broken'"),
    ],
)
def test_an_import_failure_shows_its_cause(install: Install, source: str, cause: str) -> None:
    install("broken", {"targets": {"broken": "tried_broken:Broken"}}, modules={"tried_broken": source})
    message = failure(Kind.TARGET, "broken")
    assert message.startswith("the target 'broken' of broken 1.0 (tried_broken:Broken) cannot be imported: ")
    assert cause in message


def test_a_missing_optional_package_names_the_extra_of_its_distribution(install: Install) -> None:
    install(
        "cloudy",
        {"targets": {"cloudy": "tried_cloudy:Cloudy"}},
        modules={"tried_cloudy": "import no_such_cloud.client"},
        requires=["PyYAML", 'no-such-cloud>=1.2; python_version > "3" and extra == "cloud"'],
    )
    message = failure(Kind.TARGET, "cloudy")
    assert message.endswith(
        "ModuleNotFoundError: No module named 'no_such_cloud'; install it with: pip install 'cloudy[cloud]'"
    )


def test_a_missing_package_of_ours_is_installed_from_a_clone_or_a_wheel(install: Install) -> None:
    install(
        "reactive-autoscaler",
        {"targets": {"cloudy": "tried_cloudy:Cloudy"}},
        modules={"tried_cloudy": "import no_such_cloud"},
        requires=['no-such-cloud; extra == "cloud"'],
    )
    assert failure(Kind.TARGET, "cloudy").endswith(
        "; install it with: pip install '.[cloud]' in a clone, or "
        "pip install 'dist/reactive_autoscaler-1.0-py311-none-any.whl[cloud]' with a built wheel"
    )


def test_a_missing_package_without_an_extra_is_named(install: Install) -> None:
    install("cloudy", {"targets": {"cloudy": "tried_cloudy:X"}}, modules={"tried_cloudy": "import no_such_cloud"})
    assert failure(Kind.TARGET, "cloudy").endswith("; install the package that brings the module 'no_such_cloud'")


def test_a_missing_module_of_the_plug_in_itself_is_not_reported_as_a_package_to_install(install: Install) -> None:
    install("gone", {"targets": {"gone": "tried_gone:X"}})
    assert failure(Kind.TARGET, "gone").endswith("ModuleNotFoundError: No module named 'tried_gone'")


HEAD = "from dataclasses import dataclass\n"
CONNECT = "    def connect(self, shared): ...\n"


@pytest.mark.parametrize(
    ("kind", "source", "fault"),
    [
        (Kind.POLICY, "def Tried(): ...", "expected a frozen dataclass whose fields are its parameters, not <function"),
        (Kind.POLICY, "class Tried: ...", "expected a frozen dataclass"),
        (
            Kind.POLICY,
            HEAD + "@dataclass\nclass Tried: ...",
            "the dataclass Tried must be frozen: @dataclass(frozen=True)",
        ),
        (Kind.POLICY, HEAD + "@dataclass(frozen=True)\nclass Tried: ...", "it has no method evaluate()"),
        (
            Kind.TARGET,
            HEAD + "@dataclass(frozen=True)\nclass Tried:\n    connect: int = 1",
            "it has no method connect()",
        ),
        (Kind.SOURCE, HEAD + "@dataclass(frozen=True)\nclass Tried:\n" + CONNECT, "it has no class attribute Query"),
        (
            Kind.SOURCE,
            HEAD + "@dataclass(frozen=True)\nclass Tried:\n    Query = dict\n" + CONNECT,
            "its Query is not usable: expected a frozen dataclass",
        ),
        (
            Kind.DISCOVERY,
            HEAD + "@dataclass(frozen=True)\nclass Tried:\n" + CONNECT,
            "it has no class attribute variables",
        ),
        (
            Kind.DISCOVERY,
            HEAD + "@dataclass(frozen=True)\nclass Tried:\n    variables = ('name', 1)\n" + CONNECT,
            "it has no class attribute variables",
        ),
        (
            Kind.ENGINE,
            HEAD + "@dataclass(frozen=True)\nclass Tried:\n    type: str = ''\n" + CONNECT,
            "no parameter may be called 'type'",
        ),
    ],
)
def test_an_object_that_is_not_a_plug_in_is_refused_with_the_expected_interface(
    install: Install, kind: Kind, source: str, fault: str
) -> None:
    install("odd", {kind.value: {"odd": "tried_odd:Tried"}}, modules={"tried_odd": source})
    message = failure(kind, "odd")
    assert message.startswith(f"the {kind.noun} 'odd' of odd 1.0 (tried_odd:Tried) is not {kind.phrase}: ")
    assert fault in message


def test_a_plug_in_is_described_with_its_parameters(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD}, version="3.2")
    description = described("steady")
    assert (description.kind, description.package, description.version) == (Kind.POLICY, "good", "3.2")
    assert description.reference == "tried_good:Steady"
    assert description.summary == "Keeps what there is."
    assert [(p.name, p.type, p.default, p.doc) for p in description.parameters] == [
        ("within", "timedelta", None, "how long it looks back, above 0s."),
        ("low", "float", "0.5", "bounds, records/s."),
        ("high", "float", "1.5", "bounds, records/s."),
        ("mode", "Mode", "fast", "how it works: `fast` is the only way."),
        ("wait", "timedelta", "1m30s", ""),
        ("names", "tuple[str, ...]", "()", ""),
    ]


def test_a_source_is_described_with_its_query(install: Install) -> None:
    install("good", {"sources": {"well": "tried_good:Source"}}, modules={"tried_good": GOOD})
    assert described("well").summary == ""
    assert [(p.name, p.default, p.doc) for p in described("well").query] == [("name", None, "what to read.")]


def test_a_broken_plug_in_does_not_hide_the_others(install: Install) -> None:
    install("good", {"policies": {"steady": "tried_good:Steady"}}, modules={"tried_good": GOOD})
    install("broken", {"policies": {"broken": "tried_broken:Broken"}}, modules={"tried_broken": "1 / 0"})
    assert "ZeroDivisionError" in str(described("broken").problem)
    assert described("broken").parameters == ()
    assert described("steady").problem is None


def test_the_built_in_plug_ins_are_announced_by_entry_points() -> None:
    found = {(description.kind, description.name) for description in plugins.installed()}
    assert {(Kind.POLICY, "backlog-drain"), (Kind.SOURCE, "prometheus"), (Kind.TARGET, "local")} <= found


def test_a_plug_in_that_cannot_be_described_does_not_hide_the_others(install: Install) -> None:
    source = GOOD.replace("default_factory=tuple", "default_factory=lambda: 1 / 0")
    install("fussy", {"policies": {"fussy": "tried_fussy:Steady"}}, modules={"tried_fussy": source})
    assert described("fussy").problem == "it cannot be described: ZeroDivisionError: division by zero"
    assert described("threshold").problem is None


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in Kind for name in plugins.names(kind)])
def test_every_built_in_plug_in_is_usable_and_documented(kind: Kind, name: str) -> None:
    from autoscaler.config import build  # noqa: PLC0415 - only this test needs modules outside the room

    cls = build.usable(plugins.load(kind, name), kind)
    assert plugins.summary(cls)
    described = [*plugins.parameters(cls), *(plugins.parameters(cls.Query) if kind is Kind.SOURCE else ())]
    assert [parameter.name for parameter in described if not parameter.doc] == []


@pytest.mark.parametrize(
    ("word", "guessed"), [("utilisation", "utilization"), ("Restrat", "restart"), ("target", None)]
)
def test_only_similar_names_are_suggested(word: str, guessed: str | None) -> None:
    expected = "" if guessed is None else f"; did you mean {guessed!r}?"
    assert plugins.guess(word, ("objective", "restart", "utilization")) == expected
