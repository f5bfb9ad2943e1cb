"""Modernized Dual Averaging for PyTorch."""

from dualavg import schedules, theory
from dualavg._dual_averaging import DualAveraging
from dualavg._mda import MDA

__version__ = "0.1.0.dev0"
__all__ = ["MDA", "DualAveraging", "schedules", "theory"]
