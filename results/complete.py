"""Add to published files what the summaries of c2d7f1e did not keep, from the recipes they were run with.

    python results/complete.py

That is each optimizer's fixed settings, such as betas, and the names of the recipe's own schedules. The lines
to copy on a page need both. Files that have them stay as they are.
"""

import json
import sys
from pathlib import Path

from tables import FOLDER

from dualavg_bench.recipe import registry
from dualavg_bench.recipe.loading import load
from dualavg_bench.store.documents import read_document, write_document
from dualavg_bench.store.summaries import Summary

EXAMPLES = Path(__file__).parent.parent / "examples"


def complete(summary: Summary, reference: str) -> Summary:
    """Return the summary with the settings of its recipe, which `reference` names."""
    recipe, _ = load(reference, summary.scale)
    optimizers = {}
    for name, entry in summary.optimizers.items():
        fixed = registry.find(name)[1] | dict(recipe.grids[name].settings)
        settings = json.loads(json.dumps(fixed, default=str))  # as a run's file has them
        optimizers[name] = entry.model_copy(update={"settings": entry.settings or settings})
    own = sorted(recipe.schedules) if summary.own_schedules is None else summary.own_schedules
    return summary.model_copy(update={"optimizers": optimizers, "own_schedules": own})


def main() -> None:
    """Complete every study in the folder."""
    sys.path.append(str(EXAMPLES))  # the optimizers of pull.py are found by their dotted path
    for file in sorted(FOLDER.glob("*.json")):
        if file.stem.endswith("-horizon"):
            continue
        summary = read_document(file, Summary)
        name, _, kind = file.stem.partition("-")
        reference = str(EXAMPLES / f"pull_{name}.py") if kind == "pull" else name
        if summary.own_schedules is None:
            write_document(file, complete(summary, reference))
            print(file.name)


if __name__ == "__main__":
    main()
