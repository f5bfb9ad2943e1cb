"""State dicts: what they keep, which are refused, old files, and torch.distributed.checkpoint."""

import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.cases import gradient, parameters, train
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from dualavg import MDA, DualAveraging
from dualavg._dadapt import DAdaptMDA

FIXTURES = Path(__file__).parent / "fixtures"
both = pytest.mark.parametrize("cls", [MDA, DualAveraging])


@both
def test_an_old_checkpoint_loads_and_continues_to_the_same_result(cls: type[torch.optim.Optimizer]) -> None:
    """tests/optim/fixtures/freeze.py wrote the file once; it must not be written again."""
    frozen = torch.load(FIXTURES / f"{cls.__name__}-0.1.pt", weights_only=True)
    params = [torch.nn.Parameter(p) for p in frozen["params"]]
    optimizer = cls([{"params": params[:1]}, {"params": params[1:]}])
    optimizer.load_state_dict(frozen["optimizer"])
    train(optimizer, range(20, 30))
    for p, expected in zip(params, frozen["ten_steps_later"], strict=True):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-12)


@both
def test_settings_that_an_older_version_lacks_get_their_defaults(
    cls: type[torch.optim.Optimizer],
) -> None:
    (p,) = parameters((3,))
    optimizer = cls([p])
    train(optimizer, range(3))
    saved = optimizer.state_dict()
    for key in ("capturable", "differentiable", "peak_lr"):
        del saved["param_groups"][0][key]
    fresh = cls([p])
    fresh.load_state_dict(saved)
    train(fresh, range(3))
    assert fresh.param_groups[0]["capturable"] is False


@both
def test_loaded_state_shares_no_memory_with_the_state_dict(cls: type[torch.optim.Optimizer]) -> None:
    """torch.optim would let two optimizers write to one buffer after b.load_state_dict(a.state_dict())."""
    (p,), (q,) = parameters((3,)), parameters((3,))
    first, second = cls([p]), cls([q])
    train(first, range(3))
    second.load_state_dict(first.state_dict())
    kept = copy.deepcopy(first.state[p])
    train(second, range(3))
    for key, value in kept.items():
        assert torch.equal(first.state[p][key], value)


def test_the_user_s_hooks_run_around_the_loading() -> None:
    (p,), (q,) = parameters((3,), dtype=torch.float32), parameters((3,), dtype=torch.bfloat16)
    first, second = MDA([p]), MDA([q])
    train(first, range(3))
    seen: list[torch.dtype] = []

    def double_the_sum(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = copy.deepcopy(state_dict)
        state_dict["state"][0]["s"] *= 2
        return state_dict

    second.register_load_state_dict_pre_hook(double_the_sum)
    second.register_load_state_dict_post_hook(lambda o: seen.append(o.state[q]["s"].dtype))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.state[q]["s"], 2 * first.state[p]["s"])
    assert seen == [torch.float32]


def test_a_capturable_checkpoint_and_a_plain_one_are_interchangeable() -> None:
    (p,), (q,) = parameters((3,)), parameters((3,))
    plain, capturable = MDA([p]), MDA([q], capturable=True)
    train(plain, range(10))
    q.data.copy_(p)
    saved = plain.state_dict()
    saved["param_groups"][0]["capturable"] = True
    capturable.load_state_dict(saved)
    for optimizer in (plain, capturable):
        train(optimizer, range(10, 20))
    torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "other",
    [
        torch.optim.Adam,
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        DualAveraging,
    ],
)
def test_the_checkpoint_of_another_optimizer_is_refused_before_anything_changes(other: Any) -> None:
    (p,), (q,) = parameters((3,)), parameters((3,))
    foreign, optimizer = other([p]), MDA([q])
    train(foreign, range(2))
    train(optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="not a state dict of MDA: its groups have the settings"):
        optimizer.load_state_dict(foreign.state_dict())
    assert optimizer.state_dict()["param_groups"] == before["param_groups"]
    assert torch.equal(optimizer.state[q]["s"], before["state"][0]["s"])


