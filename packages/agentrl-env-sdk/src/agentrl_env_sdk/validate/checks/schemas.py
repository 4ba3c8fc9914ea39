"""Tools as the three interfaces take them that agents are driven by."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from agentrl_core import Tool
from agentrl_env_sdk.testing.agents import ScriptedAgent
from agentrl_env_sdk.testing.episode import begin
from agentrl_env_sdk.validate.report import Finding
from agentrl_env_sdk.validate.subject import SEED, Subject, judged, skipped

_NAMES = {
    "OpenAI": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "Anthropic": re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    "MCP": re.compile(r"[a-zA-Z0-9_.-]{1,128}"),
}
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MAX_DESCRIPTION = 1024
_MAX_TOOLS = 128
_COMBINERS = ("oneOf", "anyOf", "allOf", "not", "enum")
# What structured outputs do not take, and how much they take at most.
_NOT_STRICT = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_NOT_STRICT_OBJECTS = ("patternProperties", "propertyNames", "minProperties", "maxProperties")
_MAX_DEPTH = 10
_MAX_PROPERTIES = 5000
_MAX_ENUM = 1000

Schema = Mapping[str, Any]


async def schemas(subject: Subject) -> Finding:
    """Every tool that an opening shows is valid for OpenAI, Anthropic and MCP."""
    seen: dict[str, Tool] = {}
    problems: dict[str, None] = {}
    runner = subject.runner()
    for index in subject.samples:
        episode = await begin(runner, index, seed=SEED)
        tools = episode.tools
        await subject.finish(episode, ScriptedAgent([]))
        problems |= dict.fromkeys(faults_of_list(list(tools)))
        seen |= {tool.model_dump_json(): tool for tool in tools}
    if not seen:
        return skipped("schemas", "the openings show no tools")
    for tool in seen.values():
        problems |= dict.fromkeys(faults_of(tool))
    notes = dict.fromkeys(note for tool in seen.values() for note in strict_notes(tool))
    names = ", ".join(sorted({tool.function.name for tool in seen.values()}))
    did = f"looked at {names} in the openings of {subject.where} for OpenAI, Anthropic and MCP"
    return judged("schemas", did, list(problems), notes=list(notes))


def faults_of_list(tools: list[Tool]) -> Iterator[str]:
    """What is wrong with the tools of one episode together."""
    names = [tool.function.name for tool in tools]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two tools are called `{name}`; names must be unique, rename one"
    if len(tools) > _MAX_TOOLS:
        yield f"there are {len(tools)} tools, OpenAI takes {_MAX_TOOLS} at most; offer fewer at a time"


def faults_of(tool: Tool) -> Iterator[str]:
    """What is wrong with a tool, for any of the three."""
    function = tool.function
    name, schema = function.name, function.parameters
    for service, pattern in _NAMES.items():
        if not pattern.fullmatch(name):
            yield f"{service}: the tool name `{name}` must match `{pattern.pattern}`; rename the tool"
    if len(function.description or "") > _MAX_DESCRIPTION:
        length = len(function.description or "")
        yield (
            f"OpenAI: the description of `{name}` has {length} characters, {_MAX_DESCRIPTION} at most; "
            "move what is not about the tool into the prompt"
        )
    if schema.get("type") != "object":
        yield (
            f"OpenAI, Anthropic, MCP: the parameters of `{name}` must be of type `object`, got "
            f"{schema.get('type')!r}; wrap them in an object"
        )
    for key in _COMBINERS:
        if key in schema:
            yield (
                f"OpenAI, Anthropic: the parameters of `{name}` have `{key}` at the top; "
                "describe one object there and move it into a property"
            )
    for property_name in schema.get("properties", {}):
        if not _PROPERTY.fullmatch(property_name):
            yield (
                f"Anthropic: argument `{property_name}` of `{name}` must match `{_PROPERTY.pattern}`; "
                "rename it"
            )
    yield from _no_schema(name, schema)


def _no_schema(name: str, schema: Schema) -> Iterator[str]:
    """Why JSON Schema does not take the parameters."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "the top"
        yield f"MCP: the parameters of `{name}` are no JSON schema, at {where}: {error.message}"
        return
    for node in _nodes(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and not _leads_somewhere(schema, reference):
            yield (
                f"OpenAI, Anthropic, MCP: `{reference}` in the parameters of `{name}` leads nowhere; "
                "references must begin with `#/` and name something in the schema"
            )


def strict_notes(tool: Tool) -> Iterator[str]:
    """What keeps a tool from OpenAI's strict mode, which is left to the caller."""
    name, schema = tool.function.name, tool.function.parameters
    found: dict[str, None] = {}
    num_properties = 0
    for node in _nodes(schema):
        num_properties += len(node.get("properties", {}))
        found |= dict.fromkeys(_not_strict(node))
    if num_properties > _MAX_PROPERTIES:
        found[f"more than {_MAX_PROPERTIES} properties"] = None
    if _depth(schema) > _MAX_DEPTH:
        found[f"objects nested more than {_MAX_DEPTH} deep"] = None
    if found:
        yield f"`{name}` does not fit OpenAI's strict mode as it is: {', '.join(found)}"
    if not (tool.function.description or "").strip():
        yield f"`{name}` has no description; a docstring becomes one"


def _not_strict(node: Schema) -> Iterator[str]:
    for key in (*_NOT_STRICT, *_NOT_STRICT_OBJECTS):
        if key in node:
            yield f"`{key}`"
    if len(node.get("enum", ())) > _MAX_ENUM:
        yield f"an enum of more than {_MAX_ENUM} values"
    if "properties" not in node and node.get("type") != "object":
        return
    optional = sorted(set(node.get("properties", {})) - set(node.get("required", ())))
    if optional:
        yield f"optional arguments ({', '.join(optional)})"
    if node.get("additionalProperties", True) is not False:
        yield "objects with any properties"


def _nodes(schema: Any) -> Iterator[Schema]:
    """A schema and all schemas in it."""
    if isinstance(schema, list):
        for item in schema:
            yield from _nodes(item)
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, inner in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(inner, Mapping):
            for each in inner.values():
                yield from _nodes(each)
        elif key not in ("default", "const", "enum", "examples"):
            yield from _nodes(inner)


def _leads_somewhere(schema: Schema, reference: str) -> bool:
    if not reference.startswith("#"):
        return False
    node: Any = schema
    for part in reference[1:].strip("/").split("/"):
        if not part:
            continue
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            return False
        node = node[key]
    return True


def _depth(schema: Any) -> int:
    if isinstance(schema, list):
        return max(map(_depth, schema), default=0)
    if not isinstance(schema, Mapping):
        return 0
    deepest = max(map(_depth, schema.values()), default=0)
    return deepest + 1 if schema.get("type") == "object" else deepest
