"""Stands in for a package that SGLang's multimodal modules import and text never needs."""

from missing import stand_in

__version__ = "0.29.1"
"""transformers asks for it."""

__getattr__ = stand_in(__name__)
