"""WikiText-103: fairseq's transformer_lm, built from transformers, and the paper's appendix."""

import math

import pytest
import torch

from dualavg_bench.data.wikitext import Blocks
from dualavg_bench.models.transformer_lm import transformer_lm
from dualavg_bench.recipes import wikitext103

pytestmark = pytest.mark.usefixtures("one_thread")


def small(seed=0, **settings):
    torch.manual_seed(seed)
    return transformer_lm(50, 8, **{"width": 16, "layers": 2, "heads": 2, **settings})


def test_perplexity_is_the_exponential_of_the_loss():
    source = Blocks(torch.randint(50, (81,), generator=torch.Generator().manual_seed(0)), 8)
    with torch.no_grad():
        values = wikitext103.evaluate(small().eval(), [source.batch(torch.arange(10), None)])
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]), rel=1e-6)


def test_no_word_is_predicted_from_later_ones():
    model = small().eval()
    words = torch.randint(50, (1, 8))
    changed = words.clone()
    changed[0, 5:] = (changed[0, 5:] + 1) % 50
    a, b = model(words).logits, model(changed).logits
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.equal(a[:, 5:], b[:, 5:])


def test_every_earlier_word_matters():
    model = small().eval()
    words = torch.randint(50, (1, 8))
    before = model(words).logits[0, -1]
    for position in range(8):
        changed = words.clone()
        changed[0, position] = (changed[0, position] + 1) % 50
        assert not torch.allclose(before, model(changed).logits[0, -1], atol=1e-4)


def test_the_embeddings_are_the_output_layer():
    model = small()
    assert [tuple(p.shape) for p in model.parameters()].count((50, 16)) == 1
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_no_word_means_padding():
    model = small()
    model.model(torch.arange(48).view(6, 8)).last_hidden_state.pow(3).sum().backward()
    table = model.model.embed_tokens.weight
    assert (table.grad[:48].abs().sum(dim=1) > 0).all()
    assert (table.detach().abs().sum(dim=1) > 0).all()


def layer_by_hand(layer, x, heads):
    """fairseq's decoder layer without an encoder: norm, branch, add; twice."""
    attention, f = layer.self_attn, torch.nn.functional
    y = layer.self_attn_layer_norm(x)
    q, k, v = (
        linear(y).unflatten(-1, (heads, -1)).transpose(1, 2)
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + attention.out_proj(y.transpose(1, 2).flatten(2))
    return x + layer.fc2(layer.fc1(layer.final_layer_norm(x)).relu())


def test_the_network_equals_fairseqs_formula():
    model = small().eval()
    words = torch.randint(50, (3, 8))
    table = model.model.embed_tokens.weight
    # Positions are counted from 2, after fairseq's padding index.
    angles = torch.arange(2, 10)[:, None] * 10_000 ** (-torch.arange(8) / 7)
    x = table[words] * 4 + torch.cat([angles.sin(), angles.cos()], dim=1)
    for layer in model.model.layers:
        x = layer_by_hand(layer, x, heads=2)
    logits = model.model.layer_norm(x) @ table.T
    assert torch.allclose(model(words).logits, logits, atol=1e-5)


def test_weights_are_initialised_as_in_fairseq():
    torch.manual_seed(0)
    model = transformer_lm(1000, 8, width=64, layers=1, heads=2)
    layer = model.model.layers[0]
    attention = layer.self_attn
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
    bounds = {
        attention.q_proj: math.sqrt(6 / (4 * 64)),  # Glorot's, as if q, k and v were one matrix
        attention.k_proj: math.sqrt(6 / (4 * 64)),
        attention.v_proj: math.sqrt(6 / (4 * 64)),
        attention.out_proj: math.sqrt(6 / (2 * 64)),
        layer.fc1: 64**-0.5,  # torch's
        layer.fc2: 256**-0.5,
    }
    for linear, bound in bounds.items():
        assert linear.weight.abs().max().item() == pytest.approx(bound, rel=0.02)
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert (attention.out_proj.bias == 0).all()
    assert (attention.q_proj.bias != 0).any()


def test_dropout_applies_to_embeddings_and_branches_only():
    config = small(dropout=0.3).config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.3, 0.0, 0.0)
    model = small(dropout=0.3).train()
    words = torch.randint(50, (1, 8))
    assert not torch.equal(model(words).logits, model(words).logits)


def test_the_network_at_paper_scale_has_fairseqs_size():
    recipe = wikitext103.recipe("paper")
    with torch.device("meta"):
        model = recipe.model().eval()
        assert model(torch.zeros(1, 512, dtype=torch.long)).logits.shape == (1, 512, 267_735)
    assert len(model.model.layers) == 6
    assert model.config.attention_heads == 8
    assert model.config.dropout == 0.1
    # The shared embeddings, six layers of fairseq's 3,152,384, and the last norm.
    assert sum(p.numel() for p in model.parameters()) == 267_735 * 512 + 6 * 3_152_384 + 1024


def test_paper_scale_is_the_appendix():
    recipe = wikitext103.recipe("paper")
    assert recipe.steps == 50_000
    assert recipe.accumulate == 16
    assert recipe.batch_size * 512 == 4096 * 16
    assert recipe.precision == "float16"
    assert recipe.seeds.confirm == 20
    assert all(grid.weight_decay == (0.01,) for grid in recipe.grids.values())
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    tail = recipe.schedules["tail"](optimizer, recipe.steps)
    assert [tail.factor(k) for k in (1999, 3999, 18_239, 18_240)] == pytest.approx([0.5, 1, 1, 1 / 1.00001])
