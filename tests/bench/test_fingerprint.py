"""Other data, other runs: the fingerprint tells data sets apart, and not two readings of one."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.lines import Lines, execute, make_recipe, make_spec

from dualavg_bench.recipe import FromDataset, RecipeError, Splits
from dualavg_bench.run import held
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


@pytest.mark.parametrize("seed", [None, 0])
def test_augmentation_by_a_generator_that_is_carried_along_is_refused(seed):
    class Carried(Lines):
        own = np.random.default_rng(seed)

        def batch(self, indices, rng):
            inputs, targets = super().batch(indices, rng)
            return inputs + (self.own.random() if rng is not None else 0), targets

    with pytest.raises(RecipeError, match="differ from one reading to the next"):
        check(Splits(Carried(100, 0), Lines(40, 1), Lines(40, 2)), make_recipe())


def test_an_empty_split_and_too_large_a_batch_get_a_sentence():
    with pytest.raises(RecipeError, match="The valid split of recipe lines is empty"):
        check(splits(n=0), make_recipe())
    with pytest.raises(RecipeError, match="100 examples, less than one batch of 128"):
        check(splits(), make_recipe(batch_size=128))


N = 5000


class Table(torch.utils.data.Dataset):
    """Examples in memory, in whichever form."""

    def __init__(self, form, changed=None):
        values = np.arange(N)
        if changed is not None:
            values[changed] = -1
        self.values, self.form = FORMS[form](values), form

    def __len__(self):
        return N

    def __getitem__(self, i):
        values = self.values["x"] if self.form == "dict" else self.values
        return int(values.iloc[i, 0]) if self.form == "table" else int(values[i])


FORMS = {
    "tensor": torch.from_numpy,
    "bfloat16": lambda values: torch.from_numpy(values % 100).bfloat16(),
    "array": lambda values: values,
    "strided": lambda values: np.stack([values, values], 1)[:, 0],
    "objects": lambda values: values.astype(object),
    "list": lambda values: values.tolist(),
    "texts": lambda values: [str(value) for value in values],
    "tensors": lambda values: list(torch.from_numpy(values)),
    "dict": lambda values: {"x": torch.from_numpy(values)},
    "table": lambda values: pd.DataFrame({"x": values}),
}


def of_table(form, changed=None, wrap=lambda dataset: dataset):
    source = FromDataset(wrap(Table(form, changed)))
    return fingerprint(Splits(source, source, source), test=False)


@pytest.mark.parametrize("form", FORMS)
def test_every_example_in_memory_counts(form):
    assert of_table(form) == of_table(form)
    assert len({of_table(form), *(of_table(form, changed) for changed in (1, 17, 2501, N - 2))}) == 5


def test_a_data_set_in_a_data_set_counts():
    def part(dataset):
        return torch.utils.data.Subset(dataset, range(0, N, 2))

    assert of_table("tensor", wrap=part) == of_table("tensor", wrap=part)
    assert of_table("tensor", 18, wrap=part) != of_table("tensor", wrap=part)


def test_of_a_large_array_a_spread_sample_and_both_ends_count(monkeypatch):
    monkeypatch.setattr(held, "WHOLE", 1000)
    monkeypatch.setattr(held, "BLOCK", 80)
    monkeypatch.setattr(held, "BLOCKS", 100)
    whole = of_table("array")
    assert of_table("array") == whole
    assert whole not in (of_table("array", 1), of_table("array", N - 2))
    seen = sum(of_table("array", changed) != whole for changed in range(7, N, 100))
    assert 0 < seen < 50


class Cached(Lines):
    """Keeps what it has read."""

    def __init__(self, n, seed):
        super().__init__(n, seed)
        self.cache, self.read = {}, []

    def batch(self, indices, rng):
        for i in indices.tolist():
            self.cache[str(i)] = self.inputs[i]
            self.read.append(i)
        return super().batch(indices, rng)


def test_what_a_source_keeps_of_its_reading_is_no_difference():
    def fresh():
        return Splits(Cached(30, 0), Cached(30, 1), Cached(30, 2))

    used = fresh()
    before = check(used, make_recipe())
    assert len(used.train.read) >= 60
    assert check(used, make_recipe()) == before
    assert fingerprint(used, test=False) == before == fingerprint(fresh(), test=False)


class Files(torch.utils.data.Dataset):
    def __init__(self, folder, changed=None):
        folder.mkdir()
        self.files = []
        for i in range(300):
            (folder / f"{i}.txt").write_text("a text")
            self.files.append((str(folder / f"{i}.txt"), -1 if i == changed else i))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return Path(self.files[i][0]).read_text()


def test_where_files_lie_is_no_difference_and_what_is_known_of_them_is(tmp_path):
    def of_files(name, changed=None):
        source = FromDataset(Files(tmp_path / name, changed))
        return fingerprint(Splits(source, source, source), test=False)

    assert of_files("one") == of_files("two") != of_files("three", changed=7)
