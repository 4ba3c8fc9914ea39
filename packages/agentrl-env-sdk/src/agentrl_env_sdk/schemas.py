"""Arguments of tools that a JSON schema describes; apart, since its library takes its time to be imported."""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrl_env_sdk.shown import short


class ArgumentsSchema:
    """Arguments that a JSON schema describes.

    Raises:
        ValueError: the schema is none, or refers to what is not in it.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        checker = validator_for(schema, default=jsonschema.Draft202012Validator)
        try:
            checker.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"is no JSON schema: {error.message}") from error
        for ref in _lost_references(schema):
            raise ValueError(f"refers to `{ref}`, which is not in it; put it below `$defs`")
        # With a registry of its own it looks nothing up on the network.
        self._checker = checker(schema, registry=Registry())

    def check(self, value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The arguments as they came, or what is wrong with them."""
        return value, [_schema_fault(error) for error in self._checker.iter_errors(value)]


def _schema_fault(error: jsonschema.ValidationError) -> str:
    path = short(".".join(str(part) for part in error.absolute_path))
    if error.validator == "required":
        needed: Any = error.validator_value
        missing = [name for name in needed if name not in error.instance]
        return "; ".join(f"argument `{f'{path}.{name}' if path else name}` is missing" for name in missing)
    if not path:
        return short(error.message)
    return f"argument `{path}`: {short(error.message)}"


def _lost_references(schema: Mapping[str, Any]) -> Iterator[str]:
    """References in a schema that lead nowhere in it."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    registry = Registry().with_resource(resource.id() or "", resource).crawl()
    waiting = [(resource, registry.resolver(resource.id() or ""))]
    while waiting:
        inner, resolver = waiting.pop()
        ref = inner.contents.get("$ref") if isinstance(inner.contents, Mapping) else None
        if isinstance(ref, str):
            try:
                resolver.lookup(ref)
            except Unresolvable:
                yield ref
        waiting += [(part, resolver.in_subresource(part)) for part in inner.subresources()]
