"""The worker over HTTP: its routes, their description, figures for Prometheus, and a page to play on."""

from importlib.metadata import version

from fastapi import FastAPI, Response

from agentrl_env_sdk.worker.description import describe
from agentrl_env_sdk.worker.front import MAX_BODY_BYTES, Front
from agentrl_env_sdk.worker.metrics import MEDIA_TYPE, Statistics
from agentrl_env_sdk.worker.pages import add_pages
from agentrl_env_sdk.worker.routes import Cancelled, Routes
from agentrl_env_sdk.worker.runner import Runner


def create_app(
    runner: Runner,
    *,
    token: str | None = None,
    cancelled: Cancelled | None = None,
    statistics: Statistics | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The API of a worker.

    Args:
        runner: plays the episodes.
        token: bearer token that every request must carry, but those for pages.
        cancelled: told of each session that `cancel_with_notice` has ended.
        statistics: what `/metrics` tells; figures of this app alone where it is absent.
        max_body_bytes: largest body.
    """
    if statistics is None:
        statistics = Statistics()
        statistics.watch(runner)
    return app_of(
        runner,
        Routes(runner, statistics=statistics, cancelled=cancelled),
        statistics,
        token=token,
        max_body_bytes=max_body_bytes,
    )


def app_of(
    runner: Runner,
    routes: Routes,
    statistics: Statistics,
    *,
    token: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The API of a worker whose routes another transport may share."""

    async def healthz() -> dict[str, str]:
        """Whether the worker lives."""
        return {"status": "ok"}

    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(statistics.render(), media_type=MEDIA_TYPE)

    app = FastAPI(
        title=f"AgentRL task worker: {runner.task.task_name}",
        version=version("agentrl-env-sdk"),
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere.
        redoc_url=None,
    )
    describe(app, routes)
    app.add_api_route("/healthz", healthz, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"], response_class=Response)
    add_pages(app)
    app.middleware_stack = Front(
        app.build_middleware_stack(), routes, token=token, max_body_bytes=max_body_bytes
    )
    return app
