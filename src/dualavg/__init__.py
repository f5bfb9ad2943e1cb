"""Modernized Dual Averaging for PyTorch."""

from dualavg import schedules, theory
from dualavg._dual_averaging import DualAveraging
from dualavg._mda import MDA

__all__ = ["MDA", "DualAveraging", "schedules", "theory"]
