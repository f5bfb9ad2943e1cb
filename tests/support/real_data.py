"""Where the real data lie, if they do: in `DUALAVG_DATA`, or beside the project."""

import os
from pathlib import Path

BESIDE = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ.get("DUALAVG_DATA", BESIDE))
