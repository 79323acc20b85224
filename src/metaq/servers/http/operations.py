"""Operations of the HTTP server: what each takes and answers is said once, for the routes and for `/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.errors import BadRequest
from metaq.servers.http.problems import CONTENT_TYPE, Problem

JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
TEXT: Final = "text/plain"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")
_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")

Q = TypeVar("Q", bound=Struct)
Run = Callable[[Request], Awaitable[Response]]


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an operation that has none."""


class Content:
    """What a body is. Args: kind: media type. types: of its JSON, one of these; none: it is bytes or text."""

    def __init__(self, kind: str, *types: Any) -> None:
        self.kind, self.types = kind, types

    def schema(self, of_type: Mapping[str, Any]) -> dict[str, Any]:
        """Return its schema. Args: of_type: those of all types, by their `repr`."""
        if not self.types:
            return {"schema": {"type": "string", **({"format": "binary"} if self.kind == BINARY else {})}}
        found = [of_type[repr(one)] for one in self.types]
        return {"schema": found[0] if len(found) == 1 else {"oneOf": found}}


class Operation(Struct, frozen=True, kw_only=True):
    """One operation.

    `name`: unique; clients that are generated call their function so. `text`: what it does, a sentence. `query`: its parameters, with
    a description in `Meta` each. `bodies`: what it takes, one of these. `answers`: status → body; None: none. Problems are not
    among them: each operation may answer with one.
    """

    name: str
    method: str
    path: str
    text: str
    run: Run
    query: type[Struct] = NoQuery
    bodies: tuple[Content, ...] = ()
    answers: Mapping[int, Content | None] = {}
    any_method: bool = False
    """Others than `method` do the same, which is not described."""
    administers: bool = False
    """Its outcome is noted in the audit log, whatever it is; of others, refusals are."""
    also: str = ""
    """Another path of it, which is not described."""

    def routes(self, run: Run) -> list[Route]:
        """Return its routes. Args: run: `self.run`, with what is around it."""
        methods = METHODS if self.any_method else [self.method]
        return [Route(path, run, methods=methods, name=self.name) for path in (self.path, self.also) if path]


def query_of(request: Request, kind: type[Q], *, blank: bool = True) -> Q:
    """Return the parameters of a request; of one that came twice, the last. Raises BadRequest: an unknown one, or a wrong value.

    `blank`: one without a value has an empty one; False: it counts as missing.
    """
    params = request.query_params
    try:
        return msgspec.convert({name: params[name] for name in params if blank or params[name]}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"a parameter is wrong: {error}") from None


def openapi(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Return the description of all operations by OpenAPI 3.1."""
    listed = list(operations)
    types: list[Any] = [Problem]
    for one in listed:
        for content in (*one.bodies, *one.answers.values()):
            types += content.types if content is not None else ()
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    of_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in listed:
        path = _PARAMETER.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, of_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "MetaQ", "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "account": {"type": "http", "scheme": "basic", "description": "Access key and secret key."}
            },
        },
        "security": [{}, {"account": []}],
    }


def _operation(one: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.text,
        "parameters": [*_in_path(one), *_in_query(one)],
    }
    if one.bodies:
        found["requestBody"] = {
            "required": True, "content": {content.kind: content.schema(schemas) for content in one.bodies},
        }  # fmt: skip
    answers: dict[str, Any] = {}
    for status, content in one.answers.items():
        answers[str(status)] = {"description": _DESCRIPTIONS.get(status, "")}
        if content is not None:
            answers[str(status)]["content"] = {content.kind: content.schema(schemas)}
    answers["default"] = {
        "description": "It was refused, or has failed.",
        "content": {CONTENT_TYPE: {"schema": schemas[repr(Problem)]}},
    }
    found["responses"] = answers
    return found


_DESCRIPTIONS: Final = {200: "It is done.", 204: "It is done; there is nothing to tell.", 503: "Not now."}


def _in_path(one: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if kind == "int" else "string"}}
        for name, kind in _PARAMETER.findall(one.path)
    ]


def _in_query(one: Operation) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(one.query)
    described = schema["$defs"][one.query.__name__]
    found = []
    for name, of_field in described["properties"].items():
        text = of_field.pop("description", "")
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in described.get("required", ()),
                "description": text,
                "schema": of_field,
            }
        )
    return found
