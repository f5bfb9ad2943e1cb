"""Real data for tests that can use them: in `DUALAVG_DATA`, or beside the project."""

import os
from pathlib import Path

import pytest

REAL = Path(os.environ.get("DUALAVG_DATA", Path(__file__).parents[3] / "shared" / "data"))


def needs(name):
    """Skip a test if the real data have no folder `name`."""
    return pytest.mark.skipif(not (REAL / name).is_dir(), reason=f"no {name} in {REAL}")
