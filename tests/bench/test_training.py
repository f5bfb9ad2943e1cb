"""One run: the same spec gives the same numbers, cut off or not; divergence is a result; runs pair up."""

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.lines import Lines, evaluate, execute, loss, make_recipe, make_spec, numbers

from dualavg_bench.recipe import RecipeError, Splits
from dualavg_bench.run import training
from dualavg_bench.run.data import fingerprint, read
from dualavg_bench.run.history import History
from dualavg_bench.store.files import StoreError
from dualavg_bench.store.folder import RunFolder


@pytest.mark.parametrize("optimizer", ["mda", "sgd", "adam", "da", "da+momentum", "adamw"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 2, "clip_norm": 0.5},
        {"precision": "bfloat16"},
        {"precision": "float16"},
    ],
    ids=["plain", "accumulate+clip", "bfloat16", "float16"],
)
def test_resume_is_bitwise(optimizer: str, changes: dict[str, Any], tmp_path: Path) -> None:
    recipe = make_recipe(**changes)
    spec = make_spec(recipe, optimizer, lr=0.05)
    whole = execute(tmp_path / "whole", recipe, spec)
    parts = execute(tmp_path / "parts", recipe, spec, stop_at=(1, 2, 4))
    assert numbers(parts) == numbers(whole)
    assert whole.status == "finished"
    assert whole.valid.step == [0, 10, 20, 30, 40, 50, 60]
    assert whole.valid["loss"][-1] != whole.valid["loss"][0]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    splits = Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
    recipe = make_recipe(splits)
    first = execute(tmp_path, recipe, make_spec(recipe))
    asked = len(splits.train.asked)
    again = execute(tmp_path, recipe, make_spec(recipe))
    assert len(splits.train.asked) == asked
    assert again == first


def test_seeds_decide_start_order_and_augmentation_whatever_the_optimizer(tmp_path: Path) -> None:
    seen = {}
    for optimizer in ("mda", "sgd", "adam"):
        for seed in (0, 1):
            splits = Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
            recipe = make_recipe(splits)
            result = execute(tmp_path, recipe, make_spec(recipe, optimizer, lr=0.05, seed=seed))
            seen[optimizer, seed] = (splits.train.asked, splits.train.noise, result.valid["loss"][0])
    for seed in (0, 1):
        assert seen["mda", seed] == seen["sgd", seed] == seen["adam", seed]
    assert all(a != b for a, b in zip(seen["mda", 0], seen["mda", 1], strict=True))


def draw() -> tuple[float, ...]:
    """One number of each global generator."""
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002 - many use it


class Jittered(Lines):
    """Augmented by the global generators, as many data sets are."""

    def batch(self, indices, rng):
        inputs, targets = super().batch(indices, None)
        if rng is not None:
            drawn = (*draw(), torch.rand((), generator=rng).item())
            self.noise.append(drawn)
            inputs = inputs + 0.1 * sum(drawn)
        return inputs, targets


def _jittered(folder: Path, seed: int = 0, stop_at: tuple[int, ...] = ()) -> Any:
    splits = Splits(Jittered(100, 0), Lines(40, 1), Lines(40, 2))
    recipe = make_recipe(splits)
    result = execute(folder, recipe, make_spec(recipe, lr=0.05, seed=seed), stop_at)
    return splits.train.noise, numbers(result)


def test_augmentation_by_global_generators_is_seeded_and_resume_is_bitwise(tmp_path: Path) -> None:
    whole = _jittered(tmp_path / "whole")
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - somebody else's
    assert _jittered(tmp_path / "again") == whole
    assert _jittered(tmp_path / "parts", stop_at=(1, 3)) == whole
    both = whole[0] + _jittered(tmp_path / "other seed", seed=1)[0]
    for drawn in zip(*both, strict=True):
        assert len(set(drawn)) == 120  # another one at every step, and with every seed


