"""The schedules: their formulas, and how they behave as torch schedulers."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    ExponentialLR,
    MultiStepLR,
    SequentialLR,
)

from dualavg import MDA
from dualavg.schedules import (
    ExponentialTail,
    FlatThenDrop,
    StageWise,
    WarmupInverseSqrt,
    WarmupLinearDecay,
)

# Every schedule, short enough that STEPS steps see all of it.
STEPS = 24
CASES = {
    "stage_wise": lambda opt, **kw: StageWise(opt, [5, 13], gamma=0.3, ramp=4, **kw),
    "stage_wise_cliff": lambda opt, **kw: StageWise(opt, [5, 13], **kw),
    "warmup_linear_decay": lambda opt, **kw: WarmupLinearDecay(opt, 3, 20, **kw),
    "warmup_inverse_sqrt": lambda opt, **kw: WarmupInverseSqrt(opt, 7, **kw),
    "exponential_tail": lambda opt, **kw: ExponentialTail(opt, 9, factor=1.07, warmup_steps=6, **kw),
    "flat_then_drop": lambda opt, **kw: FlatThenDrop(opt, 11, **kw),
}
OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, MDA]

every_schedule = pytest.mark.parametrize("make", CASES.values(), ids=CASES.keys())
torch_26_warns = pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
every_optimizer = pytest.mark.parametrize("optimizer_class", OPTIMIZERS)


def two_groups(optimizer_class=torch.optim.SGD, lrs=(0.3, 0.07)):
    """An optimizer with two groups, of which the second has its own lr."""
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
    return optimizer_class([{"params": [a]}, {"params": [b], "lr": lrs[1]}], lr=lrs[0])


def lrs_of(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def params_of(optimizer):
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def train(optimizer, scheduler, steps):
    """Descend 0.5 |p|^2; return the lrs each step was made with."""
    used = []
    for _ in range(steps):
        used.append(lrs_of(optimizer))
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = p.detach().clone()
        optimizer.step()
        scheduler.step()
    return used


def factors(schedule, steps=STEPS):
    return [schedule.factor(k) for k in range(steps)]


def round_trip(state):
    """Write to a file and read back, admitting nothing that could run code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


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


# As torch schedulers.


@every_schedule
@every_optimizer
def test_lr_is_exactly_base_lr_times_factor(make, optimizer_class):
    optimizer = two_groups(optimizer_class)
    schedule = make(optimizer)
    used = train(optimizer, schedule, STEPS)
    assert used == [[0.3 * f, 0.07 * f] for f in factors(schedule)]
    assert schedule.get_last_lr() == lrs_of(optimizer)


@every_schedule
@every_optimizer
def test_a_tensor_lr_is_updated_in_place(make, optimizer_class):
    lrs = [torch.tensor(0.3), torch.tensor(0.07)]
    optimizer = two_groups(optimizer_class, lrs)
    schedule = make(optimizer)
    for k in range(STEPS):
        for group, lr, base in zip(optimizer.param_groups, lrs, (0.3, 0.07), strict=True):
            assert group["lr"] is lr
            assert torch.equal(lr, torch.tensor(base) * schedule.factor(k))
        train(optimizer, schedule, 1)


@every_schedule
@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("tensor", [True, False])
def test_chained_with_another_scheduler_is_the_product(make, ours_first, tensor):
    wrap = (lambda lr: torch.tensor(lr, dtype=torch.float64)) if tensor else float
    optimizer = two_groups(lrs=(wrap(0.3), wrap(0.07)))
    made = [make, lambda opt: ExponentialLR(opt, 0.9)]
    both = [m(optimizer) for m in (made if ours_first else made[::-1])]
    ours = both[0] if ours_first else both[1]
    used = train(optimizer, ChainedScheduler(both, optimizer), STEPS)
    for k, (a, b) in enumerate(used):
        expected = 0.9**k * ours.factor(k)
        assert a == pytest.approx(0.3 * expected, rel=1e-12)
        assert b == pytest.approx(0.07 * expected, rel=1e-12)


