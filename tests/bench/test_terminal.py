"""What a running study shows: the best result of each optimizer so far, on a terminal and in a log."""

import webbrowser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.synthetic_runs import run

from dualavg_bench import terminal
from dualavg_bench.terminal import Display, show_page, so_far


class Client:
    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": {"a": 1, "b": 2}}


TUNING = [
    run("sgd", 0.1, 0, "tune", 80.0),
    run("mda", 1.0, 0, "tune", 85.0),
    run("mda", 3.0, 0, "tune", 91.0),
    run("mda", 1.0, 1, "tune", 95.0),  # a mean of 90 over two seeds
]


def test_the_best_setting_of_each_optimizer_is_named_the_best_optimizer_first() -> None:
    metric = TUNING[0].metric
    assert so_far(TUNING) == f"best {metric} on validation so far: mda 91 (lr 3), sgd 80 (lr 0.1)"
    assert so_far(TUNING[:1]) == f"best {metric} on validation so far: sgd 80 (lr 0.1)"


def test_the_lowest_is_best_where_lower_is_better() -> None:
    runs = [
        run("mda", lr, 0, "tune", final, higher_is_better=False) for lr, final in ((1.0, 3.0), (3.0, 2.0))
    ]
    assert so_far(runs).endswith("mda 2 (lr 3)")


def test_a_diverged_setting_is_behind_every_other_one() -> None:
    diverged = run("mda", 9.0, 0, "tune", 99.0, diverged_at=50, untrained=99.0)
    assert so_far([diverged]).endswith(": mda diverged")
    assert so_far([*TUNING, diverged]).endswith(": mda 91 (lr 3), sgd 80 (lr 0.1)")


def test_confirmation_shows_means_on_test_with_their_n() -> None:
    runs = [run("mda", 1.0, 1000 + i, "confirm", test_score=80.0 + i) for i in range(3)]
    assert so_far(runs) == f"mean {runs[0].metric} on test so far: mda 81 (n = 3)"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_first_result_of_each_optimizer_is_shown_at_once(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(force_terminal=is_terminal, width=100, highlight=False)
    monkeypatch.setattr(terminal, "console", console)
    display = Display(Client())
    display.begin("spirals", "tuning", 12, optimizers=2)
    shown = []
    for result in TUNING[:2]:
        display.finished("spirals", result)
        if is_terminal:
            console.print(display.progress.get_renderable())
        shown.append(capsys.readouterr().out)
    assert "sgd 80 (lr 0.1)" in shown[1]
    assert "mda 85 (lr 1), sgd 80 (lr 0.1)" in shown[1]
    assert ("sgd 80" in shown[0]) == is_terminal  # a log waits for all optimizers, or ten seconds


@pytest.mark.parametrize("found", [True, False])
def test_the_page_is_opened_or_a_line_says_that_there_is_no_browser(
    found: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or found)
    show_page(tmp_path / "report.html")
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert ("no browser was found" in capsys.readouterr().out) == (not found)
