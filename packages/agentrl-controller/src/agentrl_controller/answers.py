"""A worker's answer, in the shape that agents are promised."""

from typing import Any

from agentrl_controller.transports import WorkerError
from agentrl_controller.wire import encode


def answer_body(reply: Any) -> tuple[bytes, bool]:
    """The body for the agent, and whether it ends the session.

    Workers say `metric` where the controller says `metrics`; everything else goes through as it came.

    Raises:
        WorkerError: the reply is no answer.
    """
    answer = reply.get("env_out", reply) if isinstance(reply, dict) else reply
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
