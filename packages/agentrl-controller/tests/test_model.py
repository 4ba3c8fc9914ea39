"""The controller against a model of it: whatever agents, workers and death do, its books are right."""

import asyncio
import itertools
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from agentrl_controller import Controller, ControllerConfig, cancellations
from agentrl_controller.store import SqliteStore
from agentrl_core import ErrorCode, Heartbeat, SessionError, StartRequest, WorkerStatus

_PICK = st.integers(0, 10**6)
_SELDOM = st.sampled_from([False, False, False, True])


class Player:
    """A worker in memory: it plays sessions of three turns, and dies when told to."""

    def __init__(self, number, capacity, native):
        self.address = f"http://127.0.0.1:{number + 1}/api"
        self.capacity, self.native = capacity, native
        self.turns = {}
        self.known = {}
        self.is_up = True
        self.life = 0
        self.held = asyncio.Event()
        self.held.set()

    def beat(self):
        return Heartbeat(
            name="t",
            address=self.address,
            concurrency=self.capacity,
            indices=[0],
            native=self.native,
            instance=f"{self.address} {self.life}",
        )


class Wire:
    """A transport to players."""

    def __init__(self, players):
        self.players = players

    async def send(self, call):
        from agentrl_controller.transports import WorkerError, WorkerReply

        player = next(each for each in self.players if each.address == call.address)
        if not player.is_up:
            raise WorkerError("it is down", unreachable=True)
        life = player.life
        reply = await self._answer(player, call)
        await asyncio.sleep(0)
        if player.life != life:
            raise WorkerError("it died")
        return WorkerReply(*reply)

    async def _answer(self, player, call):
        body = json.loads(call.body or b"{}")
        session_id = call.session_id or body.get("session_id")
        if call.route == "get_sessions":
            return 200, json.dumps({str(each): 0 for each in player.turns}).encode()
        if player.native and (call.route, call.request_id) in player.known:
            return player.known[call.route, call.request_id]
        await player.held.wait()
        if call.route == "start_sample":
            if len(player.turns) >= player.capacity:
                return 406, b'{"detail": "full"}'
            player.turns[session_id] = 0
            reply = self._said(player, {"messages": [], "turn": 0})
        elif session_id not in player.turns:
            return 400, b'{"detail": "unknown session"}'
        elif call.route == "cancel_with_notice":
            del player.turns[session_id]
            self.controller.cancel_notice(session_id)
            return 200, b"null"
        else:
            player.turns[session_id] += 1
            turn = player.turns[session_id]
            if turn == 3:
                del player.turns[session_id]
            reply = self._said(player, {"messages": [], "turn": turn, "finish": turn == 3})
        player.known[call.route, call.request_id] = reply
        return reply

    def _said(self, player, content):
        return 200, json.dumps(content if player.native else {"env_out": content}).encode()

    def expire(self):
        pass

    def try_send(self, call):
        return None

    async def close(self):
        pass


class Agent:
    """What an agent knows of one session: the answers it has seen and the request it has under way."""

    def __init__(self, session_id):
        self.id = session_id
        self.turn = 0
        self.request = None
        self.asking = None
        self.last = None
        self.is_over = False


def _check_ended(error):
    """The only way in which an agent that does everything right may fail."""
    assert error.code in (ErrorCode.WORKER_LOST, ErrorCode.CANCELLED), error


