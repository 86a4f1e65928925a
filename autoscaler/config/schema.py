"""The JSON Schema of the configuration file, for editors, generated from the types that the reader uses."""

from __future__ import annotations

import dataclasses
import types
from collections import abc
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from autoscaler import plugins
from autoscaler.config import build
from autoscaler.config.cluster import NAME
from autoscaler.config.document import read_plain
from autoscaler.config.include import OWN
from autoscaler.config.sections import SCALED, FileSections, MetricSection
from autoscaler.config.template import TextTemplate
from autoscaler.core.durations import PATTERN, format_duration
from autoscaler.plugins import Kind
from autoscaler.ports import PluginError, Secret

Schema: TypeAlias = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMED = ("clusters", "sources", "fleets", "metrics", "policies")
_NEEDED = ("clusters", "policies")  # at least one of each
_REFERENCE = r"\$\{[^{}]+\}"  # to an environment variable, or in the template of a fleet to a value of the member
_VARIABLE: Schema = {"type": "string", "pattern": _REFERENCE}
_SCALARS: abc.Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {**_VARIABLE, "type": ["integer", "string"]},
    float: {**_VARIABLE, "type": ["number", "string"]},
    bool: {**_VARIABLE, "type": ["boolean", "string"]},
    Path: {"type": "string", "minLength": 1},
    Secret: {"type": "string"},
    TextTemplate: {"type": "string"},
    datetime: {"type": "string", "pattern": f"^{build.TIME}$|{_REFERENCE}"},
    timedelta: {"$ref": "#/$defs/duration"},
    type(None): {"type": "null"},
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the whole file, with the plug-ins that are installed and work.

    It does not contain the rules that only the reader can check: names of sources, expressions, limits across fields.
    """
    schema = object_schema(FileSections)
    schema["anyOf"] = [{"required": [section]} for section in SCALED]
    schema["patternProperties"] = {f"^{OWN}": {"description": "For your own anchors; not read."}}
    defs: Schema = {
        "duration": {
            "type": "string",
            "pattern": f"{PATTERN}|{_REFERENCE}",
            "description": "A duration with its unit: 500ms, 30s, 5m, 1h30m, 7d.",
        }
    }
    for kind in Kind:
        defs |= _plugins(kind)
    return {"$schema": _DIALECT, "title": "autoscaler configuration", **schema, "$defs": defs}


def _plugins(kind: Kind) -> Schema:
    """The definitions of one kind: each plug-in, and the choice by `type`."""
    found: dict[str, Schema] = {}
    queries: dict[str, Schema] = {}
    for name in plugins.names(kind):
        try:
            cls = build.usable(plugins.load(kind, name), kind)
        except PluginError:  # a file cannot use this plug-in; `autoscaler plugins` shows its problem
            continue
        found[name] = object_schema(cls, extra={"type": _choice(_spellings(name))})
        current = plugins.current_name(kind, name)
        if current != name:
            found[name] |= {"deprecated": True, "description": f"Now called `{current}`."}
        if kind is Kind.SOURCE:
            source = {"source": {"type": "string", "description": "The source, by its name under `sources`."}}
            queries[name] = object_schema(cls.Query, extra=source)
    defs = {f"{kind.value}.{name}": schema for name, schema in found.items()}
    defs[kind.value] = {
        "type": "object",
        "required": ["type"],
        "properties": {"type": _choice([spelling for name in found for spelling in _spellings(name)])},
        "allOf": [
            {
                "if": {"properties": {"type": {"enum": _spellings(name)}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/{kind.value}.{name}"},
            }
            for name in found
        ],
    }
    if kind is Kind.SOURCE:
        defs |= {f"query.{name}": schema for name, schema in queries.items()}
        # The schema does not know which source a name means, so it accepts the query of any installed source.
        defs["query"] = {"type": "object", "required": ["source"]}
        if queries:
            defs["query"]["anyOf"] = [{"$ref": f"#/$defs/query.{name}"} for name in queries]
    return defs


def _spellings(name: str) -> list[Any]:
    """The name, and its YAML value if it is written without quotes: `null` is the former name of a target."""
    plain = read_plain(name)
    return [name, plain] if plain is None or isinstance(plain, bool) else [name]


def object_schema(
    cls: type[Any], default: object = None, extra: abc.Mapping[str, Schema] = types.MappingProxyType({})
) -> Schema:
    """The schema of a dataclass, which refers to the definitions of the whole schema by `$ref`.

    Defaults are those of `default`, or else of the class.
    """
    hints = build.type_hints(cls)
    docs = plugins.attribute_docs(cls)
    properties: dict[str, Schema] = dict(extra)
    required = list(extra)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = plugins.default_of(field) if default is None else getattr(default, field.name)
        schema = _type(hints[field.name], value)
        if field.name in _NAMED and cls.__module__ == FileSections.__module__:
            schema["propertyNames"] = {"pattern": f"^{NAME}$"}
            if field.name in _NEEDED:
                schema["minProperties"] = 1
        if field.name in docs:
            schema["description"] = docs[field.name]
        if value is dataclasses.MISSING:
            required.append(field.name)
        else:
            schema["default"] = plain(value)
        properties[field.name] = schema
    made: Schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    _add_aliases(made, plugins.aliases(cls))
    if not required:
        del made["required"]
    if summary := plugins.summary(cls):
        made["description"] = summary
    return made


def _add_aliases(schema: Schema, aliases: abc.Mapping[str, str]) -> None:
    """For each field with former names, allow only one of its names, and require one if the field is required."""
    properties, required = schema["properties"], schema["required"]
    for name in dict.fromkeys(aliases.values()):
        former = [alias for alias, field in aliases.items() if field == name]
        for alias in former:
            properties[alias] = {**properties[name], "deprecated": True, "description": f"Now called `{name}`."}
            properties[alias].pop("default", None)
        one: list[Schema] = [{"required": [key]} for key in (name, *former)]
        if name in required:
            required.remove(name)
        else:
            one.append({"not": {"anyOf": list(one)}})
        schema.setdefault("allOf", []).append({"oneOf": one})


def _type(hint: Any, default: object) -> Schema:  # noqa: ANN401 - a type of any form, one return for each
    plugin = build.plugin_of(hint)
    if plugin:
        reference = {"$ref": f"#/$defs/{plugin.kind.value}"}
        return {"anyOf": [reference, {"type": "null"}]} if build.allows_none(hint) else reference
    hint = build.bare(hint)
    origin, args = get_origin(hint), get_args(hint)
    if hint is MetricSection:
        return {"$ref": "#/$defs/query"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(member, default) for member in args]}
    if origin is Literal:
        return _choice(args)
    if origin in build.MAPPINGS:
        return {"type": "object", "additionalProperties": _type(args[1], None)}
    if origin in build.LISTS:
        if build.is_uniform(hint):
            return {"type": "array", "items": _type(args[0], None)}
        return {
            "type": "array",
            "prefixItems": [_type(arg, None) for arg in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return object_schema(hint, default if isinstance(default, hint) else None)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _choice([member.value for member in hint])
    return dict(_SCALARS[hint])


def _choice(values: abc.Sequence[Any]) -> Schema:
    """One of these values, or a reference to it."""
    return {"anyOf": [{"enum": list(values)}, _VARIABLE]}


def plain(value: object) -> object:
    """A default as it is written in a file."""
    match value:
        case timedelta():
            return format_duration(value)
        case Enum():
            return value.value
        case Path() | str():
            return str(value)
        case abc.Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case tuple() | list():
            return [plain(inner) for inner in value]
        case _ if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
