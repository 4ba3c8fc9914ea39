"""What the five tasks of AgentBench FC import from the published SDK, and how they use it, as facts.

Read from the sources of its tasks `dbbench`, `os_interaction`, `knowledgegraph`, `alfworld` and `webshop`,
none of whose code is here. Each name must resolve, and each call bind to what ours takes.
"""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl_env_sdk.published import installed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

IMPORTS = {
    "dbbench": {
        "agentrl.worker.environment": ["create_controller", "EnvironmentController", "EnvironmentDelegation"],
        "agentrl.worker.task": ["Task", "Session"],
        "agentrl.worker.typings": [
            "AgentCancelledException",
            "RewardHistoryItem",
            "SampleIndex",
            "SampleStatus",
            "TaskSampleExecutionResult",
        ],
    },
    "os_interaction": {
        "agentrl.worker.environment": ["create_controller", "EnvironmentController", "EnvironmentDelegation"],
        "agentrl.worker.task": ["Task", "Session"],
        "agentrl.worker.typings": [
            "AgentCancelledException",
            "TaskOutput",
            "TaskSampleExecutionResult",
            "SampleStatus",
            "RewardHistoryItem",
        ],
    },
    "knowledgegraph": {
        "agentrl.worker.environment": ["create_controller", "EnvironmentDelegation"],
        "agentrl.worker.task": ["Task", "Session"],
        "agentrl.worker.typings": [
            "AgentCancelledException",
            "RewardHistoryItem",
            "SampleIndex",
            "SampleStatus",
            "TaskSampleExecutionResult",
        ],
    },
    "alfworld": {
        "agentrl.worker.task": ["Task", "Session"],
        "agentrl.worker.typings": [
            "AgentCancelledException",
            "RewardHistoryItem",
            "SampleStatus",
            "TaskOutput",
            "TaskSampleExecutionResult",
        ],
    },
    "webshop": {
        "agentrl.worker.task": ["Task", "Session"],
        "agentrl.worker.typings": [
            "AgentCancelledException",
            "RewardHistoryItem",
            "SampleStatus",
            "TaskOutput",
            "TaskSampleExecutionResult",
        ],
    },
}
"""Names by module, by task."""

OPENAI = [
    "ChatCompletionSystemMessageParam",
    "ChatCompletionToolMessageParam",
    "ChatCompletionUserMessageParam",
]
"""What all five take from `openai.types.chat`; the messages that they inject."""

STATUSES = {
    "COMPLETED": "completed",
    "AGENT_VALIDATION_FAILED": "agent validation failed",
    "AGENT_INVALID_ACTION": "agent invalid action",
    "TASK_LIMIT_REACHED": "task limit reached",
    "UNKNOWN": "unknown",
    "TASK_ERROR": "task error",
    "CANCELLED": "cancelled",
}
"""Statuses that they return."""

CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    # What their constructors hand on: a configuration's parameters, some of which the base must ignore.
    ("task.Task", "__init__", (), {"name": "x", "concurrency": 32, "tools": []}),
    ("task.Task", "__init__", (), {"name": "x", "start": 0, "end": 200, "round": 20}),
    ("task.Task", "start_sample", (0, None), {}),
    ("task.Task", "sync_start_sample", (0, None), {}),
    ("task.Task", "get_indices", (), {}),
    ("task.Task", "calculate_overall", ([],), {}),
    ("task.Task", "release", (), {}),
    ("task.Session", "inject", ({},), {}),
    ("task.Session", "action", (), {}),
    ("task.Session", "sync_action", (), {}),
    ("environment.EnvironmentDelegation", "__init__", ("dbbench",), {}),
    ("environment.EnvironmentController", "start_session", ("mysql",), {}),
    ("environment.EnvironmentController", "renew_session", ("id",), {}),
    ("environment.EnvironmentController", "end_session", ("id",), {}),
    ("environment.EnvironmentController", "execute_command", ("id", ["bash", "-c", "ls"]), {}),
    ("environment.EnvironmentController", "execute_shell", ("id", "ls"), {}),
    ("environment.EnvironmentController", "background_task", (), {}),
    ("environment.EnvironmentController", "sync_start_session", ("kg",), {}),
    ("environment.EnvironmentController", "sync_end_session", ("id",), {}),
]
"""Calls of methods, as they make them."""

OVERRIDDEN: list[tuple[str, tuple[Any, ...]]] = [
    ("get_subtypes", ()),
    ("get_service_port", ("kg",)),
    ("get_reuse_limit", ("kg",)),
    ("get_concurrency_limit", ("kg",)),
    ("is_exclusive", ("default",)),
    ("get_container_images", ()),
    ("create_docker_container", ({}, "mysql")),
]
"""Methods of a delegation that they override, as the SDK calls them."""

