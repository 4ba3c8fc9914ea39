"""Results as files."""

from pathlib import Path

from agentrl_core import ConfigError
from agentrl_eval.report.table import markdown_table
from agentrl_eval.results import Results


def write_results(results: Results, folder: Path) -> Path:
    """Write `results.json` and `results.md`, each whole or not at all; returns the first.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        _replace(folder / "results.md", markdown_table(results))
        return _replace(folder / "results.json", results.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot write results to `{folder}`: {error.strerror}; resume when it can"
        ) from error


def _replace(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text)
    return draft.replace(path)
