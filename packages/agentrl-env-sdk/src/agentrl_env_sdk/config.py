"""Reads the published form of a configuration: `{name: {module, parameters}}` in YAML or JSON.

    file -> `import`, `default`, `overwrite` -> AGENTRL_CONFIG_OVERRIDE -> Consul -> environment variables

A value is replaced by the environment variable named after its path: `parameters.data-file` of the entry `os`
by `OS_PARAMETERS_DATA_FILE`.
"""

import base64
import json
import logging
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from agentrl_core import ConfigError

_log = logging.getLogger("agentrl_env_sdk")

_SUFFIXES = (".yaml", ".yml", ".json")
_OVERRIDE = "AGENTRL_CONFIG_OVERRIDE"
_CONSUL = "CONSUL_HTTP_ADDR"
_CONSUL_TOKEN = "CONSUL_HTTP_TOKEN"
_CONSUL_TIMEOUT_S = 5.0
_TRUTH = {**dict.fromkeys(("true", "1", "yes"), True), **dict.fromkeys(("false", "0", "no"), False)}
_KINDS = {
    bool: "one of true, 1, yes, false, 0 and no",
    int: "a whole number",
    float: "a number",
    list: "a YAML list such as `[1, 2]`",
}
_KEYS = ("module", "parameters")


def is_config(target: str) -> bool:
    """Whether a target is a configuration rather than code."""
    return target.endswith(_SUFFIXES)


def load_entry(path: str | Path, name: str) -> tuple[str, dict[str, Any]]:
    """The class that an entry names, such as `package.module.Class`, and what it is made with.

    Raises:
        ConfigError: a file is missing, is no configuration or imports itself, or has no such entry.
    """
    entries = load_config(path, name=name)
    entry = entries.get(name)
    if entry is None:
        known = ", ".join(f"`{each}`" for each in entries) or "nothing"
        raise ConfigError(f"`{path}` has no entry `{name}`; it has {known}")
    module = entry.get("module") if isinstance(entry, dict) else None
    if not isinstance(module, str):
        rule = "must be `{module: package.module.Class, parameters: {...}}`"
        raise ConfigError(f"entry `{name}` of `{path}` {rule}, got {entry!r}")
    _warn_of_unknown(entry, name, path)
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise ConfigError(f"`parameters` of `{name}` in `{path}` must be a mapping, got {parameters!r}")
    return module, {str(key): value for key, value in parameters.items()}


def load_config(path: str | Path, *, name: str | None = None) -> dict[str, Any]:
    """Every entry of a configuration, with whatever overrides it.

    Args:
        path: the file.
        name: entry that may be overridden by Consul, whose address stands in `CONSUL_HTTP_ADDR`.

    Raises:
        ConfigError: a file is missing, is no configuration, or imports itself.
    """
    config = _load(Path(path), ())
    if override := os.environ.get(_OVERRIDE):
        config = _merged(config, _load(Path(override), ()))
    if name is not None and (found := _from_consul(name)) is not None:
        config = _merged(config, {name: found})
    return _from_environment(config, os.environ)


def _load(path: Path, importing: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in importing:
        chain = " -> ".join(str(each) for each in (*importing, path))
        raise ConfigError(f"a configuration imports itself: {chain}")
    content = _read(path)
    if not isinstance(content, dict):
        raise ConfigError(f"`{path}` must hold a mapping of entries, got {type(content).__name__}")
    try:
        return _defaulted(_imported(content, path, (*importing, path)))
    except RecursionError as error:
        raise ConfigError(f"`{path}` has an alias (`*name`) that stands within what it names") from error


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"there is no file `{path}`")
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"`{path}` is no configuration; its name must end with one of {_SUFFIXES}")
    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"`{path}` cannot be read: {error}") from error


def _warn_of_unknown(entry: Mapping[str, Any], name: str, path: str | Path) -> None:
    for key in entry:
        if key not in _KEYS:
            known = " and ".join(f"`{each}`" for each in _KEYS)
            told = "`%s` of entry `%s` in `%s` is read by nothing; known are %s"
            _log.warning(told, key, name, path, known)


def _imported(value: Any, path: Path, importing: tuple[Path, ...]) -> Any:
    """A value with what its `import` keys name, relative to the file, merged below it."""
    if isinstance(value, list):
        return [_imported(inner, path, importing) for inner in value]
    if not isinstance(value, dict):
        return value
    below: Any = {}
    for name in _names(value.get("import", []), path):
        imported = _load(path.parent / name, importing)
        below = _merged(below, _from_environment(imported, os.environ))
    own = {key: _imported(inner, path, importing) for key, inner in value.items() if key != "import"}
    return _merged(below, own)


def _names(given: Any, path: Path) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ConfigError(f"`import` in `{path}` must be a file or a list of files, got {given!r}")
    return names


def _defaulted(value: Any) -> Any:
    """A value with its `default` below and its `overwrite` above every sibling of theirs."""
    if not isinstance(value, dict):
        return value
    parsed = {key: _defaulted(inner) for key, inner in value.items()}
    default, overwrite = parsed.pop("default", _ABSENT), parsed.pop("overwrite", _ABSENT)
    for key, inner in parsed.items():
        over = inner if overwrite is _ABSENT else _merged(inner, overwrite)
        parsed[key] = over if default is _ABSENT else _merged(default, over)
    return parsed


_ABSENT: Any = object()


def _merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys()}
    return {**below, **above, **both}


def _from_environment(value: Any, environment: Mapping[str, str], prefix: str = "") -> Any:
    """A value with what environment variables say instead, read as the kind of value that they replace."""
    if not isinstance(value, dict):
        return value
    replaced = {}
    for key, inner in value.items():
        variable = f"{prefix}{key}".replace("-", "_").upper()
        given = environment.get(variable)
        read = _ABSENT if given is None else _read_as(inner, given, variable)
        replaced[key] = _from_environment(inner, environment, f"{variable}_") if read is _ABSENT else read
    return replaced


def _read_as(old: Any, text: str, variable: str) -> Any:
    """A variable's text as the kind of the old value; a mapping gives way to nothing but a mapping.

    An entry called `path` is thus not lost to PATH.
    """
    if isinstance(old, dict):
        read = _yaml(text)
        return read if isinstance(read, dict) else _ABSENT
    if isinstance(old, str) or old is None:
        return text
    try:
        if isinstance(old, bool):
            return _TRUTH[text.lower()]
        return _list(text) if isinstance(old, list) else type(old)(text)
    except (ValueError, KeyError) as error:
        kind = _KINDS.get(type(old), f"a value such as {old!r}")
        rule = f"must be {kind}, as the {old!r} that it replaces"
        raise ConfigError(f"`{variable}` {rule}, got {text!r}") from error


def _list(text: str) -> list[Any]:
    read = _yaml(text)
    if not isinstance(read, list):
        raise ValueError(text)
    return read


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _from_consul(name: str) -> Any:
    """What Consul holds of an entry; None where none is configured, or where it cannot be had."""
    address = os.environ.get(_CONSUL)
    if not address:
        return None
    address = address if "://" in address else f"http://{address}"
    url = f"{address.rstrip('/')}/v1/kv/agentrl/config/{quote(name)}"
    token = os.environ.get(_CONSUL_TOKEN)
    request = urllib.request.Request(url, headers={"X-Consul-Token": token} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=_CONSUL_TIMEOUT_S) as answer:
            (found, *_) = json.load(answer)
        return yaml.safe_load(base64.b64decode(found["Value"]))  # JSON is YAML, too.
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        _log.warning("no override of `%s` comes from %s: %s", name, address, error)
        return None
