"""Gymnasium's spaces as JSON: the schema that a model sees, and the values that it sends read back.

    space -- form_of --> Form -- schema --> the model
                          |<-- decode -- what the model sent
                          |--- encode --> JSON

Needs the extra `gymnasium`.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.adapters.observations import listed
from agentrl_env_sdk.extras import extra

with extra("gymnasium"):
    import numpy as np
    from gymnasium import spaces
    from gymnasium.vector.utils import concatenate, create_empty_array, iterate

Names = Sequence[str] | Mapping[str, Any]
"""Names of the values of a `Discrete` space; for a `Dict` space those of its keys, by key."""

_SHOWN = 80
_SHOWN_LEGAL = 64
_MAX_CHARSET = 200
_MAX_LISTED_BOUNDS = 16
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class Form(ABC):
    """How the values of a space are written as JSON, and read back.

    Attributes:
        space: the space.
        description: what its values are, in words.
    """

    description: str = ""

    def __init__(self, space: "spaces.Space[Any]") -> None:
        self.space = space

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON schema of the values."""

    @property
    @abstractmethod
    def example(self) -> Any:
        """One of the values, as JSON."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """A value of the space as JSON can hold it."""

    @abstractmethod
    def decode(self, value: Any, where: str) -> Any:
        """The value that JSON stands for, in the types that the space has.

        Args:
            value: the JSON.
            where: what to call it where it is wrong.

        Raises:
            ValueError: it stands for none; the text names what is wrong and the rule.
        """

    def read(self, value: Any, where: str = "action") -> Any:
        """`decode`, and the space's own word that the result is in it.

        Raises:
            ValueError: the space does not contain what the JSON stands for.
        """
        found = self.decode(value, where)
        if not self.space.contains(found):
            raise _fault(where or "arguments", f"must be in {self.space}", value)
        return found


class _DiscreteForm(Form):
    def __init__(self, space: "spaces.Discrete[Any]", names: Names | None) -> None:
        super().__init__(space)
        self.low, self.high = int(space.start), int(space.start) + int(space.n) - 1
        self.names = None if names is None else _checked_names(names, int(space.n), space)
        self.description = (
            f"an integer from {self.low} to {self.high}"
            if self.names is None
            else f"one of {', '.join(self.names)}"
        )

    @property
    def schema(self) -> dict[str, Any]:
        if self.names is not None:
            return {"type": "string", "enum": self.names}
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    @property
    def example(self) -> Any:
        return self.encode(self.low)

    def encode(self, value: Any) -> Any:
        return int(value) if self.names is None else self.names[int(value) - self.low]

    def decode(self, value: Any, where: str) -> Any:
        assert self.space.dtype is not None
        if self.names is None:
            number = _integer(value, where, self.low, self.high)
        elif isinstance(value, str) and value in self.names:
            number = self.low + self.names.index(value)
        else:
            raise _fault(where, f"must be {self.description}", value)
        return self.space.dtype.type(number)


class _ArrayForm(Form):
    """Numbers in the shape of an array: `Box`, `MultiDiscrete` and `MultiBinary`."""

    def __init__(self, space: "spaces.Space[Any]", low: Any, high: Any) -> None:
        super().__init__(space)
        assert space.shape is not None
        assert space.dtype is not None
        self.shape, self.dtype, self.low, self.high = space.shape, space.dtype, low, high
        self.description = self._described()

    @property
    def schema(self) -> dict[str, Any]:
        schema = self._leaf()
        for count in reversed(self.shape):
            schema = {"type": "array", "items": schema, "minItems": count, "maxItems": count}
        if self.shape:
            schema |= {"description": self.description, "examples": [self.example]}
        return schema

    @property
    def example(self) -> Any:
        nothing = np.zeros(self.shape, object if self.dtype.kind in "iu" else self.dtype)
        return self.encode(np.clip(nothing, self.low, self.high))

    def encode(self, value: Any) -> Any:
        return listed(np.asarray(value), _plain_number)

    def decode(self, value: Any, where: str) -> Any:
        leaves: list[Any] = []
        self._gather(value, where, self.shape, leaves)
        try:
            with np.errstate(over="ignore"):
                found = np.array(leaves, self.dtype).reshape(self.shape)
        except OverflowError:
            raise _fault(where, f"must fit into {self.dtype}", value) from None
        outside = ~((found >= self.low) & (found <= self.high))
        if self.dtype.kind == "f":
            outside |= ~np.isfinite(found)
        if outside.any():
            index = tuple(int(place) for place in np.argwhere(outside)[0])
            named = where + "".join(f"[{place}]" for place in index)
            raise _fault(named, f"must be {self._range(index)}", leaves[_flat(index, self.shape)])
        return found

    def _gather(self, value: Any, where: str, shape: tuple[int, ...], leaves: list[Any]) -> None:
        """Collect the numbers of nested lists in order."""
        if not shape:
            leaves.append(self._number(value, where))
            return
        if not isinstance(value, list) or len(value) != shape[0]:
            raise _fault(where, f"must be a list of {shape[0]}", value)
        for place, inner in enumerate(value):
            self._gather(inner, f"{where}[{place}]", shape[1:], leaves)

    def _number(self, value: Any, where: str) -> Any:
        if self.dtype.kind == "b":
            if not isinstance(value, bool):
                raise _fault(where, "must be true or false", value)
            return value
        if self.dtype.kind in "iu":
            bounds = np.iinfo(self.dtype)
            return _integer(value, where, int(bounds.min), int(bounds.max))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _fault(where, "must be a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _fault(where, f"must be a finite number that {self.dtype} holds", value)
        return number

    def _leaf(self) -> dict[str, Any]:
        if self.dtype.kind == "b":
            return {"type": "boolean"}
        schema: dict[str, Any] = {"type": "number" if self.dtype.kind == "f" else "integer"}
        if self.low.size == 0:
            return schema
        low, high = _plain_number(self.low.min()), _plain_number(self.high.max())
        if math.isfinite(low):
            schema["minimum"] = low
        if math.isfinite(high):
            schema["maximum"] = high
        return schema

    def _range(self, index: tuple[int, ...] | None) -> str:
        """The rule for one element, or for all."""
        low = _plain_number(self.low.min() if index is None else self.low[index])
        high = _plain_number(self.high.max() if index is None else self.high[index])
        if self.dtype.kind == "b":
            return "true or false"
        if math.isfinite(low) and math.isfinite(high):
            return f"from {low} to {high}"
        if math.isfinite(low):
            return f"at least {low}"
        return f"at most {high}" if math.isfinite(high) else f"a finite number that {self.dtype} holds"

    def _described(self) -> str:
        kind = "numbers" if self.dtype.kind == "f" else "values" if self.dtype.kind == "b" else "integers"
        if not self.shape:
            return f"one of the {kind} {self._range(())}"
        what = f"{' x '.join(map(str, self.shape))} {kind}"
        if self.low.size == 0:
            return what
        is_uniform = bool((self.low == self.low.flat[0]).all() and (self.high == self.high.flat[0]).all())
        if not is_uniform and len(self.shape) == 1 and self.low.size <= _MAX_LISTED_BOUNDS:
            return f"{what}: " + ", ".join(self._range((place,)) for place in range(self.low.size))
        return f"{what}, {'each ' if is_uniform else 'all '}{self._range(None)}"


class _TextForm(Form):
    def __init__(self, space: "spaces.Text") -> None:
        super().__init__(space)
        self._space = space
        self.description = f"a text of {space.min_length} to {space.max_length} characters"
        if len(space.character_set) <= _MAX_CHARSET:
            self.description += f" of `{space.characters}`"

    @property
    def schema(self) -> dict[str, Any]:
        space = self._space
        schema = {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
        if 0 < len(space.character_set) <= _MAX_CHARSET:
            allowed = "".join(f"\\{one}" if one in "\\]^-[" else one for one in space.characters)
            schema["pattern"] = f"^[{allowed}]*$"
        return schema

    @property
    def example(self) -> Any:
        return self._space.characters[:1] * min(max(1, self._space.min_length), self._space.max_length)

    def encode(self, value: Any) -> Any:
        return str(value)

    def decode(self, value: Any, where: str) -> Any:
        if not self._space.contains(value):
            raise _fault(where, f"must be {self.description}", value)
        return value


class _FieldsForm(Form):
    """Several values with names: `Dict`, and `Tuple` with its places as names."""

    def __init__(self, space: "spaces.Dict | spaces.Tuple", names: Names | None) -> None:
        super().__init__(space)
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        self.fields = {str(key): (key, found) for key, found in inner}
        if len(self.fields) < len(space.spaces):
            raise ConfigError(f"two keys of {space} are the same as text; rename one")
        given = {} if names is None else names
        if not isinstance(given, Mapping) or not set(given) <= set(self.fields):
            raise ConfigError(
                f"`names` for {space} must map some of {list(self.fields)} to names, got {names!r}"
            )
        self.forms = {name: form_of(found, names=given.get(name)) for name, (_, found) in self.fields.items()}
        told = (f"{name}: {form.description}" for name, form in self.forms.items())
        self.description = f"an object with {'; '.join(told)}" if self.forms else "an empty object"

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: form.schema for name, form in self.forms.items()},
            "required": list(self.forms),
            "additionalProperties": False,
        }

    @property
    def example(self) -> Any:
        return {name: form.example for name, form in self.forms.items()}

    def encode(self, value: Any) -> Any:
        return {name: form.encode(value[self.fields[name][0]]) for name, form in self.forms.items()}

    def decode(self, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping) or set(value) != set(self.forms):
            raise _fault(where or "arguments", f"must be an object with {list(self.forms)}", value)
        found = {
            self.fields[name][0]: form.decode(value[name], f"{where}.{name}" if where else name)
            for name, form in self.forms.items()
        }
        return found if isinstance(self.space, spaces.Dict) else tuple(found.values())


class _SequenceForm(Form):
    def __init__(self, space: "spaces.Sequence") -> None:
        super().__init__(space)
        self._space = space
        self._form = form_of(space.feature_space)
        self.description = f"a list, each {self._form.description}"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self._form.schema}

    @property
    def example(self) -> Any:
        return [self._form.example]

    def encode(self, value: Any) -> Any:
        items = iterate(self._space.stacked_feature_space, value) if self._space.stack else value
        return [self._form.encode(item) for item in items]

    def decode(self, value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise _fault(where, "must be a list", value)
        items = tuple(self._form.decode(item, f"{where}[{place}]") for place, item in enumerate(value))
        if not self._space.stack:
            return items
        empty = create_empty_array(self._space.feature_space, len(items))
        return concatenate(self._space.feature_space, items, empty) if items else empty


class _OneOfForm(Form):
    def __init__(self, space: "spaces.OneOf") -> None:
        super().__init__(space)
        self._forms = [form_of(option) for option in space.spaces]
        told = (f"choice {place} with {form.description}" for place, form in enumerate(self._forms))
        self.description = " or ".join(told)

    @property
    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self._option(place, form) for place, form in enumerate(self._forms)]}

    @property
    def example(self) -> Any:
        return {"choice": 0, "value": self._forms[0].example}

    def encode(self, value: Any) -> Any:
        place = int(value[0])
        return {"choice": place, "value": self._forms[place].encode(value[1])}

    def decode(self, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping) or set(value) != {"choice", "value"}:
            raise _fault(where, "must be an object with `choice` and `value`", value)
        place = _integer(value["choice"], f"{where}.choice", 0, len(self._forms) - 1)
        return np.int64(place), self._forms[place].decode(value["value"], f"{where}.value")

    def _option(self, place: int, form: Form) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"choice": {"const": place}, "value": form.schema},
            "required": ["choice", "value"],
            "additionalProperties": False,
        }


def form_of(space: "spaces.Space[Any]", *, names: Names | None = None) -> Form:
    """How an agent writes the values of a space.

    Args:
        space: any of Gymnasium's but `Graph`.
        names: what to call the values of a `Discrete` space, or those in a `Dict` or `Tuple` by key.

    Raises:
        ConfigError: the space has no such form, or the names do not fit it.
    """
    if isinstance(space, spaces.Discrete):
        return _DiscreteForm(space, names)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _FieldsForm(space, names)
    if names is not None:
        raise ConfigError(f"`names` fit a `Discrete` space, or one inside of `Dict` or `Tuple`, got {space}")
    for kind, make in _FORMS.items():
        if isinstance(space, kind):
            return make(space)
    raise ConfigError(
        f"an agent cannot write values of {space}: `{type(space).__name__}` has no JSON form here; "
        "give the environment another action space, as with `gymnasium.wrappers.TransformAction`"
    )


def _multi_discrete(space: Any) -> Form:
    low = space.start.astype(object)
    return _ArrayForm(space, low, low + space.nvec.astype(object) - 1)


def _multi_binary(space: Any) -> Form:
    return _ArrayForm(space, np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8))


_FORMS: Mapping[type, Callable[[Any], Form]] = {
    spaces.Box: lambda space: _ArrayForm(space, space.low, space.high),
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Text: _TextForm,
    spaces.Sequence: _SequenceForm,
    spaces.OneOf: _OneOfForm,
}


class Action:
    """The arguments of a tool that acts: the keys of a `Dict` space, and `action` for all other spaces.

    Args:
        form: of the action space.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self._has_keys = isinstance(form, _FieldsForm) and isinstance(form.space, spaces.Dict)
        self._has_keys &= all(_KEY.fullmatch(key) for key in getattr(form, "fields", ()))

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        if self._has_keys:
            return self.form.schema
        inner = self.form.schema
        if "description" not in inner:
            inner = {**inner, "description": self.form.description}
        return {
            "type": "object",
            "properties": {"action": inner},
            "required": ["action"],
            "additionalProperties": False,
        }

    def read(self, arguments: Mapping[str, Any]) -> Any:
        """The action that arguments stand for.

        Raises:
            ValueError: the action space does not contain it.
        """
        if self._has_keys:
            return self.form.read(dict(arguments), "")
        return self.form.read(arguments["action"])

    def arguments(self, value: Any) -> dict[str, Any]:
        """The arguments that an action's JSON goes into."""
        has_them = isinstance(value, dict) and (self._has_keys or set(value) == {"action"})
        return value if has_them else {"action": value}


