"""What happens to a study when workers, schedulers, disks and people fail it: with real processes."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.tiny_study import TRAPS, Traps, command, environment, summary_without_times, write_recipe

from dualavg_bench.study import executor

TIMEOUT = 240
STARTED: list[subprocess.Popen[str]] = []
TUNED = {f"{run}-0" for run in ("MDA-0.3", "MDA-1", "MDA-3", "SGD-0.03", "SGD-0.1", "SGD-1e+09")}


def start(recipe: Path, out: Path, *more: str, traps: Traps | None = None) -> subprocess.Popen[str]:
    """Start a study of two optimizers, in a process group of its own as a shell does."""
    study = subprocess.Popen(
        command(recipe, out, "--optimizers", "mda,sgd", *more),
        env=environment(TINY_TRAPS=str(traps.folder if traps else "/nonexistent")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(study)
    return study


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    while STARTED:
        study = STARTED.pop()
        if study.poll() is None:
            os.killpg(study.pid, signal.SIGKILL)
        study.communicate()


def end(study: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the end; return what was printed."""
    output, errors = study.communicate(timeout=TIMEOUT)
    assert study.returncode == code, output + errors
    assert "Traceback" not in output + errors
    return output, errors


def wait_until(happened: Callable[[], Any], study: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not (found := happened()):
        assert time.monotonic() < deadline
        if study is not None and study.poll() is not None:
            pytest.fail("".join(study.communicate()))
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), confirm=1, extra=TRAPS)


@pytest.fixture(scope="module")
def undisturbed(recipe: Path) -> dict[str, Any]:
    """The summary of a study that nobody touched."""
    end(start(recipe, recipe.parent / "out", "--workers", "2"))
    return summary_without_times(recipe.parent / "out")


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    return Traps(tmp_path / "traps")


@contextlib.contextmanager
def dask(folder: Path, traps: Traps, *workers: str, **settings: str) -> Iterator[tuple[str, list[Any]]]:
    """A scheduler and workers that are there before and after a study, each with its option."""
    env = environment(TINY_TRAPS=str(traps.folder), **settings)
    file = folder / "scheduler.json"
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    one = [*common, "--nthreads", "1", "--local-directory", str(folder / "dask")]
    commands = [["scheduler", *common, "--host", "127.0.0.1", "--port", "0"]]
    commands += [["worker", *one, option] for option in workers]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "dask.log").open("w"))
        processes = []
        for arguments in commands:
            line = [sys.executable, "-m", "dask", *arguments]
            processes.append(subprocess.Popen(line, env=env, stdout=log, stderr=log, cwd="/"))
            stack.callback(_end_all, processes[-1])
        yield wait_until(lambda: file.exists() and json.loads(file.read_text())["address"]), processes