def test_an_evaluation_draws_the_same_whatever_the_optimizer(tmp_path: Path) -> None:
    drawn: dict[str, list[float]] = {"mda": [], "sgd": []}
    for name, draws in drawn.items():

        def noisy(model, batches, draws=draws):
            draws.append(sum(draw()))
            return evaluate(model, batches)

        recipe = make_recipe(evaluate=noisy)
        execute(tmp_path, recipe, make_spec(recipe, name, lr=0.05))
    assert drawn["mda"] == drawn["sgd"]


def test_random_splits_are_the_same_every_time(tmp_path: Path) -> None:
    def shuffled(_: Path) -> Splits:
        splits = Splits(Lines(100, 0), Lines(40, 1), Lines(40, 2))
        splits.train.inputs = splits.train.inputs[torch.randperm(100)] * sum(draw())
        return splits

    recipe = make_recipe(data=shuffled)
    spec = make_spec(recipe, data=fingerprint(read(recipe, tmp_path), test=True))
    assert execute(tmp_path, recipe, spec).status == "finished"


def test_tuning_never_reads_the_test_split(tmp_path: Path) -> None:
    class Forbidden(Lines):
        def batch(self, indices, rng):
            pytest.fail("the test split was read while tuning")

    recipe = make_recipe(Splits(Lines(100, 0), Lines(40, 1), Forbidden(40, 2)))
    result = execute(tmp_path, recipe, make_spec(recipe, test=False))
    assert result.test is None
    assert result.phase == "tune"


def test_divergence_is_a_result_and_scores_as_the_untrained_network(tmp_path: Path) -> None:
    recipe = make_recipe()
    result = execute(tmp_path, recipe, make_spec(recipe, "sgd", lr=1e6))
    assert result.status == "diverged"
    assert 1 <= result.diverged_at < 60
    assert "loss" in result.why
    healthy = execute(tmp_path, recipe, make_spec(recipe, "mda", lr=0.0))
    assert result.test == healthy.test  # a step size of zero leaves the network untrained
    assert all(map(torch.isfinite, map(torch.tensor, result.valid["loss"])))


def test_a_divergence_is_recorded_at_the_first_step_that_is_not_finite() -> None:
    losses = [1.0, 2.0, math.nan, 3.0, math.inf]
    assert History().add_losses(make_recipe(), 0, 25, losses) == (23, "the training loss is nan")


def test_a_loss_that_blows_up_without_a_nan_is_a_divergence(tmp_path: Path) -> None:
    recipe = make_recipe(diverged_above=0.5)
    result = execute(tmp_path, recipe, make_spec(recipe, "mda", lr=0.0))
    assert result.status == "diverged"
    assert result.diverged_at == training.WINDOW


def test_a_tiny_first_loss_does_not_make_every_run_diverge(tmp_path: Path) -> None:
    steps: list[int] = []

    def from_nothing(model, batch):
        steps.append(1)
        return loss(model, batch) * min(1e-3 * (len(steps) - 1), 0.02)

    recipe = make_recipe(loss=from_nothing)
    assert execute(tmp_path, recipe, make_spec(recipe, "sgd", lr=1e-6)).status == "finished"
    steps.clear()
    large = make_recipe(loss=lambda model, batch: 1e6 * from_nothing(model, batch))
    assert execute(tmp_path, large, make_spec(large, "sgd", lr=1e-12)).status == "diverged"


def test_accumulated_parts_are_one_batch(tmp_path: Path) -> None:
    plain = {"model": lambda: torch.nn.Linear(6, 1)}  # no dropout, whose draws differ by part
    splits = Splits(_Plain(100, 0), Lines(40, 1), Lines(40, 2))
    results = []
    for parts in (1, 2, 4):
        recipe = make_recipe(splits, accumulate=parts, **plain)
        results.append(execute(tmp_path, recipe, make_spec(recipe)).train["loss"])
    for losses in results[1:]:
        assert losses == pytest.approx(results[0], rel=1e-5)


