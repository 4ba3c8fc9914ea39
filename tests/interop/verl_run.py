"""verl's own agent loop machinery plays sessions of a served task; prints the outputs as JSON.

python verl_run.py URL MODEL_FOLDER CONFIG_FILE INDEX ...

The model is a player that halves what is left; it writes its tokens one character at a time, as no tokenizer
would, so that whatever tokenises a reply again is found out.
"""

import asyncio
import json
import re
import sys
from pathlib import Path

import hydra
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop as verl_loop
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from agentrl_env_sdk.adapters.verl import AGENT_NAME, rows

url, folder, path, *indices = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
Path(path).write_text(
    f"- name: {AGENT_NAME}\n  _target_: agentrl_env_sdk.adapters.verl.SessionAgentLoop\n  url: {url}\n"
)
trainer_config = OmegaConf.create(
    {
        "actor_rollout_ref": {
            "rollout": {"prompt_length": 256, "response_length": 512, "multi_turn": {"format": "hermes"}}
        },
        "data": {},
    }
)


class Player:
    """What verl calls its server manager."""

    def __init__(self):
        self.calls = []

    async def generate(self, *, request_id, prompt_ids, sampling_params, **_):
        text = tokenizer.decode(prompt_ids)
        low, high = map(int, re.search(r"from (\d+) to (\d+)", text).groups())
        guesses = re.findall(r'"number": (\d+)}}\s*</tool_call>.*?(higher|lower)', text, re.DOTALL)
        for number, told in guesses:
            low, high = (int(number) + 1, high) if told == "higher" else (low, int(number) - 1)
        call = json.dumps({"name": "guess", "arguments": {"number": (low + high) // 2}})
        said = f"<tool_call>\n{call}\n</tool_call>"
        ids = [i for part in re.split(r"(</?tool_call>|\n)", said) for i in _one_by_one(part)]
        ids.append(tokenizer.eos_token_id)
        log_probs = [-0.01 * (place + 1) for place in range(len(ids))]
        self.calls.append(
            {
                "request_id": request_id,
                "prompt_ids": list(prompt_ids),
                "ids": ids,
                "log_probs": log_probs,
                "sampling_params": sampling_params,
            }
        )
        return TokenOutput(token_ids=ids, log_probs=log_probs, stop_reason="completed")


def _one_by_one(part):
    if part.startswith(("<tool", "</tool")):
        return tokenizer(part, add_special_tokens=False)["input_ids"]
    return [i for character in part for i in tokenizer(character, add_special_tokens=False)["input_ids"]]


async def play(row):
    """As `AgentLoopWorker._run_agent_loop` makes and runs a loop."""
    player = Player()
    loop = hydra.utils.instantiate(
        config=verl_loop._agent_loop_registry[row["agent_name"]],
        trainer_config=verl_loop.DictConfigWrap(config=trainer_config),
        server_manager=player,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="qwen3",
        dataset_cls=RLHFDataset,
        data_config=verl_loop.DictConfigWrap(trainer_config.data),
        tools=verl_loop.ToolListWrap([]),
    )
    assert isinstance(loop, verl_loop.AgentLoopBase)
    output = await loop.run({"temperature": 1.0}, raw_prompt=row["prompt"], extra_info=row["extra_info"])
    assert isinstance(output, verl_loop.AgentLoopOutput)
    tensors = output.as_dict()
    return {
        "output": output.model_dump(mode="json"),
        "reward_per_token": tensors["rm_scores"].tolist(),
        "calls": player.calls,
        "sampled": [
            tokenizer.decode([i for i, m in zip(output.response_ids, output.response_mask, strict=True) if m])
        ],
        "text": tokenizer.decode(output.response_ids),
    }


async def main():
    for config in OmegaConf.load(path):
        verl_loop._agent_loop_registry[config.name] = config
    results = await asyncio.gather(*(play(row) for row in rows("guess", [int(index) for index in indices])))
    print("RESULT " + json.dumps(results))


asyncio.run(main())