class World(RuleBasedStateMachine):
    """Agents, workers and a controller that is killed and started again on its store."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.players = [Player(0, 2, True), Player(1, 1, False)]
        self.wire = Wire(self.players)
        self.agents = []
        self.starting = []
        self.numbers = itertools.count()
        self.run(self._boot())

    def run(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 20))

    async def _boot(self):
        config = ControllerConfig(start_timeout_s=60.0, reclaim_s=0.0, audit_s=3600.0, probe_s=3600.0)
        self.controller = Controller(config, store=SqliteStore(Path(self.folder.name) / "store.sqlite"))
        self.controller._transports.update(http=self.wire)
        self.wire.controller = self.controller
        await self.controller.__aenter__()
        for player in self.players:
            if player.is_up:
                self.controller.heartbeat(player.beat())

    async def _settle(self):
        for _ in range(60):
            await asyncio.sleep(0)

    @rule()
    def start(self):
        async def work():
            request = StartRequest(name="t", index=0)
            number = next(self.numbers)
            self.starting.append(
                asyncio.ensure_future(
                    self.controller.start(request, request_id=f"s{number}", client=str(number % 2))
                )
            )
            await self._settle()

        if self.controller.registry.tasks:
            self.run(work())

    @rule(pick=_PICK)
    def leave(self, pick):
        if self.starting:
            self.starting.pop(pick % len(self.starting)).cancel()
            self.run(self._settle())

    @rule(pick=_PICK, again=st.booleans())
    def interact(self, pick, again):
        agents = [agent for agent in self.agents if not agent.is_over]
        if agents:
            self.run(self._interact(agents[pick % len(agents)], again))

    async def _interact(self, agent, again):
        if agent.request is None or not again:
            if agent.request is not None:
                return  # An agent waits for its answer before it says more.
            agent.request = f"{agent.id}-{agent.turn}"
        try:
            answer, _ = self.controller.begin_interact(
                agent.id, b'{"messages": []}', request_id=agent.request, deadline_s=60.0
            )
        except SessionError as error:
            _check_ended(error)
            agent.is_over = True
            return
        agent.asking = answer
        await self._settle()
        self._collect()

    @rule(pick=_PICK)
    def repeat(self, pick):
        """An answer that was given can be had again until there is a newer request."""
        agents = [agent for agent in self.agents if agent.last is not None and agent.request is None]
        if not agents:
            return
        agent = agents[pick % len(agents)]
        request_id, body = agent.last

        async def work():
            try:
                answer, _ = self.controller.begin_interact(
                    agent.id, b'{"messages": []}', request_id=request_id, deadline_s=60.0
                )
                await self._settle()
                assert not answer.done() or answer.exception() is not None or answer.result() == body
            except SessionError as error:
                _check_ended(error)

        session = self.controller.sessions.live.get(agent.id) or self.controller.sessions.recall(agent.id)
        if session is not None and session.worker.native:
            self.run(work())

    @rule(pick=_PICK)
    def cancel(self, pick):
        if self.agents:
            agent = self.agents[pick % len(self.agents)]

            async def work():
                try:
                    async with asyncio.timeout(0.05):
                        await self.controller.cancel(agent.id)
                except (SessionError, TimeoutError):
                    pass
                await self._settle()

            self.run(work())
            agent.is_over = True

    @rule(number=st.integers(0, 1), seldom=_SELDOM)
    def crash(self, number, seldom):
        if not seldom:
            return
        player = self.players[number]
        player.is_up, player.life = False, player.life + 1
        player.turns, player.known = {}, {}

        async def work():
            worker = self.controller.registry.at("t", player.address)
            if worker is not None:
                self.controller._pool.lose_worker(worker, WorkerStatus.DEAD, "the model says so")
            await self._settle()

        self.run(work())

    @rule(number=st.integers(0, 1))
    def return_(self, number):
        player = self.players[number]
        player.is_up = True

        async def work():
            self.controller.heartbeat(player.beat())
            await self._settle()

        self.run(work())

    @rule(number=st.integers(0, 1), holds=st.booleans())
    def hold(self, number, holds):
        event = self.players[number].held

        async def work():
            event.clear() if holds else event.set()
            await self._settle()

        self.run(work())

    @rule(seldom=_SELDOM)
    def kill(self, seldom):
        """What runs is cut off, nobody is told, and only what was written is left."""
        if not seldom:
            return

        async def work():
            old = self.controller
            await old._store.flush()
            old._store._has_ended = True
            for session in list(old.sessions.live.values()):
                if session.job is not None:
                    session.job.cancel()
            for task in [*old._background._tasks, *self.starting]:
                task.cancel()
            self.starting.clear()
            await self._settle()
            await old._store.close()
            for agent in self.agents:
                agent.asking = None
            await self._boot()
            await self._settle()

        self.run(work())

    def _collect(self):
        for agent in self.agents:
            asking = agent.asking
            if asking is None or not asking.done():
                continue
            agent.asking = None
            if asking.cancelled():
                continue
            error = asking.exception()
            if error is not None:
                codes = (
                    ErrorCode.WORKER_LOST,
                    ErrorCode.CANCELLED,
                    ErrorCode.NO_CAPACITY,
                    ErrorCode.WORKER_FAILED,
                )
                assert error.code in codes, error
                agent.is_over = error.code is not ErrorCode.NO_CAPACITY
                continue
            answer = json.loads(asking.result())
            # Exactly once and in order: each answer is that of the turn that was asked for.
            assert answer["turn"] == agent.turn + 1
            agent.last = (agent.request, asking.result())
            agent.turn, agent.request = answer["turn"], None
            agent.is_over = answer["finish"]

    @invariant()
    def starts_become_sessions(self):
        for starting in [each for each in self.starting if each.done()]:
            self.starting.remove(starting)
            if starting.cancelled() or starting.exception() is not None:
                continue
            session_id, _ = starting.result()
            assert session_id not in {agent.id for agent in self.agents}
            self.agents.append(Agent(session_id))
        self._collect()

    @invariant()
    def slots_are_those_of_live_sessions(self):
        sessions = self.controller.sessions
        for worker in self.controller.registry.workers():
            mine = {each.id for each in sessions.live.values() if each.worker is worker}
            assert worker.sessions == mine
            assert worker.is_alive or not mine
        assert sessions.by_task.total() == sessions.by_client.total() == len(sessions.live)
        running = [each for each in sessions.live.values() if each.state == "busy"]
        assert self.controller.num_in_flight >= len(running)

    def left(self):
        live = [
            (each.id, str(each.state), each.worker.address) for each in self.controller.sessions.live.values()
        ]
        return live + [(session_id, player.address) for player in self.players for session_id in player.turns]

    def teardown(self):
        async def work():
            for player in self.players:
                player.held.set()
                player.is_up = True
                self.controller.heartbeat(player.beat())
            await self._settle()
            for starting in self.starting:
                starting.cancel()
            for session_id in list(self.controller.sessions.live):
                try:
                    async with asyncio.timeout(1):
                        await self.controller.cancel(session_id)
                except TimeoutError:
                    pass
            await self._settle()
            await self.controller.sync_all()
            await self._settle()
            # Whatever happened, in the end no slot is taken on either side.
            for _ in range(200):
                if not self.left() and not self.controller.num_in_flight:
                    break
                await asyncio.sleep(0.005)
                await self.controller.sync_all()
            assert self.left() == []
            assert self.controller.num_in_flight == 0
            await self.controller.__aexit__()

        try:
            self.run(work())
        finally:
            self.loop.close()
            self.folder.cleanup()


def test_whatever_happens_the_books_are_right(monkeypatch):
    monkeypatch.setattr(cancellations, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(cancellations, "_AGAIN_S", 0.01)
    run_state_machine_as_test(
        World,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