class _Plain(Lines):
    def batch(self, indices, rng):
        return self.inputs[indices], self.targets[indices]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_network_gives_nearly_the_same_run(tmp_path: Path) -> None:
    splits = Splits(_Plain(100, 0), Lines(40, 1), Lines(40, 2))
    model = {"model": lambda: torch.nn.Linear(6, 1)}
    eager, compiled = (
        execute(tmp_path, recipe := make_recipe(splits, compile=flag, **model), make_spec(recipe))
        for flag in (False, True)
    )
    assert compiled.train["loss"] == pytest.approx(eager.train["loss"], rel=1e-4)
    assert compiled.hash != eager.hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate": lambda _model, _batches: {"loss": 1.0}}, "does not return 'error'"),
        (
            {"evaluate": lambda _model, _batches: {"loss": 1.0, "error": "low"}},
            r"returns .*, which is not a number",
        ),
        ({"model": torch.nn.Identity}, "has no parameters to train"),
        ({"loss": lambda model, batch: model(batch[0])}, r"must be one number .* got shape \(16, 1\)"),
        ({"loss": lambda _model, batch: batch[1].sum()}, r"must be one number .* got shape \(\), detached"),
    ],
)
def test_a_mistake_of_the_recipe_is_a_one_line_error(changes: Any, message: str, tmp_path: Path) -> None:
    recipe = make_recipe(**changes)
    with pytest.raises(RecipeError, match=f"recipe lines {message}"):
        execute(tmp_path, recipe, make_spec(recipe))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state["history"].pop("train_curve"),
        lambda state: state.pop("model"),
        lambda state: state["model"].pop("0.weight"),
        lambda state: state["model"].update({"0.weight": torch.zeros(3)}),
        lambda state: state.update(optimizer=[1, 2]),
        lambda state: state["optimizer"].update(param_groups=[]),
        lambda state: state.update(format="one"),
        lambda state: state.update(schedule=None),
    ],
)
def test_a_foreign_checkpoint_is_a_one_line_error_and_without_it_the_run_starts_over(
    spoil: Any, tmp_path: Path
) -> None:
    recipe = make_recipe()
    spec = make_spec(recipe, lr=0.05)
    folder = RunFolder.of(tmp_path, recipe.name, spec.hash)
    with pytest.raises(training.Interrupted):
        training.run(spec, recipe, folder, tmp_path, should_stop=lambda: True)
    file = folder.path / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    spoil(state)
    torch.save(state, file)
    with pytest.raises(StoreError) as raised:
        training.run(spec, recipe, folder, tmp_path)
    assert str(file) in str(raised.value)
    assert "delete it" in str(raised.value)
    file.unlink()
    assert training.run(spec, recipe, folder, tmp_path).status == "finished"


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def test_a_batch_may_have_names(tmp_path: Path) -> None:
    class Named(Lines):
        def batch(self, indices, rng):
            return {"pair": Pair(*super().batch(indices, rng))}

    def named_loss(model, batch):
        return loss(model, (batch["pair"].inputs, batch["pair"].targets))

    recipe = make_recipe(Splits(Named(100, 0), Lines(40, 1), Lines(40, 2)), loss=named_loss)
    plain = make_recipe()
    named, usual = (execute(tmp_path, r, make_spec(r, lr=0.05, seed=3)) for r in (recipe, plain))
    assert named.train == usual.train


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("mda", 8), ("sgd", 4), ("adam", 8)],  # anchor and sum; momentum; two moments
)
def test_the_size_of_the_optimizer_s_state_is_measured(optimizer: str, expected: int, tmp_path: Path) -> None:
    recipe = make_recipe()
    result = execute(tmp_path, recipe, make_spec(recipe, optimizer))
    tensors = list(recipe.model().parameters())
    counters = 0 if optimizer == "sgd" else 4 * len(tensors)  # of steps
    assert result.parameters == sum(p.numel() for p in tensors)
    assert result.state_bytes == expected * result.parameters + counters
