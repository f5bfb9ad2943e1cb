"""What tests of more than one file are given."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from support.tiny_study import TRAPS, Command, Study, end, start, summary_without_times, write_recipe

from dualavg_bench.store.results import RunResult
from dualavg_bench.store.summaries import Summary

pytest.register_assert_rewrite("support.page_reader")
hypothesis.settings.register_profile("dualavg", deadline=None)  # no test depends on the machine's speed
hypothesis.settings.load_profile("dualavg")


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Begun in a shell's background, the tests would hand this down to studies that are to be stopped by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Networks this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that embedded data are written to, once for all that only read them."""
    return tmp_path_factory.mktemp("embedded")


@pytest.fixture
def dualavg(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: exit code, standard output and standard error."""
    from dualavg_bench import cli

    def call(*arguments: object) -> tuple[int, str, str]:
        code: Any = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code or 0
        captured = capsys.readouterr()
        if isinstance(code, str):  # what the interpreter does with it
            return 1, captured.out, captured.err + code
        return code, captured.out, " ".join(captured.err.replace("│", " ").split())

    return call


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The address of a dask scheduler with two workers, which studies of many tests share."""
    from dualavg_bench.study.cluster import cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DUALAVG_CHECKPOINT_SECONDS", "0.02")
        with cluster(2, None) as client:
            yield client.scheduler.address


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The study of a recipe with traps, of which none is set, by the command in a process of its own."""
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe, out = write_recipe(folder, extra=TRAPS), folder / "out"
    end(start(recipe, out, "--optimizers", "mda,sgd", "--workers", "2"))
    return Study(recipe, out, summary_without_times(out))


@pytest.fixture(scope="module")
def runs() -> list[RunResult]:
    """A made-up study, in which one confirmation diverged."""
    from support.synthetic_runs import study

    return study(confirm_diverges={("adam", 1003)})


@pytest.fixture(scope="module")
def summary(runs: list[RunResult]) -> Summary:
    """The summary of that study."""
    from support.synthetic_runs import summarize

    return summarize(runs, about="A small network.", paper="Section 4.1")
