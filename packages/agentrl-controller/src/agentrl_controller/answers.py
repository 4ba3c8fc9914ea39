"""A worker's answer, in the shape that agents are promised."""

import msgspec

from agentrl_controller.registry import Worker
from agentrl_controller.transports import WorkerError, WorkerReply
from agentrl_controller.wire import decode, encode


class _Finish(msgspec.Struct):
    finish: bool = False


_FINISH = msgspec.json.Decoder(_Finish)


def answer_of(reply: WorkerReply, worker: Worker) -> tuple[bytes, bool]:
    """The body for the agent, and whether it ends the session.

    A native worker's answer goes through as it is. Published ones say `metric` where the controller says
    `metrics`; whatever else they say goes through, too.

    Raises:
        WorkerError: the reply is no answer.
    """
    if not worker.native:
        return _translated(reply)
    if reply.finish is not None:
        return reply.body, reply.finish
    try:
        return reply.body, _FINISH.decode(reply.body).finish
    except msgspec.MsgspecError as error:
        raise WorkerError(f"the answer is none: {error}", http_status=500) from error


def _translated(reply: WorkerReply) -> tuple[bytes, bool]:
    try:
        content = decode(reply.body)
    except ValueError as error:
        raise WorkerError(f"the answer is no JSON: {error}", http_status=500) from error
    answer = content.get("env_out", content) if isinstance(content, dict) else content
    if not isinstance(answer, dict):
        raise WorkerError(f"the answer is no object but {type(answer).__name__}", http_status=500)
    body = {
        **answer,
        "messages": answer.get("messages") or [],
        "tools": answer.get("tools"),
        "status": answer.get("status") or "running",
        "finish": bool(answer.get("finish")),
        "reward": answer.get("reward") or 0.0,
        "metrics": answer.get("metrics") or answer.get("metric") or {},
    }
    body.pop("metric", None)
    try:
        return encode(body), body["finish"]
    except ValueError as error:
        raise WorkerError(f"the answer is no JSON: {error}", http_status=500) from error
