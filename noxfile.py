"""Everything that must hold before a change lands: `uv run nox`.

Sessions without an interpreter of their own run in the workspace's environment, the one `uv run` makes.
`tests` makes a fresh environment per package, because a shared one hides imports nobody declared.
"""

import shutil
import sys
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2026.2"
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
WORKSPACE_BIN = Path(sys.executable).parent
PYTHONS = ["3.11", "3.12", "3.13"]
CURRENT_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TEST_TOOLS = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "httpx", "schemathesis"]

GENERATED = [f"agentrl_core.rpc.worker_stream_{kind}" for kind in ("pb2", "pb2_grpc")]
"""What `proto` makes; it needs core's extra `grpc`."""

NEED_EXTRAS = [
    f"agentrl_env_sdk.{name}"
    for name in (
        *("adapters.observations", "adapters.spaces", "drivers.docker", "drivers.kubernetes"),
        *("published.environment.docker", "published.environment.kubernetes", "testing.plugin"),
    )
]
"""Modules that cannot be imported without an extra, or without pytest."""

PACKAGES = {
    "agentrl-core": [
        *("--forbid", "fastapi", "aiohttp", "torch", "ray"),
        *("--skip", "agentrl_core.client", *GENERATED),
    ],
    "agentrl-env-sdk": ["--forbid", "torch", "ray", "pandas", "numpy", "--skip", *NEED_EXTRAS],
    "agentrl-controller": ["--forbid", "torch", "ray"],
    "agentrl-workers": [],
    "agentrl-eval": ["--forbid", "torch", "ray"],
}
"""What the isolated import of each package must, and must not, bring along."""

TEST_EXTRAS = {
    "agentrl-core": ["client"],
    "agentrl-env-sdk": [
        *("docker", "kubernetes", "redis", "mysql", "datasets"),
        *("gymnasium", "pettingzoo", "mcp", "openenv", "openai"),
    ],
    "agentrl-controller": ["otel"],
}
"""Extras that a package's tests need beyond its own dependencies."""

PUBLISHED = ["agentrl-worker==0.4.0", "agentrl-eval==0.1.2", "grpcio>=1.76"]
"""The stack whose wire we speak; its worker asks for an older grpcio than it needs."""

INTEROP = {
    "openenv": ["openenv-core==0.3.0"],
    "verifiers": ["verifiers==0.4.0"],
    "trainers": [
        *("trl==1.16.0", "transformers>=5.5.3,<5.11,!=5.6.0"),
        # What verl's agent loop imports; all that verl asks for would be gigabytes more.
        *("ray", "hydra-core", "tensordict>=0.8,<=0.10,!=0.9.0", "codetiming", "torchdata"),
        *("pillow", "cachetools", "uvicorn", "fastapi"),
    ],
}
"""Other projects' packages that the env SDK's adapters meet, each group in an environment of its own."""

SGLANG = ["sglang==0.5.23", "triton", "setuptools", "dill", "datasets", "modelscope"]
"""The server, and what it imports but gets from packages that we leave out."""

SGLANG_WITHOUT = [
    *("flash-attn-4", "flashinfer-python", "sglang-kernel", "tilelang", "quack-kernels", "humming-kernels"),
    *("nvidia-cutlass-dsl", "nvidia-mathdx", "nvshmem4py-cu13", "cuda-python", "torch-memory-saver"),
    *("sgl-deep-ep", "sgl-deep-gemm", "sgl-flash-mla", "torchvision", "torchaudio", "torchcodec", "timm"),
]
"""What the server asks for and a CPU cannot use; stand-ins take the place of two of them."""

nox.options.sessions = [
    "lint",
    "types",
    "proto",
    "contracts",
    *(f"tests-{CURRENT_PYTHON}({name})" for name in PACKAGES),
    "docs",
    "e2e",
    "published",
    "interop",
    "examples",
]


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    _workspace(session, "ruff", "check", ".")
    _workspace(session, "ruff", "format", "--check", ".")


@nox.session(python=False)
def types(session: nox.Session) -> None:
    """Static types of the five packages."""
    _workspace(session, "pyright", "--pythonpath", sys.executable)


