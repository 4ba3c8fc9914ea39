"""Stands in for SGLang's compiled kernels, which load on a machine with CUDA only."""

from missing import stand_in

__version__ = "0.4.10"
__getattr__ = stand_in(__name__)
