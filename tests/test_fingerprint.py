"""Other data, other runs: the fingerprint tells data sets apart, and not two readings of one."""

import random

import numpy as np
import pytest
import torch
from test_runner import Lines, execute, make_recipe, make_spec

from dualavg_bench.fingerprint import check, fingerprint
from dualavg_bench.recipe import FromDataset, RecipeError, Splits


def splits(train=0, valid=1, test=2, n=40):
    return Splits(Lines(100, train), Lines(n, valid), Lines(40, test))


def test_equal_data_have_equal_fingerprints():
    assert fingerprint(splits(), test=True) == fingerprint(splits(), test=True)


@pytest.mark.parametrize("change", [{"train": 9}, {"valid": 9}, {"n": 39}])
@pytest.mark.parametrize("test", [True, False])
def test_other_data_have_another(change, test):
    assert fingerprint(splits(**change), test=test) != fingerprint(splits(), test=test)


def test_other_test_data_are_seen_in_confirmation_only():
    assert fingerprint(splits(test=9), test=False) == fingerprint(splits(), test=False)
    assert fingerprint(splits(test=9), test=True) != fingerprint(splits(), test=True)


def test_a_run_refuses_data_that_are_not_its_own(tmp_path):
    spec = make_spec(make_recipe(splits()))
    with pytest.raises(RecipeError, match="not those the study was started with"):
        execute(tmp_path, make_recipe(splits(train=9)), spec)


class Noisy(torch.utils.data.Dataset):
    """Augmented by whichever generator is at hand."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {"x": torch.tensor([i, self.draw()]), "name": f"example {i}", "y": np.float32(i)}


def states():
    numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002
    return random.getstate(), numpy_state, torch.get_rng_state().tolist()


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_augmentation_by_a_global_generator_is_no_difference_and_leaves_it_alone(draw):
    source = FromDataset(Noisy(draw))
    before = states()
    check(Splits(source, source, source), make_recipe())
    assert states() == before


def test_data_that_differ_at_every_reading_are_refused():
    source = FromDataset(Noisy(np.random.default_rng().random))
    with pytest.raises(RecipeError, match="differ from one reading to the next"):
        check(Splits(source, source, source), make_recipe())


def test_an_empty_split_and_too_large_a_batch_get_a_sentence():
    with pytest.raises(RecipeError, match="The valid split of recipe lines is empty"):
        check(splits(n=0), make_recipe())
    with pytest.raises(RecipeError, match="100 examples, less than one batch of 128"):
        check(splits(), make_recipe(batch_size=128))
