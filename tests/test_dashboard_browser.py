"""The dashboard in real Chromium, against a real controller and a real task worker."""

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.sessions import SessionState
from agentrl_env_sdk.tasks.guess import Guess

pytestmark = pytest.mark.timeout(180)


def start(served: Any, index: int = 0) -> str:
    """Start a session as an agent does; returns its id."""
    answer = httpx.post(f"{served.url}/api/start_sample", json={"name": "guess", "index": index}, timeout=20)
    answer.raise_for_status()
    return answer.headers["session_id"]


def guess(served: Any, session_id: str, number: int) -> Any:
    """Make a guess as an agent does."""
    function = {"name": "guess", "arguments": json.dumps({"number": number})}
    call = {"id": "call_1", "type": "function", "function": function}
    body = {"messages": [{"role": "assistant", "content": "let me see", "tool_calls": [call]}]}
    headers = {"session_id": session_id}
    answer = httpx.post(f"{served.url}/api/interact", json=body, headers=headers, timeout=20)
    answer.raise_for_status()
    return answer.json()


def cancel(served: Any, session_id: str) -> None:
    httpx.post(f"{served.url}/api/cancel", headers={"session_id": session_id}, timeout=20).raise_for_status()


# --- looking


def test_the_overview_shows_tasks_charts_and_that_it_is_live(live, watch):
    page = watch.open(live)
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("guess"))).to_contain_text("1 alive")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    assert page.locator(".chart").count() == 3
    expect(page.locator(".chart .line").first).to_be_attached()


def test_a_controller_without_workers_says_how_to_begin(serve, watch):
    with serve(ControllerConfig()) as served:
        page = watch.open(served)
        expect(page.get_by_text("No task worker yet")).to_be_visible()
        expect(page.locator(".command code").first).to_contain_text(f"--controller {served.url}/api")
        for view, text in {
            "workers": "No task worker yet",
            "sessions": "No live session",
            "play": "No task",
        }.items():
            page.goto(f"{served.url}/#/{view}")
            expect(page.locator("main .empty:visible").first).to_contain_text(text)
        page.goto(f"{served.url}/#/nowhere")
        expect(page.get_by_text("There is no such page")).to_be_visible()


def test_a_conversation_grows_on_screen_until_the_session_is_cancelled(live, watch):
    session_id = start(live, index=3)
    page = watch.open(live, f"#/sessions/{session_id}")
    expect(page.get_by_role("article", name="Environment")).to_contain_text("find the number from")
    guess(live, session_id, 1)
    agent = page.get_by_role("article", name="Agent")
    expect(agent).to_contain_text("let me see")
    expect(page.get_by_role("article", name="Tool, guess")).to_contain_text("out of range")
    call = agent.locator("details.call")
    expect(call.locator("summary")).to_contain_text("number 1")
    assert call.get_attribute("open") is None
    call.locator("summary").click()
    expect(call.get_by_text('"number": 1')).to_be_visible()

    page.get_by_role("button", name="Cancel session").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert int(session_id) in live.controller.sessions.live
    page.get_by_role("button", name="Cancel session").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel session").click()
    expect(page.locator(".heading .badge")).to_have_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel session")).to_be_hidden()


