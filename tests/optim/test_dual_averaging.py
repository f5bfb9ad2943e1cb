"""DualAveraging itself: the rows of the ablation and the averaged iterate."""

import copy
import itertools

import pytest
import torch
from support.cases import gradient, parameters, train

from dualavg import MDA, DualAveraging
from dualavg._reference import ReferenceDualAveraging


def test_the_rows_of_the_ablation_are_one_choice_apart_and_the_last_is_mda() -> None:
    rows = (
        {"momentum": 0.0, "weighting": "constant"},
        {"momentum": 0.9, "weighting": "constant"},
        {"momentum": 0.9, "weighting": "sqrt"},
    )
    for before, after in itertools.pairwise(rows):
        assert sum(before[key] != after[key] for key in before) == 1
    ends = []
    for row in rows:
        (p,) = parameters((4,))
        train(DualAveraging([p], lr=0.5, **row), range(50))
        ends.append(p.detach())
    (q,) = parameters((4,))
    train(MDA([q], lr=0.5, momentum=0.9), range(50))
    assert torch.equal(ends[2], q.detach())
    assert not torch.allclose(ends[0], ends[1])
    assert not torch.allclose(ends[1], ends[2])


def test_textbook_dual_averaging_returns_the_mean_of_its_iterates() -> None:
    (p,) = parameters((4,))
    reference = ReferenceDualAveraging(p, "constant", "nesterov")
    optimizer = DualAveraging([p], lr=0.3, scaling="nesterov")
    for k in range(100):
        p.grad = gradient(p, k)
        reference.step(p.grad, 0.3, 1.0)
        optimizer.step()
    (average,) = optimizer.averaged_parameters()
    torch.testing.assert_close(average, torch.stack(reference.x[:100]).mean(0), rtol=0, atol=1e-12)


def test_the_average_converges_where_the_last_iterate_of_a_non_smooth_function_jumps() -> None:
    """On |x - 1| the mean of the iterates comes closer than the last one, which overshoots forever."""
    x = torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    optimizer = DualAveraging([x], scaling="nesterov")
    last = []
    for _ in range(1000):
        optimizer.zero_grad()
        (x - 1).abs().sum().backward()
        optimizer.step()
        last.append(abs(x.item() - 1))
    (average,) = optimizer.averaged_parameters()
    assert abs(average.item() - 1) < max(last[-10:])


def test_averaged_parameters_are_copies_in_the_dtype_of_the_parameters() -> None:
    stepped, waiting = parameters((4,), (3,), dtype=torch.bfloat16)
    optimizer = DualAveraging([stepped, waiting])
    stepped.grad = gradient(stepped, 0)
    optimizer.step()
    averages = optimizer.averaged_parameters()
    assert [a.dtype for a in averages] == [torch.bfloat16, torch.bfloat16]
    assert optimizer.state[stepped]["average"].dtype == torch.float32
    assert torch.equal(averages[1], waiting)
    for average in averages:
        average.zero_()
    assert waiting.any()
    assert optimizer.state[stepped]["average"].any()


def test_swapping_in_and_out_is_bitwise_also_when_the_block_raises() -> None:
    params = parameters((4,), (3, 2), dtype=torch.bfloat16)
    optimizer = DualAveraging(params)
    train(optimizer, range(10))
    before = [p.detach().clone() for p in params]
    state = copy.deepcopy(optimizer.state_dict())
    averages = optimizer.averaged_parameters()

    def evaluate() -> None:
        with optimizer.use_averaged_parameters():
            assert all(torch.equal(p, a) for p, a in zip(params, averages, strict=True))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
    for i, kept in state["state"].items():
        assert all(torch.equal(optimizer.state[params[i]][key], value) for key, value in kept.items())
    train(optimizer, range(10, 12))  # and training goes on


def test_a_step_or_a_second_swap_inside_is_refused() -> None:
    params = parameters((4,))
    optimizer = DualAveraging(params)
    train(optimizer, range(3))
    with optimizer.use_averaged_parameters():
        held = params[0].detach().clone()
        with pytest.raises(RuntimeError, match=r"Inside use_averaged_parameters\(\)"):
            optimizer.step()
        with (
            pytest.raises(RuntimeError, match=r"Inside use_averaged_parameters\(\)"),
            optimizer.use_averaged_parameters(),
        ):
            pytest.fail("swapped in twice")
        for forbidden in (optimizer.reset_anchor, lambda: copy.deepcopy(optimizer)):
            with pytest.raises(RuntimeError, match=r"Inside use_averaged_parameters\(\)"):
                forbidden()
        called = []
        with pytest.raises(RuntimeError, match=r"Inside use_averaged_parameters\(\)"):
            optimizer.step(lambda: called.append(1))
        assert not called
        assert torch.equal(params[0], held)
    optimizer.step()


def test_without_an_average_there_is_no_buffer_and_a_clear_error() -> None:
    (p,) = parameters((4,))
    optimizer = DualAveraging([p], average=False)
    train(optimizer, range(2))
    assert set(optimizer.state[p]) == {"step", "x0", "s"}
    with pytest.raises(RuntimeError, match="create DualAveraging with average=True"):
        optimizer.averaged_parameters()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weighting": "linear"}, "weighting must be one of ('constant', 'sqrt'), got 'linear'."),
        ({"scaling": None}, "scaling must be one of ('sqrt', 'nesterov'), got None."),
        ({"lr": -1.0}, "lr must be a number from 0 to 1e+15, got -1.0."),
    ],
)
def test_an_invalid_setting_raises_a_one_line_error(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the full message is compared below
        DualAveraging(parameters((2,)), **settings)
    assert str(raised.value) == sentence


def test_settings_changed_in_mid_run_that_need_other_state_are_refused() -> None:
    (p,) = parameters((4,))
    optimizer = DualAveraging([p])
    train(optimizer, range(2))
    optimizer.param_groups[0]["scaling"] = "nesterov"
    before = p.detach().clone()
    with pytest.raises(ValueError, match="its group's settings need"):
        optimizer.step()
    assert torch.equal(p, before)
    assert optimizer.state[p]["step"] == 2
