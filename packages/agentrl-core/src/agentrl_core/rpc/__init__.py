"""The stream between controller and task workers that open a connection instead of taking one.

    worker --heartbeats, answers, cancel notices--> controller
    worker <----------------requests--------------- controller

`worker_stream.proto` is the wire; `nox -s proto` makes the Python of it, which needs the extra `grpc`.
This module needs nothing.
"""

MAX_MESSAGE_BYTES = 100 * 1024 * 1024
"""Largest message that either end takes; published workers take no larger one."""

ADDRESS_SCHEME = "grpc://"
"""A worker's address is this and the id in its heartbeats."""
