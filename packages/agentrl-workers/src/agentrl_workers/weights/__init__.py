"""Versioned weights from the actor to the engines, each tensor proved by a checksum.

actor ranks --gather--> rank 0 (WeightSender) --buckets, seal--> WeightReceiver --swap--> Engine
seal = version and the checksum of every tensor
"""

from agentrl_workers.weights.buckets import TensorSpec, WeightSyncError
from agentrl_workers.weights.publisher import WeightPublisher
from agentrl_workers.weights.receiver import WeightReceiver
from agentrl_workers.weights.sender import WeightSender

__all__ = ["TensorSpec", "WeightPublisher", "WeightReceiver", "WeightSender", "WeightSyncError"]
