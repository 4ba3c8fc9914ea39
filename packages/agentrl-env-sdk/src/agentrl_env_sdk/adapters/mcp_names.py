"""Names of MCP tools that every model's server takes."""

import hashlib
import re
from collections.abc import Iterable

from agentrl_core import ConfigError

LONGEST = 64
"""Characters of a name; OpenAI's limit, and others'."""

_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST = 8


def shown_names(names: Iterable[str], *, taken: Iterable[str] = ()) -> dict[str, str]:
    """Names of letters, digits, `_` and `-`, by the name that they stand for.

    A name that is fine stays; others get `_` for each refused character, and a digest of the name where that
    is too long or would be another's name.

    Args:
        names: as the servers tell them, prefixes included.
        taken: names that are given already.

    Raises:
        ConfigError: a name occurs twice, or is taken.
    """
    given = list(names)
    used = set(taken)
    for place, name in enumerate(given):
        if name in used or name in given[:place]:
            raise ConfigError(
                f"two tools are called `{name}`; tell servers apart with `prefix`, or choose with `only`"
            )
    shown = {name: name for name in given if _is_fine(name)}
    used.update(shown)
    for name in given:
        if name not in shown:
            shown[name] = _free(name, used)
            used.add(shown[name])
    return {name: shown[name] for name in given}


def _is_fine(name: str) -> bool:
    return 0 < len(name) <= LONGEST and _REFUSED.search(name) is None


def _free(name: str, used: set[str]) -> str:
    plain = _REFUSED.sub("_", name)
    if 0 < len(plain) <= LONGEST and plain not in used:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{plain[: LONGEST - _DIGEST - 1]}_{digest}"
