"""RoBERTa: the network, its loss and score, and the numbers of the paper's appendix."""

import math

import pytest
import torch
from support.real_data import REAL, needs
from support.small_text import generator, load_plain, write_plain

from dualavg_bench.data.plain_text import PAD
from dualavg_bench.models.masked_lm import MaskedLM
from dualavg_bench.recipe import Point, registry
from dualavg_bench.recipe.schedules import make_schedule
from dualavg_bench.recipes import roberta

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return load_plain(write_plain(tmp_path_factory.mktemp("text")))


def network(seed=0, vocabulary=300, length=32, **settings):
    torch.manual_seed(seed)
    return MaskedLM(vocabulary, length, **{"width": 16, "layers": 2, "heads": 2, **settings})


# Network, loss and score


def test_padding_does_not_change_the_logits(splits):
    model = network().eval()
    tokens, positions, _ = splits.valid.batch(torch.tensor([0]), None)
    padded = torch.nn.functional.pad(tokens, (0, 32 - tokens.shape[1]), value=PAD)
    assert padded.shape[1] > tokens.shape[1]
    with torch.no_grad():
        plain, with_padding = (model(each, positions) for each in (tokens, padded))
    assert torch.allclose(plain, with_padding, atol=1e-5)


def test_logits_are_robertas_at_the_hidden_positions(splits):
    model = network().eval()
    tokens, positions, _ = splits.valid.batch(torch.arange(4), None)
    with torch.no_grad():
        everywhere = model.network(input_ids=tokens, attention_mask=tokens != PAD).logits
        assert torch.allclose(model(tokens, positions), everywhere.flatten(0, 1)[positions], atol=1e-5)


def test_both_neighbours_of_a_hidden_token_matter(splits):
    model = network().eval()
    tokens, positions, _ = splits.valid.batch(torch.tensor([0]), None)
    middle = positions[(positions > 2) & (positions < tokens.shape[1] - 3)][:1]
    with torch.no_grad():
        before = model(tokens, middle)
        for side in (-1, 1):
            changed = tokens.clone()
            changed[0, middle + side] = 299
            assert not torch.allclose(before, model(changed, middle), atol=1e-5)


def test_the_score_weights_all_hidden_tokens_equally(splits):
    model, source = network().eval(), splits.valid
    batches = [source.batch(part, None) for part in torch.arange(20).split(7)]
    with torch.no_grad():
        values = roberta.evaluate(model, batches)
        losses = [
            -model(tokens, positions).log_softmax(1)[range(len(truth)), truth]
            for tokens, positions, truth in batches
        ]
    mean = torch.cat(losses).mean().item()
    assert values["loss"] == pytest.approx(mean, rel=1e-5)
    assert values["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)


def test_samples_have_the_text_with_gaps_and_a_word_for_each_gap(splits):
    passages = roberta.samples(network().eval(), splits.test)
    assert len(passages) == 3
    for i, passage in zip((len(splits.test) // 4, len(splits.test) // 2), passages, strict=False):
        words = passage.truth.split(" | ")
        assert passage.given.count("[masked]") == len(words) == len(passage.made.split(" | "))
        pieces = passage.given.replace(" ", "").split("[masked]")
        filled = "".join(a + b.replace(" ", "") for a, b in zip(pieces, [*words, ""], strict=True))
        assert filled == splits.test.text(splits.test.example(i)).replace(" ", "")


# Paper scale


def test_paper_scale_is_the_appendix():
    recipe = roberta.recipe("paper")
    assert recipe.steps == 20_000
    assert recipe.batch_size == 2048
    assert recipe.batch_size // recipe.accumulate == 16
    assert recipe.accumulate == 8 * 16
    assert recipe.precision == "float16"
    assert recipe.clip_norm is None
    assert recipe.seeds.confirm == 1
    assert recipe.data.keywords["length"] == 512
    assert {name: grid.weight_decay for name, grid in recipe.grids.items()} == {
        "mda": (0.0,),
        "sgd": (0.01,),
        "adam": (0.01,),
    }
    assert 5e-4 in recipe.grids["adam"].lr
    adam = registry.make(
        "adam", [torch.nn.Parameter(torch.ones(1))], Point(0.1, 0.01), recipe.grids["adam"].settings
    )
    assert (adam.defaults["betas"], adam.defaults["eps"]) == ((0.9, 0.98), 1e-6)
    adam.param_groups[0]["params"][0].grad = torch.zeros(1)
    adam.step()
    decayed = adam.param_groups[0]["params"][0].item()
    assert decayed == pytest.approx(1 - 0.1 * 0.01)  # as AdamW, as in fairseq
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for grid in recipe.grids.values():
        (name,) = grid.schedule
        schedule = make_schedule(name, recipe.schedules, optimizer, recipe.steps)
        factors = [schedule.factor(k) for k in (0, 4_999, 9_999, 15_000, 19_999, 20_000)]
        assert factors == pytest.approx([1e-4, 0.5, 1, 0.5, 1e-4, 0])


def test_the_network_at_paper_scale_is_roberta_base():
    with torch.device("meta"):
        model = roberta.recipe("paper").model()
    # roberta-base of transformers with its head; fairseq's has no token type, 768 parameters less.
    assert sum(p.numel() for p in model.parameters()) == 124_697_433
    config = model.network.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.intermediate_size) == (12, 12, 3072)
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    assert config.initializer_range == 0.02
    assert config.layer_norm_eps == 1e-5
    assert config.max_position_embeddings == 514


@pytest.mark.slow
def test_the_network_at_paper_scale_learns(tmp_path):
    recipe = roberta.recipe("paper")
    source = load_plain(write_plain(tmp_path), length=512, vocabulary=400).train
    torch.manual_seed(0)
    model = recipe.model()
    optimizer = registry.make("adam", model.parameters(), Point(1e-4), recipe.grids["adam"].settings)
    batch, losses = source.batch(torch.arange(2), generator(0)), []
    assert batch[0].shape[1] > 500
    for _ in range(3):
        value = recipe.loss(model, batch)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert losses[0] == pytest.approx(math.log(50_265), rel=0.1)
    assert losses[2] < losses[0]


@pytest.mark.slow
@needs("books-wiki")
def test_the_real_books_and_wikipedia():
    recipe = roberta.recipe("mini")
    splits = recipe.data(REAL)
    assert len(splits.train) > 10 * recipe.batch_size
    lengths = splits.train.breaks.diff() + 1
    assert lengths.max() <= roberta.LENGTH["mini"]
    assert lengths.float().mean() > 0.7 * roberta.LENGTH["mini"]
    assert splits.train.vocabulary == roberta.TOKENS["mini"]
    first = (REAL / "books-wiki" / "valid.txt").read_text("utf-8").split("\n", 1)[0]
    assert splits.valid.text(splits.valid.example(0)[:20]) in first
