"""`agentrl.worker.utils`: spans of time as configurations write them."""

import re

__all__ = ["parse_duration"]

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]*)\s*")


def parse_duration(
    duration_str: str | float, default_unit: str = "s", return_seconds: bool = False
) -> int | float:
    """A span such as `5s`, `10ms` or `1.5h` in nanoseconds, or in seconds.

    Args:
        duration_str: the span.
        default_unit: unit of a bare number.
        return_seconds: whether the answer is in seconds.

    Raises:
        ValueError: it is none, or its unit is unknown.
    """
    match = _DURATION.fullmatch(str(duration_str))
    unit = (match[2] or default_unit) if match else ""
    if match is None or unit not in _NANOSECONDS:
        known = ", ".join(_NANOSECONDS)
        raise ValueError(f"a duration is a number and one of {known}, as in `10ms`, got `{duration_str}`")
    nanoseconds = float(match[1]) * _NANOSECONDS[unit]
    return nanoseconds / _NANOSECONDS["s"] if return_seconds else int(nanoseconds)
