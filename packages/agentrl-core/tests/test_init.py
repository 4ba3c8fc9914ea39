"""The package offers what it says, and nothing heavy with it."""

import subprocess
import sys
from types import ModuleType

import agentrl_core


def test_all_lists_exactly_the_public_names():
    public = {
        name
        for name, value in vars(agentrl_core).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert set(agentrl_core.__all__) == public


def test_package_imports_no_http_library_and_no_tensors():
    heavy = ["aiohttp", "fastapi", "grpc", "numpy", "torch", "ray"]
    code = f"import sys, agentrl_core; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