def test_two_of_ours_chained_are_the_product():
    optimizer = two_groups()
    warmup, stages = WarmupInverseSqrt(optimizer, 7), StageWise(optimizer, [9], ramp=3)
    used = train(optimizer, ChainedScheduler([warmup, stages], optimizer), STEPS)
    expected = [0.3 * warmup.factor(k) * stages.factor(k) for k in range(STEPS)]
    assert [a for a, _ in used] == pytest.approx(expected, rel=1e-12)


@every_schedule
def test_an_lr_changed_by_hand_keeps_the_change(make):
    optimizer = two_groups()
    schedule = make(optimizer)
    train(optimizer, schedule, 8)
    optimizer.param_groups[1]["lr"] *= 0.5
    used = train(optimizer, schedule, STEPS - 8)
    for k, (a, b) in enumerate(used, start=8):
        assert a == 0.3 * schedule.factor(k)
        assert b == pytest.approx(0.5 * 0.07 * schedule.factor(k), rel=1e-12)


def test_a_factor_of_zero_is_left_again_without_dividing_by_it():
    class Pause(FlatThenDrop):
        def factor(self, step):
            return 0.0 if step == self.drop_at else 1.0

    optimizer = two_groups()
    used = train(optimizer, Pause(optimizer, 2), 5)
    assert [a for a, _ in used] == [0.3, 0.3, 0.0, 0.3, 0.3]


@torch_26_warns
@every_schedule
def test_after_another_in_sequence_it_starts_from_its_step_zero(make):
    optimizer = two_groups()
    ours = make(optimizer)
    both = SequentialLR(optimizer, [ConstantLR(optimizer, 0.5, 99), ours], milestones=[4])
    used = train(optimizer, both, 4 + STEPS)
    assert used[:4] == [[0.15, 0.035]] * 4
    assert used[4:] == [[0.3 * f, 0.07 * f] for f in factors(ours)]


@torch_26_warns
@every_schedule
def test_before_another_in_sequence_it_starts_once(make):
    optimizer = two_groups()
    ours = make(optimizer)
    both = SequentialLR(optimizer, [ours, ExponentialLR(optimizer, 0.9)], milestones=[STEPS])
    used = train(optimizer, both, STEPS + 2)
    assert used[:STEPS] == [[0.3 * f, 0.07 * f] for f in factors(ours)]
    assert used[STEPS:] == [[0.3, 0.07], [0.3 * 0.9, 0.07 * 0.9]]


@every_schedule
def test_it_can_be_sent_to_a_given_step(make):
    optimizer = two_groups()
    schedule = make(optimizer)
    optimizer.step()
    for k in (15, 2, 7):
        with pytest.warns(UserWarning, match="epoch parameter"):
            schedule.step(k)
        assert lrs_of(optimizer) == [0.3 * schedule.factor(k), 0.07 * schedule.factor(k)]
    train(optimizer, schedule, 1)
    assert lrs_of(optimizer) == [0.3 * schedule.factor(8), 0.07 * schedule.factor(8)]


def test_asking_for_the_next_lr_out_of_turn_gives_copies_and_a_warning_as_torch_does():
    lrs = [torch.tensor(0.3), torch.tensor(0.07)]
    schedule = FlatThenDrop(two_groups(lrs=lrs), 3, groups=[0])
    with pytest.warns(UserWarning, match="get_last_lr"):
        answer = schedule.get_lr()
    assert answer == lrs
    assert answer[0] is not lrs[0]
    assert answer[1] is not lrs[1]


# Resume and copies.


