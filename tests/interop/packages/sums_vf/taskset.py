"""Sums of two numbers, asked again while the answer is wrong; the reward has two parts."""

from collections.abc import Iterable

import verifiers.v1 as vf

ATTEMPTS = 3


class SumData(vf.TaskData):
    a: int
    b: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def correct(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(task.a + task.b))

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 10)

    @vf.metric
    async def replies(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class SumsTaskset(vf.Taskset[SumTask]):
    def load(self) -> Iterable[SumTask]:
        for n in range(5):
            data = SumData(system_prompt="Answer with a number.", a=n, b=10)
            yield SumTask(data, self.config.task)


class SumsConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class SumsEnv(vf.Env[SumsConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        said = f"{task.data.a} + {task.data.b} = ?"
        print("what an environment prints must not disturb the protocol")
        async with agents.agent.interaction(task) as interaction:
            for _ in range(ATTEMPTS):
                segment = await interaction.turn(said)
                if segment.terminated or segment.last_reply == str(task.data.a + task.data.b):
                    break
                said = f"{segment.last_reply} is wrong"
