"""Studies whose workers, schedulers, disks and users fail them: with real processes."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import tiny_study
from support.tiny_study import (
    TIMEOUT,
    Command,
    Study,
    Traps,
    command,
    end,
    environment,
    summary_without_times,
    wait_until,
)

from dualavg_bench.study import cluster, executor, worker

STARTED: list[subprocess.Popen[str]] = []
TUNED = {f"{run}-0" for run in ("MDA-0.3", "MDA-1", "MDA-3", "SGD-0.03", "SGD-0.1", "SGD-1e+09")}
OPTIMIZERS = ("--optimizers", "mda,sgd")


def start(recipe: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """Start a study of two optimizers."""
    study = tiny_study.start(recipe, out, *OPTIMIZERS, *more)
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


@pytest.fixture
def traps(undisturbed: Study, tmp_path: Path) -> Traps:
    return Traps(undisturbed.recipe, tmp_path)


@pytest.fixture
def resume(dualavg: Command, scheduler: str) -> Callable[..., str]:
    """Run a study in this process on workers that are there, to its end."""

    def run(recipe: Path, out: Path, address: str = scheduler) -> str:
        code, output, errors = dualavg(
            *("study", recipe, "--out", out, "--no-extend", *OPTIMIZERS, "--scheduler", address)
        )
        assert code == 0, output + errors
        return output

    return run


def address_in(file: Path) -> str | None:
    """Return the scheduler's address; None while its file is not there, or not yet written to its end."""
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return str(json.loads(file.read_text())["address"])
    return None


@contextlib.contextmanager
def dask(folder: Path, *workers: str, **settings: str) -> Iterator[tuple[str, list[Any]]]:
    """A scheduler and workers of its own, each with its option."""
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
            env = environment(**settings)
            processes.append(subprocess.Popen(line, env=env, stdout=log, stderr=log, cwd="/"))
            stack.callback(_end_all, processes[-1])
        yield wait_until(lambda: address_in(file)), processes


