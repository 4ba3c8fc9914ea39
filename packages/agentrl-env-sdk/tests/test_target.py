import sys

import pytest

from agentrl_core import ConfigError
from agentrl_env_sdk.target import load_task, sources_of

CODE = """
from agentrl_env_sdk import Task
class {name}(Task):
    def __init__(self, size=1, label=""):
        self.size, self.label = size, label
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with tasks in files, modules and a configuration; elsewhere is the working directory."""
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("shelf_tasks", "shelf_tasks.inner", "old"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "shelf_tasks").mkdir()
    (tmp_path / "shelf_tasks" / "__init__.py").write_text("")
    (tmp_path / "shelf_tasks" / "inner.py").write_text(CODE.format(name="Inner"))
    (tmp_path / "alone.py").write_text(CODE.format(name="Alone") + CODE.format(name="Other"))
    (tmp_path / "old.py").write_text("from agentrl.worker.task import Task\nclass Old(Task): pass\n")
    (tmp_path / "tasks.yaml").write_text(
        """
        default: {parameters: {size: 3}}
        dotted: {module: shelf_tasks.inner.Inner, parameters: {label: x}}
        colon: {module: "shelf_tasks.inner:Inner"}
        file: {module: "alone.py:Other"}
        wrong: {module: shelf_tasks.inner.Nothing}
        bare: {module: Inner}
        odd: {module: shelf_tasks.inner.Inner, parameters: {colour: red}}
        old: {module: old.Old}
        """
    )
    (tmp_path / "one.json").write_text('{"only": {"module": "alone.py:Alone", "parameters": {"size": 7}}}')
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "label"), [("dotted", "Inner", "x"), ("colon", "Inner", ""), ("file", "Other", "")]
)
def test_an_entry_is_made_with_its_parameters(folder, name, kind, label):
    task = load_task(str(folder / "tasks.yaml"), name)
    assert (type(task).__name__, task.size, task.label) == (kind, 3, label)
    assert task.task_name == name  # two entries of one class are two tasks on the wire


def test_the_only_entry_needs_no_name(folder):
    assert load_task(str(folder / "one.json")).size == 7


def test_code_is_taken_without_a_configuration(folder):
    assert type(load_task(f"{folder / 'alone.py'}:Alone")).__name__ == "Alone"


@pytest.mark.parametrize(
    ("target", "name", "message"),
    [
        ("tasks.yaml", None, "has `dotted`, `colon`, .*name the entry to take"),
        ("tasks.yaml", "none", "has no entry `none`"),
        ("tasks.yaml", "wrong", "has no task class `Nothing`; it has Inner"),
        ("tasks.yaml", "bare", "must be `package.module.Class`, got `Inner`"),
        ("tasks.yaml", "odd", r"(?s)`Inner\(size=3, colour='red'\)` .*unexpected keyword argument 'colour'"),
        ("tasks.yaml", "old", "(?s)No module named 'agentrl.*serve --published .*tasks.yaml old"),
        ("absent.yaml", "x", "there is no file"),
        ("alone.py", "x", "is no configuration and has no entry `x`"),
    ],
)
def test_what_cannot_be_had_says_why(folder, target, name, message):
    with pytest.raises(ConfigError, match=message):
        load_task(str(folder / target), name)


def test_the_folders_of_the_code_are_known_without_loading_it(folder):
    assert sources_of(f"{folder / 'alone.py'}:Alone") == [folder]
    inner = folder / "shelf_tasks"
    assert sources_of(str(folder / "tasks.yaml"), "dotted") == [folder, inner]
    assert sources_of(str(folder / "tasks.yaml"), "file") == [folder]
    (folder / "broken.py").write_text("def broken(:\n")
    assert sources_of(str(folder / "broken.py")) == [folder]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n", "holds no class that derives from `Task`"),
        (
            "from agentrl_env_sdk import Task\nclass A(Task): pass\nclass B(Task): pass\n",
            "several tasks, A, B; name one",
        ),
        ("import agentrl_env_sdk\nraise RuntimeError('no luck')\n", "(?s)cannot be imported:.*no luck"),
        ("raise SystemExit(3)\n", "(?s)cannot be imported:.*SystemExit: 3"),
        ("def broken(:\n", "SyntaxError"),
        (
            "from agentrl_env_sdk import Task\nclass A(Task):\n    def __init__(self, x): pass\n",
            r"(?s)`A\(\)` of .* fails:.*missing 1 required positional argument: 'x'",
        ),
    ],
)
def test_a_file_that_holds_no_task_says_why(tmp_path, monkeypatch, code, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "odd.py"
    path.write_text(code)
    with pytest.raises(ConfigError, match=message):
        load_task(str(path))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_file.py", "there is no file `no_such_file.py`"),
        ("agentrl_env_sdk.tasks.guess:Gess", "has no task class `Gess`; it has Guess"),
        ("no_such_package:Task", "No module named 'no_such_package'"),
    ],
)
def test_a_wrong_target_says_what_is_wrong(target, message):
    with pytest.raises(ConfigError, match=message):
        load_task(target)
