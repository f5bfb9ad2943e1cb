"""What is recorded while a run trains: curves, times, the reason for a divergence; its result in the end."""

import dataclasses
import math
from dataclasses import dataclass, field
from statistics import fmean, median

import torch

from dualavg_bench.recipe import Recipe, RecipeError
from dualavg_bench.run import machine
from dualavg_bench.run.evaluation import Scores
from dualavg_bench.run.spec import RunSpec
from dualavg_bench.store.results import Curve, RunResult, RunTime, Sample, SecondScore

SMALLEST_FIRST_LOSS = 0.1  # `diverged_above` times a smaller first loss would be too strict


@dataclass
class History:
    """The record of a run. A checkpoint keeps its fields as plain values."""

    seconds: float = 0.0
    first_loss: float | None = None
    untrained_test: Scores | None = None
    train_curve: dict[str, list[float]] = field(default_factory=lambda: {"step": [], "loss": []})
    valid_curve: dict[str, list[float | None]] = field(default_factory=lambda: {"step": []})
    step_times: list[float] = field(default_factory=list)
    optimizer_times: list[float] = field(default_factory=list)

    def add_losses(self, recipe: Recipe, seed: int, step: int, losses: list[float]) -> tuple[int, str] | None:
        """Add the mean of the training losses of a window to the curve.

        Args:
            recipe: of the run.
            seed: of the run, for messages.
            step: the last step of the window.
            losses: one for each step.

        Returns:
            The step at which the run diverged and the reason, or None.
        """
        if self.first_loss is None:
            if not math.isfinite(losses[0]):
                raise RecipeError(
                    f"The first training loss of recipe {recipe.name}, with seed {seed}, is {losses[0]}: the "
                    "network is not trained yet, so the mistake is in data, model or loss."
                )
            self.first_loss = losses[0]
        for i, loss in enumerate(losses):
            if not math.isfinite(loss):
                return step - (len(losses) - 1 - i), f"the training loss is {loss}"
        mean = fmean(losses)
        self.train_curve["step"].append(step)
        self.train_curve["loss"].append(mean)
        if mean > recipe.diverged_above * max(abs(self.first_loss), SMALLEST_FIRST_LOSS):
            return step, f"the training loss is {mean:.3g}, from {self.first_loss:.3g} at first"
        return None

    def add_scores(self, recipe: Recipe, step: int, scores: Scores) -> None:
        """Add a point to the validation curve."""
        names = self.valid_curve.keys() - {"step"}
        if names and names != scores.keys():
            raise RecipeError(
                f"evaluate of recipe {recipe.name} must return the same names every time, got "
                f"{', '.join(sorted(scores))} at step {step} and {', '.join(sorted(names))} before."
            )
        self.valid_curve["step"].append(step)
        for name, value in scores.items():
            self.valid_curve.setdefault(name, []).append(value)

    def best_step(self, recipe: Recipe) -> int:
        """Return the step of the best validation score, the first of equal ones."""
        scores = [score for score in self.valid_curve[recipe.metric.name] if score is not None]  # all
        best = max(scores) if recipe.metric.higher_is_better else min(scores)
        return int(self.valid_curve["step"][scores.index(best)] or 0)

    def result(
        self,
        spec: RunSpec,
        recipe: Recipe,
        diverged: tuple[int, str] | None,
        test: Scores | None,
        test_best: Scores | None,
        samples: list[Sample],
        optimizer: torch.optim.Optimizer,
    ) -> RunResult:
        """Return the result of the run.

        Args:
            spec: of the run.
            recipe: of the run.
            diverged: the step at which it diverged and the reason, or None.
            test: the scores on test of the last network, if the spec asks for them.
            test_best: those of the network with the best validation score.
            samples: what the network returns for a few test examples.
            optimizer: to measure its state.
        """
        valid = {name: values for name, values in self.valid_curve.items() if None not in values}
        return RunResult(
            hash=spec.hash,
            recipe=recipe.name,
            scale=recipe.scale,
            optimizer=spec.optimizer,
            **dataclasses.asdict(spec.point),
            seed=spec.seed,
            phase="confirm" if spec.test else "tune",
            metric=recipe.metric.name,
            higher_is_better=recipe.metric.higher_is_better,
            unit=recipe.metric.unit,
            also=None if recipe.also is None else SecondScore(**dataclasses.asdict(recipe.also)),
            steps=recipe.steps,
            report=recipe.report,
            status="diverged" if diverged else "finished",
            diverged_at=diverged[0] if diverged else None,
            why=diverged[1] if diverged else None,
            spec=spec.to_json(),
            train=Curve.model_validate(self.train_curve),
            valid=Curve.model_validate(valid),
            test=_finite(test),
            test_best=_finite(test_best),
            samples=samples,
            time=RunTime(
                seconds=self.seconds,
                step_ms=1e3 * median(self.step_times or [0.0]),
                optimizer_ms=1e3 * median(self.optimizer_times or [0.0]),
            ),
            peak_mb=machine.peak_memory(),
            state_bytes=machine.state_bytes(optimizer),
            parameters=sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
            packages={k: v for k, v in spec.versions.items() if k not in ("torch", "dualavg")},
            machine=machine.describe(),
        )


def _finite(scores: Scores | None) -> dict[str, float] | None:
    return None if scores is None else {name: value for name, value in scores.items() if value is not None}
