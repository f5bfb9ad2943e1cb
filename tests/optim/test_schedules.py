"""The schedules: their formulas, and the settings they refuse."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.schedule_cases import CASES, STEPS, factors, lrs_of, train, two_groups
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from dualavg.schedules import (
    ExponentialTail,
    FlatThenDrop,
    StageWise,
    WarmupCosine,
    WarmupInverseSqrt,
    WarmupLinearDecay,
    WarmupStableDecay,
)

# The formulas.


def test_stage_wise_goes_to_the_next_stage_in_a_straight_line():
    schedule = StageWise(two_groups(), [4, 10], gamma=0.5, ramp=4)
    expected = [1] * 5 + [0.875, 0.75, 0.625, 0.5, 0.5, 0.5] + [0.4375, 0.375, 0.3125] + [0.25] * 4
    assert factors(schedule, 18) == expected


def test_stage_wise_ramps_may_touch():
    schedule = StageWise(two_groups(), [2, 4], gamma=0.5, ramp=2)
    assert factors(schedule, 8) == [1, 1, 1, 0.75, 0.5, 0.375, 0.25, 0.25]


def test_stage_wise_keeps_its_own_milestones():
    milestones = [2]
    schedule = StageWise(two_groups(), milestones)
    milestones.append(3)
    assert factors(schedule, 5) == [1, 1, 0.1, 0.1, 0.1]


@pytest.mark.parametrize("milestones", [[], [0], [5, 13], [1, 2, 3]])
def test_stage_wise_without_ramp_is_multi_step_lr(milestones):
    ours, torchs = two_groups(), two_groups()
    schedule = StageWise(ours, milestones, gamma=0.1)
    reference = MultiStepLR(torchs, milestones, gamma=0.1)
    for _ in range(STEPS):
        assert lrs_of(ours) == reference._get_closed_form_lr()
        assert lrs_of(ours) == pytest.approx(lrs_of(torchs), rel=1e-14)
        train(ours, schedule, 1)
        train(torchs, reference, 1)


def test_the_first_step_of_a_warm_up_moves_and_its_last_has_the_full_lr():
    for schedule in (
        WarmupLinearDecay(two_groups(), 4, 20),
        WarmupCosine(two_groups(), 4, 20),
        WarmupStableDecay(two_groups(), 4, 5, 20),
        WarmupInverseSqrt(two_groups(), 4),
        ExponentialTail(two_groups(), 9, warmup_steps=4),
    ):
        assert factors(schedule, 4) == [0.25, 0.5, 0.75, 1]


def test_linear_decay_is_a_straight_line_to_zero_at_total_steps():
    schedule = WarmupLinearDecay(two_groups(), 4, 12)
    assert factors(schedule, 14)[4:] == [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0, 0]


def test_linear_decay_needs_no_warm_up():
    assert factors(WarmupLinearDecay(two_groups(), 0, 4), 5) == [1, 0.75, 0.5, 0.25, 0]


def test_warm_up_may_last_all_the_run():
    assert factors(WarmupLinearDecay(two_groups(), 2, 2), 3) == [0.5, 1, 0]


@pytest.mark.parametrize("end_factor", [0.0, 0.1])
def test_cosine_without_warm_up_is_cosine_annealing_lr(end_factor):
    ours, torchs = two_groups(lrs=(0.3, 0.3)), two_groups(lrs=(0.3, 0.3))
    schedule = WarmupCosine(ours, 0, STEPS, end_factor=end_factor)
    reference = CosineAnnealingLR(torchs, STEPS, eta_min=0.3 * end_factor)
    for _ in range(STEPS):
        assert lrs_of(ours) == pytest.approx(lrs_of(torchs), rel=1e-12)
        train(ours, schedule, 1)
        train(torchs, reference, 1)


def test_cosine_starts_flat_is_at_half_in_the_middle_and_stays_at_its_end():
    schedule = WarmupCosine(two_groups(), 4, 24, end_factor=0.2)
    assert factors(schedule, 5)[3:] == [1, 1]
    assert schedule.factor(14) == pytest.approx(0.6)
    assert schedule.factor(23) > 0.2
    assert schedule.factor(24) == schedule.factor(1000) == 0.2


def test_stable_decay_is_a_trapezoid():
    schedule = WarmupStableDecay(two_groups(), 2, 4, 10)
    assert factors(schedule, 12) == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_stable_decay_can_end_above_zero():
    schedule = WarmupStableDecay(two_groups(), 0, 2, 4, end_factor=0.5)
    assert factors(schedule, 6) == [1, 1, 1, 0.75, 0.5, 0.5]


def test_stable_decay_needs_no_decay():
    assert factors(WarmupStableDecay(two_groups(), 2, 0, 4), 6) == [0.5, 1, 1, 1, 0, 0]


def test_stable_decay_that_decays_from_the_warm_up_on_is_linear_decay():
    trapezoid, triangle = WarmupStableDecay(two_groups(), 4, 8, 12), WarmupLinearDecay(two_groups(), 4, 12)
    assert factors(trapezoid, 14) == factors(triangle, 14)


def test_a_longer_run_has_the_same_lrs_until_its_decay():
    """So that it can go on from a checkpoint of a shorter one."""
    short, long = WarmupStableDecay(two_groups(), 3, 5, 15), WarmupStableDecay(two_groups(), 3, 5, 24)
    assert factors(short, 11) == factors(long, 11)
    assert factors(short, 15)[11:] == factors(long, 24)[20:]


@given(warmup=st.integers(1, 500))
def test_inverse_sqrt_is_continuous_and_halves_in_four_times_the_warm_up(warmup):
    schedule = WarmupInverseSqrt(two_groups(), warmup)
    assert schedule.factor(warmup - 1) == 1
    assert schedule.factor(4 * warmup - 1) == 0.5
    steps = [schedule.factor(k + 1) - schedule.factor(k) for k in range(3 * warmup)]
    assert max(map(abs, steps)) <= 1 / warmup + 1e-12


def test_inverse_sqrt_without_warm_up_starts_at_the_full_lr():
    schedule = WarmupInverseSqrt(two_groups(), 0)
    assert factors(schedule, 4) == pytest.approx([1 / math.sqrt(k + 1) for k in range(4)])


@pytest.mark.parametrize(("start", "factor"), [(10_000, 1.0003), (18_240, 1.00001)])
def test_exponential_tail_divides_from_start_on(start, factor):
    schedule = ExponentialTail(two_groups(), start, factor=factor, warmup_steps=4000)
    assert schedule.factor(start - 1) == 1
    assert schedule.factor(start) == pytest.approx(1 / factor, rel=1e-14)
    assert schedule.factor(start + 9999) == pytest.approx(factor**-10_000, rel=1e-12)


def test_exponential_tail_has_the_settings_of_iwslt_by_default():
    schedule = ExponentialTail(two_groups())
    assert (schedule.start, schedule.divisor, schedule.factor(0)) == (10_000, 1.0003, 1.0)


def test_exponential_tail_fades_out_instead_of_overflowing():
    assert ExponentialTail(two_groups()).factor(10**8) == 0


def test_flat_then_drop_drops_at_the_step_it_says():
    schedule = FlatThenDrop(two_groups(), 40)
    assert factors(schedule, 50) == [1.0] * 40 + [0.1] * 10


@given(data=st.data())
def test_a_factor_rises_at_most_to_one_and_never_again(data):
    small = st.integers(0, 12)
    warmup, rest, gamma = data.draw(small), data.draw(small), data.draw(st.floats(0.01, 1))
    gaps = data.draw(st.lists(st.integers(max(1, rest), 20), max_size=3))
    milestones = [warmup + sum(gaps[: i + 1]) for i in range(len(gaps))]
    opt = two_groups()
    for schedule in (
        StageWise(opt, milestones, gamma=gamma, ramp=rest),
        WarmupLinearDecay(opt, warmup, max(1, warmup + rest)),
        WarmupCosine(opt, warmup, max(1, warmup + rest), end_factor=1 - gamma),
        WarmupStableDecay(opt, warmup, rest, max(1, warmup + 2 * rest), end_factor=1 - gamma),
        WarmupInverseSqrt(opt, warmup),
        ExponentialTail(opt, warmup + rest, factor=1 / gamma, warmup_steps=warmup),
        FlatThenDrop(opt, warmup, gamma=gamma),
    ):
        path = factors(schedule, 80)
        peak = path.index(max(path))
        assert max(path) <= 1
        assert min(path) >= 0
        assert path[: peak + 1] == sorted(path[: peak + 1])
        assert path[peak:] == sorted(path[peak:], reverse=True)


# Bad input.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda opt: StageWise(opt, [5], gamma=0), "gamma"),
        (lambda opt: StageWise(opt, [5], gamma=1.5), "gamma"),
        (lambda opt: StageWise(opt, [5], gamma=math.nan), "gamma"),
        (lambda opt: StageWise(opt, [5], ramp=-1), "ramp"),
        (lambda opt: StageWise(opt, [-1, 5]), "milestones must not be negative"),
        (lambda opt: StageWise(opt, [9, 5]), "milestones must increase"),
        (lambda opt: StageWise(opt, [5, 5]), "milestones must increase"),
        (lambda opt: StageWise(opt, [5, 8], ramp=4), r"at least 4 \(ramp=4\)"),
        (lambda opt: WarmupLinearDecay(opt, -1, 5), "warmup_steps"),
        (lambda opt: WarmupLinearDecay(opt, 6, 5), "total_steps must be at least 6"),
        (lambda opt: WarmupLinearDecay(opt, 0, 0), "total_steps must be at least 1"),
        (lambda opt: WarmupCosine(opt, -1, 5), "warmup_steps"),
        (lambda opt: WarmupCosine(opt, 6, 5), "total_steps must be at least 6"),
        (lambda opt: WarmupCosine(opt, 0, 5, end_factor=1.1), "end_factor"),
        (lambda opt: WarmupCosine(opt, 0, 5, end_factor=math.nan), "end_factor"),
        (lambda opt: WarmupStableDecay(opt, -1, 2, 5), "warmup_steps"),
        (lambda opt: WarmupStableDecay(opt, 1, -2, 5), "decay_steps"),
        (lambda opt: WarmupStableDecay(opt, 3, 3, 5), "total_steps must be at least 6"),
        (lambda opt: WarmupStableDecay(opt, 3, 2, 5, end_factor=-0.1), "end_factor"),
        (lambda opt: WarmupInverseSqrt(opt, -1), "warmup_steps"),
        (lambda opt: ExponentialTail(opt, factor=0.99), "factor"),
        (lambda opt: ExponentialTail(opt, factor=math.inf), "factor"),
        (lambda opt: ExponentialTail(opt, warmup_steps=-1), "warmup_steps"),
        (lambda opt: ExponentialTail(opt, 9, warmup_steps=10), "start"),
        (lambda opt: FlatThenDrop(opt, -1), "drop_at"),
        (lambda opt: FlatThenDrop(opt, 5, gamma=-0.1), "gamma"),
        *[(lambda opt, m=m: m(opt, groups=[0, 2]), "0 to 1") for m in CASES.values()],
        (lambda opt: FlatThenDrop(opt, 5, groups=[-1]), "0 to 1"),
    ],
)
def test_bad_input_is_told_in_one_sentence_and_changes_nothing(make, words):
    optimizer = two_groups()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=words) as error:
        make(optimizer)
    assert str(error.value).count(". ") == 0
    assert str(error.value).endswith(".")
    assert optimizer.state_dict() == before
    assert "step" not in vars(optimizer)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda opt: StageWise(opt, "ab"), "A milestone must be a whole number, got 'a'."),
        (lambda opt: StageWise(opt, [5], gamma="x"), "gamma must be a number, got 'x'."),
        (lambda opt: WarmupLinearDecay(opt, "5", 10), "warmup_steps must be a whole number, got '5'."),
        (lambda opt: FlatThenDrop(opt, 2.5), "drop_at must be a whole number, got 2.5."),
        (
            lambda opt: FlatThenDrop(opt, 2, groups=0),
            "groups must be a list of indices of param groups, got 0.",
        ),
        (
            lambda opt: FlatThenDrop(opt, 2, groups="0"),
            "groups must be a list of indices of param groups, got '0'.",
        ),
    ],
)
def test_settings_of_the_wrong_type_get_a_sentence(make, sentence):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the full message is compared below
        make(two_groups())
    assert str(raised.value) == sentence


def test_settings_from_numpy_are_saved_as_plain_numbers():
    schedule = StageWise(two_groups(), np.array([5, 10]), gamma=np.float64(0.1), ramp=np.int64(2))
    file = io.BytesIO()
    torch.save(schedule.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["milestones"] == [5, 10]
