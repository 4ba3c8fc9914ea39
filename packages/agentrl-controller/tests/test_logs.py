import io
import json
import logging

import pytest

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.logs import JsonFormatter
from agentrl_core import SessionError


@pytest.fixture
def lines():
    """What the controller logs, as it would stand on standard error."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("agentrl_controller")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_a_line_says_which_session_and_worker_it_is_about(lines, agent, make_worker):
    worker = await make_worker()
    session_id, _ = await agent.start()
    worker.fail["interact"] = (500, "broken\nhard")
    with pytest.raises(SessionError):
        await agent.interact(session_id)
    (line,) = [line for line in lines() if line.get("session") == session_id]
    assert (line["level"], line["task"], line["worker"]) == ("info", "task", worker.address)
    assert "broken\nhard" in line["message"]


async def test_no_line_holds_a_secret(lines, agent_of, fake_worker, until):
    config = ControllerConfig(token="s3cret", worker_token="w0rker", idle_timeout_s=0.01)
    async with Controller(config) as controller:
        fake_worker.beat(controller)
        await agent_of(controller).start()
        await until(lambda: not controller.sessions.live or fake_worker.count("cancel_with_notice"))
    text = json.dumps(lines())
    assert "idle" in text
    assert not any(secret in text for secret in ("s3cret", "w0rker"))
