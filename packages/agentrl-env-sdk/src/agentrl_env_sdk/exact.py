"""Annotations under which pydantic takes JSON values for what they are, and converts no text to a number."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BeforeValidator, Strict


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: `3.0` is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def exact(annotation: Any) -> Any:
    """The annotation with its numbers, truth values and texts strict, also within unions and containers.

    The schema stays the same. Keys of a mapping are texts in JSON and are converted; models and other
    types go by rules of their own.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _strict(inner[0], inner[1:])
    if origin in (Union, types.UnionType):
        return Union[tuple(map(exact, inner))]  # noqa: UP007 - made of parts
    if origin is dict:
        return dict[inner[0], exact(inner[1])]  # type: ignore[misc]
    if origin in (list, set, frozenset, tuple):
        container: Any = origin
        return container[tuple(part if part is ... else exact(part) for part in inner)]
    return _strict(annotation, ())


def _strict(kind: Any, said: tuple[Any, ...]) -> Any:
    """A kind with what is said of it; what is said before a validator would be missing in the schema."""
    if kind is int:
        return Annotated[(int, Strict(), *said, BeforeValidator(_whole))]  # type: ignore[return-value]
    if kind in (float, bool, str):
        return Annotated[(kind, Strict(), *said)]  # type: ignore[return-value]
    return Annotated[(exact(kind), *said)] if said else kind  # type: ignore[return-value]