def legal(form: Form, mask: Any) -> list[Any] | None:
    """What a mask allows, as the agent writes it; None where there is no mask, or it leaves no choice out.

    A mask of a `Discrete` space has a number for each value, 0 where it is not allowed; one of a
    `MultiDiscrete` space with one axis is such a mask for each place. One that allows nothing is none.

    Raises:
        ValueError: the mask does not fit the space.
    """
    if mask is None:
        return None
    if isinstance(form, _DiscreteForm):
        return _allowed(mask, form.low, form.high, form.encode)
    if isinstance(form, _ArrayForm) and _has_masks(form.space):
        places = [
            _allowed(each, int(low), int(high), int)
            for each, low, high in zip(mask, form.low, form.high, strict=True)
        ]
        return None if all(place is None for place in places) else places
    return None


def refusal(form: Form, mask: Any, action: Any) -> str | None:
    """Why an action of the space is not legal under a mask; None where it is."""
    allowed = legal(form, mask)
    if allowed is None:
        return None
    wanted = form.encode(action)
    if isinstance(form, _DiscreteForm):
        is_legal = wanted in allowed
    else:
        is_legal = all(place is None or one in place for one, place in zip(wanted, allowed, strict=True))
    return None if is_legal else f"argument `action`: {wanted} is not legal now; {legal_text(allowed)}"