@nox.session(python=False)
def proto(session: nox.Session) -> None:
    """Makes the Python of the gRPC wire anew; fails where the committed code was another."""
    source = ROOT / "packages" / "agentrl-core" / "src"
    folder = source / "agentrl_core" / "rpc"
    before = {path: path.read_bytes() for path in folder.glob("*_pb2*.py*")}
    outputs = (f"--{kind}_out={source}" for kind in ("python", "pyi", "grpc_python"))
    definitions = sorted(str(path) for path in folder.glob("*.proto"))
    _workspace(session, "python", "-m", "grpc_tools.protoc", f"-I{source}", *outputs, *definitions)
    after = {path: path.read_bytes() for path in folder.glob("*_pb2*.py*")}
    changed = sorted(path.name for path in after if after[path] != before.get(path))
    if changed:
        session.error(f"{', '.join(changed)} did not match the .proto file and were made anew; commit them")


@nox.session(python=False)
def contracts(session: nox.Session) -> None:
    """Who may import whom, read from the source and from what a fresh interpreter loads."""
    _workspace(session, "lint-imports", "--no-logo")
    _workspace(session, "pytest", "-v", "tests/test_contracts.py")


@nox.session(python=PYTHONS)
@nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])
def tests(session: nox.Session, package: str) -> None:
    """A package's wheel alone: built, installed by path, imported in isolation, tested."""
    tmp = Path(session.create_tmp()).resolve()
    wheels = {name: _build(session, name, into=tmp / "wheels") for name in {"agentrl-core", package}}
    pins = _pins(session, package, into=tmp)

    _install(session, *wheels.values(), pins=pins)
    session.run("uv", "pip", "check", external=True)
    isolation = [str(ROOT / "tests" / "isolation.py"), package.replace("-", "_"), "--installed"]
    session.run("python", "-I", *isolation, *PACKAGES[package])

    extras = f"[{','.join(TEST_EXTRAS.get(package, []))}]"
    _install(session, f"{package}{extras} @ {wheels[package].as_uri()}", *TEST_TOOLS, pins=pins)
    session.chdir(tmp)
    session.run(
        "pytest",
        *("-v", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)),
        *("-o", f"cache_dir={tmp / 'pytest_cache'}"),
        *(session.posargs or [str(ROOT / "packages" / package / "tests")]),
        env={"RAY_USAGE_STATS_ENABLED": "0"},
    )


@nox.session(python=False)
def docs(session: nox.Session) -> None:
    """The code blocks of README and docs run as they stand."""
    _workspace(session, "pytest", "-v", "tests/test_docs.py")


@nox.session(python=False)
def e2e(session: nox.Session) -> None:
    """Tests that cross packages, the learning run among them."""
    names = ("test_contracts.py", "test_docs.py", "published", "interop", "sglang")
    elsewhere = [f"--ignore=tests/{name}" for name in names]
    _workspace(session, "pytest", "-v", *(session.posargs or ["tests", *elsewhere]))


@nox.session(python=CURRENT_PYTHON)
def published(session: nox.Session) -> None:
    """The unmodified published worker and evaluation client, in an environment of their own, against ours."""
    _install(session, *PUBLISHED, pins=[])
    python = Path(session.virtualenv.bin) / "python"
    session.env["AGENTRL_PUBLISHED_PYTHON"] = str(python.absolute())
    _workspace(session, "pytest", "-v", *(session.posargs or ["tests/published"]))


@nox.session(python=CURRENT_PYTHON)
def interop(session: nox.Session) -> None:
    """The real OpenEnv, verifiers, TRL and verl, in environments of their own, against the adapters."""
    tmp = Path(session.create_tmp()).resolve()
    for name, requirements in INTEROP.items():
        python = tmp / name / "bin" / "python"
        if name == "trainers":
            _make_trainers(session, python, requirements)
        else:
            session.run("uv", "venv", "--quiet", "--clear", str(tmp / name), external=True)
            session.run(
                "uv", "pip", "install", "--quiet", "--python", str(python), *requirements, external=True
            )
        session.env[f"AGENTRL_INTEROP_{name.upper()}"] = str(python)
    # The others' packages take their time to be imported.
    _workspace(session, "pytest", "-v", "--timeout", "300", *(session.posargs or ["tests/interop"]))


