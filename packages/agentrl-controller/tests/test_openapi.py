"""Whatever the described API is sent, it answers as described."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from agentrl_controller import Controller, ControllerConfig
from agentrl_controller.api import create_app

controller = Controller(
    ControllerConfig(start_timeout_s=0.1, interact_timeout_s=0.1, answer_timeout_s=0.1, max_queue=2)
)
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", create_app(controller), headers={"host": "localhost"}
)


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_answers_as_described(case):
    response = case.call(headers={"host": "localhost"})
    case.validate_response(response, excluded_checks=[not_a_server_error, positive_data_acceptance])
    # What fails says so as a typed refusal; a fault of the controller's own is a fault here, too.
    if response.status_code >= 500:
        assert response.json()["code"] in ("no_capacity", "worker_lost", "worker_failed", "deadline_exceeded")