def misfit(space: "spaces.Space[Any]", mask: Any, action: Any) -> str | None:
    """Why a space or a mask does not take an action; None where both do."""
    if not space.contains(action):
        return f"it is not in {space}"
    return refusal(form_of(space), mask, action) if _has_masks(space) else None


def drawn(space: "spaces.Space[Any]", mask: Any, *, seed: int) -> Any:
    """An action by chance, a legal one where there is a mask; seeds the space."""
    space.seed(seed)
    if mask is None or not _has_masks(space):
        return space.sample()
    if isinstance(space, spaces.Discrete):
        return space.sample(mask=np.asarray(mask, np.int8))
    return space.sample(mask=tuple(np.asarray(each, np.int8) for each in mask))


def legal_text(allowed: Sequence[Any]) -> str:
    """A line that lists what is legal."""
    shown = ["any" if one is None else str(one) for one in allowed[:_SHOWN_LEGAL]]
    more = f" and {len(allowed) - _SHOWN_LEGAL} more" if len(allowed) > _SHOWN_LEGAL else ""
    return f"legal actions: {', '.join(shown)}{more}"


def _plain_number(number: Any) -> Any:
    """A number of numpy's as Python's; a float as the shortest decimal that its type rounds to it."""
    if isinstance(number, np.floating):
        return float(str(number))
    return number.item() if isinstance(number, np.generic) else number


