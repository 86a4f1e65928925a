"""The OpenAPI document of the HTTP endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias

from pydantic import BaseModel

from autoscaler.daemon.series import KEYS

Schema: TypeAlias = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_SIZE: Schema = {"type": "integer", "minimum": 0}
_SIZE_OR_NULL: Schema = {"type": ["integer", "null"], "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_TIME_OR_NULL: Schema = {"type": ["string", "null"], "format": "date-time"}


def document(*requests: type[BaseModel]) -> dict[str, Any]:
    """The document. It contains the schemas of these models of requests under their names."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "autoscaler",
            "version": version("reactive-autoscaler"),
            "description": "The clusters of a daemon, its decisions with their reasons, and manual controls. "
            "Keys may be added.",
        },
        "paths": {
            "/": {"get": _file("The page", "text/html")},
            "/assets/{file}": {"get": _file("A file of the page", "text/css", [_FILE])},
            "/healthz": {"get": _read("Whether ticks finish", "Health", failing=503)},
            "/readyz": {"get": _read("Whether all clusters are under control", "Readiness", failing=503)},
            "/metrics": {"get": _metrics("Metrics in the format of Prometheus")},
            "/metrics/policies": {"get": _metrics("What policies have learned, in the format of Prometheus")},
            "/api/v1/clusters": {"get": _read("All clusters and fleets", "Clusters")},
            "/api/v1/events": {"get": _stream("Rows that change, as server-sent events: `hello`, then `rows`")},
            "/api/v1/fleets": {"get": _read("All fleets", "Fleets")},
            "/api/v1/clusters/{name}": {
                "get": _read("One cluster, and what was learned of it", "Cluster", [_NAME], refusals=(404,))
            },
            "/api/v1/clusters/{name}/decisions": {
                "get": _read("Decisions, newest first", "Decisions", [_NAME, _LIMIT, _UNTIL], refusals=(400, 404, 503))
            },
            "/api/v1/clusters/{name}/series": {
                "get": _read(
                    "Time series for charts: mean per interval, maximum for lag and backlog time",
                    "ClusterSeries",
                    [_NAME, _FROM, _UNTIL, _POINTS],
                    refusals=(400, 404, 503),
                )
            },
            "/api/v1/clusters/{name}/decide": {
                "post": _write("Decide now", "DecideRequest", 200, "DecidedNow", [_NAME], required=False)
            },
            "/api/v1/clusters/{name}/what-if": {
                "post": {
                    **_write(
                        "What another objective or other policies would have done",
                        "WhatIfRequest",
                        200,
                        "WhatIf",
                        [_NAME],
                    ),
                    "security": [{}, {"token": []}],  # it changes nothing: the right to read is enough
                }
            },
            "/api/v1/controls": {
                "get": _read("The pauses, holds and limits in force", "Controls"),
                "post": _write("Pause, hold, limit or resume clusters", "ControlRequest", 201, "Ordered"),
            },
            "/api/v1/audit": {
                "get": _read("Who changed what, newest first", "Audit", [_LIMIT, _UNTIL], refusals=(400, 503))
            },
            "/api/v1/openapi.json": {"get": _read("This document", "Document")},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "One of daemon.tokens."}},
            "schemas": {**_SCHEMAS, **{each.__name__: each.model_json_schema() for each in requests}},
        },
    }


def _parameter(name: str, place: str, schema: Schema, meaning: str) -> Schema:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": meaning}


_NAME = _parameter("name", "path", _TEXT, "The cluster. A slash in it may be percent-encoded.")
_LIMIT = _parameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 20}, "Maximum number of entries."
)
_UNTIL = _parameter("until", "query", _TIME, "Only entries up to this time.")


_FROM = _parameter("from", "query", _TIME, "Only entries from this time on; default: an hour before `until`.")
_POINTS = _parameter(
    "points", "query", {"type": "integer", "minimum": 10, "maximum": 2000, "default": 600}, "Maximum number of points."
)
_FILE = _parameter("file", "path", _TEXT, "The name of the file.")


def _json(meaning: str, schema: str) -> Schema:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": meaning, "content": {"application/json": {"schema": reference}}}


