"""A study on a disk that fills up."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_study import Study, end, start, summary_without_times

COMMAND = ("--optimizers", "mda,sgd", "--workers", "2")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here ({mounted.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 8, 100])
def test_a_full_disk_is_a_one_line_error_and_the_study_resumes(
    free: int, undisturbed: Study, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "2M") as disk:
        (disk / "filler").write_bytes(bytes((2048 - free) * 1024))
        out = disk / "out"
        _, errors = end(start(undisturbed.recipe, out, *COMMAND), code=1)
        (message,) = errors.strip().splitlines()
        assert message.startswith(f"dualavg: The disk is full, {out}")
        assert message.endswith("was not written: free some space and start again.")
        for result in out.rglob("result.json"):
            assert json.loads(result.read_text())["hash"] == result.parent.name

        (disk / "filler").unlink()
        end(start(undisturbed.recipe, out, *COMMAND))
        assert summary_without_times(out) == undisturbed.summary
        assert not [path for path in out.rglob(".*.*") if path.is_file()]