@every_schedule
@every_optimizer
@pytest.mark.parametrize("cut", [1, 8, 21])
def test_resume_is_bitwise(make, optimizer_class, cut):
    whole = two_groups(optimizer_class)
    used = train(whole, make(whole), STEPS)

    first = two_groups(optimizer_class)
    schedule = make(first)
    train(first, schedule, cut)
    saved = round_trip([params_of(first), first.state_dict(), schedule.state_dict()])

    second = two_groups(optimizer_class)
    schedule = make(second)
    for p, value in zip((g["params"][0] for g in second.param_groups), saved[0], strict=True):
        p.data.copy_(value)
    second.load_state_dict(saved[1])
    schedule.load_state_dict(saved[2])
    assert train(second, schedule, STEPS - cut) == used[cut:]
    assert all(map(torch.equal, params_of(second), params_of(whole)))


def test_a_saved_schedule_brings_its_own_settings():
    saved = FlatThenDrop(two_groups(), 40, gamma=0.5).state_dict()
    other = FlatThenDrop(two_groups(), 7)
    other.load_state_dict(round_trip(saved))
    assert (other.drop_at, other.gamma) == (40, 0.5)


@every_schedule
def test_a_chain_resumes_bitwise(make):
    def chain(optimizer):
        return ChainedScheduler([make(optimizer), ExponentialLR(optimizer, 0.9)], optimizer)

    whole, first, second = two_groups(), two_groups(), two_groups()
    used = train(whole, chain(whole), STEPS)
    a, b = chain(first), chain(second)
    train(first, a, 8)
    second.load_state_dict(round_trip(first.state_dict()))
    b.load_state_dict(round_trip(a.state_dict()))
    assert train(second, b, STEPS - 8) == used[8:]


@every_schedule
@every_optimizer
@pytest.mark.parametrize("how", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("cut", [0, 8])
def test_a_copy_goes_on_by_itself(make, optimizer_class, how, cut):
    optimizer = two_groups(optimizer_class)
    schedule = make(optimizer)
    train(optimizer, schedule, cut)
    twin, twins = how((optimizer, schedule))
    assert twins.optimizer is twin
    before = lrs_of(optimizer)
    used = train(twin, twins, STEPS - cut)
    assert lrs_of(optimizer) == before
    assert used == train(optimizer, schedule, STEPS - cut)


@every_schedule
def test_last_epoch_continues_a_loaded_optimizer(make):
    first, second = two_groups(), two_groups()
    schedule = make(first)
    train(first, schedule, 8)
    second.load_state_dict(first.state_dict())
    resumed = make(second, last_epoch=7)
    assert train(second, resumed, STEPS - 8) == train(first, schedule, STEPS - 8)


@every_schedule
def test_last_epoch_continues_a_checkpoint_taken_before_the_schedulers_step(make):
    first, second = two_groups(), two_groups()
    schedule = make(first)
    train(first, schedule, 8)
    second.load_state_dict(first.state_dict())
    schedule.step()
    resumed = make(second, last_epoch=8)
    assert train(second, resumed, STEPS - 9) == train(first, schedule, STEPS - 9)


@every_schedule
def test_last_epoch_starts_a_fresh_optimizer_at_that_step(make):
    optimizer = two_groups()
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    schedule = make(optimizer, last_epoch=7)
    used = train(optimizer, schedule, STEPS - 8)
    assert used == [[0.3 * f, 0.07 * f] for f in factors(schedule)[8:]]


@every_schedule
def test_last_epoch_keeps_what_another_scheduler_did(make):
    first, second = two_groups(), two_groups()
    train(first, ChainedScheduler([make(first), ExponentialLR(first, 0.9)], first), 8)
    second.load_state_dict(first.state_dict())
    make(second, last_epoch=7)
    assert lrs_of(second) == lrs_of(first)


def test_last_epoch_asks_for_an_initial_lr_as_torch_does():
    with pytest.raises(KeyError, match="initial_lr"):
        FlatThenDrop(two_groups(), 3, last_epoch=7)


# Groups.


@every_schedule
def test_groups_not_named_are_left_alone(make):
    optimizer = two_groups(lrs=(0.3, torch.tensor(0.07)))
    schedule = make(optimizer, groups=[0])
    used = train(optimizer, schedule, STEPS)
    with pytest.warns(UserWarning, match="epoch parameter"):
        schedule.step(2)
    assert [a for a, _ in used] == [0.3 * f for f in factors(schedule)]
    assert all(torch.tensor(b) == torch.tensor(0.07) for _, b in used)
    assert lrs_of(optimizer) == [0.3 * schedule.factor(2), pytest.approx(0.07)]


def test_groups_follow_a_schedule_each():
    optimizer = two_groups()
    a = WarmupLinearDecay(optimizer, 3, 20, groups=[0])
    b = StageWise(optimizer, [5], ramp=3, groups=[1])
    used = train(optimizer, ChainedScheduler([a, b], optimizer), STEPS)
    assert used == [[0.3 * a.factor(k), 0.07 * b.factor(k)] for k in range(STEPS)]


@every_schedule
@every_optimizer
@pytest.mark.parametrize("tensor", [True, False])
def test_a_group_added_later_joins_with_its_own_lr(make, optimizer_class, tensor):
    optimizer = two_groups(optimizer_class)
    schedule = make(optimizer)
    train(optimizer, schedule, 8)
    lr = torch.tensor(0.5) if tensor else 0.5
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr})
    used = train(optimizer, schedule, STEPS - 8)
    assert used[0] == [0.3 * schedule.factor(8), 0.07 * schedule.factor(8), 0.5]
    for k, three in enumerate(used[1:], start=9):
        new = float(torch.tensor(0.5) * schedule.factor(k)) if tensor else 0.5 * schedule.factor(k)
        assert three == [0.3 * schedule.factor(k), 0.07 * schedule.factor(k), new]
    assert schedule.base_lrs == [0.3, 0.07, 0.5]