_REFUSALS: Mapping[int, str] = {
    400: "A value or the body is not what was expected; nothing has changed.",
    401: "The token is missing, is not one of daemon.tokens, or has expired.",
    403: "The token may only read, no tokens are configured, or the request comes from a page of another site.",
    404: "There is no such cluster, fleet or file.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    503: "State cannot be read or stored, nothing was decided, or there are too many requests.",
}


def _refused(codes: Sequence[int]) -> Schema:
    return {str(code): _json(_REFUSALS[code], "Error") for code in codes}


def _read(
    summary: str,
    schema: str,
    parameters: Sequence[Schema] = (),
    *,
    failing: int | None = None,
    refusals: Sequence[int] = (),
) -> Schema:
    answers = {"200": _json(summary, schema), **_refused((401, 403, *refusals))}
    if failing is not None:
        answers[str(failing)] = _json(f"{summary}: no", schema)
    return {
        "summary": summary,
        "parameters": list(parameters),
        # Whether reading needs a token is configured: daemon.read_needs_token.
        "security": [{}, {"token": []}],
        "responses": answers,
    }


def _metrics(summary: str) -> Schema:
    described = _read(summary, "Document")
    described["responses"]["200"] = {"description": summary, "content": {"text/plain": {"schema": _TEXT}}}
    return described


def _stream(summary: str) -> Schema:
    described = _read(summary, "Document", refusals=(503,))
    described["responses"]["200"] = {"description": summary, "content": {"text/event-stream": {"schema": _TEXT}}}
    return described


def _file(summary: str, content_type: str, parameters: Sequence[Schema] = ()) -> Schema:
    answers = {
        "200": {"description": summary, "content": {content_type: {"schema": _TEXT}}},
        "304": {"description": "It has not changed."},
        **_refused((403, 404) if parameters else (403,)),
    }
    return {"summary": summary, "parameters": list(parameters), "security": [{}], "responses": answers}


def _write(
    summary: str,
    body: str,
    success: int,
    schema: str,
    parameters: Sequence[Schema] = (),
    *,
    required: bool = True,
) -> Schema:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "security": [{"token": []}],
        "requestBody": {"required": required, **{k: v for k, v in _json(summary, body).items() if k == "content"}},
        "responses": {str(success): _json(summary, schema), **_refused(tuple(_REFUSALS))},
    }