DRIVERS: list[tuple[str, dict[str, Any]]] = [
    (
        "docker",
        {
            "network_name": "dbbench_default",
            "state_driver": "redis",
            "state_options": {"connection": {"host": "172.17.0.1"}},
        },
    ),
    ("manual", {"urls": {"kg": "http://127.0.0.1:3001/sparql"}}),
    ("process", {}),
]
"""Drivers of environments with their settings, as the configurations have them; the last is ours."""


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    """`agentrl.worker` means our modules."""
    with installed():
        yield


def found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"agentrl.worker.{module}"), name)


@pytest.mark.parametrize("task", IMPORTS)
def test_what_a_task_imports_resolves_to_ours(task):
    for module, names in IMPORTS[task].items():
        imported = importlib.import_module(module)
        for name in names:
            thing = getattr(imported, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__module__.startswith(("agentrl_env_sdk.published.", "agentrl_core."))


@pytest.mark.parametrize(("owner", "method", "args", "kwargs"), CALLS)
def test_what_a_task_calls_takes_what_it_gives(owner, method, args, kwargs):
    function = getattr(found(owner), method)
    inspect.signature(function).bind(None, *args, **kwargs)
    is_async = inspect.iscoroutinefunction(function)
    is_sync = method.startswith("sync_") or method in ("__init__", "inject", "get_indices", "release")
    assert is_async != (is_sync or method == "calculate_overall")


@pytest.mark.parametrize(("method", "args"), OVERRIDDEN)
def test_what_a_task_overrides_is_there(method, args):
    inspect.signature(getattr(found("environment.EnvironmentDelegation"), method)).bind(None, *args)


@pytest.mark.parametrize(("driver", "options"), DRIVERS)
def test_a_controller_can_be_made_of_each_configuration(driver, options, tmp_path, monkeypatch):
    if driver == "docker":
        pytest.importorskip("aiodocker")
        pytest.importorskip("redis")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("AGENTRL_ENVIRONMENT_DRIVER", raising=False)
    delegation = found("environment.EnvironmentDelegation")("kg")
    controller = found("environment.create_controller")(driver, delegation, **options)
    assert isinstance(controller, found("environment.EnvironmentController"))
    assert (controller.delegation, delegation.controller) == (delegation, controller)


def test_statuses_have_the_published_values():
    status = found("typings.SampleStatus")
    assert {name: status[name].value for name in STATUSES} == STATUSES
    assert issubclass(status, str)


def test_results_and_rewards_are_made_as_they_make_them():
    result, reward, output = (
        found(f"typings.{name}") for name in ("TaskSampleExecutionResult", "RewardHistoryItem", "AgentOutput")
    )
    said = output(messages=[{"role": "assistant", "content": "x"}])
    made = result(status=found("typings.SampleStatus").COMPLETED, result={"reward": 0, "history": [said]})
    made.result["file"] = "added later"
    assert made.result["history"][0].messages[0].get("tool_calls", []) == []
    assert result(status="unknown").result is None
    assert reward(reward=True, score=0).model_dump() == {"reward": 1.0, "score": 0.0, "metrics": {"score": 0}}
    assert reward(reward=1, score=0.5, metrics={"score": 0.75}).metrics == {"score": 0.75}


def test_a_cancellation_passes_by_what_catches_exceptions():
    assert not issubclass(found("typings.AgentCancelledException"), Exception)


def test_messages_of_openai_are_injected():
    chat = pytest.importorskip("openai.types.chat")
    system, tool, user = (getattr(chat, name) for name in OPENAI)
    session = found("task.Session")(7)
    session.inject(system(role="system", content="s"))
    session.inject([user(role="user", content="u"), tool(role="tool", tool_call_id="c", content="t")])
    session.inject(tool(role="tool", tool_call_id=None, content="of a call without an id"))
    assert [item["role"] for item in session.history] == ["system", "user", "tool", "tool"]
    assert session.id == 7


def test_names_that_nobody_offers_are_told():
    with pytest.raises(ModuleNotFoundError, match=r"no part of what `--published` offers"):
        importlib.import_module("agentrl.worker.snapshots")


INSTALLED = """
import sys
sys.path.insert(0, sys.argv[1])
import agentrl.worker.task as theirs
assert theirs.WHOSE == "theirs"
from agentrl_env_sdk.published import installed
with installed():
    import agentrl.worker.task as ours
    import agentrl.evaluation
    assert not hasattr(ours, "WHOSE") and ours.Task.__module__ == "agentrl_env_sdk.published.task"
    assert agentrl.evaluation.WHOSE == "theirs"
import agentrl.worker.task as again
assert again is theirs
"""


def test_an_installed_package_gives_way_for_a_while(tmp_path):
    for name in ("worker/__init__", "worker/task", "evaluation"):
        path = tmp_path / "agentrl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("WHOSE = 'theirs'\n")
    subprocess.run([sys.executable, "-c", INSTALLED, str(tmp_path)], check=True, timeout=60)
