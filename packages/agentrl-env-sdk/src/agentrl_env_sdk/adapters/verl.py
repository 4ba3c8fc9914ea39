"""Our sessions in verl: an agent loop that plays a session per sample, token in and token out.

    AgentLoopWorker -- run(sampling_params, **row) --> SessionAgentLoop -- session --> controller or worker
                           server_manager.generate <------'

Name it in the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` points to:

    - name: agentrl_session
      _target_: agentrl_env_sdk.adapters.verl.SessionAgentLoop
      url: http://127.0.0.1:5020/api
"""

import importlib
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core import ConfigError, Reply, SampleIndex, SampleStatus, SessionError
from agentrl_core.client import Session, SessionClient
from agentrl_core.errors import ErrorCode
from agentrl_core.messages import FunctionCall, Message, ToolCall

if TYPE_CHECKING:
    SessionAgentLoop: Any

__all__ = ["AGENT_NAME", "SessionAgentLoop", "rows"]

AGENT_NAME = "agentrl_session"
"""What `agent_name` says in a row, and `name` in the configuration."""

_NO_RESULT = {SampleStatus.TASK_ERROR, SampleStatus.CANCELLED, SampleStatus.UNKNOWN}


def rows(task: str, indices: Sequence[SampleIndex]) -> list[dict[str, Any]]:
    """Rows of a verl data set: `extra_info` names a sample, the conversation comes from its session."""
    return [
        {
            "data_source": task,
            "agent_name": AGENT_NAME,
            "prompt": [{"role": "user", "content": f"{task}/{index}"}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"task": task, "index": index},
        }
        for index in indices
    ]


