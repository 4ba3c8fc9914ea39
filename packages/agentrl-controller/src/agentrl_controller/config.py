"""The controller's settings."""

import json
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl_core import ConfigError


class Scope(StrEnum):
    """What a token allows."""

    CLIENT = "client"
    """Play sessions, and see tasks."""
    WORKER = "worker"
    """Register a worker."""
    ADMIN = "admin"
    """Everything."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TokenConfig(_Config):
    """A bearer token and what it is good for."""

    name: str = Field(min_length=1)
    """Whose it is; the client's name in queues, quotas and logs."""
    token: str = Field(min_length=1, repr=False)
    """The secret itself."""
    scopes: frozenset[Scope] = frozenset(Scope)
    """What it allows."""


class TlsConfig(_Config):
    """Certificates, as PEM files."""

    cert: Path
    """Certificate chain that the controller shows."""
    key: Path
    """Its private key."""
    worker_ca: Path | None = None
    """Who may vouch for workers with an https address; the machine's own roots where it is absent."""


class ControllerConfig(_Config):
    """Deadlines and limits; every one can be met by waiting or by asking again."""

    token: str | None = Field(default=None, min_length=1, repr=False)
    """Bearer token that every request must carry, with every scope; none where it is absent."""
    tokens: tuple[TokenConfig, ...] = ()
    """Further tokens, each with a name and scopes of its own."""
    worker_token: str | None = Field(default=None, min_length=1, repr=False)
    """Bearer token that workers ask for; `token`, or the first one of scope `worker`, where it is absent."""
    hosts: tuple[str, ...] = ()
    """Names in the `Host` header that are taken, beside loopback and addresses; `*` takes any."""
    origins: tuple[str, ...] = ()
    """Web pages of other origins that may call the API, such as `https://lab.example`."""
    allow_workers: tuple[str, ...] = ()
    """Hosts (names, `*` patterns, networks) of workers, beside loopback and the host of their heartbeats."""
    tls: TlsConfig | None = None
    """Certificates; plain text without."""

    lease_s: float = Field(default=11.0, gt=0.0)
    """A worker silent for this long is lost, and its sessions with it."""
    probe_s: float = Field(default=3.0, gt=0.0)
    """A worker that holds sessions and has said nothing for this long is asked whether it lives."""
    forget_s: float = Field(default=300.0, gt=0.0)
    """A lost worker is listed for this long."""
    audit_s: float = Field(default=60.0, gt=0.0)
    """How often a worker is asked which sessions it knows."""
    start_timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest wait of a start for a slot and the first messages, unless the caller gives a deadline."""
    interact_timeout_s: float = Field(default=240.0, gt=0.0)
    """Longest wait of a caller for a worker's answer, unless it gives a deadline."""
    answer_timeout_s: float = Field(default=600.0, gt=0.0)
    """A worker that takes longer for an answer has failed; never less than the caller's own deadline."""
    reclaim_s: float = Field(default=30.0, ge=0.0)
    """A session whose starter went away with a request id is kept this long for it to ask again."""
    idle_timeout_s: float = Field(default=1800.0, gt=0.0)
    """A session that nobody talks to for this long is cancelled; one that is answering is not idle."""
    keep_finished_s: float = Field(default=600.0, gt=0.0)
    """Ended sessions are known for this long, so that a last answer can be asked for again."""

    max_finished: int = Field(default=10_000, ge=0)
    """Ended sessions that are known at most."""
    max_queue: int = Field(default=10_000, ge=0)
    """Starts of a task that wait for a slot at most; more are refused."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Live sessions at most, in all; further starts wait in line."""
    max_task_sessions: dict[str, int] = Field(default_factory=dict)
    """Live sessions of a task at most, by its name, beside what its workers hold."""
    max_client_sessions: dict[str, int] = Field(default_factory=dict)
    """Live sessions of a client at most, by its name; `*` stands for each of the others."""
    task_weights: dict[str, float] = Field(default_factory=dict)
    """Shares of the tasks where they compete for `max_sessions` or a client's limit; 1 where absent."""
    client_weights: dict[str, float] = Field(default_factory=dict)
    """Shares of the clients in a line; 1 where absent."""
    max_connections: int | None = Field(default=None, ge=1)
    """Connections at most; what the machine's descriptors allow where it is absent. More get 503."""
    max_in_flight: int | None = Field(default=None, ge=1)
    """Exchanges under way at most; what the descriptors allow where it is absent. More get 503."""
    max_body_bytes: int = Field(default=100 * 2**20, ge=1)
    """Largest request body."""
    max_transcript_bytes: int = Field(default=8 * 2**20, ge=0)
    """Memory for the conversations that the dashboard shows; the quietest sessions' go first."""
    otlp_endpoint: str | None = None
    """Where OpenTelemetry traces go, such as `http://127.0.0.1:4318`; nowhere without."""

    @model_validator(mode="after")
    def _check(self) -> "ControllerConfig":
        for name in ("task_weights", "client_weights"):
            for key, weight in getattr(self, name).items():
                if not 0.0 < weight < float("inf"):
                    raise ValueError(f"`{name}.{key}` must be > 0, got {weight}")
        for name in ("max_task_sessions", "max_client_sessions"):
            for key, limit in getattr(self, name).items():
                if limit < 0:
                    raise ValueError(f"`{name}.{key}` must be >= 0, got {limit}")
        secrets = [token.token for token in self.tokens] + ([self.token] if self.token else [])
        if len(set(secrets)) < len(secrets):
            raise ValueError("two tokens are the same; give each client one of its own")
        return self

    @property
    def token_for_workers(self) -> str | None:
        """What the controller shows to workers: `agentrl-env serve --token` both sends and asks for one."""
        mine = [token.token for token in self.tokens if Scope.WORKER in token.scopes]
        return self.worker_token or self.token or next(iter(mine), None)

    @property
    def needs_token(self) -> bool:
        """Whether requests must carry a token."""
        return self.token is not None or bool(self.tokens)


def read_config(path: Path, **changes: Any) -> ControllerConfig:
    """Settings from a TOML or JSON file; what is given here goes before what stands there.

    Raises:
        ConfigError: the file cannot be read, or a setting is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the settings in {path} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"the settings in {path} must be an object, got {type(settings).__name__}")
    return make_config(settings | changes, source=f" in {path}")


def make_config(settings: dict[str, Any], *, source: str = "") -> ControllerConfig:
    """Settings by name.

    Raises:
        ConfigError: one is wrong or unknown.
    """
    try:
        return ControllerConfig.model_validate(settings)
    except ValidationError as error:
        faults = "; ".join(
            f"`{'.'.join(map(str, fault['loc'])) or 'settings'}`: "
            + ("no such setting" if fault["type"] == "extra_forbidden" else fault["msg"])
            for fault in error.errors()
        )
        raise ConfigError(f"the settings{source} are wrong: {faults}") from error
