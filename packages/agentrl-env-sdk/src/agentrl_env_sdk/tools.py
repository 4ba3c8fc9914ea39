"""Functions that a model may call: schemas from signatures, and a readable answer to every bad call."""

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from agentrl_core import Tool, ToolCall, ToolFunction

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__agentrl_tool__"

_THREADS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="task")
"""For the sync methods of tasks, which may block."""


def tool(function: Function) -> Function:
    """Mark a method as a tool; its name, docstring and signature are what the model sees.

    A parameter annotated `Session`, and `self`, are hidden from the model and filled in. Sync methods run
    on a thread, async ones on the event loop.
    """
    setattr(function, _MARK, True)
    return function


class BadCallError(Exception):
    """A call that cannot be carried out; the text is for the model to read."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool of a task, ready to be called."""

    spec: Tool
    """What the model sees."""
    function: Callable[..., Any]
    """The bound method."""
    arguments: type[BaseModel]
    """Validates what the model sends."""
    session_parameter: str | None
    """Parameter that gets the session."""

    @property
    def name(self) -> str:
        """What the model writes to call it."""
        return self.spec.function.name

    def parse(self, text: str | Mapping[str, Any] | None) -> dict[str, Any]:
        """The keyword arguments that a call's JSON stands for.

        Raises:
            BadCallError: it is no JSON object, or an argument is missing, unknown or of the wrong type.
        """
        try:
            value = json.loads(text) if isinstance(text, str) and text.strip() else (text or {})
        except (ValueError, RecursionError) as error:
            raise BadCallError(f"arguments must be a JSON object, {error}; {self._example()}") from error
        if isinstance(value, str):
            raise BadCallError(
                f"arguments are JSON inside a string; send the object itself; {self._example()}"
            )
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise BadCallError(f"arguments must be a JSON object, got {kind}; {self._example()}")
        try:
            parsed = self.arguments.model_validate(value)
        except ValidationError as error:
            faults = "; ".join(_fault(detail) for detail in error.errors())
            raise BadCallError(f"{faults}; {self._example()}") from error
        return {name: getattr(parsed, name) for name in type(parsed).model_fields}

    async def call(self, session: Any, arguments: Mapping[str, Any]) -> Any:
        """Run the tool; what it raises is the task's fault."""
        filled = dict(arguments)
        if self.session_parameter is not None:
            filled[self.session_parameter] = session
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**filled)
        return await on_thread(self.function, **filled)

    def _example(self) -> str:
        return f"example: {json.dumps(_example_of(self.spec.function.parameters))}"


def tools_of(task: object, *, session_type: type) -> dict[str, BoundTool]:
    """The marked methods of a task by name, in the order of their definition."""
    found: dict[str, BoundTool] = {}
    for owner in reversed(type(task).__mro__):
        for name, member in vars(owner).items():
            if getattr(member, _MARK, False):
                found[name] = bind(getattr(task, name), session_type=session_type)
    return found


def bind(function: Callable[..., Any], *, session_type: type) -> BoundTool:
    """A function as a tool."""
    hints = get_type_hints(function, include_extras=True)
    described = docstring_parser.parse(inspect.getdoc(function) or "")
    texts = {entry.arg_name: entry.description or "" for entry in described.params}
    fields: dict[str, Any] = {}
    session_parameter = None
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = hints.get(name, Any)
        if annotation is session_type or (annotation is Any and name == "session"):
            session_parameter = name
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (annotation, Field(default=default, description=texts.get(name)))
    name = str(getattr(function, "__name__", "tool"))
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    summary = (described.short_description or "").strip()
    spec = ToolFunction(name=name, description=summary, parameters=_schema(arguments))
    return BoundTool(Tool(function=spec), function, arguments, session_parameter)


def resolve_call(call: ToolCall, tools: Mapping[str, BoundTool]) -> tuple[BoundTool, dict[str, Any]]:
    """The tool and the arguments of a model's call.

    Raises:
        BadCallError: the tool is unknown or the arguments do not fit.
    """
    found = tools.get(call.function.name)
    if found is None:
        raise BadCallError(f"there is no tool `{call.function.name}`; {known_tools(tools)}")
    return found, found.parse(call.function.arguments)


def known_tools(tools: Mapping[str, BoundTool]) -> str:
    """A line that names the tools with their parameters."""
    signatures = (
        f"{found.name}({', '.join(found.spec.function.parameters.get('properties', {}))})"
        for found in tools.values()
    )
    return f"tools: {', '.join(signatures)}"


async def on_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run what may block on a thread."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, functools.partial(function, *args, **kwargs))


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = _without_titles(arguments.model_json_schema())
    schema.setdefault("properties", {})
    return schema


def _without_titles(node: Any) -> Any:
    """The schema without pydantic's generated titles, which a model would only read past."""
    if isinstance(node, dict):
        return {
            key: {name: _without_titles(inner) for name, inner in value.items()}
            if key in ("properties", "$defs")
            else _without_titles(value)
            for key, value in node.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in node] if isinstance(node, list) else node


def _fault(detail: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"argument `{path}` is missing"
    if detail["type"] == "extra_forbidden":
        return f"argument `{path}` is unknown"
    given = repr(detail["input"])
    return f"argument `{path}`: {detail['msg']}, got {given if len(given) <= 80 else given[:77] + '...'}"


_EXAMPLES: Mapping[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}


def _example_of(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, *, depth: int = 0) -> Any:
    """A value that fits a JSON schema, required properties only."""
    root = root if root is not None else schema
    if depth > 8:
        return None
    if "$ref" in schema:
        target = root.get("$defs", {}).get(str(schema["$ref"]).rsplit("/", 1)[-1], {})
        return _example_of(target, root, depth=depth + 1)
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    options: Sequence[Mapping[str, Any]] = schema.get("anyOf") or schema.get("oneOf") or ()
    if options:
        return _example_of(options[0], root, depth=depth + 1)
    if schema.get("type") == "object":
        needed = schema.get("required", [])
        inner = schema.get("properties", {})
        return {name: _example_of(inner.get(name, {}), root, depth=depth + 1) for name in needed}
    if schema.get("type") == "array":
        return [_example_of(schema.get("items", {}), root, depth=depth + 1)]
    return _EXAMPLES.get(str(schema.get("type")), "text")
