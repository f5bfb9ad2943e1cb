"""The schedules go on as if nothing had happened: from checkpoints, from copies, from a given step."""

import copy
import pickle

import pytest
import torch
from support.schedule_cases import (
    STEPS,
    every_optimizer,
    every_schedule,
    factors,
    lrs_of,
    params_of,
    round_trip,
    train,
    two_groups,
)
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR

from dualavg.schedules import FlatThenDrop


@every_schedule
@every_optimizer
@pytest.mark.parametrize("cut", [1, 8, 21])
def test_resume_is_bitwise(make, optimizer_class, cut):
    uninterrupted = two_groups(optimizer_class)
    used = train(uninterrupted, make(uninterrupted), STEPS)

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
    assert all(map(torch.equal, params_of(second), params_of(uninterrupted)))


def test_a_saved_schedule_brings_its_own_settings():
    saved = FlatThenDrop(two_groups(), 40, gamma=0.5).state_dict()
    other = FlatThenDrop(two_groups(), 7)
    other.load_state_dict(round_trip(saved))
    assert (other.drop_at, other.gamma) == (40, 0.5)


@every_schedule
def test_a_chain_resumes_bitwise(make):
    def chain(optimizer):
        return ChainedScheduler([make(optimizer), ExponentialLR(optimizer, 0.9)], optimizer)

    uninterrupted, first, second = two_groups(), two_groups(), two_groups()
    used = train(uninterrupted, chain(uninterrupted), STEPS)
    a, b = chain(first), chain(second)
    train(first, a, 8)
    second.load_state_dict(round_trip(first.state_dict()))
    b.load_state_dict(round_trip(a.state_dict()))
    assert train(second, b, STEPS - 8) == used[8:]


@every_schedule
@every_optimizer
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("cut", [0, 8])
def test_a_copy_is_independent(make, optimizer_class, duplicate, cut):
    optimizer = two_groups(optimizer_class)
    schedule = make(optimizer)
    train(optimizer, schedule, cut)
    twin, twins = duplicate((optimizer, schedule))
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
