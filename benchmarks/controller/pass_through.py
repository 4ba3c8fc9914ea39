"""CPU of a pass-through exchange: ours beside Go net/http, Go fasthttp and nginx, in interleaved rounds.

    uv run python benchmarks/controller/pass_through.py [--connections 64 1000] [--rounds 5] [--seconds 4]
                                                        [--workers grpc] [--json FILE]

Bodies of 2 KB both ways, one worker that answers at once. Everything runs on this machine; a round measures
each subject once, one after the other, so that what else the machine does hits all alike. The figure is the
CPU time of the subject's processes (user and system) by the requests that it answered.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from pathlib import Path

from processes import (
    COMMAND,
    NGINX,
    build,
    cpu_s,
    free_port,
    load,
    post,
    raise_descriptor_limit,
    running,
    streaming,
)

SUBJECTS = ["ours", "net_http", "fasthttp", "nginx"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=SUBJECTS)
    parser.add_argument("--workers", choices=["http", "grpc"], default="http")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raise_descriptor_limit()
    folder = build("net_http", "fasthttp", "worker", "load")
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker_port, grpc_port, stream_port = free_port(), free_port(), free_port()
        worker = str(folder / "worker")
        stack.enter_context(running(worker, f"-port={worker_port}", port=worker_port))
        over_grpc = options.workers == "grpc"
        names = ["ours", "net_http"] if over_grpc else options.subjects
        subjects = {}
        for name in names:
            port = free_port()
            command = _command(name, port, worker_port, folder, scratch)
            if over_grpc and name == "ours":
                command = [part for part in command if part != "--no-grpc"]
                command += ["--grpc-port", str(stream_port)]
            elif over_grpc:
                command.append(f"-grpc=127.0.0.1:{grpc_port}")
            subjects[name] = (stack.enter_context(running(*command, port=port)).pid, port)
        if over_grpc:
            stack.enter_context(running(worker, f"-port={grpc_port}", "-grpc", port=grpc_port))
            script = str(Path(__file__).with_name("stream_worker.py"))
            stack.enter_context(streaming(sys.executable, script, str(stream_port)))
        results = {
            count: _measure(options, subjects, worker_port, folder, count) for count in options.connections
        }
    for count, rows in results.items():
        _show(count, rows)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def _command(name: str, port: int, worker_port: int, folder: Path, scratch: Path) -> list[str]:
    if name == "ours":
        store = f"sqlite:{scratch / 'store.sqlite'}"
        return [COMMAND, "serve", "--port", str(port), "--no-grpc", "--store", store]
    if name == "nginx":
        config = scratch / "nginx.conf"
        config.write_text(NGINX.format(folder=scratch, port=port, worker=worker_port))
        return ["nginx", "-c", str(config)]
    return [str(folder / name), f"-port={port}"]


def _measure(
    options: argparse.Namespace, subjects: dict, worker_port: int, folder: Path, connections: int
) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(options.rounds):
        for name, (pid, port) in subjects.items():
            if name != "nginx":
                address = f"http://127.0.0.1:{worker_port}/api"
                beat = {"name": "bench", "address": address, "concurrency": 10**6, "indices": [0]}
                if options.workers == "http" or name != "ours":
                    post(port, "receive_heartbeat", beat | {"native": True})
            before = cpu_s(pid)
            direct = name == "nginx"
            report = load(folder, port, connections=connections, seconds=options.seconds, direct=direct)
            if report["errors"]:
                print(f"{name}: {report['errors']}")
            rows[name].append((cpu_s(pid) - before) / int(report["requests"]) * 1e6)
    return rows


def _show(connections: int, rows: dict[str, list[float]]) -> None:
    print(f"\n{connections} connections: CPU microseconds a request, median [least, most], ratios of medians")
    medians = {name: statistics.median(values) for name, values in rows.items()}
    for name, values in rows.items():
        ratios = [
            f"{medians[name] / medians[rival]:5.2f} x {rival}"
            for rival in ("net_http", "nginx")
            if rival in medians and rival != name
        ]
        spread = f"[{min(values):.0f}, {max(values):.0f}]"
        print(f"  {name:10} {medians[name]:6.1f} {spread:12} {'  '.join(ratios)}")


if __name__ == "__main__":
    main()