def test_rewards_are_shown_by_turn_and_summed_up(live, watch):
    session_id = start(live, index=5)
    secret = Guess.splits["train"][5]
    wrong = [number for number in range(secret // 10 * 10, secret // 10 * 10 + 10) if number != secret]
    rewards = [guess(live, session_id, number)["reward"] for number in (wrong[0], wrong[-1])]
    page = watch.open(live, f"#/sessions/{session_id}")
    shown = page.locator(".outcome .reward:not(.quiet)")
    expect(shown).to_have_count(sum(reward != 0 for reward in rewards))
    total = round(sum(rewards), 3)
    expect(page.locator(".rewards .value")).to_have_text(f"{total:g}")
    cancel(live, session_id)


def test_a_session_that_never_was_is_not_shown_as_one(live, watch):
    page = watch.open(live, "#/sessions/7", expected="400")
    expect(page.get_by_role("heading", name="This session is not known")).to_be_visible()


def test_what_is_said_is_shown_as_text_and_never_as_markup(crowd, watch):
    attack = '<img src="x" onerror="document.title=1"><script>document.title=2</script>'
    call = {"id": attack, "type": "function", "function": {"name": attack, "arguments": attack}}
    picture = {"type": "image_url", "image_url": {"url": "http://elsewhere.example/x.png"}}
    said = [
        {"role": "user", "content": attack, "odd": {attack: attack}},
        {"role": attack, "content": [{"type": "text", "text": attack}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call, None], "reasoning_content": attack},
        {"role": "tool", "content": {"no": "string"}, "tool_call_id": 5},
        None,
    ]

    def tell(controller: Controller) -> int:
        session_id = next(iter(controller.sessions.live))
        controller.transcripts.add(
            session_id, "start", json.dumps({"messages": said, "tools": [None, {}]}).encode()
        )
        controller.transcripts.add(session_id, "agent", b"<b>no JSON")
        return session_id

    page = watch.open(crowd, f"#/sessions/{crowd.do(tell)}")
    expect(page.locator(".conversation article")).to_have_count(6)
    expect(page.locator(".conversation").get_by_text(attack, exact=True).first).to_be_visible()
    assert page.locator(".conversation img, .conversation script").count() == 0
    assert page.title().startswith("Session")


def test_a_long_conversation_is_shown_from_its_end_and_further_back_when_asked(crowd, watch):
    def talk(controller: Controller) -> int:
        session_id = list(controller.sessions.live)[1]
        for n in range(700):
            body = {"messages": [{"role": "assistant", "content": f"message {n}"}]}
            controller.transcripts.add(session_id, "agent" if n else "start", json.dumps(body).encode())
        return session_id

    page = watch.open(crowd, f"#/sessions/{crowd.do(talk)}")
    articles = page.get_by_role("article")
    expect(articles).to_have_count(300)
    expect(page.get_by_text("message 699", exact=True)).to_be_in_viewport()
    for shown in (600, 700):
        page.get_by_role("button", name=re.compile("^Show earlier")).click()
        expect(articles).to_have_count(shown)
    expect(page.get_by_role("button", name=re.compile("^Show earlier"))).to_be_hidden()
    expect(page.get_by_text("message 0", exact=True)).to_be_attached()


# --- acting


def test_a_session_is_played_by_hand_to_its_end(live, watch):
    page = watch.open(live, "#/play")
    page.get_by_label("Task", exact=True).select_option("guess")
    page.get_by_label("Sample", exact=True).fill("12")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="You are the agent")).to_be_visible()
    opening = page.get_by_role("article", name="Environment").inner_text()
    low, high = map(int, re.findall(r"from (\d+) to (\d+)", opening)[0])

    page.get_by_role("tab", name="Message").click()
    page.get_by_role("textbox", name="Message").fill("hello")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("article", name="Agent")).to_contain_text("hello")
    page.get_by_role("tab", name="guess").click()
    number = page.get_by_label(re.compile("^number"))
    page.get_by_role("button", name="Send").click()
    expect(number).to_be_focused()  # It is required, so nothing was sent.
    for turn in range(1, 5):
        middle = (low + high) // 2
        number.fill(str(middle))
        number.press("Enter")
        said = page.get_by_role("article", name="Tool, guess")
        expect(said).to_have_count(turn)
        answer = said.last.inner_text()
        if "correct" in answer or page.get_by_text("The session is over.").is_visible():
            break
        low, high = (middle + 1, high) if "higher" in answer else (low, middle - 1)
    expect(page.get_by_text("The session is over.")).to_be_visible()
    expect(page.locator(".heading .badge")).to_have_text("Finished")
    expect(page.get_by_role("link", name="Play another")).to_be_visible()

    session_id = page.url.rpartition("/")[2]
    view = httpx.get(f"{live.url}/api/dashboard/sessions/{session_id}", timeout=20).json()
    expect(page.locator(".rewards .value")).to_have_text(f"{round(view['reward'], 3):g}")
    page.reload()
    expect(page.get_by_text("The session is over.")).to_be_visible()


def test_a_played_session_can_be_given_up(live, watch):
    page = watch.open(live, "#/play?task=guess")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Give up").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel session").click()
    expect(page.get_by_text("The session is over.")).to_be_visible()
    session_id = int(page.url.rpartition("/")[2])
    live.until(lambda controller: session_id not in controller.sessions.live)


def test_a_start_that_is_refused_says_why(live, watch):
    page = watch.open(live, "#/play?task=guess", expected="400")
    page.get_by_label("Sample", exact=True).fill("1000000")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".toast.bad")).to_contain_text("1000000")
    expect(page.get_by_role("button", name="Start")).to_be_enabled()


def test_a_worker_is_drained_resumed_and_cleaned(live, watch):
    session_id = start(live)
    page = watch.open(live, "#/workers")
    row = page.get_by_role("row", name=re.compile("guess"))
    row.get_by_role("button", name=re.compile("^Drain")).click()
    expect(row.locator(".badge")).to_have_text("Draining")
    (worker,) = live.controller.registry.tasks["guess"].workers.values()
    assert worker.stale
    row.get_by_role("button", name=re.compile("^Resume")).click()
    expect(row.locator(".badge")).to_have_text("Alive")
    assert not worker.stale
    row.get_by_role("button", name=re.compile("^Clean")).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(row.get_by_role("meter")).to_have_attribute("aria-valuenow", "0")
    assert int(session_id) not in live.controller.sessions.live


# --- ten thousand sessions