def _make_trainers(session: nox.Session, python: Path, requirements: list[str]) -> None:
    """An environment with pip, which may know of a CPU build of torch where uv knows of none."""
    folder = python.parents[1]
    wheels = [
        _build(session, name, into=folder.parent / "wheels") for name in ("agentrl-core", "agentrl-env-sdk")
    ]
    session.run("python", "-m", "venv", "--clear", str(folder), external=True)
    for words in (["torch==2.13.0"], [*requirements, *map(str, wheels)], ["--no-deps", "verl==0.9.1"]):
        session.run(str(python), "-m", "pip", "install", "--quiet", *words, external=True)


@nox.session(python=CURRENT_PYTHON)
def sglang(session: nox.Session) -> None:
    """The real SGLang server on the CPU, in an environment of its own, against the engine."""
    overrides = Path(session.create_tmp()).resolve() / "overrides.txt"
    overrides.write_text("".join(f"{name} ; python_version < '3'\n" for name in SGLANG_WITHOUT))
    _install(session, *SGLANG, pins=["--override", str(overrides)])
    python = Path(session.virtualenv.bin) / "python"
    session.env["AGENTRL_SGLANG_PYTHON"] = str(python.absolute())
    _workspace(session, "pytest", "-v", "-s", *(session.posargs or ["tests/sglang"]))


@nox.session(python=CURRENT_PYTHON)
def examples(session: nox.Session) -> None:
    """The tasks that come along, installed as users would, tested and validated."""
    tmp = Path(session.create_tmp()).resolve()
    pins = _pins(session, "agentrl-env-sdk", into=tmp)
    wheels = [_build(session, name, into=tmp / "wheels") for name in ("agentrl-core", "agentrl-env-sdk")]
    folders = sorted(path.parent for path in (ROOT / "examples" / "tasks").glob("*/pyproject.toml"))
    _install(session, *wheels, "aiomysql", *folders, "pytest", "pytest-timeout", "hypothesis", pins=pins)
    session.chdir(tmp)
    options = ["-v", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    session.run("pytest", *options, *(session.posargs or [str(folder / "tests") for folder in folders]))
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        target = project["entry-points"]["agentrl_env.tasks"][folder.name]
        session.run("agentrl-env", "validate", target, "--junit", str(tmp / f"{folder.name}.xml"))


def _workspace(session: nox.Session, tool: str, *args: str) -> None:
    # Under `uv run`, Ray would upload the working tree and build an environment for its workers.
    env = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    session.run(str(WORKSPACE_BIN / tool), *args, env=env, external=True)


def _build(session: nox.Session, package: str, *, into: Path) -> Path:
    folder = into / package
    shutil.rmtree(folder, ignore_errors=True)
    source = str(ROOT / "packages" / package)
    session.run("uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), source, external=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _pins(session: nox.Session, package: str, *, into: Path) -> list[str]:
    """Constraint options that hold dependencies and test tools to the versions of uv.lock."""
    extras = [word for extra in TEST_EXTRAS.get(package, []) for word in ("--extra", extra)]
    wanted = {
        "package.txt": ["--no-dev", "--package", package, *extras],
        "tools.txt": ["--only-group", "dev"],
    }
    options = []
    for name, selection in wanted.items():
        path = into / name
        session.run(
            *("uv", "export", "--quiet", "--frozen", "--no-emit-workspace", "--no-hashes", "--no-annotate"),
            *("--project", str(ROOT), *selection, "--output-file", str(path)),
            external=True,
            silent=True,
        )
        options += ["--constraint", str(path)]
    return options


def _install(session: nox.Session, *requirements: str | Path, pins: list[str]) -> None:
    session.run_install("uv", "pip", "install", *pins, *map(str, requirements), external=True)
