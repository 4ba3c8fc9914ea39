"""`agentrl.worker`: the package itself."""

__all__ = ["__version__"]

__version__ = "0.4.0"
"""The release of the published package whose surface this is."""