def _integer(value: Any, where: str, low: int, high: int) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value or value in (math.inf, -math.inf) or int(value) != value:
        raise _fault(where, "must be an integer", value)
    if not low <= value <= high:
        raise _fault(where, f"must be from {low} to {high}", value)
    return int(value)


def _allowed(mask: Any, low: int, high: int, encode: Callable[[int], Any]) -> list[Any] | None:
    flags = np.asarray(mask).astype(bool).ravel().tolist()
    if len(flags) != high - low + 1:
        raise ValueError(f"the action mask has {len(flags)} entries for {high - low + 1} actions")
    if all(flags) or not any(flags):
        return None
    return [encode(low + place) for place, flag in enumerate(flags) if flag]


def _checked_names(names: Names, count: int, space: Any) -> list[str]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or len(names) != count or len(set(names)) != count:
        raise ConfigError(f"`names` for {space} must be {count} different names, got {names!r}")
    return [str(name) for name in names]


def _has_masks(space: Any) -> bool:
    return isinstance(space, spaces.Discrete) or (
        isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1
    )


def _flat(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    return int(np.ravel_multi_index(index, shape)) if shape else 0


def _fault(where: str, rule: str, value: Any) -> ValueError:
    try:
        told = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer with too many digits
        told = f"a {type(value).__name__}"
    told = told if len(told) <= _SHOWN else f"{told[: _SHOWN - 3]}..."
    return ValueError(f"argument `{where}` {rule}, got {told}")
