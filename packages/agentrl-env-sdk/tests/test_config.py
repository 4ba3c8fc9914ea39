import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from agentrl_core import ConfigError
from agentrl_env_sdk.config import load_config, load_entry

TASKS = """
default:
  module: tasks.Base
  parameters: {concurrency: 4, tools: [look]}
os-std:
  parameters: {data-file: std.json, limits: {rounds: 8}}
os-dev:
  module: tasks.Dev
  parameters: {concurrency: 1}
"""


@pytest.fixture
def files(tmp_path):
    """Writes configurations by name and returns the folder."""

    def write(**contents):
        for name, content in contents.items():
            (tmp_path / f"{name}.yaml").write_text(content)
        return tmp_path

    return write


def test_an_entry_has_its_defaults(files):
    path = files(tasks=TASKS) / "tasks.yaml"
    expected = {"concurrency": 4, "tools": ["look"], "data-file": "std.json", "limits": {"rounds": 8}}
    assert load_entry(path, "os-std") == ("tasks.Base", expected)
    assert load_entry(path, "os-dev") == ("tasks.Dev", {"concurrency": 1, "tools": ["look"]})


def test_what_is_overwritten_wins_over_the_entry_and_a_default_does_not(files):
    text = (
        "overwrite: {parameters: {a: 9}}\ndefault: {parameters: {a: 0, b: 0}}\nx: {parameters: {a: 1, b: 2}}"
    )
    assert load_config(files(c=text) / "c.yaml") == {"x": {"parameters": {"a": 9, "b": 2}}}


def test_defaults_hold_at_every_level(files):
    text = "x: {module: m.C, parameters: {default: {n: 1}, first: {}, second: {n: 2}}}"
    assert load_entry(files(c=text) / "c.yaml", "x")[1] == {"first": {"n": 1}, "second": {"n": 2}}


def test_imports_are_relative_and_lie_below_what_stands_beside_them(files):
    main = "import: [tasks.yaml, more.yaml]\nos-dev: {parameters: {import: inner.yaml, concurrency: 7}}"
    folder = files(
        tasks=TASKS, main=main, more="os-std: {module: more.M}", inner="concurrency: 2\nextra: true"
    )
    config = load_config(folder / "main.yaml")
    assert config["os-std"]["module"] == "more.M"
    assert config["os-dev"]["parameters"] == {"concurrency": 7, "tools": ["look"], "extra": True}


def test_the_environment_replaces_values_by_their_path_and_kind(files, monkeypatch):
    values = "{data-file: a, n: 1, rate: 0.5, big: true, none: null, l: [1], d: {k: 1}}"
    text = f"path: {{module: m.C, parameters: {values}}}"
    for name, value in {
        "DATA_FILE": "b",
        "N": "3",
        "RATE": "0.25",
        "BIG": "no",
        "NONE": "x",
        "L": "[4, 5]",
        "D_K": "6",
    }.items():
        monkeypatch.setenv(f"PATH_PARAMETERS_{name}", value)
    assert load_entry(files(c=text) / "c.yaml", "path") == (
        "m.C",
        {"data-file": "b", "n": 3, "rate": 0.25, "big": False, "none": "x", "l": [4, 5], "d": {"k": 6}},
    )


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("N", "abc", "must be a whole number, as the 1 that it replaces, got 'abc'"),
        ("N", "1.5", "must be a whole number"),
        ("RATE", "fast", "must be a number, as the 0.5"),
        ("BIG", "maybe", "must be one of true, 1, yes, false, 0 and no, as the True"),
        ("L", "x", r"must be a YAML list such as `\[1, 2\]`, as the \[1\]"),
    ],
)
def test_a_variable_of_another_kind_is_refused(files, monkeypatch, name, text, rule):
    path = files(c="e: {module: m.C, parameters: {n: 1, rate: 0.5, big: true, l: [1]}}") / "c.yaml"
    monkeypatch.setenv(f"E_PARAMETERS_{name}", text)
    with pytest.raises(ConfigError, match=f"`E_PARAMETERS_{name}` {rule}"):
        load_entry(path, "e")


def test_an_alias_within_what_it_names_is_refused(files):
    with pytest.raises(ConfigError, match=r"has an alias .* that stands within what it names"):
        load_entry(files(c="e: &a {module: m.C, parameters: *a}") / "c.yaml", "e")


def test_a_key_that_nothing_reads_is_told(files, caplog):
    load_entry(files(c="e: {module: m.C, params: {n: 1}}") / "c.yaml", "e")
    (record,) = caplog.records
    assert "`params` of entry `e`" in record.getMessage()
    assert "known are `module` and `parameters`" in record.getMessage()


def test_an_override_file_comes_before_the_environment(files, monkeypatch):
    folder = files(tasks=TASKS, over="os-dev: {parameters: {concurrency: 2, extra: 1}}")
    monkeypatch.setenv("AGENTRL_CONFIG_OVERRIDE", str(folder / "over.yaml"))
    monkeypatch.setenv("OS_DEV_PARAMETERS_EXTRA", "5")
    parameters = load_entry(folder / "tasks.yaml", "os-dev")[1]
    assert parameters == {"concurrency": 2, "tools": ["look"], "extra": 5}


@pytest.fixture
def consul(monkeypatch):
    """A server that holds one override; the paths and tokens it was asked with."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["X-Consul-Token"]))
            override = base64.b64encode(yaml.safe_dump({"parameters": {"concurrency": 3}}).encode())
            found = self.path.endswith("/os-dev")
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps([{"Value": override.decode()}]).encode() if found else b"")

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("CONSUL_HTTP_ADDR", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "t")
    yield asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_consul_may_override_an_entry(files, consul):
    path = files(tasks=TASKS) / "tasks.yaml"
    assert load_entry(path, "os-dev")[1]["concurrency"] == 3
    assert load_entry(path, "os-std")[1]["concurrency"] == 4
    assert consul == [("/v1/kv/agentrl/config/os-dev", "t"), ("/v1/kv/agentrl/config/os-std", "t")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y: {}", "has no entry `x`; it has `y`"),
        ("x: {parameters: {}}", r"entry `x` .* must be `\{module"),
        ("x: {module: m.C, parameters: 3}", "`parameters` of `x` .* must be a mapping, got 3"),
        ("- x", "must hold a mapping of entries, got list"),
        ("import: 3", "`import` .* must be a file or a list of files, got 3"),
        ("import: c.yaml", "a configuration imports itself: .*c.yaml -> .*c.yaml"),
        ("import: none.yaml", "there is no file `.*none.yaml`"),
        ("import: c.txt", "there is no file"),
        ("x: [", "cannot be read"),
    ],
)
def test_what_is_wrong_is_told_with_its_rule(files, text, message):
    with pytest.raises(ConfigError, match=message):
        load_entry(files(c=text) / "c.yaml", "x")
