import agentrl_eval
import agentrl_eval.models
import agentrl_eval.report


def test_every_public_name_exists():
    for module in (agentrl_eval, agentrl_eval.models, agentrl_eval.report):
        assert module.__doc__
        for name in module.__all__:
            assert getattr(module, name).__doc__
