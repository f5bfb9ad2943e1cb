"""How the schedules behave as torch schedulers: alone, chained, in sequence, group by group."""

import pytest
import torch
from support.schedule_cases import (
    STEPS,
    every_optimizer,
    every_schedule,
    factors,
    lrs_of,
    torch_26_warns,
    train,
    two_groups,
)
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR, SequentialLR

from dualavg.schedules import FlatThenDrop, StageWise, WarmupInverseSqrt, WarmupLinearDecay

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


def test_a_new_schedule_after_one_that_ended_at_zero_warns_unless_lr_is_set_again():
    optimizer = two_groups()
    train(optimizer, WarmupLinearDecay(optimizer, 2, STEPS), STEPS)
    assert lrs_of(optimizer) == [0, 0]
    with pytest.warns(UserWarning, match="lr is 0 where an earlier schedule ended") as caught:
        FlatThenDrop(optimizer, drop_at=3)
    assert caught[0].filename == __file__
    optimizer.param_groups[0]["lr"] = 0.2
    FlatThenDrop(optimizer, drop_at=3, groups=[0])  # does not move the other one: no warning
    for group, lr in zip(optimizer.param_groups, (0.2, 0.04), strict=True):
        group["lr"] = lr
    schedule = FlatThenDrop(optimizer, drop_at=3)  # without a warning, which would be an error
    used = train(optimizer, schedule, 3)
    assert used == [[0.2, 0.04]] * 3
