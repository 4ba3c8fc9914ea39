import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_controller.addresses import AllowList
from agentrl_core import ConfigError, ErrorCode, SessionError


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("http://127.0.0.1:1/api", "10.0.0.9"),
        ("http://[::1]:1/api", "10.0.0.9"),
        ("http://localhost:1/api", "10.0.0.9"),
        ("https://10.0.0.9/api", "10.0.0.9"),
        ("http://10.0.0.9:1/api", "::ffff:10.0.0.9"),
        ("http://192.168.7.7:1/api", "10.0.0.9"),
        ("http://gpu-3.lab:1/api", "10.0.0.9"),
        ("grpc://anything", "10.0.0.9"),
        ("http://8.8.8.8/api", None),
    ],
)
def test_a_worker_registers_its_own_host_loopback_and_what_is_listed(address, peer):
    AllowList(["192.168.0.0/16", "*.lab"]).check(address, peer=peer)


@pytest.mark.parametrize(
    "address",
    ["http://10.0.0.8/api", "http://169.254.169.254/api", "http://metadata.internal/api", "http://lab/api"],
)
def test_it_registers_nobody_else(address):
    with pytest.raises(SessionError, match="start the controller with --allow-worker") as caught:
        AllowList(["192.168.0.0/16", "*.lab"]).check(address, peer="10.0.0.9")
    assert caught.value.code is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "x",
            "ftp://h/api",
            "http://",
            "http:///api",
            "grpc://",
            "http://h:0/api",
            "http://h:99999/api",
        ),
        *("http://u:p@h/api", "http://h/api?x=1", "http://h/api#x", "http://h /api", "http://h\r\nx: y/api"),
        *("http://[::1/api", "http://h/" + "a" * 500, "http://\xe9/api"),
    ],
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(SessionError, match="`address` must be http://HOST:PORT/PATH") as caught:
        AllowList().check(address)
    assert caught.value.code is ErrorCode.BAD_REQUEST


@given(st.text(max_size=40))
def test_no_text_does_more_than_be_refused(text):
    for address in (text, f"http://{text}", f"http://h/{text}"):
        try:
            AllowList().check(address, peer="10.0.0.1")
        except SessionError:
            continue
        assert address.isascii()
        assert not set(address) & set(" \r\n\t\0")


def test_a_network_that_is_none_is_named():
    with pytest.raises(
        ConfigError, match=r"`allow_workers` holds networks and host names, got '10\.0\.0\.0/99'"
    ):
        AllowList(["10.0.0.0/99"])
