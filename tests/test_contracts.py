"""What each package offers, and what importing it loads, in a fresh interpreter of the workspace.

Here torch, ray and the sibling packages are installed, so an import guarded by `try` shows, too.
"""

import ast
import importlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [f"agentrl_{name}" for name in ("core", "env_sdk", "controller", "workers", "eval")]
HEAVY = ["torch", "ray"]
SIBLINGS = {package: [name for name in PACKAGES[1:] if name != package] for package in PACKAGES}


def loads(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / "tests" / "isolation.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("agentrl_core", [*HEAVY, "fastapi", "aiohttp", "--skip", "agentrl_core.client"]),
        ("agentrl_env_sdk", HEAVY),
        ("agentrl_controller", HEAVY),
        ("agentrl_eval", HEAVY),
        ("agentrl_workers", []),
    ],
)
def test_importing_all_of_a_package_loads_no_sibling_and_nothing_forbidden(package, options):
    run = loads(package, "--forbid", *SIBLINGS[package], *options)
    assert run.returncode == 0, run.stderr


def test_importing_the_data_modules_of_the_trainer_loads_no_tensors():
    names = ["cli", "config", "tasks", "buffer", "ledger", "mixture", "metrics", "progress", "report"]
    run = loads(*(f"agentrl_workers.{name}" for name in names), "--forbid", "torch")
    assert run.returncode == 0, run.stderr


def test_importing_the_maths_of_the_trainer_loads_no_cluster():
    names = ["advantage", "losses", "correction"]
    run = loads(*(f"agentrl_workers.{name}" for name in names), "--forbid", "ray")
    assert run.returncode == 0, run.stderr


def test_the_check_itself_finds_a_forbidden_import():
    run = loads("agentrl_core.client", "--forbid", "aiohttp")
    assert run.returncode == 1
    assert "loads aiohttp" in run.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_requires_no_sibling_but_core(package):
    # Names like ours on the public index belong to others, so such a requirement would install their code.
    required = metadata.requires(package.replace("_", "-")) or []
    always = [requirement for requirement in required if "extra ==" not in requirement]
    siblings = [name.replace("_", "-") for name in SIBLINGS[package]]
    assert [line for line in always if line.startswith(tuple(siblings))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_all_of_a_package_lists_exactly_its_public_names(package):
    module = importlib.import_module(package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
    assert sorted(public - set(module.__all__)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_opens_with_a_paragraph_and_a_diagram(package):
    source = Path(str(importlib.import_module(package).__file__)).read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph, *rest = docstring.split("\n\n")
    assert paragraph
    drawn = [line for part in rest for line in part.splitlines() if line.startswith("    ")]
    assert any("->" in line or "<-" in line for line in drawn)