def _end_all(process: subprocess.Popen[str]) -> None:
    """End a process and its children, at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for child in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait()


def test_another_worker_resumes_the_run_of_one_that_was_killed(
    undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    checkpoints: list[Path] = []

    def kill() -> None:
        victim = wait_until(traps.hanging)
        checkpoints.extend(out.rglob("checkpoint.pt"))
        os.kill(victim, signal.SIGKILL)

    traps.set("hang")
    killer = threading.Thread(target=kill)
    killer.start()
    resume(traps.recipe, out)
    killer.join()
    assert checkpoints
    assert summary_without_times(out) == undisturbed.summary
    executions = traps.executions()
    times = Counter(run for run, _ in executions)
    ((twice, n),) = ((run, n) for run, n in times.items() if n > 1)
    first, second = (steps for run, steps in executions if run == twice)
    assert (n, first[0], first[-1]) == (2, 0, 60)
    assert 0 < second[0] <= 60  # not from the beginning
    assert second[-1] == 119


def check_a_killer(
    undisturbed: Study, traps: Traps, out: Path, study: Callable[[], subprocess.Popen[str]]
) -> None:
    killer = "SGD-0.1-0"
    traps.set(f"kill-{killer}")
    _, errors = end(study(), code=1)
    assert errors.strip().splitlines() == [
        "dualavg: 1 run failed; finished runs are kept. Run the command again to retry it.",
        "  sgd at lr 0.1, seed 0 killed its worker 3 times (out of memory?)",
    ]
    executions = traps.executions()
    assert [steps[-1] for run, steps in executions if run == killer] == [60, 60, 60]
    confirmed = {run for run, _ in executions} - TUNED  # the other optimizer is confirmed
    assert {run.partition("-")[0] for run in confirmed} == {"MDA"}
    assert Counter(run for run, _ in executions) == {**dict.fromkeys({*TUNED, *confirmed}, 1), killer: 3}
    assert len(list(out.rglob("result.json"))) == len(TUNED) + len(confirmed) - 1
    assert "sgd: no result." in (out / "spirals-quick" / "report.html").read_text()
    traps.unset(f"kill-{killer}")


def check_the_retry(undisturbed: Study, traps: Traps, out: Path, before: int) -> None:
    again = {run for run, _ in traps.executions()[before:]}
    assert again & TUNED == {"SGD-0.1-0"}
    assert summary_without_times(out) == undisturbed.summary
    assert {path.name for path in (out / "spirals-quick" / "runs").rglob("*.json")} == {"result.json"}


def test_a_run_that_kills_its_worker_three_times_is_reported_and_retried_by_the_next_command(
    undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    check_a_killer(undisturbed, traps, out, lambda: start(traps.recipe, out, "--workers", "2"))
    before = len(traps.executions())
    resume(traps.recipe, out)
    check_the_retry(undisturbed, traps, out, before)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", ["0", "10"])
def test_the_same_holds_on_a_scheduler_with_other_settings(
    allowed: str, undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    """One worker that is restarted: dask blames all the runs that it was given, our count must not."""
    settings = {
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": allowed,
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf",
    }
    out = tmp_path / "out"
    with dask(tmp_path, "--nanny", **settings) as (address, _):
        check_a_killer(undisturbed, traps, out, lambda: start(traps.recipe, out, "--scheduler", address))
        before = len(traps.executions())
        resume(traps.recipe, out, address)
    check_the_retry(undisturbed, traps, out, before)


def check_every_run_once(undisturbed: Study, traps: Traps, out: Path) -> None:
    assert summary_without_times(out) == undisturbed.summary
    times = Counter(run for run, _ in traps.executions())
    assert set(times) > TUNED
    assert set(times.values()) == {1}


def test_two_studies_at_once_in_one_folder_share_the_work(
    undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    traps.set("pair")
    out = tmp_path / "out"
    study = start(traps.recipe, out, "--workers", "1")
    wait_until(traps.executions, study)
    resume(traps.recipe, out)
    end(study)
    check_every_run_once(undisturbed, traps, out)
    assert not (traps.folder / "pair").exists()  # the second did not just wait for the first


@pytest.mark.slow
def test_two_studies_at_once_can_share_a_single_worker(
    undisturbed: Study, traps: Traps, tmp_path: Path
) -> None:
    traps.set("slow", "0.005")
    out = tmp_path / "out"
    with dask(tmp_path, "--nanny") as (address, _):
        for study in [start(traps.recipe, out, "--scheduler", address) for _ in range(2)]:
            end(study)
    check_every_run_once(undisturbed, traps, out)


def test_workers_end_with_the_parent_and_ctrl_c_is_one_line(
    undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def start_and_hang() -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        shutil.rmtree(traps.folder)
        traps.folder.mkdir()
        traps.set("hang")
        study = start(traps.recipe, out, "--workers", "1")
        hanging = wait_until(traps.hanging, study)
        family = psutil.Process(study.pid).children(recursive=True)
        assert hanging in {process.pid for process in family}
        return study, family

    study, family = start_and_hang()
    study.kill()
    assert not psutil.wait_procs(family, timeout=20)[1]
    end(study, code=-signal.SIGKILL)

    study, family = start_and_hang()
    os.killpg(study.pid, signal.SIGINT)  # what a terminal does
    output, errors = end(study, code=130)
    assert errors.strip() == "dualavg: stopped. Run the command again to resume."
    trial, stopping = output.splitlines()[-2:]
    assert trial.startswith("trial: a step and an evaluation of mda, sgd in ")
    assert stopping == "stopping the workers: what has finished is kept"
    assert not psutil.wait_procs(family, timeout=20)[1]

    resume(traps.recipe, out)
    assert summary_without_times(out) == undisturbed.summary


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError])
def test_workers_that_do_not_answer_while_they_are_closed_are_no_error(error: type[Exception]) -> None:
    closed = []

    class Silent:
        def close(self) -> None:
            closed.append(1)
            raise error

    expected = contextlib.nullcontext() if error in cluster.TIMEOUTS else pytest.raises(error)
    with expected:
        cluster._close(Silent())
    assert closed == [1]


def test_a_stopped_study_frees_its_workers(traps: Traps, scheduler: str, tmp_path: Path) -> None:
    traps.set("slow", "0.02")
    out = tmp_path / "out"
    study = start(traps.recipe, out, "--scheduler", scheduler)
    wait_until(lambda: list(out.rglob("checkpoint.pt")), study)
    os.killpg(study.pid, signal.SIGINT)
    end(study, code=130)
    threading.Event().wait(1.0)  # a run takes 2.4 s
    stopped = traps.executions()
    threading.Event().wait(0.5)
    assert traps.executions() == stopped
    assert all(steps[-1] < 119 for _, steps in stopped)
    assert list(out.rglob("checkpoint.pt"))


def test_a_scheduler_without_workers_is_reported_and_so_is_a_lost_one(traps: Traps, tmp_path: Path) -> None:
    with dask(tmp_path) as (address, processes):
        study = start(traps.recipe, tmp_path / "out", "--scheduler", address)
        assert study.stdout is not None
        line = ""
        while "waiting for workers" not in line:
            line = study.stdout.readline()
            assert line, study.communicate()
        assert line.startswith(f"waiting for workers to join {address}: ")
        processes[0].kill()
        _, errors = end(study, code=1)
    assert errors.strip() == "dualavg: The dask scheduler went away. Run the command again to resume."


@pytest.mark.slow
def test_a_worker_that_joins_later_does_the_work(
    undisturbed: Study, traps: Traps, resume: Callable[..., str], tmp_path: Path
) -> None:
    with dask(tmp_path) as (address, _):
        line = [*(sys.executable, "-m", "dask", "worker", address), "--nthreads", "1", "--no-nanny"]
        worker: list[subprocess.Popen[bytes]] = []

        def join() -> None:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            worker.append(subprocess.Popen([*line, "--no-dashboard"], cwd=tmp_path, **quiet))

        later = threading.Timer(3.0, join)
        later.start()
        try:
            resume(traps.recipe, tmp_path / "out", address)
        finally:
            later.join()
            _end_all(worker[0])
    assert summary_without_times(tmp_path / "out") == undisturbed.summary


def test_a_reader_who_leaves_causes_no_error(undisturbed: Study) -> None:
    line = shlex.join(command(undisturbed.recipe, undisturbed.out, *OPTIMIZERS, "--workers", "1"))
    done = subprocess.run(
        f"{line} | head -1",
        shell=True,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_a_worker_with_several_threads_gives_the_numbers_of_one_with_one(
    undisturbed: Study,
    traps: Traps,
    resume: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "NOTICE_SECONDS", 0.1)
    with dask(tmp_path, "--nthreads=3") as (address, _):
        output = resume(traps.recipe, tmp_path / "out", address)
    assert summary_without_times(tmp_path / "out") == undisturbed.summary
    assert "a worker with 3 threads takes one run at a time" in " ".join(output.split())


@pytest.mark.slow
def test_workers_that_die_while_they_start_are_started_again(undisturbed: Study, tmp_path: Path) -> None:
    def worker() -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(study.pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    return child
        return None

    study = start(undisturbed.recipe, tmp_path / "out", "--workers", "1")
    wait_until(worker, study).kill()
    end(study)

    shutil.rmtree(tmp_path / "out")
    study = start(undisturbed.recipe, tmp_path / "out", "--workers", "1")
    for _ in range(3):
        (victim := wait_until(worker, study)).kill()
        wait_until(lambda gone=victim: not gone.is_running() or gone.status() == psutil.STATUS_ZOMBIE)
        wait_until(lambda gone=victim: study.poll() is not None or worker() not in (None, gone))
    _, errors = end(study, code=1)
    (message,) = errors.strip().splitlines()
    assert message.startswith("dualavg: Workers could not be started in 3 attempts")


def test_a_warning_is_shown_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
    for _ in range(3):
        with worker._warn_once():
            for said in ("shapes differ", "and so do dtypes"):
                warnings.showwarning(said, UserWarning, "recipe.py", 3)
    assert shown == ["shapes differ", "and so do dtypes"]