def test_a_group_added_later_joins_a_chain_of_ours():
    optimizer = two_groups()
    a, b = WarmupInverseSqrt(optimizer, 7), StageWise(optimizer, [9], ramp=3)
    both = ChainedScheduler([a, b], optimizer)
    train(optimizer, both, 8)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.5})
    used = train(optimizer, both, STEPS - 8)
    expected = [0.5 * a.factor(k) * b.factor(k) for k in range(9, STEPS)]
    assert [lr for _, _, lr in used[1:]] == pytest.approx(expected, rel=1e-12)
    assert a.base_lrs == b.base_lrs == [group["initial_lr"] for group in optimizer.param_groups]


def test_a_group_added_later_joins_when_sent_to_a_step():
    optimizer = two_groups()
    schedule = FlatThenDrop(optimizer, 3)
    train(optimizer, schedule, 1)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.5})
    with pytest.warns(UserWarning, match="epoch parameter"):
        schedule.step(3)
    assert lrs_of(optimizer) == [0.3 * 0.1, 0.07 * 0.1, 0.05]


def test_a_group_added_later_stays_out_of_named_groups():
    optimizer = two_groups()
    schedule = FlatThenDrop(optimizer, 1, groups=[1])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.5})
    train(optimizer, schedule, 3)
    assert lrs_of(optimizer) == [0.3, 0.07 * 0.1, 0.5]
    assert "initial_lr" not in optimizer.param_groups[2]


def test_a_group_added_later_does_not_change_a_state_dict_taken_before():
    optimizer = two_groups()
    schedule = FlatThenDrop(optimizer, 9)
    state = schedule.state_dict()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.5})
    train(optimizer, schedule, 1)
    assert state["base_lrs"] == [0.3, 0.07]


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
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole sentence is compared below
        make(two_groups())
    assert str(raised.value) == sentence


def test_settings_from_numpy_are_saved_as_plain_numbers():
    schedule = StageWise(two_groups(), np.array([5, 10]), gamma=np.float64(0.1), ramp=np.int64(2))
    file = io.BytesIO()
    torch.save(schedule.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["milestones"] == [5, 10]
