"""How a server of SGLang is started or reached."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PauseMode = Literal["retract", "in_place", "abort"]


class SGLangConfig(BaseModel):
    """One server: started as a child process, or a running one that `url` names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str | None = None
    """A running server, such as `http://10.0.0.7:30000`; null starts one."""
    api_key: str | None = Field(default=None, repr=False)
    """Sent as a bearer token: the server's admin key where it has one, else its API key."""
    python: str | None = None
    """Interpreter of the environment that has SGLang; null takes this process's own."""
    arguments: tuple[str, ...] = ()
    """More words for the server's command line, such as `("--enable-metrics",)`; they win over ours."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the server gets on top of ours."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that share the model."""
    pause: PauseMode = "retract"
    """What happens to running requests while weights change.

    `retract` computes their keys and values anew under the new weights, `in_place` goes on over the old
    ones, `abort` ends them and asks again for the rest of each reply.
    """
    transfer: Literal["distributed", "disk"] = "distributed"
    """Whether `load_weights` broadcasts to the server or leaves files for it to read."""
    transfer_folder: str | None = None
    """Where `disk` leaves the files; the server must see it, too. Null takes a temporary folder."""
    backend: Literal["nccl", "gloo"] | None = None
    """Of the broadcast; null takes NCCL for tensors on CUDA, gloo for others.

    NCCL refuses two ranks on one GPU: take gloo where the tensors lie on the server's.
    """
    address: str = "127.0.0.1"
    """Address of this machine as the server sees it, for the broadcast."""
    bucket_bytes: int = Field(default=64 * 2**20, ge=1)
    """Tensors are sent together up to this size; a larger one goes alone."""
    verify: bool = True
    """Whether the server's own checksums are compared after each load."""
    start_timeout_s: float = Field(default=900.0, gt=0.0)
    """Longest wait for a new server to answer."""
    control_timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest wait for one control request: pause, continue, flush, begin, end, checksums."""
    transfer_timeout_s: float = Field(default=300.0, gt=0.0)
    """Longest wait for one bucket, one reading of files, or the members of a group."""

    @model_validator(mode="after")
    def _check(self) -> "SGLangConfig":
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"`url` must be an address such as `http://10.0.0.7:30000`, got `{self.url}`")
        if self.url is not None and (self.arguments or self.environment or self.python):
            raise ValueError(
                "`url` names a running server, which takes no `arguments`, `environment` or `python`; "
                "remove them, or remove `url` to start a server"
            )
        return self
