import pytest

from agentrl_controller import ControllerConfig
from agentrl_controller.config import Scope, TokenConfig
from agentrl_controller.guard import ForbiddenError, Guard, client_of
from agentrl_core import ErrorCode, SessionError

LOCAL = {b"host": b"127.0.0.1:5020"}


def bearer(token):
    return LOCAL | {b"authorization": b"Bearer " + token}


def test_a_token_allows_what_its_scopes_say():
    tokens = (
        TokenConfig(name="lab", token="c", scopes=frozenset({Scope.CLIENT})),
        TokenConfig(name="farm", token="w", scopes=frozenset({Scope.WORKER})),
    )
    guard = Guard(ControllerConfig(token="all", tokens=tokens))
    allowed = {
        (token, scope)
        for token in (b"all", b"c", b"w")
        for scope in Scope
        if _may(guard, bearer(token), scope)
    }
    everything = {(b"all", scope) for scope in Scope}
    assert allowed == everything | {(b"c", Scope.CLIENT), (b"w", Scope.WORKER)}
    assert guard.check(bearer(b"c"), Scope.CLIENT) == "lab"
    with pytest.raises(ForbiddenError, match="the token of `farm` lacks the scope `admin`"):
        guard.check(bearer(b"w"), Scope.ADMIN)


def _may(guard, headers, scope):
    try:
        guard.check(headers, scope)
    except SessionError:
        return False
    return True


@pytest.mark.parametrize(
    "headers",
    [
        LOCAL,
        bearer(b"wrong"),
        bearer(b""),
        bearer(b"secret "),
        LOCAL | {b"authorization": b"Basic secret"},
        LOCAL | {b"authorization": b"secret"},
        LOCAL | {b"authorization": b"Bearer \xff"},
    ],
)
def test_without_the_token_nothing_is_allowed(headers):
    guard = Guard(ControllerConfig(token="secret"))
    with pytest.raises(SessionError, match="the bearer token is missing or wrong") as caught:
        guard.check(headers, Scope.CLIENT)
    assert caught.value.code is ErrorCode.UNAUTHORIZED
    assert guard.check(LOCAL | {b"authorization": b"bearer secret"}, Scope.ADMIN) == ""


@pytest.mark.parametrize(
    "host", [b"127.0.0.1", b"127.0.0.1:80", b"[::1]:5020", b"localhost:1", b"LOCALHOST", b"10.1.2.3:9", b""]
)
def test_addresses_and_loopback_are_hosts_of_the_controller(host):
    Guard(ControllerConfig()).check({b"host": host}, Scope.ADMIN)


@pytest.mark.parametrize("host", [b"evil.example", b"127.0.0.1.evil.example:80", b"localhost.evil", b"x:1:2"])
def test_a_page_that_gives_its_name_this_machines_address_is_kept_out(host):
    with pytest.raises(
        ForbiddenError, match="is none of the controller's; add it to `hosts`, or set a token"
    ):
        Guard(ControllerConfig()).check({b"host": host}, Scope.CLIENT)
    Guard(ControllerConfig(hosts=("*",))).check({b"host": host}, Scope.CLIENT)
    # A page has no token, so with one the name does not matter.
    Guard(ControllerConfig(token="t")).check({b"host": host, b"authorization": b"Bearer t"}, Scope.CLIENT)


def test_hosts_may_be_named():
    guard = Guard(ControllerConfig(hosts=("ctl.lab",)))
    guard.check({b"host": b"CTL.lab:5020"}, Scope.CLIENT)
    with pytest.raises(ForbiddenError):
        guard.check({b"host": b"other.lab"}, Scope.CLIENT)


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"http://127.0.0.1:9999", b""])
def test_pages_of_another_origin_are_kept_out_even_with_the_token(origin):
    guard = Guard(ControllerConfig(token="t"))
    with pytest.raises(ForbiddenError, match="add it to `origins` to let it in"):
        guard.check(bearer(b"t") | {b"origin": origin}, Scope.CLIENT)


def test_pages_of_its_own_and_of_named_origins_are_let_in():
    guard = Guard(ControllerConfig(origins=("https://lab.example/",)))
    guard.check(LOCAL | {b"origin": b"http://127.0.0.1:5020"}, Scope.CLIENT)
    guard.check(LOCAL | {b"origin": b"https://lab.example"}, Scope.CLIENT)


def test_the_owner_of_a_token_cannot_be_somebody_else_in_line():
    headers = {b"x-client-id": b"other"}
    assert client_of(headers, owner="lab", peer="1.2.3.4") == "lab"
    assert client_of(headers, owner="", peer="1.2.3.4") == "other"
    assert client_of({}, owner="", peer="1.2.3.4") == "1.2.3.4"
