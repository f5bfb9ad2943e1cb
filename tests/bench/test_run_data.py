"""The data name a run by what it can see of them: other data, other runs; two readings, one name."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from support.lines import Lines, execute, make_recipe, make_spec

from dualavg_bench.recipe import FromDataset, RecipeError, Splits
from dualavg_bench.run import data
from dualavg_bench.run.data import check, fingerprint


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
    with pytest.raises(RecipeError, match="changed since the study was started"):
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
def test_augmentation_by_a_global_generator_is_repeatable_and_restores_it(draw):
    source = FromDataset(Noisy(draw))
    before = states()
    check(Splits(source, source, source), make_recipe())
    assert states() == before


def test_data_that_differ_at_every_reading_are_refused():
    source = FromDataset(Noisy(np.random.default_rng().random))
    with pytest.raises(RecipeError, match="differ from one reading to the next"):
        check(Splits(source, source, source), make_recipe())


@pytest.mark.parametrize("split", ["train", "valid"])
def test_evaluation_data_that_differ_at_every_reading_are_refused(split):
    class Carried(Lines):
        own = np.random.default_rng(0)

        def batch(self, indices, rng):
            inputs, targets = super().batch(indices, rng)
            return inputs + (self.own.random() if rng is None else 0), targets

    sources = {"train": Lines(100, 0), "valid": Lines(40, 1), "test": Lines(40, 2)}
    with pytest.raises(RecipeError, match="differ from one reading to the next"):
        check(Splits(**{**sources, split: Carried(100, 0)}), make_recipe())


@pytest.mark.parametrize("seed", [None, 0])
def test_augmentation_by_a_generator_that_lives_on_is_refused(seed):
    class Carried(Lines):
        own = np.random.default_rng(seed)

        def batch(self, indices, rng):
            inputs, targets = super().batch(indices, rng)
            return inputs + (self.own.random() if rng is not None else 0), targets

    with pytest.raises(RecipeError, match="differ from one reading to the next"):
        check(Splits(Carried(100, 0), Lines(40, 1), Lines(40, 2)), make_recipe())


def test_an_empty_split_and_too_large_a_batch_are_refused():
    with pytest.raises(RecipeError, match="The valid split of recipe lines is empty"):
        check(splits(n=0), make_recipe())
    with pytest.raises(RecipeError, match="100 examples, less than one batch of 128"):
        check(splits(), make_recipe(batch_size=128))


N = 5000


class Table(torch.utils.data.Dataset):
    """Numbers in whichever form a data set gives them."""

    def __init__(self, form, n, changed=None):
        self.values, self.form = list(range(n)), form
        if changed is not None:
            self.values[changed] = -1

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return FORMS[self.form](self.values[i])


@dataclasses.dataclass
class Example:
    value: torch.Tensor


FORMS = {
    "number": int,
    "text": str,
    "tensor": torch.tensor,
    "bfloat16": lambda value: torch.tensor(value % 256 + 1 if value >= 0 else -1).bfloat16(),
    "sparse": lambda value: torch.tensor([value]).to_sparse(),
    "array": lambda value: np.array([value]),
    "objects": lambda value: np.array([str(value)], dtype=object),
    "numpy number": np.float32,
    "dictionary": lambda value: {"x": torch.tensor(value), "name": "an example"},
    "nested": lambda value: (("a", [torch.tensor(value)]), None),
    "dataclass": lambda value: Example(torch.tensor(value)),
}


def of_table(form="tensor", n=N, changed=None, wrap=lambda dataset: dataset):
    source = FromDataset(wrap(Table(form, n, changed)), collate=list)
    return fingerprint(Splits(source, source, source), test=False)


@pytest.mark.parametrize("form", FORMS)
def test_every_example_counts_while_they_are_few(form):
    assert of_table(form, 300) == of_table(form, 300)
    assert len({of_table(form, 300, changed) for changed in (None, 1, 17, 251, 298)}) == 5


def test_every_example_of_a_few_thousand_counts():
    assert len({of_table(changed=changed) for changed in (None, 1, 17, 2501, N - 2)}) == 5


def test_of_many_examples_an_even_sample_and_both_ends_count():
    n = data.MANY + 1
    before = of_table(n=n)
    assert before not in (of_table(n=n, changed=0), of_table(n=n, changed=n - 1))
    seen = sum(of_table(n=n, changed=changed) != before for changed in range(7, n, 500))
    assert 0 < seen < 10


def test_of_large_examples_fewer_count_and_fewer_are_read_at_once(monkeypatch):
    monkeypatch.setattr(data, "MANY_BYTES", 8 * 200)
    monkeypatch.setattr(data, "CHUNK_BYTES", 8 * 10)
    asked = []

    class Watched(Lines):
        def batch(self, indices, rng):
            asked.append(len(indices))
            return torch.zeros(len(indices))[:, None].double()

    data._examples(Watched(1000, 0))
    assert max(asked[1:]) == 10
    assert sum(asked[1:]) == 200


def test_a_data_set_in_a_data_set_counts():
    def half(dataset):
        return torch.utils.data.Subset(dataset, range(0, N, 2))

    assert of_table(wrap=half) == of_table(wrap=half)
    assert of_table(changed=18, wrap=half) != of_table(wrap=half)
    assert of_table(changed=19, wrap=half) == of_table(wrap=half)  # no run can see it


def test_where_values_end_counts():
    def of_texts(*texts):
        source = FromDataset(texts, collate=list)
        return fingerprint(Splits(source, source, source), test=False)

    assert of_texts("ab", "c") != of_texts("a", "bc")
    assert of_texts([1, 2], [3]) != of_texts([1], [2, 3])
    a, b, c = torch.eye(3)
    assert of_texts([a, b], [c]) != of_texts([a], [b, c])
    assert of_texts([1, 23, a], [b]) != of_texts([12, 3, a], [b])


class Cached(Lines):
    """Keeps what it has read."""

    def __init__(self, n, seed):
        super().__init__(n, seed)
        self.cache = {}

    def batch(self, indices, rng):
        self.cache |= {i: self.inputs[i] for i in indices.tolist()}
        return super().batch(indices, rng)


def test_a_cache_in_a_source_changes_nothing():
    def fresh():
        return Splits(Cached(30, 0), Cached(30, 1), Cached(30, 2))

    used = fresh()
    before = check(used, make_recipe())
    assert len(used.train.cache) == 30
    assert check(used, make_recipe()) == before
    assert fingerprint(used, test=False) == before == fingerprint(fresh(), test=False)


def test_tuning_does_not_read_the_test_split():
    class Sealed(Lines):
        def batch(self, indices, rng):
            raise AssertionError

    sealed, larger = (Splits(Lines(100, 0), Lines(40, 1), Sealed(n, 2)) for n in (40, 41))
    assert check(sealed, make_recipe()) == fingerprint(sealed, test=False)
    assert fingerprint(sealed, test=False) != fingerprint(larger, test=False)  # its size counts
