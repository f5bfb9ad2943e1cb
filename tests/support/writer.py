"""A process that writes until it is killed; in a module of its own, so that it can be imported there."""

from pathlib import Path

from dualavg_bench.store.documents import write_document
from dualavg_bench.store.folder import Crashes


def write_forever(path: Path) -> None:
    for i in range(10**9):
        write_document(path, Crashes(by_study={"i": i, "x" * 5_000_000: 1}))
