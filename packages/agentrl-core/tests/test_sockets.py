import socket

import pytest

from agentrl_core import ConfigError
from agentrl_core.sockets import listen, url_of


def test_port_0_takes_a_free_port_that_accepts_connections():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, path="/api") == f"http://127.0.0.1:{port}/api"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_a_port_in_use_is_an_error_with_a_way_out():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: the port is in use; choose another port"):
            listen("127.0.0.1", port)


def test_an_unknown_host_is_an_error():
    with pytest.raises(ConfigError, match=r"cannot listen on no-such-host\.invalid:0"):
        listen("no-such-host.invalid", 0)


def test_an_ipv6_address_stands_in_brackets():
    with listen("::1", 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
