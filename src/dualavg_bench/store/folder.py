"""What is on disk of a run, and how it gets there without ever being half there.

    <root>/runs/<recipe>/<hash of the spec>/
        result.json      when the run is done, whatever came of it
        checkpoint.pt    while it is not
        deaths.json      how often a process died of it, by study
        .lock            held by the process that is working on it

Every file is written beside its place and moved there in one step, so that a reader sees the old one, the new
one or none, whenever the writer is killed. Nothing that is read can run code: JSON, and torch's weights_only.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch

from dualavg_bench.store.files import (
    FORMAT,
    StoreError,
    cannot_write,
    read_json,
    write_atomically,
    write_json,
)
from dualavg_bench.store.results import fault


class HeldError(Exception):
    """Somebody else is working on the run."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def of(cls, root: Path, recipe: str, run_hash: str) -> "RunFolder":
        """Return the folder under a study's root."""
        return cls(root / "runs" / recipe / run_hash)

    def result(self) -> dict[str, Any] | None:
        """Return the finished run, or None if it is not finished."""
        file = self.path / "result.json"
        if not file.exists():
            return None
        value = read_json(file, "result of a run")
        if value.get("hash") != self.path.name:
            raise StoreError(f"{file} belongs to another run ({value.get('hash')}): move it away.")
        if (wrong := fault(value)) is not None:
            raise StoreError(
                f"{file} is damaged, it {wrong}: delete it, and the same command does the run again."
            )
        return value

    def finish(self, result: dict[str, Any]) -> None:
        """Put the result there, then take the checkpoint away."""
        write_json(self.path / "result.json", {"format": FORMAT, **result})
        (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, "hash": self.path.name, **state}, buffer)
        write_atomically(self.path / "checkpoint.pt", buffer.getvalue())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if there is none."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        with self.reading_checkpoint():
            state = torch.load(file, weights_only=True, map_location="cpu")
        if not isinstance(state, dict) or state.get("hash") != self.path.name:
            raise StoreError(f"{file} is not this run's checkpoint: delete it, and the run starts over.")
        version = state.get("format")
        if not isinstance(version, int) or version > FORMAT:
            raise StoreError(f"{file} was written by a newer version of dualavg: update, or delete it.")
        return state

    @contextlib.contextmanager
    def reading_checkpoint(self) -> Iterator[None]:
        """Say in a sentence that the checkpoint cannot be used, whatever is found in it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - what is not ours can raise anything
            reason = (str(error).splitlines() or [""])[0]
            reason = reason[:80] if isinstance(error, RuntimeError | ValueError) and reason else ""
            why = reason or type(error).__name__
            raise StoreError(
                f"{self.path / 'checkpoint.pt'} is not a whole checkpoint ({why}): delete it, and the run "
                "starts over."
            ) from None

    @contextlib.contextmanager
    def locked(self, wait: float = -1) -> Iterator[None]:
        """Hold the run: whoever else wants it waits, and finds it finished or further on.

        Who holds it may ask again. Somebody who has waited for `wait` seconds in vain gets a `HeldError`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / ".lock", is_singleton=True)
            lock.acquire(timeout=wait)
        except filelock.Timeout:
            raise HeldError(str(self.path)) from None
        except OSError as error:
            raise cannot_write(self.path / ".lock", error) from error
        try:
            for unfinished in self.path.glob(".*.*"):  # of a writer that was killed
                unfinished.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def fatal_until_left(self, study: str) -> Iterator[None]:
        """Count a death of the run in this study, and forget them all if the block is left alive."""
        before = self._deaths()
        write_json(self._deaths_file, {"format": FORMAT, **before, study: before.get(study, 0) + 1})
        try:
            yield
        finally:
            self._deaths_file.unlink(missing_ok=True)

    def deaths(self, study: str) -> int:
        """Return how many processes of this study died of the run."""
        return self._deaths().get(study, 0)

    @property
    def _deaths_file(self) -> Path:
        return self.path / "deaths.json"

    def _deaths(self) -> dict[str, int]:
        if not self._deaths_file.exists():
            return {}
        counts = read_json(self._deaths_file, "count of deaths")
        return {study: n for study, n in counts.items() if study != "format" and isinstance(n, int)}
