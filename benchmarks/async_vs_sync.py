"""Trained trajectories a minute, asynchronous against synchronous, behind a slow environment.

    uv run python benchmarks/async_vs_sync.py [--steps 12] [--rounds 2] [--max-lag 4]

Both modes run on the same services and machine, in turn, `--rounds` times; the first two steps of each run
(engines warming up, the pipeline filling) are left out. Each environment answer is late by a log-normal
latency with a median of 100 ms.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from agentrl_core.client import SessionClient
from agentrl_workers.cluster import connect_ray, disconnect_ray
from agentrl_workers.config import TrainConfig
from agentrl_workers.launch import run_trainer
from agentrl_workers.metrics import read_metrics
from agentrl_workers.progress import Progress
from agentrl_workers.quickstart import Options
from agentrl_workers.quickstart.first_model import shipped_model
from agentrl_workers.quickstart.options import resolve
from agentrl_workers.services import LocalEnvironments

_WARM_UP_STEPS = 2
_TASKS = Path(__file__).with_name("latency_tasks.py")


async def main() -> None:
    arguments = _parse()
    rates: dict[str, list[float]] = {"async": [], "sync": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        targets = [f"{_TASKS}:SlowGuess", f"{_TASKS}:SlowTrail"]
        async with LocalEnvironments(targets, root / "logs") as environments:
            await connect_ray("local", num_cpus=4)
            async with SessionClient(environments.url) as client:
                for turn in range(arguments.rounds):
                    for mode, max_lag in (("async", arguments.max_lag), ("sync", 0)):
                        run_dir = root / f"{mode}-{turn}"
                        config = _config(run_dir, environments.url, steps=arguments.steps, max_lag=max_lag)
                        with Progress() as progress:
                            await run_trainer(config, run_dir, progress, client=client, resume=False)
                        rates[mode].append(_rate(run_dir))
            await disconnect_ray()
    for mode, values in rates.items():
        print(f"{mode}: {', '.join(f'{value:.0f}' for value in values)} trained trajectories/min")
    ratio = statistics.mean(rates["async"]) / statistics.mean(rates["sync"])
    print(f"asynchronous (max_lag {arguments.max_lag}) / synchronous: {ratio:.2f}")


def _config(run_dir: Path, controller: str, *, steps: int, max_lag: int) -> TrainConfig:
    run_dir.mkdir(parents=True)
    options = Options(run_dir=run_dir, steps=steps, overrides=(f"max_lag={max_lag}",))
    return resolve(options, controller=controller, model=shipped_model())


def _rate(run_dir: Path) -> float:
    records = read_metrics(run_dir)
    first, last = records[_WARM_UP_STEPS - 1], records[-1]
    trained = last["ledger/trained"] - first["ledger/trained"]
    return 60.0 * trained / (last["wall_s"] - first["wall_s"])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each mode")
    parser.add_argument("--max-lag", type=int, default=4, help="staleness bound of the asynchronous runs")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