def _end_all(process: subprocess.Popen[str]) -> None:
    """End a process and its children, at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for child in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait()


def test_another_worker_takes_up_the_run_of_one_that_was_killed(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    traps.set("hang")
    with dask(tmp_path, traps, "--no-nanny", "--no-nanny") as (address, processes):
        study = start(recipe, tmp_path / "out", "--scheduler", address)
        victim = wait_until(traps.hanging, study)
        assert victim in {process.pid for process in processes[1:]}
        assert list((tmp_path / "out").rglob("checkpoint.pt"))
        os.kill(victim, signal.SIGKILL)
        end(study)
    assert summary_without_times(tmp_path / "out") == undisturbed
    executions = traps.executions()
    times = Counter(run for run, _ in executions)
    ((twice, n),) = ((run, n) for run, n in times.items() if n > 1)
    first, second = (steps for run, steps in executions if run == twice)
    assert (n, first[0], first[-1]) == (2, 0, 60)
    assert 0 < second[0] <= 60  # not from the beginning
    assert second[-1] == 119


def check_a_killer(
    undisturbed: dict[str, Any],
    traps: Traps,
    out: Path,
    study: Callable[[], subprocess.Popen[str]],
) -> None:
    killer = "SGD-0.1-0"
    traps.set(f"kill-{killer}")
    _, errors = end(study(), code=1)
    assert errors.strip().splitlines() == [
        "dualavg: 1 run failed; what finished is kept, and the same command tries it again.",
        "  sgd at lr 0.1, seed 0 killed its worker 3 times (out of memory?)",
    ]
    executions = traps.executions()
    assert [steps[-1] for run, steps in executions if run == killer] == [60, 60, 60]
    (confirmed,) = {run for run, _ in executions} - TUNED  # the other optimizer goes on to its end
    assert confirmed.startswith("MDA")
    assert Counter(run for run, _ in executions) == {**dict.fromkeys(TUNED, 1), killer: 3, confirmed: 1}
    assert len(list(out.rglob("result.json"))) == len(TUNED)
    assert "sgd: without result." in (out / "spirals-quick" / "report.html").read_text()

    traps.unset(f"kill-{killer}")
    end(study())
    again = traps.executions()[len(executions) :]
    assert {run for run, _ in again} & TUNED == {killer}
    assert summary_without_times(out) == undisturbed
    assert not list(out.rglob("deaths.json"))


def test_a_run_that_kills_its_worker_three_times_is_reported_and_the_others_go_on(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    check_a_killer(undisturbed, traps, out, lambda: start(recipe, out, "--workers", "2", traps=traps))


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["0", "10"])
def test_the_same_holds_on_a_scheduler_with_other_ideas(
    allowed: str, recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    """One worker that comes back: dask blames all the runs that it was given, ours is to know better."""
    settings = {
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": allowed,
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf",
    }
    with dask(tmp_path, traps, "--nanny", **settings) as (address, _):
        out = tmp_path / "out"
        check_a_killer(undisturbed, traps, out, lambda: start(recipe, out, "--scheduler", address))


def check_two_at_once(
    undisturbed: dict[str, Any], traps: Traps, out: Path, study: Callable[[], subprocess.Popen[str]]
) -> None:
    for each in [study(), study()]:
        end(each)
    assert summary_without_times(out) == undisturbed
    times = Counter(run for run, _ in traps.executions())
    assert set(times) > TUNED
    assert set(times.values()) == {1}


def test_two_studies_at_once_on_one_folder_share_the_work(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    traps.set("pair")
    out = tmp_path / "out"
    check_two_at_once(undisturbed, traps, out, lambda: start(recipe, out, "--workers", "1", traps=traps))
    assert not (traps.folder / "pair").exists()  # the second did not just wait for the first


@pytest.mark.slow
def test_two_studies_at_once_get_along_with_a_single_worker(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    traps.set("slow", "0.005")
    with dask(tmp_path, traps, "--nanny") as (address, _):
        out = tmp_path / "out"
        check_two_at_once(undisturbed, traps, out, lambda: start(recipe, out, "--scheduler", address))


def test_workers_end_with_the_parent_and_ctrl_c_is_one_line(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    traps.set("hang")
    study = start(recipe, out, "--workers", "2", traps=traps)
    wait_until(traps.hanging, study)
    family = psutil.Process(study.pid).children(recursive=True)
    assert traps.hanging() in {process.pid for process in family}
    study.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    end(study, code=-signal.SIGKILL)

    shutil.rmtree(traps.folder)
    traps.set("hang")
    study = start(recipe, out, "--workers", "2", traps=traps)
    wait_until(traps.hanging, study)
    family = psutil.Process(study.pid).children(recursive=True)
    os.killpg(study.pid, signal.SIGINT)  # what a terminal does
    output, errors = end(study, code=130)
    assert errors.strip() == "dualavg: stopped. Run the command again to resume."
    assert "".join(output.split()).endswith("spirals-quick")
    assert not psutil.wait_procs(family, timeout=20)[1]

    end(start(recipe, out, "--workers", "2"))
    assert summary_without_times(out) == undisturbed


def test_a_stopped_study_gives_its_workers_back_and_a_lost_scheduler_gets_a_sentence(
    recipe: Path, traps: Traps, tmp_path: Path
) -> None:
    traps.set("slow", "0.02")
    out = tmp_path / "out"
    with dask(tmp_path, traps, "--no-nanny") as (address, processes):
        study = start(recipe, out, "--scheduler", address)
        wait_until(lambda: list(out.rglob("checkpoint.pt")), study)
        os.killpg(study.pid, signal.SIGINT)
        end(study, code=130)
        deadline = time.monotonic() + 1.0  # half of a run
        while time.monotonic() < deadline:
            steps = len(traps.executions())
            time.sleep(0.1)
        assert len(traps.executions()) == steps == 1
        assert traps.executions()[0][1][-1] < 119
        assert list(out.rglob("checkpoint.pt"))

        study = start(recipe, out, "--scheduler", address)
        wait_until(lambda: len(traps.executions()) > 1, study)
        processes[0].kill()
        _, errors = end(study, code=1)
    assert errors.strip() == "dualavg: The dask scheduler went away. Run the command again to resume."


def test_a_reader_who_leaves_is_no_reason_to_complain(recipe: Path, undisturbed: dict[str, Any]) -> None:
    line = shlex.join(command(recipe, recipe.parent / "out", "--optimizers", "mda,sgd", "--workers", "1"))
    for reader in ("true", "head -1"):
        done = subprocess.run(
            f"{line} | {reader}",
            shell=True,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == (reader != "true")


@pytest.mark.slow
def test_workers_that_die_while_they_start_are_started_again(recipe: Path, tmp_path: Path) -> None:
    def worker() -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(study.pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    return child
        return None

    study = start(recipe, tmp_path / "out", "--workers", "1")
    wait_until(worker, study).kill()
    end(study)

    shutil.rmtree(tmp_path / "out")
    study = start(recipe, tmp_path / "out", "--workers", "1")
    for _ in range(3):
        (victim := wait_until(worker, study)).kill()
        wait_until(lambda gone=victim: not gone.is_running() or gone.status() == psutil.STATUS_ZOMBIE)
        wait_until(lambda gone=victim: study.poll() is not None or worker() not in (None, gone))
    _, errors = end(study, code=1)
    (sentence,) = errors.strip().splitlines()
    assert sentence.startswith("dualavg: Workers could not be started in 3 attempts")


def test_a_warning_is_shown_once_a_process_and_not_once_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    for _ in range(3):
        with executor._each_warning_once():
            for said in ("shapes differ", "and so do dtypes"):
                warnings.showwarning(said, UserWarning, "recipe.py", 3)
    assert shown == ["shapes differ", "and so do dtypes"]


def test_a_worker_with_several_threads_gives_the_numbers_of_one_with_one(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    traps.set("slow", "0.005")
    with dask(tmp_path, traps, "--nthreads=3") as (address, _):
        output, _ = end(start(recipe, tmp_path / "out", "--scheduler", address))
    assert summary_without_times(tmp_path / "out") == undisturbed
    assert "a worker with 3 threads takes one run at a time" in " ".join(output.split())


@pytest.mark.slow
def test_a_scheduler_without_workers_is_told_and_one_that_joins_does_the_work(
    recipe: Path, undisturbed: dict[str, Any], traps: Traps, tmp_path: Path
) -> None:
    with dask(tmp_path, traps) as (address, _):
        study = start(recipe, tmp_path / "out", "--scheduler", address)
        assert study.stdout is not None
        said = ""
        while "waiting for workers" not in said:
            said = study.stdout.readline()
            assert said, study.communicate()
        assert said.startswith(f"waiting for workers to join {address}: ")
        line = [
            sys.executable,
            "-m",
            "dask",
            "worker",
            address,
            "--nthreads",
            "1",
            "--no-dashboard",
            "--no-nanny",
        ]
        worker = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
        try:
            end(study)
        finally:
            _end_all(worker)
    assert summary_without_times(tmp_path / "out") == undisturbed


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
def test_a_full_disk_stops_a_study_with_a_sentence_and_room_lets_it_go_on(
    free: int, recipe: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "2M") as disk:
        (disk / "filler").write_bytes(bytes((2048 - free) * 1024))
        out = disk / "out"
        _, errors = end(start(recipe, out, "--workers", "2"), code=1)
        (sentence,) = errors.strip().splitlines()
        assert sentence.startswith(f"dualavg: The disk is full: {out}")
        assert sentence.endswith("was not written; make room and start again.")
        for result in out.rglob("result.json"):
            assert json.loads(result.read_text())["hash"] == result.parent.name

        (disk / "filler").unlink()
        end(start(recipe, out, "--workers", "2"))
        assert summary_without_times(out) == undisturbed
        assert not [path for path in out.rglob(".*.*") if path.is_file()]