@pytest.mark.parametrize(
    ("alter", "sentence"),
    [
        (lambda d: d.pop("state"), "it holds ['param_groups']"),
        (lambda d: d["state"][0].pop("beta"), "but ['average', 'beta', 's', 'step', 'x0'] are needed"),
        (lambda d: d["state"][0].update(more=1), "are needed"),
        (
            lambda d: d["state"][0].update(average=torch.ones(2)),
            "'average' of parameter 0 was saved for shape (2,)",
        ),
        (lambda d: d["state"][0].update(s=torch.ones(4)), "'s' of parameter 0 was saved for shape (4,)"),
        (
            lambda d: d["state"][0].update(s=torch.ones(3, dtype=torch.int64)),
            "'s' of parameter 0 is torch.int64",
        ),
        (
            lambda d: d["state"][0].update(x0=torch.ones(3).to_sparse()),
            "'x0' of parameter 0 is torch.float32, ",
        ),
        (lambda d: d["state"][0].update(step=3), "'step' of parameter 0 must be a tensor, got int"),
        (lambda d: d["state"][0].update(step=torch.tensor(-1.0)), "must be a step count, got -1.0"),
        (lambda d: d["state"][0].update(step=torch.tensor(float("nan"))), "must be a step count, got nan"),
        (lambda d: d["state"][0].update(beta=torch.zeros(1)), "must be a step count, got [0.0]"),
        (lambda d: d["param_groups"][0].update(weighting="foo"), "weighting must be one of"),
        (lambda d: d["param_groups"][0].update(lr=-1.0), "lr must be a number from 0"),
        (lambda d: d["param_groups"][0].pop("scaling"), "its groups have the settings"),
    ],
)
def test_an_altered_state_dict_is_refused_before_anything_changes(alter: Any, sentence: str) -> None:
    (p,), (q,) = parameters((3,)), parameters((3,))
    first, second = (DualAveraging([each], scaling="nesterov") for each in (p, q))
    train(first, range(2))
    saved = copy.deepcopy(first.state_dict())
    alter(saved)
    settings = dict(second.param_groups[0])
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the sentence is compared below
        second.load_state_dict(saved)
    assert sentence in str(raised.value)
    assert not second.state
    assert second.param_groups[0] == settings


def test_a_peak_saved_as_a_number_is_loaded() -> None:
    (p,) = parameters((3,))
    optimizer = MDA([p])
    train(optimizer, range(2))
    saved = optimizer.state_dict()
    saved["param_groups"][0]["peak_lr"] = 2.0
    optimizer.load_state_dict(saved)
    train(optimizer, range(2))
    assert optimizer.param_groups[0]["peak_lr"].item() == 2.0


