"""What is missing is named, with the way to get it."""

import pytest

from agentrl_core import ConfigError
from agentrl_env_sdk.extras import extra


def test_a_missing_package_names_its_extra():
    rule = r"`no_such_client` is not installed.*agentrl-env-sdk\[docker\]"
    with pytest.raises(ConfigError, match=rule), extra("docker"):
        import no_such_client  # noqa: F401  # pyright: ignore[reportMissingImports]


def test_other_errors_stay_what_they_are():
    with pytest.raises(ImportError, match="cannot import name"), extra("docker"):
        from json import no_such_name  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
