"""The dry run finds what cannot work, and says what would happen."""

import json
import re

import pytest
import yaml
from click.testing import CliRunner

from agentrl_core import ConfigError
from agentrl_workers.check import Node, check
from agentrl_workers.cli import main
from agentrl_workers.config import make_config
from agentrl_workers.placement import PoolPlan, ResourcePlan, assign

GIB = 2**30
CPU_NODE = Node("a", {"CPU": 8.0}, memory_bytes=8 * GIB)


@pytest.fixture
def config(model_dir):
    def make(*overrides):
        tree = {
            "tasks": [{"name": "t"}],
            "model": {"path": model_dir},
            "rollout": {"context_length": 512},
            "actor": {"learning_rate": 1e-4},
        }
        return make_config(tree, overrides)

    return make


def test_a_sound_config_is_told_in_numbers(config):
    found = check(config("actor.updates_per_step=2", "steps=10"), [CPU_NODE])
    assert (found.errors, found.warnings) == ([], [])
    told = found.text()
    assert "rollout  1 x 1 CPU: 1 on a" in told
    assert "16 groups of 8 = 128 episodes in 2 updates of 64 episodes, over 1 ranks" in told
    # 8192 // 512 sequences a micro-batch, so 64 episodes take 4.
    assert "holds 16 or more sequences of 512 tokens; an update runs at most 4 on a rank" in told
    assert "10 steps train on 1280 episodes" in told
    # 2 * 64 / 8 groups under way, one step's worth.
    assert "at most 16 groups are under way, 1.0 steps' worth" in told
    assert "about 1.0 updates old when they are trained on, never more than 4" in told
    assert re.search(r"engine +0\.\d\d GiB = weights .* \+ cache", told)
    assert told.endswith("no error found")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["actor.ranks=9", "batch.groups=1", "rollout.replicas=1"], "8 episodes for 9 ranks"),
        (["algorithm.dual_clip=1.2"], r"`algorithm.dual_clip` \(1.2\) must be greater than 1 .* \(1.28\)"),
        (
            ["rollout.context_length=100000"],
            r"\(100000\) is more than the \d+ tokens that the model",
        ),
        (["rollout.num_slots=1000000"], "a: the run needs about .* GiB of memory, there are 8.00 GiB"),
        (["model.path=nowhere"], r"`nowhere` is no model folder: it has no config\.json"),
    ],
)
def test_what_cannot_work_is_an_error(config, overrides, told):
    found = check(config(*overrides), [Node("a", {"CPU": 16.0}, memory_bytes=8 * GIB)])
    (error,) = found.errors
    assert re.search(told, error)
    assert f"error: {error}" in found.text()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["actor.updates_per_step=3"], "128 episodes do not divide into 3 equal updates"),
        (["actor.micro_batch_tokens=256"], "a sequence may have 512 tokens, more than .* (256)"),
        (["actor.warmup_steps=100"], "`actor.warmup_steps` (100) is not over after the run's 100 updates"),
        (["rollout.concurrency=4", "max_lag=0"], "`rollout.concurrency` (4) plays no group of 8 at once"),
        (["rollout.concurrency=65"], "(65) is more than the 64 sequences that the engines decode at once"),
        (["rollout.concurrency=32"], "8 groups under way are fewer than the 16 of a step"),
        (["model.dtype=bfloat16"], "bfloat16 is slow on a CPU"),
    ],
)
def test_what_is_likely_not_meant_is_a_warning(config, overrides, told):
    found = check(config(*overrides), [CPU_NODE])
    assert found.errors == []
    (warning,) = found.warnings
    assert re.search(re.escape(told).replace(r"\.\*", ".*"), warning)


def test_synchronous_training_is_predicted_without_lag(config):
    told = check(config("max_lag=0"), [CPU_NODE]).text()
    assert "synchronous: at most 16 groups are under way, 1.0 steps' worth" in told
    assert "about 0.0 updates old" in told


def test_gpus_are_planned_where_a_node_has_any(config):
    nodes = [
        Node("a", {"CPU": 4.0, "GPU": 2.0}, memory_bytes=8 * GIB, gpu_bytes=24 * GIB),
        Node("b", {"CPU": 4.0, "GPU": 2.0}, memory_bytes=8 * GIB, gpu_bytes=24 * GIB),
    ]
    found = check(config("rollout.replicas=3"), nodes)
    assert found.errors == []
    assert "rollout  3 x 1 CPU and 1 GPU: 2 on a, 1 on b" in found.text()
    assert "train    1 x 1 CPU and 1 GPU: 1 on b" in found.text()
    (error,) = check(config("rollout.num_slots=1000000"), nodes[:1]).errors
    assert "of a GPU, there are 24.00 GiB" in error


def test_a_server_s_gpus_lie_on_one_node(config):
    overrides = ["rollout.engine=sglang", "rollout.sglang.tensor_parallel=2"]
    nodes = [
        Node("a", {"CPU": 4.0, "GPU": 1.0}, memory_bytes=8 * GIB),
        Node("b", {"CPU": 4.0, "GPU": 2.0}, memory_bytes=8 * GIB),
    ]
    found = check(config(*overrides), nodes)
    assert found.errors == []
    assert "rollout  1 x 1 CPU and 2 GPU: 1 on b" in found.text()
    assert "train    1 x 1 CPU and 1 GPU: 1 on a" in found.text()
    (error,) = check(config(*overrides, "rollout.sglang.tensor_parallel=4"), nodes).errors
    assert "no node can hold a bundle {'CPU': 1.0, 'GPU': 4.0} of the pool `rollout`" in error
    remote = check(config("rollout.engine=sglang", "rollout.sglang.url=http://127.0.0.1:1"), nodes)
    assert "rollout  1 x 1 CPU: 1 on a" in remote.text()


def test_bundles_fill_nodes_and_a_fault_names_bundle_and_node():
    plan = ResourcePlan((PoolPlan("rollout", ({"CPU": 3.0},) * 2), PoolPlan("train", ({"CPU": 1.0},))))
    assert assign(plan, {"a": {"CPU": 4.0}, "b": {"CPU": 3.0}}) == {"rollout": ["a", "b"], "train": ["a"]}
    for nodes, told in (
        ({"a": {"CPU": 2.0}}, r"no node can hold a bundle .*3.* `rollout`; the largest node, a, has .*2\.0"),
        ({"a": {"CPU": 5.0}}, "need 7 CPUs together, the cluster has 5"),
        ({"a": {"CPU": 5.0}, "b": {"CPU": 2.0}}, "`rollout` fits on no node beside the others"),
        ({}, "the cluster has no node"),
    ):
        with pytest.raises(ConfigError, match=told):
            assign(plan, nodes)


def test_the_command_exits_with_1_on_an_error(config, model_dir, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"tasks": [{"name": "t"}], "model": {"path": model_dir}}))
    good = CliRunner().invoke(main, ["check", str(path), "rollout.context_length=512", "--json"])
    assert good.exit_code == 0, good.output
    assert json.loads(good.output)["errors"] == []
    bad = CliRunner().invoke(main, ["check", str(path), "algorithm.dual_clip=1.1"])
    assert bad.exit_code == 1
    assert "error: `algorithm.dual_clip`" in bad.output
    unknown = CliRunner().invoke(main, ["check", str(path), "rollout.replica=2", "actor.rank=1"])
    assert unknown.exit_code == 1
    assert "did you mean `replicas`?" in unknown.output
    assert "did you mean `ranks`?" in unknown.output
