"""Thousands of sessions at once: ours beside Go net/http and no controller, in interleaved rounds.

    uv run python benchmarks/controller/sessions.py [--sessions 10000] [--seconds 30] [--rounds 2]
                                                    [--json FILE]

Each connection plays sessions of five exchanges, each of which takes the environment one to five seconds. The
number of sessions is cut to what the descriptor limit allows: two for each session on the subject's side.
Added latency is an exchange's time less what the same load sees without a controller, at the same quantile.
Memory is what the subject's resident set grew by, for each session.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

from processes import COMMAND, build, cpu_s, free_port, load, raise_descriptor_limit, rss_bytes, running

LOW_S, HIGH_S, TURNS = 1.0, 5.0, 5
RESERVED = 250
BEAT_S = 1.5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--subjects", nargs="+", default=["direct", "ours", "net_http"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    most = (raise_descriptor_limit() - RESERVED) // 2
    sessions = min(options.sessions, most)
    print(f"{sessions} sessions at once (the descriptor limit allows {most})")
    folder = build("net_http", "worker", "load")
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in options.subjects}
    for _ in range(options.rounds):
        for name in options.subjects:
            rows[name].append(_round(name, sessions, options.seconds, folder))
            print(name, rows[name][-1], flush=True)
    _show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def _round(name: str, sessions: int, seconds: float, folder: Path) -> dict[str, object]:
    """One subject, fresh, under the load."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker_port, port = free_port(), free_port()
        flags = [f"-port={worker_port}", f"-turns={TURNS}", f"-low={LOW_S}", f"-high={HIGH_S}"]
        if name != "direct":
            flags.append(f"-controllers=http://127.0.0.1:{port}/api")
        stack.enter_context(running(str(folder / "worker"), *flags, port=worker_port))
        if name == "direct":
            return load(
                folder, worker_port, connections=sessions, seconds=seconds, spread=HIGH_S, direct=True
            )
        store = f"sqlite:{scratch / 'store.sqlite'}"
        command = [COMMAND, "serve", "--port", str(port), "--no-grpc", "--store", store]
        if name == "net_http":
            command = [str(folder / "net_http"), f"-port={port}"]
        pid = stack.enter_context(running(*command, port=port)).pid
        time.sleep(BEAT_S)  # For the worker's next heartbeat.
        rss, cpu = rss_bytes(pid), cpu_s(pid)
        report = load(folder, port, connections=sessions, seconds=seconds, spread=HIGH_S)
        report["kib_a_session"] = round((rss_bytes(pid) - rss) / sessions / 1024, 1)
        report["cpu_us_a_request"] = round((cpu_s(pid) - cpu) / int(str(report["requests"])) * 1e6, 1)
        return report


def _show(rows: dict[str, list[dict[str, object]]]) -> None:
    def median(name: str, key: str) -> float:
        return statistics.median(float(str(row[key])) for row in rows[name])

    base = "direct" if "direct" in rows else next(iter(rows))
    base_rate = statistics.median(float(str(r["requests"])) / float(str(r["wall_s"])) for r in rows[base])
    for name, reports in rows.items():
        rate = statistics.median(float(str(r["requests"])) / float(str(r["wall_s"])) for r in reports)
        errors = [row["errors"] for row in reports if row["errors"]]
        line = f"{name:9} {rate:7.0f} requests/s ({rate / base_rate:6.1%})  errors {errors or 'none'}"
        for key in ("interact_p50_s", "interact_p99_s", "start_p50_s", "start_p99_s"):
            line += f"  {key[:-2]} +{1000 * (median(name, key) - median(base, key)):.1f} ms"
        if name != "direct":
            line += f"  {median(name, 'kib_a_session'):.1f} KiB a session"
            line += f"  {median(name, 'cpu_us_a_request'):.0f} us CPU a request"
        print(line)


if __name__ == "__main__":
    main()
