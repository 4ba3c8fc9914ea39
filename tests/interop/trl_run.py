"""Three GRPO steps of TRL on a served task; prints what was rolled out and learned as JSON.

python trl_run.py URL MODEL_FOLDER OUTPUT_FOLDER
"""

import json
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from agentrl_env_sdk.adapters.trl import SessionRollouts, session_reward

url, folder, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
before = torch.cat([each.detach().flatten().clone() for each in model.parameters()])
rollouts = SessionRollouts(url)
batches = []


def recorded(prompts, trainer):
    made = rollouts(prompts, trainer)
    batches.append(
        {
            "samples": [json.loads(prompt[-1]["content"])["index"] for prompt in prompts],
            "texts": [
                [tokenizer.decode(ids) for ids in made[key]] for key in ("prompt_ids", "completion_ids")
            ],
            "sampled": [
                tokenizer.decode([each for each, is_own in zip(ids, mask, strict=True) if is_own])
                for ids, mask in zip(made["completion_ids"], made["env_mask"], strict=True)
            ],
            "lengths": [
                [len(a), len(b)] for a, b in zip(made["completion_ids"], made["env_mask"], strict=True)
            ],
            **{key: made[key] for key in ("session_reward", "session_status", "session_turns")},
        }
    )
    return made


trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=session_reward,
    train_dataset=Dataset.from_list(rollouts.rows("guess", split="train", limit=8)),
    rollout_func=recorded,
    args=GRPOConfig(
        output_dir=output,
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=256,
        learning_rate=1e-3,
        temperature=1.0,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=0,
    ),
)
trainer.train()
after = torch.cat([each.detach().flatten() for each in model.parameters()])
rollouts.close()
losses = [entry for entry in trainer.state.log_history if "reward" in entry]
print("RESULT " + json.dumps({"batches": batches, "moved": float((after - before).norm()), "log": losses}))
