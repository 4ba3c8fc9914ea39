"""A task as authors write them for the published SDK: questions over a MySQL that a container brings."""

import asyncio
import json
import logging
import weakref
from typing import Any

import aiomysql
from agentrl.worker.environment import EnvironmentController, EnvironmentDelegation, create_controller
from agentrl.worker.task import Session, Task
from agentrl.worker.typings import (
    AgentCancelledException,
    RewardHistoryItem,
    SampleIndex,
    SampleStatus,
    TaskOutput,
    TaskSampleExecutionResult,
)

MYSQL = "mysql"
ROWS = [("Ada", 120), ("Ben", 35), ("Cyd", 80)]
SAMPLES: list[dict[str, Any]] = [
    {"question": "Whose balance is the highest?", "answer": "Ada"},
    {
        "question": "Book 45 to Ben's balance.",
        "check": "SELECT balance FROM ledger WHERE name = 'Ben'",
        "answer": "80",
    },
]


def function(name: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


class LedgerDelegation(EnvironmentDelegation):
    def __init__(self, password: str) -> None:
        super().__init__("ledger")
        self.password = password

    def get_subtypes(self) -> list[str]:
        return [MYSQL]

    async def create_docker_container(self, attrs: dict, subtype: str) -> dict:
        assert subtype == MYSQL
        attrs["Image"] = "docker.io/library/mysql:8"
        attrs["Env"]["MYSQL_ROOT_PASSWORD"] = self.password
        attrs["ExposedPorts"] = {"3306/tcp": {}}
        attrs["HostConfig"]["Tmpfs"] = {"/var/lib/mysql": "rw"}
        attrs["Cmd"] = ["--innodb_buffer_pool_size=32G", "--skip-name-resolve"]
        return attrs

    def get_concurrency_limit(self, subtype: str) -> int:
        return 64

    def get_reuse_limit(self, subtype: str) -> int:
        return 1024


class Database:
    """A database of a session's own on a server that sessions share."""

    def __init__(self, controller: EnvironmentController) -> None:
        assert isinstance(controller.delegation, LedgerDelegation)
        self.controller = controller
        self.password = controller.delegation.password

    async def __aenter__(self) -> "Database":
        self.session_id, _, hosts = await self.controller.start_session(MYSQL)
        self.connection = await aiomysql.connect(
            host=hosts[MYSQL], user="root", password=self.password, autocommit=True
        )
        self.name = f"ledger_{self.session_id.replace('-', '_')}"
        await self.execute(f"CREATE DATABASE {self.name}")
        await self.execute(f"USE {self.name}")
        await self.execute("CREATE TABLE ledger (name TEXT, balance INT)")
        for row in ROWS:
            await self.execute("INSERT INTO ledger VALUES (%s, %s)", row)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.execute(f"DROP DATABASE {self.name}")
        self.connection.close()
        await self.controller.end_session(self.session_id)

    async def execute(self, sql: str, data: tuple = ()) -> str:
        async with self.connection.cursor() as cursor:
            try:
                await cursor.execute(sql, data)
                return str(list(await cursor.fetchall()))
            except aiomysql.Error as error:
                return str(error)


class Ledger(Task):
    def __init__(
        self,
        password: str,
        max_round: int = 5,
        env_driver: str = "docker",
        env_options: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.full_async = True
        self.logger = logging.getLogger(__name__)
        self.max_round = max_round
        self.env_controller = create_controller(env_driver, LedgerDelegation(password), **env_options)
        self.env_controller_background_task: asyncio.Task | None = None

    def get_indices(self) -> list[SampleIndex]:
        return [-1, *range(len(SAMPLES))]

    async def start_sample(self, index: int, session: Session) -> TaskSampleExecutionResult:
        return await self._play(SAMPLES[index], session)

    async def start_sample_custom(self, task: dict, session: Session) -> TaskSampleExecutionResult:
        return await self._play(task, session)

    async def _play(self, sample: dict, session: Session) -> TaskSampleExecutionResult:
        self.env_controller.loop = asyncio.get_running_loop()
        if not self.env_controller_background_task:
            self.env_controller_background_task = asyncio.create_task(self.env_controller.background_task())
            weakref.finalize(self, self.env_controller_background_task.cancel)
        try:
            async with Database(self.env_controller) as database:
                session.set_tools([function("run_sql", "sql"), function("answer", "value")])
                session.inject({"role": "system", "content": "Answer by SQL."})
                session.inject({"role": "user", "content": sample["question"]})
                for _ in range(self.max_round):
                    output = await session.action()
                    for call in [call for m in output.messages for call in m.get("tool_calls") or []]:
                        if await self._answer(call, database, sample, session):
                            return TaskSampleExecutionResult(result={"answer": sample["answer"]})
                session.inject(RewardHistoryItem(reward=0, score=0))
                return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)
        except AgentCancelledException:
            return TaskSampleExecutionResult(status=SampleStatus.CANCELLED)

    async def _answer(self, call: dict, database: Database, sample: dict, session: Session) -> bool:
        """Answer a call; returns whether it was the last one."""
        (argument,) = json.loads(call["function"]["arguments"]).values()
        if call["function"]["name"] == "run_sql":
            result = await database.execute(argument)
            session.inject({"role": "tool", "tool_call_id": call["id"], "content": result})
            return False
        given = await database.execute(sample["check"]) if "check" in sample else argument
        is_right = sample["answer"] in given
        session.inject(RewardHistoryItem(reward=int(is_right), score=int(is_right)))
        return True

    def calculate_overall(self, results: list[TaskOutput]) -> dict[str, Any]:
        completed = [result for result in results if result.status == SampleStatus.COMPLETED]
        return {"total": len(results), "completed": len(completed)}
