"""GRPO with TRL on a served task; run it where TRL is installed, with `agentrl-env-sdk` beside it.

agentrl-env serve agentrl_env_sdk.tasks.guess:Guess --port 5021
python trl_grpo.py http://127.0.0.1:5021/api guess Qwen/Qwen3-0.6B 200
"""

import sys

import torch  # pyright: ignore[reportMissingImports]
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from agentrl_env_sdk.adapters.trl import SessionRollouts, session_reward

url, task, model, steps = sys.argv[1:]
has_gpu = torch.cuda.is_available()

with SessionRollouts(url) as rollouts:
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=session_reward,
        rollout_func=rollouts,
        train_dataset=Dataset.from_list(rollouts.rows(task, split="train")),
        args=GRPOConfig(
            output_dir="trained",
            max_steps=int(steps),
            max_completion_length=512,
            num_generations=8,
            per_device_train_batch_size=8,
            use_cpu=not has_gpu,
            bf16=has_gpu,
        ),
    )
    trainer.train()
    trainer.save_model()
