"""The controller's HTTP API: the published routes with their published shapes, and a little more."""

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import FastAPI

from agentrl_controller.api.admin import add_admin_routes
from agentrl_controller.api.dashboard import add_dashboard
from agentrl_controller.api.description import REFUSALS, describe_sessions
from agentrl_controller.api.errors import HANDLERS
from agentrl_controller.api.front import Front
from agentrl_controller.controller import Controller


def create_app(controller: Controller) -> FastAPI:
    """The API of a controller, which runs for as long as the app does."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with controller:
            yield

    app = FastAPI(
        title="AgentRL controller",
        version=version("agentrl-controller"),
        lifespan=lifespan,
        responses=REFUSALS,
    )
    describe_sessions(app)
    add_admin_routes(app, controller)
    add_dashboard(app, controller)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.state.front = Front(app.build_middleware_stack(), controller=controller, public=("/",))
    app.middleware_stack = app.state.front
    return app
