import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import EnvironmentFailedError, Environments, Limits, LocalLeases, Subtype, reap
from agentrl_env_sdk.drivers import sandbox as sandboxes
from agentrl_env_sdk.drivers.process import ProcessDriver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's process groups and namespaces")


@pytest.fixture(params=["bwrap", "unshare", ""])
def tool(request, monkeypatch):
    if request.param and sandboxes._namespaces() != "bwrap":
        pytest.skip("this kernel makes no namespaces")
    monkeypatch.setattr(sandboxes, "_namespaces", lambda: request.param)
    return request.param


@pytest.fixture
async def environments(tmp_path):
    leases = LocalLeases(tmp_path / "leases.sqlite")
    async with Environments(ProcessDriver(tmp_path / "boxes"), [Subtype("box")], leases=leases) as found:
        yield found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


def matching(text: str) -> list[int]:
    """Living processes whose command line holds a text."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and is_alive(pid)]


async def test_a_command_has_two_outputs_a_code_and_input(environments, tool):
    async with environments.lease("box") as box:
        done = await box.run("cat; echo oops >&2; exit 3", stdin=b"given")
        assert (done.code, done.stdout, done.stderr, done.timed_out) == (3, b"given", b"oops\n", False)
        assert (await box.run("kill -SEGV $$")).code == 128 + signal.SIGSEGV
        assert (await box.run("echo $HOME $AGENTRL_SECRET")).stdout.split() == [box._sandbox.home.encode()]


async def test_a_command_may_hold_what_no_command_line_can(environments):
    async with environments.lease("box") as box:
        shell = await box.shell()
        for run in (box.run, shell.run):
            assert (await run("echo 'a\ud83d\0b'")).stdout == b"a?b\n"


async def test_what_holds_is_told_and_holds(environments, tool):
    async with environments.lease("box") as box:
        links = (await box.run("tail -n +3 /proc/net/dev | wc -l")).stdout.strip()
        seen = (await box.run("ls -d /proc/[0-9]* | wc -l")).stdout.strip()
        files = (await box.run(f"cat {__file__}")).code
        assert ("network" in box.isolation) == (links == b"1")
        assert ("processes" in box.isolation) == (int(seen) < 10)
        assert ("files" in box.isolation) == (files != 0)
        expected = {
            "bwrap": {"network", "processes", "files"},
            "unshare": {"network", "processes"},
            "": set(),
        }
        assert box.isolation == expected[tool]


async def test_a_command_that_takes_too_long_ends_with_its_children(environments, tool):
    async with environments.lease("box") as box:
        done = await box.run("sleep 7301 & sh -c 'sleep 7302' & echo begun; wait", timeout_s=0.5)
        assert (done.code, done.timed_out, done.stdout) == (124, True, b"begun\n")
        await until(lambda: not (matching("sleep\x007301") or matching("sleep\x007302")))


async def test_what_a_command_leaves_running_ends_with_it(environments, tool):
    async with environments.lease("box") as box:
        # A daemon that has begun says so; it is in a session of its own, and its parent has ended.
        await box.run("setsid sh -c 'echo up > up; sleep 7303' >/dev/null 2>&1 & until [ -s up ]; do :; done")
        assert await box.get("up") == b"up\n"
        await until(lambda: not matching("sleep\x007303"))  # A namespace ends in the kernel's own time.


async def test_daemons_of_a_dead_owner_are_ended_where_there_are_no_namespaces(tmp_path, monkeypatch):
    monkeypatch.setattr(sandboxes, "_namespaces", lambda: "")
    box = await ProcessDriver(tmp_path).create(Subtype("box"), "agentrl-box-left")
    shell = await box.shell()
    await shell.run("setsid sleep 7308 >/dev/null 2>&1 &")
    await until(lambda: matching("sleep\x007308"))
    await ProcessDriver(tmp_path).destroy("agentrl-box-left")  # As the next owner's driver does.
    assert matching("sleep\x007308") == []
    assert list(tmp_path.iterdir()) == []
    await shell.close()


async def test_output_is_kept_up_to_a_limit_and_counted_beyond(environments):
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with environments.lease("box") as box:
        done = await box.run("head -c 100000000 /dev/zero; head -c 100 /dev/zero >&2", output_bytes=1000)
        assert (len(done.stdout), len(done.stderr), done.dropped_bytes) == (1000, 100, 100_000_000 - 1000)
        assert (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 40_000
        )  # It was not buffered.


async def test_limits_hold(tmp_path):
    tight = Subtype("tight", limits=Limits(cpu_s=1, memory_bytes=200 << 20, file_bytes=1 << 20))
    leases = LocalLeases(tmp_path / "leases.sqlite")
    async with (
        Environments(ProcessDriver(tmp_path / "boxes"), [tight], leases=leases) as environments,
        environments.lease("tight") as box,
    ):
        assert (await box.run("head -c 3000000 /dev/zero > big")).code != 0
        assert len(await box.get("big")) == 1 << 20
        assert (await box.run("while :; do :; done")).code in (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
        assert (
            await box.run("head -c 300000000 /dev/zero | tail -n 1 | wc -c")
        ).stdout.strip() != b"300000000"


async def test_a_shell_keeps_its_place_and_tells_both_outputs(environments, tool):
    async with environments.lease("box") as box:
        shell = await box.shell()
        assert (await shell.run("mkdir d; cd d; X='a b'; echo out; echo err >&2; false")) == done(
            1, b"out\n", b"err\n"
        )
        assert (await shell.run('pwd; printf "%s" "$X"; cat')).stdout.endswith(b"/d\na b")
        assert (await shell.run("if then")).code != 0
        assert (await shell.run("printf '\\n\\n'")).stdout == b"\n\n"
        assert (await shell.run("printf '\\377\\000x'")).stdout == b"\xff\x00x"
        await shell.close()


def done(code, stdout, stderr):
    from agentrl_env_sdk.drivers import Completed

    return Completed(code, stdout, stderr)


async def test_a_shell_that_hangs_or_leaves_is_followed_by_another(environments):
    async with environments.lease("box") as box:
        shell = await box.shell()
        assert (await shell.run("echo first; sleep 7304", timeout_s=0.5)) == done_late(b"first\n")
        await until(lambda: not matching("sleep\x007304"))
        assert (await shell.run("echo more; exit 7")) == done(7, b"more\n", b"")
        assert (await shell.run("echo again")).stdout == b"again\n"
        cut = asyncio.create_task(shell.run("sleep 7305"))
        await until(lambda: matching("sleep\x007305"))
        cut.cancel()
        await asyncio.wait([cut])
        await until(lambda: not matching("sleep\x007305"))
        assert (await shell.run("echo still")).stdout == b"still\n"


def done_late(stdout):
    from agentrl_env_sdk.drivers import Completed

    return Completed(124, stdout, b"", timed_out=True)


async def test_files_go_in_and_out_but_not_elsewhere(environments):
    async with environments.lease("box") as box:
        await box.put("a/b/c.bin", bytes(range(256)))
        assert (
            await box.get("a/b/c.bin") == await box.get(f"{box._sandbox.home}/a/b/c.bin") == bytes(range(256))
        )
        assert (await box.run("wc -c < a/b/c.bin")).stdout.strip() == b"256"
        await box.run("ln -s /etc/passwd link; ln -s / root; mkfifo pipe")
        for path in ("link", "root/etc/passwd", "../x", "/etc/passwd", "a/../../x", "", "missing"):
            with pytest.raises(EnvironmentFailedError):
                await box.get(path)
        for path in ("link", "root/tmp/x", "../x", "/etc/x", "pipe/x"):
            with pytest.raises(EnvironmentFailedError):
                await box.put(path, b"")
        assert await box.get("pipe") == b""


async def test_an_ended_environment_leaves_nothing_and_says_so(environments, tmp_path):
    async with environments.lease("box") as box:
        shell = await box.shell()
        await shell.run("sleep 7306 & mkdir -p locked/in; chmod 0 locked")
    with pytest.raises(EnvironmentFailedError, match="has ended"):
        await box.run("true")
    await until(lambda: not matching("sleep\x007306"))
    assert list((tmp_path / "boxes").iterdir()) == []


async def test_what_a_killed_owner_left_is_ended_by_the_next(tmp_path):
    script = textwrap.dedent(
        f"""
        import asyncio
        from pathlib import Path
        from agentrl_env_sdk.drivers import Environments, LocalLeases, Subtype
        from agentrl_env_sdk.drivers.process import ProcessDriver

        async def main():
            leases = LocalLeases(Path({str(tmp_path / "leases.sqlite")!r}))
            driver = ProcessDriver(Path({str(tmp_path / "boxes")!r}))
            environments = Environments(driver, [Subtype("box")], leases=leases)
            async with environments, environments.lease("box") as box:
                shell = await box.shell()
                await shell.run("sleep 7307 &")
                print("ready", flush=True)
                await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    driver, leases = ProcessDriver(tmp_path / "boxes"), LocalLeases(tmp_path / "leases.sqlite")
    assert await reap(driver, leases) == []  # Its owner lives.
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await until(lambda: not matching("sleep\x007307"))
    (left,) = (tmp_path / "boxes").iterdir()
    assert await reap(driver, leases) == [left.name]
    assert list((tmp_path / "boxes").iterdir()) == []
    assert await leases.all() == []


async def test_an_unknown_kind_is_named(environments):
    with pytest.raises(ConfigError, match=r"no environment `bax`; known are \['box'\]"):
        async with environments.lease("bax"):
            pass