def _object(**properties: Schema) -> Schema:
    """An object; all of these properties are required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_PROBLEMS: Schema = {"anyOf": [{"const": "ok"}, _list(_TEXT)]}

_ROW: dict[str, Schema] = {
    "name": _TEXT,
    "fleet": _TEXT_OR_NULL,
    "dry_run": _FLAG,
    "at": _TIME_OR_NULL,
    "age": _NUMBER_OR_NULL,
    "min": _SIZE,
    "max": _SIZE,
    "current": _SIZE_OR_NULL,
    "ready": _SIZE_OR_NULL,
    "proposed": _SIZE_OR_NULL,
    "desired": _SIZE_OR_NULL,
    "reason": _TEXT_OR_NULL,
    "rescale": {"type": ["object", "null"]},
    "missing": _map(_TEXT),
    "controls": _list(_ref("Control")),
    "problem": _TEXT_OR_NULL,
    "load": _NUMBER_OR_NULL,
    "capacity": _NUMBER_OR_NULL,
    "lag": _NUMBER_OR_NULL,
    "backlog_time": _NUMBER_OR_NULL,
    "objective": _NUMBER_OR_NULL,
    "trouble": _TEXT_OR_NULL,
    "severity": {"enum": [0, 1, 2]},
}

_CONTROL: dict[str, Schema] = {
    "kind": {"enum": ["pause", "hold", "limit"]},
    "by": _TEXT,
    "at": _TIME_OR_NULL,
    "until": _TIME_OR_NULL,
    "reason": _TEXT_OR_NULL,
    "up": _FLAG,
    "down": _FLAG,
    "replicas": _SIZE_OR_NULL,
    "min": _SIZE_OR_NULL,
    "max": _SIZE_OR_NULL,
    "text": _TEXT,
}

_DECISION: dict[str, Schema] = {
    "observation": {"type": "object"},
    "decision": {"type": "object"},
    "dry_run": _FLAG,
    "explanation": _TEXT,
}

_SERIES: Schema = _object(
    **{"from": _TIME, "until": _TIME, "at": _list({"type": "number"})},
    **{key: _list(_NUMBER_OR_NULL) for key in KEYS},
    decisions=_list(_object(**{"at": _TIME, "from": _SIZE, "to": _SIZE, "reason": _TEXT, "text": _TEXT})),
    rescales=_list(
        _object(**{"at": _TIME, "from": _SIZE, "to": _SIZE, "ended_at": _TIME_OR_NULL, "outcome": _TEXT_OR_NULL})
    ),
)

_SCHEMAS: Mapping[str, Schema] = {
    "Document": {"type": "object"},
    "Error": _object(error=_TEXT),
    "Health": _object(ok=_FLAG, clusters=_SIZE, overdue=_list(_TEXT)),
    "Readiness": _object(
        ok=_FLAG,
        not_observed=_list(_TEXT),
        problems=_map(_TEXT),
        fleets=_map(_TEXT),
        store=_TEXT,
        history=_TEXT,
        reload=_PROBLEMS,
    ),
    "Fleet": _object(
        name=_TEXT,
        answered_at=_TIME_OR_NULL,
        age=_NUMBER_OR_NULL,
        problem=_TEXT_OR_NULL,
        failures=_SIZE,
        members=_SIZE,
        clusters=_SIZE,
        held=_list(_object(member=_TEXT, cluster=_TEXT_OR_NULL, age={"type": "number"})),
        refused=_list(_object(member=_TEXT, cluster=_TEXT_OR_NULL, problems=_list(_TEXT))),
    ),
    "Fleets": _object(fleets=_list(_ref("Fleet"))),
    "Row": _object(**_ROW),
    "Clusters": _object(
        dry_run=_FLAG,
        reload=_PROBLEMS,
        copies=_list(_object(name=_TEXT, url=_TEXT, problem=_TEXT_OR_NULL)),
        fleets=_list(_ref("Fleet")),
        clusters=_list(_ref("Row")),
    ),
    "Cluster": _object(
        **_ROW,
        reload=_PROBLEMS,
        remarks=_list(_TEXT),
        connections=_map(_TEXT),
        learned={"type": ["object", "null"]},
        state={"type": ["object", "null"]},
        observation={"type": ["object", "null"]},
        decision={"type": ["object", "null"]},
        explanation=_TEXT_OR_NULL,
    ),
    "Series": _SERIES,
    "WhatIf": _object(
        cluster=_TEXT,
        simulated={"const": True},
        notes=_list(_TEXT),
        objective=_NUMBER_OR_NULL,
        what=_ref("Series"),
        happened=_ref("Series"),
        figures=_object(what=_ref("Figures"), present=_ref("Figures"), happened=_ref("Figures")),
    ),
    "Figures": _object(
        worker_hours={"type": "number"},
        share_later_than_objective=_NUMBER_OR_NULL,
        rescales=_SIZE,
        hours={"type": "number"},
    ),
    "ClusterSeries": {"allOf": [_ref("Series"), _object(cluster=_TEXT)]},
    "Decision": _object(**_DECISION),
    "Decisions": _object(cluster=_TEXT, decisions=_list(_ref("Decision"))),
    "DecidedNow": _object(cluster=_TEXT, **_DECISION),
    "Control": _object(**_CONTROL),
    "Order": _object(id=_SIZE, clusters=_list(_TEXT), fleets=_list(_TEXT), in_force=_list(_TEXT), **_CONTROL),
    "Controls": _object(controls=_list(_ref("Order"))),
    "Ordered": _object(
        id=_SIZE, until=_TIME_OR_NULL, clusters=_list(_TEXT), held_at=_map(_SIZE), preceded_by=_map(_list(_TEXT))
    ),
    "Audit": _object(
        entries=_list(
            _object(at=_TIME, by=_TEXT, action=_TEXT, scope=_TEXT, detail=_TEXT, reason=_TEXT_OR_NULL, accepted=_FLAG)
        )
    ),
}