@pytest.mark.parametrize("cls", [MDA, DualAveraging, DAdaptMDA])
def test_the_settings_of_a_state_dict_are_json_and_load_again(cls: type[torch.optim.Optimizer]) -> None:
    settings = {"scaling": "nesterov"} if cls is DualAveraging else {"anchor_dtype": torch.bfloat16}
    runs = []
    for through_json in (False, True):
        (p,) = parameters((3,), dtype=torch.float32)
        optimizer = cls([("weight", p)], **settings)
        train(optimizer, range(5))
        if through_json:
            saved = optimizer.state_dict()
            saved["param_groups"] = json.loads(json.dumps(saved["param_groups"]))
            assert saved["param_groups"][0]["peak_lr"] == 0.25
            optimizer = cls([("weight", p)])
            optimizer.load_state_dict(saved)
        train(optimizer, range(5, 10))
        runs.append((optimizer, [p.detach(), optimizer.param_groups[0]["peak_lr"]]))
    (first, expected), (second, resumed) = runs
    assert all(map(torch.equal, expected, resumed))
    assert expected[1].dtype == resumed[1].dtype
    for key, value in settings.items():
        assert second.param_groups[0][key] == first.param_groups[0][key] == value


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_tensor_lr_and_the_dtype_of_its_peak_survive(
    cls: type[torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    (p,) = parameters((3,))
    optimizer, fresh = (cls([p], lr=torch.tensor(0.3, dtype=dtype)) for _ in range(2))
    train(optimizer, range(3))
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["lr"] is optimizer.param_groups[0]["lr"]  # as in torch.optim
    fresh.load_state_dict(saved)
    for key in ("lr", "peak_lr"):
        loaded, kept = fresh.param_groups[0][key], optimizer.param_groups[0][key]
        assert loaded.dtype == kept.dtype == dtype
        assert torch.equal(loaded, kept)


@both
def test_a_state_dict_is_plain_at_any_moment(cls: type[torch.optim.Optimizer]) -> None:
    """A scheduler may set a number of numpy's just before a checkpoint is written."""
    (p,) = parameters((3,))
    optimizer = cls([p], maximize=np.bool_(False))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: np.cos(np.float64(0.1 * k)))
    for _ in range(3):
        for step in (lambda: train(optimizer, range(1)), scheduler.step):
            step()
            optimizer.param_groups[0]["lr"] = np.float64(optimizer.param_groups[0]["lr"])
            optimizer.param_groups[0]["momentum"] = np.float32(0.5)
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            (group,) = torch.load(file, weights_only=True)["param_groups"]
            assert type(group["lr"]) is type(group["momentum"]) is type(group["peak_lr"]) is float
            assert json.loads(json.dumps(group)) == group


def test_a_state_dict_taken_before_a_step_keeps_its_peak() -> None:
    (p,) = parameters((3,))
    optimizer = MDA([p])
    saved = optimizer.state_dict()
    train(optimizer, range(3))
    assert saved["param_groups"][0]["peak_lr"] == 0


def test_the_user_s_hooks_see_the_plain_state_dict_and_have_the_last_word() -> None:
    (p,) = parameters((3,))
    optimizer = MDA([p], anchor_dtype="bfloat16")
    seen = []

    def replace(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        seen.append(state_dict["param_groups"][0]["anchor_dtype"])
        return {"mine": 1}

    optimizer.register_state_dict_post_hook(replace)
    assert optimizer.state_dict() == {"mine": 1}
    assert seen == ["bfloat16"]
    assert optimizer.param_groups[0]["anchor_dtype"] is torch.bfloat16


def test_a_state_of_another_shape_is_refused() -> None:
    (p,), (q,) = parameters((3,)), parameters((4,))
    first, second = MDA([p]), MDA([q])
    train(first, range(2))
    with pytest.raises(ValueError, match=r"saved for shape \(3,\), but the parameter has shape \(4,\)"):
        second.load_state_dict(first.state_dict())
    assert not second.state


def test_an_average_is_loaded_only_if_it_was_kept() -> None:
    (p,), (q,) = parameters((3,)), parameters((3,))
    without, optimizer = DualAveraging([p], average=False), DualAveraging([q])
    train(without, range(2))
    optimizer.load_state_dict(without.state_dict())
    train(optimizer, range(2))
    with pytest.raises(RuntimeError, match="No average is kept"):
        optimizer.averaged_parameters()


@both
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("couple_momentum", [True, False])
@pytest.mark.parametrize("tensor_lr", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_initialising_step_of_dcp_leaves_parameters_bit_exact(
    cls: type[torch.optim.Optimizer],
    weight_decay: float,
    couple_momentum: bool,
    tensor_lr: bool,
    dtype: torch.dtype,
) -> None:
    model = torch.nn.Linear(50, 40).to(dtype)
    before = [p.detach().clone() for p in model.parameters()]
    lr = torch.tensor(2.0) if tensor_lr else 2.0
    optimizer = cls(model.parameters(), lr=lr, weight_decay=weight_decay, couple_momentum=couple_momentum)
    get_optimizer_state_dict(model, optimizer)
    assert len(optimizer.state) == 2
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
        assert torch.equal(optimizer.state[p]["x0"], value)
        assert not optimizer.state[p]["s"].any()
    assert optimizer.param_groups[0]["peak_lr"] == 0


def test_weights_loaded_after_that_step_need_reset_anchor() -> None:
    model, elsewhere = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer = MDA(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    model.load_state_dict(elsewhere.state_dict())
    optimizer.reset_anchor()
    fresh = MDA(elsewhere.parameters())
    for each in (optimizer, fresh):
        train(each, range(5))
    for p, q in zip(model.parameters(), elsewhere.parameters(), strict=True):
        assert torch.equal(p, q)


@both
@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled, )?unavailable or uninitialized")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch 2.6
def test_a_run_resumes_bitwise_from_a_distributed_checkpoint(
    cls: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to(torch.bfloat16)
        return model, cls(model.parameters(), momentum=0.9)

    uninterrupted, uninterrupted_optimizer = make()
    train(uninterrupted_optimizer, range(30))

    first, first_optimizer = make()
    train(first_optimizer, range(20))
    saved = {"model": first.state_dict(), "optimizer": get_optimizer_state_dict(first, first_optimizer)}
    dcp.save(saved, checkpoint_id=tmp_path)

    second, second_optimizer = make()
    target = {"model": second.state_dict(), "optimizer": get_optimizer_state_dict(second, second_optimizer)}
    dcp.load(target, checkpoint_id=tmp_path)
    second.load_state_dict(target["model"])
    set_optimizer_state_dict(second, second_optimizer, target["optimizer"])
    train(second_optimizer, range(20, 30))

    for p, q in zip(uninterrupted.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)
        for key, value in uninterrupted_optimizer.state[p].items():
            assert second_optimizer.state[q][key].dtype == value.dtype
            assert torch.equal(second_optimizer.state[q][key], value)
    peaks = [o.param_groups[0]["peak_lr"] for o in (uninterrupted_optimizer, second_optimizer)]
    assert torch.equal(*peaks)


def test_a_step_after_loading_continues_the_count() -> None:
    (p,) = parameters((3,))
    first = MDA([p])
    train(first, range(7))
    second = MDA([p])
    second.load_state_dict(first.state_dict())
    p.grad = gradient(p, 7)
    second.step()
    assert second.state[p]["step"] == 8
    assert first.state[p]["step"] == 7
