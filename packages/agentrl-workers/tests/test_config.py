import pytest

from agentrl_core import ConfigError
from agentrl_workers.config import dump_config, load_config, make_config

MINIMAL = {"tasks": [{"name": "t"}], "model": {"path": "m"}}


def test_a_minimal_config_has_defaults_and_survives_a_round_trip(tmp_path):
    config = make_config(MINIMAL)
    assert (config.max_lag, config.batch.group_size, config.tasks[0].split) == (4, 8, "train")
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config


def test_overrides_reach_any_depth_and_are_written_as_yaml():
    config = make_config(
        MINIMAL,
        [
            "actor.learning_rate=1e-4",
            "tasks.0.weight=2",
            "algorithm.dual_clip=null",
            "actor.betas=[0.8, 0.9]",
        ],
    )
    assert config.actor.learning_rate == 1e-4
    assert config.tasks[0].weight == 2.0
    assert config.algorithm.dual_clip is None
    assert config.actor.betas == (0.8, 0.9)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor.lerning_rate=1", r"`actor\.lerning_rate` is no setting; did you mean `learning_rate`\?"),
        ("tasks.0.wieght=1", r"`tasks\.0\.wieght` is no setting; did you mean `weight`\?"),
        ("zzz=1", "`zzz` is no setting; known here: actor, algorithm, batch"),
        ("max_lag=-1", "`max_lag`: Input should be greater than or equal to 0, got -1"),
        ("actor.ranks=two", r"`actor\.ranks`: Input should be a valid integer.*got 'two'"),
        ("max_lag", r"`max_lag` is no override; write `section\.key=value`"),
        ("max_lag.x=1", r"`max_lag\.x=1`"),
        ("model.path={", "the value is no YAML"),
        ("rollout.max_tokens_per_turn=4096", r"must be smaller than `rollout\.context_length`"),
        ("actor.updates_per_step=999", "cannot exceed the 128 episodes of a step"),
        ("steps=.nan", "`steps`"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(override, message):
    with pytest.raises(ConfigError, match=message):
        make_config({**MINIMAL, "max_lag": 2}, [override])


def test_every_fault_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        make_config({"tasks": [], "steps": 0})
    assert "`tasks`" in str(caught.value)
    assert "`steps`" in str(caught.value)
    assert "`model`: Field required" in str(caught.value)


def test_a_task_is_listed_once():
    with pytest.raises(ConfigError, match=r"'t'.* are listed twice"):
        make_config({**MINIMAL, "tasks": [{"name": "t"}, {"name": "t"}]})


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "must hold a mapping"), ("a: [", "cannot read"), (None, "cannot read")]
)
def test_a_file_that_is_no_config_says_so(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize(
    ("rollout", "told"),
    [
        ({"sglang": {"tensor_parallel": 2}}, "`sglang` has settings, but `engine` is `embedded`"),
        (
            {"engine": "sglang", "sglang": {"url": "http://127.0.0.1:1"}, "replicas": 2},
            "`sglang.url` names one server, .* but `replicas` is 2",
        ),
        ({"engine": "vllm"}, "'embedded' or 'sglang', got 'vllm'"),
    ],
)
def test_an_engine_s_settings_that_contradict_each_other_are_refused(rollout, told):
    tree = {"tasks": [{"name": "t"}], "model": {"path": "m"}, "rollout": rollout}
    with pytest.raises(ConfigError, match=told):
        make_config(tree)


def test_a_server_s_key_is_used_and_not_written_down():
    server = {"url": "http://127.0.0.1:1", "api_key": "secret"}
    rollout = {"engine": "sglang", "sglang": server}
    config = make_config({"tasks": [{"name": "t"}], "model": {"path": "m"}, "rollout": rollout})
    assert config.rollout.sglang.api_key == "secret"
    assert "secret" not in dump_config(config)
    assert "secret" not in repr(config)