class Playing:
    """The loop itself; `SessionAgentLoop` is this on top of verl's `AgentLoopBase`.

    Args:
        url: the controller's or the task worker's API.
        token_variable: environment variable that holds the bearer token.
        start_timeout_s: deadline of a session's start, waiting for a slot included.
        interact_timeout_s: deadline of an exchange.
        mask_failures: give a session that failed through no fault of the agent as a rollout that trains
            nothing, with reward 0, rather than raise; it still counts in its group's baseline.
    """

    # What verl's base class brings.
    tokenizer: Any
    server_manager: Any
    rollout_config: Any
    ct_build_initial_tokens: Any
    ct_merge_assistant_token: Any
    ct_merge_context_msg: Any

    def __init__(
        self,
        *args: Any,
        url: str,
        token_variable: str | None = None,
        start_timeout_s: float = 600.0,
        interact_timeout_s: float = 240.0,
        mask_failures: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._url = url
        self._timeouts = {"start_timeout_s": start_timeout_s, "interact_timeout_s": interact_timeout_s}
        self._token = os.environ.get(token_variable) if token_variable else None
        self._mask_failures = mask_failures
        parsers = _verl("experimental.agent_loop.tool_parser").ToolParser
        self._parser = parsers.get_tool_parser(self.rollout_config.multi_turn.format, self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play the session that a row names; returns verl's `AgentLoopOutput`.

        Raises:
            ConfigError: the row names no sample.
            SessionError: the session has no result, unless failures are masked.
        """
        task, index = _sample(row.get("extra_info"))
        rollout = _Rollout(request_id=uuid.uuid4().hex)
        async with SessionClient(self._url, token=self._token, **self._timeouts) as client:
            try:
                session = await client.start(task, index)
                try:
                    await self._play(session, rollout, sampling_params)
                finally:
                    await session.cancel()
            except SessionError as error:
                if not self._mask_failures:
                    raise
                rollout.failure = f"{error.code}: {error}"
        return self._output(rollout)

    async def _play(self, session: Session, rollout: "_Rollout", sampling_params: dict[str, Any]) -> None:
        opening = session.opening
        rollout.take(opening)
        rollout.messages = [_plain(message) for message in opening.messages]
        rollout.ids = await self.ct_build_initial_tokens(rollout.messages, tools=rollout.tools)
        stops = self._parser.stop_token_ids
        if stops:
            given = sampling_params.get("stop_token_ids") or []
            sampling_params = {**sampling_params, "stop_token_ids": [*given, *stops]}
        while not rollout.is_over:
            reply = await self._generate(rollout, sampling_params)
            answer = await session.interact([reply])
            rollout.take(answer)
            if not rollout.is_over and not await self._extend(rollout, answer):
                rollout.status = SampleStatus.AGENT_CONTEXT_LIMIT
        if rollout.status in _NO_RESULT:
            reason = rollout.metrics.get("error", "no reason given")
            raise SessionError(f"session ended as `{rollout.status}`: {reason}", code=ErrorCode.WORKER_FAILED)

    async def _generate(self, rollout: "_Rollout", sampling_params: dict[str, Any]) -> Message:
        """Let the model speak, and return what it said as a message."""
        output = await self.server_manager.generate(
            request_id=rollout.request_id, prompt_ids=rollout.ids, sampling_params=sampling_params
        )
        rollout.num_turns += 1
        rollout.extra = {**output.extra_fields, **rollout.extra}
        has_logprobs = output.log_probs is not None and (
            rollout.num_turns == 1 or rollout.logprobs is not None
        )
        merged, rollout.mask, rollout.logprobs = await self.ct_merge_assistant_token(
            rollout.ids,
            output.token_ids,
            rollout.mask,
            (rollout.logprobs or []) if has_logprobs else None,
            assistant_logprobs=output.log_probs if has_logprobs else None,
        )
        rollout.ids = merged.token_ids
        content, calls = await self._parser.extract_tool_calls(output.token_ids)
        reply = _reply(content or "", calls, prefix=f"call_{rollout.num_turns}_")
        rollout.messages.append(_plain(reply))
        return reply

    async def _extend(self, rollout: "_Rollout", answer: Reply) -> bool:
        """Append what the environment said; False where the response would get too long."""
        longest = self.rollout_config.response_length
        updated = [*rollout.messages, *(_plain(message) for message in answer.messages)]
        merged, mask, logprobs = await self.ct_merge_context_msg(
            *(rollout.messages, updated, rollout.ids, rollout.mask, rollout.logprobs), tools=rollout.tools
        )
        if len(mask) >= longest:
            return False
        rollout.messages, rollout.ids = updated, merged.token_ids
        rollout.mask, rollout.logprobs = mask, logprobs
        return True

    def _output(self, rollout: "_Rollout") -> Any:
        loop = _verl("experimental.agent_loop.agent_loop")
        if rollout.failure is not None:
            rollout.mask, rollout.earned = [0] * len(rollout.mask), 0.0
        if not rollout.mask:  # verl has no place for a response without tokens; this one is masked.
            rollout.ids = [*(rollout.ids or [self.tokenizer.eos_token_id]), self.tokenizer.eos_token_id]
            rollout.mask, rollout.logprobs = [0], None
        longest, start = self.rollout_config.response_length, len(rollout.ids) - len(rollout.mask)
        session = {"status": rollout.status.value, "failure": rollout.failure}
        return loop.AgentLoopOutput(
            prompt_ids=rollout.ids[:start],
            response_ids=rollout.ids[start:][:longest],
            response_mask=rollout.mask[:longest],
            response_logprobs=None if rollout.logprobs is None else rollout.logprobs[:longest],
            reward_score=rollout.earned,
            num_turns=2 * rollout.num_turns + 1,
            metrics=loop.AgentLoopMetrics(),
            extra_fields={**rollout.extra, "turn_scores": [], "tool_rewards": [], "session": session},
        )


class _Rollout:
    """A session's tokens: the ids of prompt and response, and what is known of the response's."""

    def __init__(self, *, request_id: str) -> None:
        self.request_id = request_id
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] | None = None
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = None
        self.extra: dict[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}
        self.status = SampleStatus.RUNNING
        self.earned = 0.0
        self.num_turns = 0
        self.failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status is not SampleStatus.RUNNING

    def take(self, reply: Reply) -> None:
        """Count what the environment answered."""
        self.earned += reply.reward
        self.metrics = reply.metrics
        if reply.tools is not None:
            self.tools = [tool.model_dump(mode="json") for tool in reply.tools] or None
        if reply.finish:
            self.status = reply.status


def _sample(extra_info: Any) -> tuple[str, SampleIndex]:
    if not isinstance(extra_info, Mapping) or "task" not in extra_info or "index" not in extra_info:
        rule = "must name `task` and `index`; make the data set with `rows`"
        raise ConfigError(f"a row's `extra_info` {rule}, got {extra_info!r}")
    index = extra_info["index"]
    return str(extra_info["task"]), index if isinstance(index, str) else int(index)


def _reply(content: str, calls: Sequence[Any], *, prefix: str) -> Message:
    made = [
        ToolCall(
            id=call.tool_call_id or f"{prefix}{place}",
            type="function",
            function=FunctionCall(name=call.name, arguments=call.arguments),
        )
        for place, call in enumerate(calls)
    ]
    if not made:
        return Message(role="assistant", content=content)
    return Message(role="assistant", content=content, tool_calls=made)


def _plain(message: Message) -> dict[str, Any]:
    return {"content": "", **message.to_wire()}


def _verl(module: str) -> Any:
    try:
        return importlib.import_module(f"verl.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"verl is not installed here ({error}); run this in verl's own environment"
        ) from error


def __getattr__(name: str) -> Any:
    """`SessionAgentLoop`, made once verl is asked for; importing this module must not need verl."""
    if name != "SessionAgentLoop":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    loop = _verl("experimental.agent_loop.agent_loop")
    members = {"__module__": __name__, "__doc__": Playing.__doc__}
    # Not registered by verl's decorator, which would displace the entry that has the address.
    made = type(name, (Playing, loop.AgentLoopBase), members)
    globals()[name] = made
    return made
