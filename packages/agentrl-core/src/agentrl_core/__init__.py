"""Protocol types that AgentRL's packages share, and the client that speaks them.

    agent --StartRequest, InteractRequest--> controller --> task worker
    agent <-----------------Reply----------- controller <-- (Heartbeat)
    rollout: replies -> `Trajectory` (`Turn`s of sampled tokens, rewards, `Outcome`) -> trainer

`agentrl_core.client` holds `SessionClient` and needs the extra `client`.
"""

from agentrl_core.errors import AgentRLError, ConfigError, ErrorCode, SessionError
from agentrl_core.messages import FunctionCall, Message, ToolCall
from agentrl_core.outcomes import Outcome, outcome_of
from agentrl_core.rewards import RewardItem
from agentrl_core.sessions import (
    CLIENT_HEADER,
    CUSTOM_INDEX,
    DEADLINE_HEADER,
    FINISH_HEADER,
    ON_DEADLINE_HEADER,
    REQUEST_ID_HEADER,
    SESSION_HEADER,
    SESSION_HEADER_ALIAS,
    Heartbeat,
    InteractRequest,
    Reply,
    SampleIndex,
    SampleStatus,
    StartRequest,
    TaskInfo,
    WorkerInfo,
    WorkerStatus,
)
from agentrl_core.tools import Tool, ToolFunction
from agentrl_core.trajectories import PolicyVersion, Segment, Trajectory, Turn

__all__ = [
    "CLIENT_HEADER",
    "CUSTOM_INDEX",
    "DEADLINE_HEADER",
    "FINISH_HEADER",
    "ON_DEADLINE_HEADER",
    "REQUEST_ID_HEADER",
    "SESSION_HEADER",
    "SESSION_HEADER_ALIAS",
    "AgentRLError",
    "ConfigError",
    "ErrorCode",
    "FunctionCall",
    "Heartbeat",
    "InteractRequest",
    "Message",
    "Outcome",
    "PolicyVersion",
    "Reply",
    "RewardItem",
    "SampleIndex",
    "SampleStatus",
    "Segment",
    "SessionError",
    "StartRequest",
    "TaskInfo",
    "Tool",
    "ToolCall",
    "ToolFunction",
    "Trajectory",
    "Turn",
    "WorkerInfo",
    "WorkerStatus",
    "outcome_of",
]
