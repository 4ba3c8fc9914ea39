"""Builds the rivals, starts processes on loopback, and reads what they cost."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
COMMAND = str(Path(sys.executable).parent / "agentrl-controller")
GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": ""}
"""Debian ships the Go libraries as sources; README.md names the packages."""

NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 16000; }}
http {{
  access_log off; underscores_in_headers on; keepalive_requests 1000000000; keepalive_timeout 1000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream worker {{ server 127.0.0.1:{worker}; keepalive 4096; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=8000;
    location / {{ proxy_pass http://worker; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def build(*names: str) -> Path:
    """Compile Go programs; returns the folder that holds them."""
    folder = Path(tempfile.gettempdir()) / "agentrl-controller-benchmark"
    folder.mkdir(exist_ok=True)
    if shutil.which("go") is None:
        raise SystemExit("the rivals are written in Go; README.md names the packages to install")
    for name in names:
        source = str(HERE / "rivals" / f"{name}.go")
        environment = {**os.environ, **GO, "GOCACHE": str(folder / "cache")}
        subprocess.run(["go", "build", "-o", str(folder / name), source], check=True, env=environment)
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(*command: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens on a port; it ends with the block."""
    process = subprocess.Popen(list(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def streaming(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process that prints a line once it is ready; it ends with the block."""
    process = subprocess.Popen(list(command), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.wait(10)


def wait_for(port: int, process: subprocess.Popen[bytes], within_s: float = 20.0) -> None:
    """Return once a port takes connections."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{process.args} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.05)
    raise SystemExit(f"{process.args} does not listen on {port}")


def post(port: int, route: str, body: object) -> None:
    """Post JSON to a controller."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/{route}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants."""
    total = 0
    for each in family(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def rss_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE")


def load(folder: Path, port: int, **options: object) -> dict[str, object]:
    """Run the load generator; returns what it reports."""
    flags = [f"-{name}={str(value).lower()}" for name, value in options.items()]
    limit_s = float(str(options.get("seconds", 5))) + 60.0
    command = [str(folder / "load"), f"-host=127.0.0.1:{port}", *flags]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=limit_s)
    return json.loads(done.stdout)


def raise_descriptor_limit() -> int:
    """As many descriptors as this machine gives; children inherit it."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
