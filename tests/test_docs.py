"""What README and docs show is true: code compiles and runs, commands exist, links lead somewhere.

A block opened with three backticks and `python run` is executed; `python` alone must compile.
"""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<mark>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\b(agentrl-(?:env|controller|train|eval))(?![\w-])((?: +[a-z][a-z-]*\b(?![./:=]))?)")


def blocks(*languages: str, mark: str = "") -> list:
    """Fenced blocks as test parameters, named after the page and the line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            if match["language"] in languages and (not mark or mark in match["mark"].split()):
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match["body"], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def commands() -> list[str]:
    """Console scripts with the subcommand that follows them, as shell blocks name them."""
    bodies = [parameter.values[0] for parameter in blocks("bash", "sh", "console")]
    return sorted({script + command for body in bodies for script, command in COMMAND.findall(body)})


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_docs_compiles(code):
    assert ast.parse(code).body


@pytest.mark.parametrize("code", blocks("python", mark="run"))
def test_python_marked_to_run_runs(code, tmp_path):
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("command", commands())
def test_command_in_the_docs_exists(command):
    script, *subcommand = shlex.split(command)
    run = subprocess.run(
        [str(Path(sys.executable).with_name(script)), *subcommand, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert " ".join(subcommand) in run.stdout


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_inside_the_repository_lead_somewhere(page):
    targets = [
        target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()) if "://" not in target
    ]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_shows_the_minimal_task_as_it_is():
    task = (ROOT / "examples" / "tasks" / "minimal" / "my_task.py").read_text()
    assert task in (ROOT / "README.md").read_text()
    assert len(task.splitlines()) <= 20
