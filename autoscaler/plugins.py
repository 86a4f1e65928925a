"""Plug-ins by entry point: find them, load them by name, describe them.

A plug-in is a frozen stdlib dataclass that a package announces under one of the six entry-point groups
`autoscaler.policies`, `autoscaler.sources`, `autoscaler.engines`, `autoscaler.targets`, `autoscaler.discoveries` and
`autoscaler.notifiers`.
It is imported only when it is used by name. The built-in plug-ins are announced in the same way.

Former names of renamed parameters and plug-ins are still accepted, with a warning. A parameter declares its former
names in `field(default=..., metadata={"aliases": ("old",)})`. A plug-in declares its former names in the class
attribute `former_names`, with an entry point for each.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections import Counter, abc
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, StrEnum
from importlib.metadata import Distribution, EntryPoint, entry_points, version
from importlib.util import find_spec
from typing import Any

from autoscaler.core.durations import format_duration
from autoscaler.core.foreign import format_exception
from autoscaler.ports import PluginError


class Kind(StrEnum):
    """The kind of a plug-in; the value is the last part of its entry-point group."""

    POLICY = "policies"
    SOURCE = "sources"
    ENGINE = "engines"
    TARGET = "targets"
    DISCOVERY = "discoveries"
    NOTIFIER = "notifiers"

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"autoscaler.{self.value}"

    @property
    def noun(self) -> str:
        """The kind in the singular: policy, source, engine, target, discovery or notifier."""
        return self.name.lower()

    @property
    def phrase(self) -> str:
        """The noun with its article, for messages."""
        return f"{'an' if self is Kind.ENGINE else 'a'} {self.noun}"


_REQUIREMENT = re.compile(r"""^\s*(?P<name>[A-Za-z0-9._-]+).*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")
_OWN = "reactive-autoscaler"
_SECTION = re.compile(r"^\s*(Attributes|Args|Parameters):\s*$")
_ENTRY = re.compile(r"^(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?:\([^)]*\))?:\s*(?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a plug-in, for people.

    Attributes:
        name: the key in the configuration.
        type: its type as the source of the plug-in writes it.
        default: the default as text, or None when the parameter is required.
        doc: its description in the docstring.
        aliases: its former names.
    """

    name: str
    type: str
    default: str | None
    doc: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One installed plug-in, for people.

    Attributes:
        kind: its kind.
        name: its name in the configuration (`type:`).
        package: the distribution that announces it.
        version: the version of that distribution.
        reference: the object, `module:name`.
        summary: first paragraph of its docstring.
        parameters: its parameters in order.
        query: for a source, the parameters of one metric.
        variables: for a discovery, the values of a member that a fleet's template may use.
        problem: why it cannot be used, or None.
        former_names: the names it had before, which are still accepted.
    """

    kind: Kind
    name: str
    package: str
    version: str
    reference: str
    summary: str = ""
    parameters: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    variables: tuple[str, ...] = ()
    problem: str | None = None
    former_names: tuple[str, ...] = ()


def names(kind: Kind) -> list[str]:
    """The names installed for a kind, sorted. Nothing is imported."""
    return sorted({point.name for point in entry_points(group=kind.group)})


def load(kind: Kind, name: str) -> type[Any]:
    """Import the plug-in that is announced under a name.

    Raises:
        PluginError: the name is unknown or claimed by two packages, the import failed, or the imported object
            is not a plug-in of this kind.
    """
    kind = Kind(kind)
    points = list(entry_points(group=kind.group))
    found = [point for point in points if point.name == name]
    if not found:
        known = sorted({point.name for point in points})
        listed = ", ".join(known) or "none at all"
        raise PluginError(f"unknown {kind.noun} {name!r}; installed: {listed}{guess(name, known)}")
    _refuse_clash(kind, name, found)
    return _checked(kind, found[0])


def current_name(kind: Kind, name: str) -> str:
    """The present name of the plug-in with this present or former name. Raises PluginError like `load`."""
    cls = load(kind, name)
    if name in _former_names(cls):
        points = {point.name: point.value for point in entry_points(group=kind.group)}
        for other, value in points.items():
            if value == points[name] and other not in _former_names(cls):
                return other
    return name


def installed() -> list[Description]:
    """Describe every installed plug-in under its present name, by kind and name; a broken one has a `problem`."""
    descriptions = []
    for kind in Kind:
        points = sorted(entry_points(group=kind.group), key=lambda point: (point.name, _owner(point)))
        for point in points:
            package, release = _package(point)
            description = Description(
                kind=kind, name=point.name, package=package, version=release, reference=point.value
            )
            try:
                _refuse_clash(kind, point.name, [other for other in points if other.name == point.name])
                plugin = _checked(kind, point)
                former = _former_names(plugin)
                if point.name in former:
                    continue
                description = dataclasses.replace(
                    description,
                    former_names=former,
                    summary=summary(plugin),
                    parameters=parameters(plugin),
                    query=parameters(plugin.Query) if kind is Kind.SOURCE else (),
                    variables=plugin.variables if kind is Kind.DISCOVERY else (),
                )
            except PluginError as error:
                description = dataclasses.replace(description, problem=str(error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - the default of a foreign parameter may fail in any way
                problem = f"it cannot be described: {format_exception(error)}"
                description = dataclasses.replace(description, problem=problem)
            descriptions.append(description)
    return descriptions


def plugin_of(stack: Iterable[tuple[str | None, str]]) -> str | None:
    """The plug-in with the innermost frame in a stack of (module, qualified name), innermost first; or None."""
    points = [(kind, point) for kind in Kind for point in entry_points(group=kind.group)]
    for module, code in stack:
        found = [
            (kind, point)
            for kind, point in points
            if module == point.module or (module or "").partition(".")[0] == _foreign_package(point)
        ]
        if found:
            # A module may define several plug-ins: prefer the one whose class the code belongs to.
            kind, point = min(found, key=lambda pair: pair[1].attr != code.partition(".")[0])
            return f"the {kind.noun} {point.name!r} of {_owner(point)}"
    return None


def _foreign_package(point: EntryPoint) -> str | None:
    """The top-level package of a third-party plug-in; None for one of ours."""
    return None if _package(point)[0] == _OWN else point.module.partition(".")[0]


def modules(kind: Kind) -> list[str]:
    """The top-level modules of all installed third-party packages with plug-ins of a kind."""
    found: set[str] = set()
    for point in entry_points(group=kind.group):
        if _package(point)[0] != _OWN:
            # An editable package does not list its files: then only the module of the plug-in is known.
            files = [file for file in (point.dist and point.dist.files) or () if file.suffix == ".py"]
            found |= {point.module.partition(".")[0], *(file.parts[0].removesuffix(".py") for file in files)}
    return sorted(name for name in found if name.isidentifier())


def _former_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(getattr(cls, "former_names", ()))


def aliases(cls: type[Any]) -> dict[str, str]:
    """Former name of a parameter -> its present name."""
    return {alias: field.name for field in dataclasses.fields(cls) for alias in field_aliases(field)}


def field_aliases(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The former names of one parameter."""
    return tuple(field.metadata.get("aliases", ()))


def install_hint(extra: str) -> str:
    """How to install an extra of our own package, which is not on the package index."""
    wheel = f"dist/reactive_autoscaler-{version(_OWN)}-py311-none-any.whl"
    return f"pip install '.[{extra}]' in a clone, or pip install '{wheel}[{extra}]' with a built wheel"


def require_packages(kind: Kind, name: str, plugin: type[Any]) -> None:
    """Raise PluginError, which says what to install, if a package of the attribute `packages` is not installed."""
    named = getattr(plugin, "packages", ())
    if not isinstance(named, tuple) or not all(isinstance(package, str) for package in named):
        return  # not the declaration, but a parameter of the plug-in that happens to have this name
    missing = next((package for package in named if not is_installed(package)), None)
    if missing is not None:
        point = next(point for point in entry_points(group=kind.group) if point.name == name)
        raise PluginError(
            f"the {kind.noun} {name!r} needs the package {missing}, which is not installed{_extra_for(point, missing)}"
        )


def is_installed(package: str) -> bool:
    """Whether a package, or a module of one, can be imported."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # `google.cloud` without `google`, and an empty name
        return False


def guess(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when one of the known words is close, else nothing."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.65)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


def summary(cls: type[Any]) -> str:
    """The first paragraph of a class's own docstring on one line; empty if it has none."""
    doc = cls.__doc__ or ""
    if doc.startswith(f"{cls.__name__}("):  # @dataclass generates this if there is no docstring
        return ""
    return " ".join(inspect.cleandoc(doc).partition("\n\n")[0].split())


def attribute_docs(cls: type[Any]) -> dict[str, str]:
    """The description of each attribute in the docstring, under `Attributes:` or `Args:` (Google style)."""
    docs: dict[str, str] = {}
    current: list[str] = []
    indent: int | None = None
    inside = False
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        if _SECTION.match(line):
            inside, indent, current = True, None, []
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            inside = False
            continue
        if indent is None:
            indent = depth
        entry = _ENTRY.match(line.strip()) if depth == indent else None
        if entry:
            current = [name.strip() for name in entry["names"].split(",")]
            docs.update(dict.fromkeys(current, entry["text"].strip()))
        else:
            docs.update({name: f"{docs[name]} {line.strip()}".strip() for name in current})
    return docs


def parameters(cls: type[Any]) -> tuple[Parameter, ...]:
    """Describe the fields of a dataclass that can be set."""
    docs = attribute_docs(cls)
    return tuple(
        Parameter(
            field.name, _type_text(field.type), _default_text(field), docs.get(field.name, ""), field_aliases(field)
        )
        for field in dataclasses.fields(cls)
        if field.init
    )


def _type_text(annotation: object) -> str:
    if isinstance(annotation, str):  # from __future__ import annotations
        return annotation
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def default_of(field: dataclasses.Field[Any]) -> object:
    """The default of a field, or MISSING."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _default_text(field: dataclasses.Field[Any]) -> str | None:
    default = default_of(field)
    if default is dataclasses.MISSING:
        return None
    if isinstance(default, timedelta):
        return format_duration(default)
    return str(default.value) if isinstance(default, Enum) else str(default)


def hash_key(value: Any) -> Hashable:  # noqa: ANN401 - a plug-in or a part of one
    """A key that is the same for equal values, hashable or not. It avoids comparing each pair of ten thousand."""
    try:
        return hash(value)  # not the value itself, which a dictionary would compare
    except TypeError:
        match value:
            case abc.Mapping():
                return frozenset((key, hash_key(inner)) for key, inner in value.items())
            case tuple() | list():
                return tuple(map(hash_key, value))
            case _ if dataclasses.is_dataclass(value):
                compared = (field.name for field in dataclasses.fields(value) if field.compare)
                return tuple(hash_key(getattr(value, name)) for name in compared)
        return type(value).__name__


def _package(point: EntryPoint) -> tuple[str, str]:
    # `dist` is None only for entry points that were created by hand, not for those of installed packages.
    dist: Distribution | None = point.dist
    return ("unknown", "unknown") if dist is None else (dist.name, dist.version)


def _owner(point: EntryPoint) -> str:
    return f"{' '.join(_package(point))} ({point.value})"


def _refuse_clash(kind: Kind, name: str, found: list[EntryPoint]) -> None:
    # One distribution seen twice (editable and installed) announces the same object twice: not a clash.
    owners = {(_package(point)[0].lower().replace("_", "-"), point.value): _owner(point) for point in found}
    if len(owners) > 1:
        raise PluginError(
            f"the {kind.noun} {name!r} is claimed by {len(owners)} packages: "
            f"{', '.join(sorted(owners.values()))}; uninstall all but one"
        )


def _checked(kind: Kind, point: EntryPoint) -> type[Any]:
    title = f"the {kind.noun} {point.name!r} of {_owner(point)}"
    try:
        plugin = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a foreign module may raise anything while it is imported
        cause = format_exception(error)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        raise PluginError(f"{title} cannot be imported: {cause}{_extra_for(point, missing)}") from error
    fault = _fault(kind, plugin)
    if fault is not None:
        raise PluginError(f"{title} is not {kind.phrase}: {fault}")
    assert isinstance(plugin, type)  # noqa: S101 - for the type checker; `_fault` has checked it
    return plugin


def _fault(kind: Kind, plugin: object) -> str | None:
    """What is wrong with a plug-in, or None."""
    fault = _dataclass_fault(plugin, reserved="type")
    if fault is not None:
        return fault
    method = "evaluate" if kind is Kind.POLICY else "connect"
    if not callable(getattr(plugin, method, None)):
        return f"it has no method {method}()"
    if kind is Kind.DISCOVERY:
        variables = getattr(plugin, "variables", None)
        if not isinstance(variables, tuple) or not all(isinstance(name, str) for name in variables):
            return "it has no class attribute variables, a tuple of the names of its members' values"
    if kind is Kind.SOURCE:
        query = getattr(plugin, "Query", None)
        if query is None:
            return "it has no class attribute Query, the frozen dataclass of one metric's parameters"
        fault = _dataclass_fault(query, reserved="source")
        return None if fault is None else f"its Query is not usable: {fault}"
    return None


def _dataclass_fault(plugin: object, reserved: str) -> str | None:
    if not isinstance(plugin, type) or not dataclasses.is_dataclass(plugin):
        return f"expected a frozen dataclass whose fields are its parameters, not {plugin!r}"
    # Only @dataclass sets this attribute; there is no public API for it.
    if not plugin.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return f"the dataclass {plugin.__name__} must be frozen: @dataclass(frozen=True)"
    if any(field.name == reserved for field in dataclasses.fields(plugin)):
        return f"no parameter may be called {reserved!r}; that key of the configuration is taken"
    return None


def _extra_for(point: EntryPoint, missing: str | None) -> str:
    """How to install a missing module, by the extra of the plug-in's package that has it, if any."""
    dist: Distribution | None = point.dist
    if not missing or dist is None:
        return ""
    module = missing.partition(".")[0].lower().replace("_", "-")
    matches = [match for requirement in dist.requires or () if (match := _REQUIREMENT.match(requirement))]
    sizes = Counter(match["extra"] for match in matches)
    extras = {match["extra"] for match in matches if match["name"].lower().replace("_", "-") == module}
    if extras:
        extra = min(extras, key=lambda extra: (sizes[extra], extra))  # the extra with the fewest other packages
        hint = install_hint(extra) if dist.name == _OWN else f"pip install '{dist.name}[{extra}]'"
        return f"; install it with: {hint}"
    its_own = point.module.partition(".")[0] == missing.partition(".")[0]  # then the plug-in's package is broken
    return "" if its_own else f"; install the package that brings the module {missing!r}"
