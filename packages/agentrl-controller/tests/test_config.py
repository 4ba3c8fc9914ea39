import pytest

from agentrl_controller.config import Scope, make_config, read_config
from agentrl_core import ConfigError


def test_settings_come_from_a_file_and_what_is_given_goes_first(tmp_path):
    path = tmp_path / "controller.toml"
    path.write_text(
        'lease_s = 5.0\ntoken = "file"\nallow_workers = ["*.lab"]\n'
        '[[tokens]]\nname = "lab"\ntoken = "x"\nscopes = ["client"]\n'
        "[max_client_sessions]\nlab = 3\n"
    )
    config = read_config(path, token="given")
    assert (config.lease_s, config.token, config.allow_workers) == (5.0, "given", ("*.lab",))
    assert config.tokens[0].scopes == {Scope.CLIENT}
    assert config.max_client_sessions == {"lab": 3}
    path = tmp_path / "controller.json"
    path.write_text('{"lease_s": 5}')
    assert read_config(path).lease_s == 5.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lease": 1}, "`lease`: no such setting"),
        ({"lease_s": 0}, "`lease_s`: Input should be greater than 0"),
        ({"token": ""}, "`token`: String should have at least 1 character"),
        ({"task_weights": {"t": 0}}, "`task_weights.t` must be > 0, got 0.0"),
        ({"client_weights": {"t": float("inf")}}, "`client_weights.t` must be > 0, got inf"),
        ({"max_client_sessions": {"t": -1}}, "`max_client_sessions.t` must be >= 0, got -1"),
        ({"token": "s3", "tokens": [{"name": "a", "token": "s3"}]}, "two tokens are the same"),
        ({"tokens": [{"name": "a", "token": "s3", "scopes": ["root"]}]}, "`tokens.0.scopes"),
    ],
)
def test_a_wrong_setting_is_named_and_no_secret_with_it(settings, message):
    with pytest.raises(ConfigError) as caught:
        make_config(settings)
    assert message in str(caught.value)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "lease_s ="), ("a.json", "[1]"), ("a.json", "{")])
def test_a_file_that_is_none_is_named(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"the settings in {path}"):
        read_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "missing.toml")


def test_secrets_are_not_shown():
    config = make_config(
        {"token": "s3cret", "tokens": [{"name": "a", "token": "0ther"}], "worker_token": "w0rk"}
    )
    assert not any(secret in repr(config) for secret in ("s3cret", "0ther", "w0rk"))


def test_workers_are_shown_the_token_that_they_were_started_with():
    tokens = [
        {"name": "lab", "token": "c", "scopes": ["client"]},
        {"name": "farm", "token": "w", "scopes": ["worker"]},
    ]
    assert make_config({"tokens": tokens}).token_for_workers == "w"
    assert make_config({"tokens": tokens, "token": "t"}).token_for_workers == "t"
    assert make_config({"tokens": tokens, "token": "t", "worker_token": "o"}).token_for_workers == "o"
    assert make_config({}).token_for_workers is None
