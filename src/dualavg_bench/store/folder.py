"""The folder of one run.

    <root>/runs/<recipe>/<hash of the spec>/
        result.json      once the run has finished or diverged
        checkpoint.pt    until then
        network.pt       the trained network, of a run whose network others start from
        crashes.json     how many processes died during the run, by study
        .lock            held by the process that works on the run

All files are written atomically. Reading them cannot execute code: JSON, and torch with `weights_only`.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import filelock
import torch
from pydantic import Field

from dualavg_bench.store.documents import FORMAT, Count, Document, read_document, write_document
from dualavg_bench.store.files import StoreError, write_atomically, write_error
from dualavg_bench.store.results import RunResult


class RunLockedError(Exception):
    """Another process works on the run."""


class Crashes(Document):
    """How many processes died during a run, by study."""

    NAME: ClassVar[str] = "record of crashes"
    REMEDY: ClassVar[str] = "delete it, and run the command again"

    by_study: dict[str, Count] = Field(default_factory=dict)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def of(cls, root: Path, recipe: str, run_hash: str) -> "RunFolder":
        """Return the folder under a study's root."""
        return cls(root / "runs" / recipe / run_hash)

    def beside(self, recipe: str, run_hash: str) -> "RunFolder":
        """Return the folder of another run under the same root."""
        return RunFolder(self.path.parents[1] / recipe / run_hash)

    def result(self) -> RunResult | None:
        """Return the result, or None if the run has not ended."""
        file = self.path / "result.json"
        if not file.exists():
            return None
        result = read_document(file, RunResult)
        if result.hash != self.path.name:
            raise StoreError(f"{file} is the result of another run ({result.hash}): move it away.")
        return result

    def finish(self, result: RunResult) -> None:
        """Write the result, then delete the checkpoint."""
        write_document(self.path / "result.json", result)
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
            raise StoreError(
                f"{file} is not this run's checkpoint: delete it, and the run starts from the beginning."
            )
        version = state.get("format")
        if not isinstance(version, int) or version > FORMAT:
            raise StoreError(
                f"{file} was written by a newer version of dualavg: update dualavg, or delete it."
            )
        return state

    def save_network(self, weights: dict[str, torch.Tensor]) -> None:
        """Write the weights of the trained network."""
        buffer = io.BytesIO()
        torch.save({"hash": self.path.name, "weights": weights}, buffer)
        write_atomically(self.path / "network.pt", buffer.getvalue())

    def load_network(self) -> dict[str, torch.Tensor]:
        """Return the weights of the trained network."""
        file = self.path / "network.pt"
        try:
            saved = torch.load(file, weights_only=True, map_location="cpu")
            if saved["hash"] == self.path.name:
                weights: dict[str, torch.Tensor] = saved["weights"]
                return weights
        except Exception:  # noqa: BLE001, S110 - a foreign file can raise anything
            pass
        raise StoreError(f"{file} is not this run's network: delete the folder, and it is trained again.")

    @contextlib.contextmanager
    def reading_checkpoint(self) -> Iterator[None]:
        """Turn any exception in the block into a StoreError about the checkpoint."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a foreign file can raise anything
            message = (str(error).splitlines() or [""])[0][:80]
            if not isinstance(error, RuntimeError | ValueError) or not message:
                message = type(error).__name__
            raise StoreError(
                f"{self.path / 'checkpoint.pt'} is not a complete checkpoint ({message}): delete it, and the "
                "run starts from the beginning."
            ) from None

    @contextlib.contextmanager
    def locked(self, timeout: float = -1) -> Iterator[None]:
        """Hold the run's lock in the block. Others wait, and then find the run finished or further on.

        The holder may take it again.

        Args:
            timeout: seconds to wait for it; negative waits for ever.

        Raises:
            RunLockedError: the timeout has passed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / ".lock", is_singleton=True)
            lock.acquire(timeout=timeout)
        except filelock.Timeout:
            raise RunLockedError(str(self.path)) from None
        except OSError as error:
            raise write_error(self.path / ".lock", error) from error
        try:
            for temporary in self.path.glob(".*.*"):  # left by a writer that was killed
                temporary.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def count_crashes(self, study: str) -> Iterator[None]:
        """Record a crash on entry; clear the record on exit, normal or by an exception."""
        by_study = self._crashes().by_study
        counted = by_study | {study: by_study.get(study, 0) + 1}
        write_document(self._crashes_file, Crashes(by_study=counted))
        try:
            yield
        finally:
            self._crashes_file.unlink(missing_ok=True)

    def crashes(self, study: str) -> int:
        """Return how many processes of this study died during the run."""
        return self._crashes().by_study.get(study, 0)

    @property
    def _crashes_file(self) -> Path:
        return self.path / "crashes.json"

    def _crashes(self) -> Crashes:
        return read_document(self._crashes_file, Crashes) if self._crashes_file.exists() else Crashes()