def test_ten_thousand_sessions_are_paged_and_filtered(crowd, watch):
    page = watch.open(crowd, "#/sessions")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(page.get_by_text("1–50 of 10,000")).to_be_visible()
    first = rows.first.get_by_role("link").inner_text()
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_text("51–100 of 10,000")).to_be_visible()
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Newer").click()
    expect(rows.first.get_by_role("link")).to_have_text(first)

    page.get_by_label("Task", exact=True).select_option("maze")
    expect(page.get_by_text("5,000 live sessions")).to_be_visible()
    page.get_by_label("State", exact=True).select_option("busy")
    expect(page.get_by_text("No live session matches")).to_be_visible()  # Every fourth is of the other task.
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("10,000 live sessions")).to_be_visible()
    page.get_by_label("Search sessions").fill(first)
    expect(rows).to_have_count(1)
    page.reload()  # Filters are part of the address.
    expect(rows).to_have_count(1)


def test_a_page_of_ten_thousand_sessions_is_told_its_changes_alone(crowd, watch):
    page = watch.open(crowd, "#/sessions")
    row = page.locator("tbody tr").first
    session_id = int(row.get_by_role("link").inner_text())
    was_busy = crowd.controller.sessions.live[session_id].state is SessionState.BUSY
    state = SessionState.IDLE if was_busy else SessionState.BUSY
    crowd.do(lambda controller: controller.sessions.live[session_id].move(state))
    expect(row.locator(".badge")).to_have_text(state.capitalize())
    asked = [request.url for request in watch.requests if "/api/" in request.url]
    assert len(asked) == 1
    assert "/api/dashboard/events?view=sessions" in asked[0]


def test_rows_stay_where_they_are_under_the_focus(crowd, watch):
    page = watch.open(crowd, "#/sessions?task=shop")
    rows = page.locator("tbody [data-row]")
    expect(rows).to_have_count(50)
    before = rows.all_inner_texts()
    page.keyboard.press("j")
    crowd.crowd(2)
    expect(page.locator(".pill", has_text="1 newer")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert rows.all_inner_texts() == before
    expect(rows.nth(2)).to_be_focused()
    page.keyboard.press("r")
    expect(rows.nth(1)).to_have_text(before[0])
    expect(page.locator("tbody [data-row]:focus")).to_have_text(before[2])


def test_rows_stay_where_they_are_under_the_pointer(crowd, watch):
    page = watch.open(crowd, "#/sessions?task=shop")
    first = page.locator("tbody tr").first
    before = first.get_by_role("link").inner_text()
    first.hover()
    crowd.crowd(2)
    newer = page.locator(".pill", has_text="1 newer")
    expect(newer).to_be_visible()
    expect(first.get_by_role("link")).to_have_text(before)
    page.mouse.move(0, 0)
    expect(newer).to_be_hidden()
    expect(first.get_by_role("link")).not_to_have_text(before)


# --- served by the command


def test_the_command_serves_it_and_open_streams_do_not_hold_up_its_end(command, watch):
    page = watch.open(command, "#/play", expected="ERR_")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="You are the agent")).to_be_visible()
    page.get_by_label(re.compile("^number")).fill("1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Tool, guess")).to_contain_text("out of range")
    page.goto(f"{command.url}/#/workers")
    expect(page.get_by_role("row", name=re.compile("guess"))).to_contain_text("1 / 64")
    expect(page.locator("#status")).to_have_text("Live")
    command.end()
    expect(page.locator("#status")).to_have_text("Disconnected")


# --- when things are not as they should be


def test_a_lost_connection_is_said_and_comes_back_by_itself(serve, watch):
    with serve(ControllerConfig()) as served:
        page = watch.open(served, expected="ERR_")
        expect(page.locator("#status")).to_have_text("Live")
        port = served.port
    expect(page.get_by_role("alert")).to_contain_text("No connection to the controller")
    expect(page.locator("#status")).to_have_text("Disconnected")
    with serve(ControllerConfig(), port=port):
        page.get_by_role("button", name="Try now").click()
        expect(page.locator("#status")).to_have_text("Live")
        expect(page.get_by_role("alert")).to_be_hidden()


def test_a_token_is_asked_for_and_sent_as_a_header(serve, watch):
    with serve(ControllerConfig(token="open sesame")) as served:
        page = watch.open(served, expected="401")
        field = page.get_by_role("textbox", name="Token")
        field.fill("wrong")
        field.press("Enter")
        expect(page.get_by_text("That token was refused.")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name="Locked")).to_be_visible()
        expect(page.locator("#status")).to_have_text("Locked")
        page.get_by_role("button", name="Enter the token").click()
        field.fill("open sesame")
        field.press("Enter")
        expect(page.get_by_text("No task worker yet")).to_be_visible()
        opened = [request for request in watch.requests if "/events" in request.url][-1]
        assert opened.headers["authorization"] == "Bearer open sesame"
        assert all("sesame" not in request.url for request in watch.requests)
        page.reload()
        expect(page.get_by_text("No task worker yet")).to_be_visible()
        assert page.evaluate("localStorage.length") == 0
        other = watch.open(served, expected="401")
        expect(other.get_by_role("textbox", name="Token")).to_be_visible()
