"""Functions that a model may call: schemas from signatures, and a readable answer to every bad call."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from agentrl_core import ConfigError, Tool, ToolCall, ToolFunction
from agentrl_env_sdk.exact import exact
from agentrl_env_sdk.examples import example_of
from agentrl_env_sdk.shown import short, shown
from agentrl_env_sdk.threads import call

if TYPE_CHECKING:
    from agentrl_env_sdk.schemas import ArgumentsSchema

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__agentrl_tool__"

_SHOWN_FAULTS = 3


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
    arguments: "ArgumentsModel | ArgumentsSchema"
    """Checks what the model sends."""
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
            value = _loads(text) if isinstance(text, str) and text.strip() else (text or {})
        except (ValueError, RecursionError) as error:
            raise BadCallError(f"arguments must be a JSON object, {error}; {self._example()}") from error
        if isinstance(value, str):
            raise BadCallError(
                f"arguments are JSON inside a string; send the object itself; {self._example()}"
            )
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise BadCallError(f"arguments must be a JSON object, got {kind}; {self._example()}")
        arguments, faults = self.arguments.check(dict(value))
        if not faults:
            return arguments
        if len(faults) > _SHOWN_FAULTS:
            faults[_SHOWN_FAULTS:] = [f"and {len(faults) - _SHOWN_FAULTS} more"]
        raise BadCallError(f"{'; '.join(faults)}; {self._example()}")

    async def call(self, session: Any, arguments: Mapping[str, Any]) -> Any:
        """Run the tool; what it raises is the task's fault."""
        filled = dict(arguments)
        if self.session_parameter is not None:
            filled[self.session_parameter] = session
        return await call(self.function, **filled)

    def _example(self) -> str:
        return f"example: {json.dumps(example_of(self.spec.function.parameters))}"


class ArgumentsModel:
    """Arguments of a typed function."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def check(self, value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The keyword arguments, or what is wrong with them."""
        try:
            parsed = self._model.model_validate(value)
        except ValidationError as error:
            return {}, [_fault(detail) for detail in error.errors(include_url=False)]
        fields = type(parsed).model_fields
        return {str(info.alias): getattr(parsed, field) for field, info in fields.items()}, []


def described(
    name: str, description: str, parameters: Mapping[str, Any], function: Callable[..., Any]
) -> BoundTool:
    """A tool whose arguments a JSON schema describes rather than the function's signature.

    Args:
        name: what the model writes to call it.
        description: what the model reads to decide on it.
        parameters: JSON schema of the arguments, an object.
        function: takes the arguments by keyword; sync or async.

    Raises:
        ConfigError: the schema is none.
    """
    from agentrl_env_sdk.schemas import ArgumentsSchema  # a third of this package's time to be imported

    schema = {"type": "object", "properties": {}} | dict(parameters)
    try:
        arguments = ArgumentsSchema(schema)
    except ValueError as error:
        raise ConfigError(f"the schema of tool `{name}` {error}") from error
    spec = ToolFunction(name=name, description=description, parameters=schema)
    return BoundTool(Tool(function=spec), function, arguments, None)


def tools_of(task: object, *, session_type: type) -> dict[str, BoundTool]:
    """The marked methods of a task by name, in the order of their definition."""
    found: dict[str, BoundTool] = {}
    for owner in reversed(type(task).__mro__):
        for name, member in vars(owner).items():
            if getattr(member, _MARK, False):
                found[name] = bind(getattr(task, name), session_type=session_type)
    return found


def bind(function: Callable[..., Any], *, session_type: type) -> BoundTool:
    """A function as a tool.

    Raises:
        ConfigError: its signature cannot be described to a model.
    """
    name = str(getattr(function, "__name__", "tool"))
    described = docstring_parser.parse(inspect.getdoc(function) or "")
    texts = {entry.arg_name: entry.description for entry in described.params if entry.description}
    try:
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        session_parameter = None
        for parameter in inspect.signature(function).parameters.values():
            annotation = hints.get(parameter.name, Any)
            if annotation is session_type or (annotation is Any and parameter.name == "session"):
                session_parameter = parameter.name
                continue
            # The alias lets a parameter have a name that means something else to pydantic.
            field = _field(parameter, texts.get(parameter.name))
            fields[f"argument_{len(fields)}"] = (exact(annotation), field)
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = _schema(arguments)
    except Exception as error:
        raise ConfigError(f"tool `{name}` cannot be described to a model: {error}") from error
    spec = ToolFunction(name=name, description=(described.description or "").strip(), parameters=schema)
    return BoundTool(Tool(function=spec), function, ArgumentsModel(arguments), session_parameter)


def _field(parameter: inspect.Parameter, text: str | None) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise TypeError(f"parameter `{parameter}` has no name that a model could give; name each argument")
    default = ... if parameter.default is parameter.empty else parameter.default
    if text is None:  # What `Annotated` says of it stands.
        return Field(default=default, alias=parameter.name)
    return Field(default=default, alias=parameter.name, description=text)


def resolve_call(made: ToolCall, tools: Mapping[str, BoundTool]) -> tuple[BoundTool, dict[str, Any]]:
    """The tool and the arguments of a model's call.

    Raises:
        BadCallError: the tool is unknown or the arguments do not fit.
    """
    found = tools.get(made.function.name)
    if found is None:
        raise BadCallError(f"there is no tool `{short(made.function.name)}`; {known_tools(tools)}")
    return found, found.parse(made.function.arguments)


def known_tools(tools: Mapping[str, BoundTool]) -> str:
    """A line that names the tools with their parameters."""
    signatures = (
        f"{found.name}({', '.join(found.spec.function.parameters.get('properties', {}))})"
        for found in tools.values()
    )
    return f"tools: {', '.join(signatures)}"


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
    path = short(".".join(str(part) for part in detail["loc"]))
    if detail["type"] == "missing":
        return f"argument `{path}` is missing"
    if detail["type"] == "extra_forbidden":
        return f"argument `{path}` is unknown"
    return f"argument `{path}`: {detail['msg']}, got {shown(detail['input'])}"


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"`{name}` is no JSON number")
