import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from agentrl_workers.services import Service, ServiceError, command

SERVES = "import sys, time; print('Serving it on http://127.0.0.1:1/api', flush=True); time.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


async def test_a_service_tells_its_address_and_ends_when_told(tmp_path: Path) -> None:
    service = Service("it", python(SERVES), tmp_path / "it.log")
    assert await service.start() == "http://127.0.0.1:1/api"
    await service.stop()
    assert "Serving it" in (tmp_path / "it.log").read_text()


async def test_a_service_that_ends_before_it_serves_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    service = Service("it", python("import sys; sys.exit('no such disk')"), tmp_path / "it.log")
    with pytest.raises(ServiceError, match="it ended with exit code 1 before it served: no such disk"):
        await service.start()
    await service.stop()


async def test_a_service_that_dies_later_is_noticed(tmp_path: Path) -> None:
    code = "import sys; print('Serving on http://127.0.0.1:1/api', flush=True); input(); sys.exit(3)"
    service = Service("it", python(code.replace("input()", "pass")), tmp_path / "it.log")
    await service.start()
    with pytest.raises(ServiceError, match="it ended by itself with exit code 3"):
        await service.watch()
    await service.stop()


async def test_stopping_reaches_the_children_of_a_service(tmp_path: Path) -> None:
    code = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, "Serving on http://127.0.0.1:1/", flush=True)
        time.sleep({60})
    """
    service = Service("it", python(code), tmp_path / "it.log")
    await service.start()
    child = psutil.Process(int((tmp_path / "it.log").read_text().split()[0]))
    await service.stop()
    await asyncio.to_thread(psutil.wait_procs, [child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_service_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
        import asyncio, sys
        from pathlib import Path
        from agentrl_workers.services import Service

        async def main():
            words = [sys.executable, "-c", {SERVES!r}]
            service = Service("it", words, Path({str(tmp_path / "it.log")!r}))
            await service.start()
            print(service._process.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    parent = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    child.wait(timeout=5)
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE


def test_a_missing_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ServiceError, match=r"pip install agentrl-workers\[quickstart\]"):
        command("agentrl-no-such-command")
