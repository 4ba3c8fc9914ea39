import asyncio
import logging
import sys
import sysconfig
import threading
import time
import types

from agentrl_env_sdk.worker.lag import LoopLag, author_frame


def block(entered: threading.Event, seconds: float) -> None:
    entered.set()
    time.sleep(seconds)


async def watched(caplog, seconds):
    lag = LoopLag("slow", limit_s=0.05)
    with caplog.at_level(logging.WARNING, logger="agentrl_env_sdk"):
        lag.start()
        await asyncio.sleep(0)
        block(threading.Event(), seconds)
        await asyncio.sleep(0.06)
        lag.stop()
    return lag


async def test_what_blocks_the_loop_is_named_once(caplog):
    lag = await watched(caplog, 0.5)
    (warning,) = [text for text in caplog.messages if ", in block" in text]
    line = block.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}, in block" in warning
    assert warning.startswith("task `slow` has blocked the event loop")
    assert lag.worst_s > 0.3


async def test_a_loop_that_is_not_blocked_is_not_warned_of(caplog):
    lag = LoopLag("idle")
    lag.start()
    await asyncio.sleep(0.1)
    lag.stop()
    assert caplog.records == []


def test_the_frame_is_the_authors_own_and_not_a_librarys():
    entered = threading.Event()
    thread = threading.Thread(target=block, args=(entered, 0.2))
    thread.start()
    assert entered.wait(5)
    assert thread.ident is not None
    frame = author_frame(sys._current_frames()[thread.ident])
    assert frame is not None
    assert frame.f_code.co_name == "block"
    thread.join()


def test_what_serves_a_task_is_no_part_of_it():
    entered, waiting = threading.Event(), threading.Event()

    def serve():
        entered.set()
        waiting.wait()

    # As if that function stood in a file of the server's.
    code = serve.__code__.replace(co_filename=f"{sysconfig.get_path('purelib')}/uvicorn/importer.py")
    serve = types.FunctionType(code, globals(), closure=serve.__closure__)
    thread = threading.Thread(target=serve)
    thread.start()
    assert entered.wait(5)
    assert thread.ident is not None
    assert author_frame(sys._current_frames()[thread.ident]) is None
    waiting.set()
    thread.join()


def test_only_code_of_the_standard_library_is_nobodys():
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    assert thread.ident is not None
    assert author_frame(sys._current_frames()[thread.ident]) is None
    waiting.set()
    thread.join()
