"""Small random models, random laws, and the chi-square test that the law tests share."""

import torch
from hypothesis import strategies as st
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM

from cactus_decoding.testing import byte_tokenizer  # noqa: F401  # the tests take it from here

# hypothesis: a law's logits, and whether a token is cut to probability 0
logit = st.floats(-8, 8, allow_nan=False, width=32)


def tiny_model(seed, hidden=16, layers=2, vocabulary=8, std=0.5, positions=256, **config):
    torch.manual_seed(seed)
    settings = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None} | config
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=vocabulary,
            max_position_embeddings=positions,
            initializer_range=std,
            **settings,
        )
    ).eval()


@st.composite
def laws(draw, count=2, least=2, most=12, zeros=True, dtype=torch.float64):
    """``count`` distributions over one vocabulary; some entries may be exactly 0, never all of a row."""
    size = draw(st.integers(least, most))
    rows = []
    for _ in range(count):
        row = torch.tensor(draw(st.lists(logit, min_size=size, max_size=size)), dtype=dtype).exp()
        if zeros:
            cut = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
            row[list(cut)] = 0.0
        rows.append(row / row.sum())
    return rows


def random_laws(seed, size=12, spread=2.0, distance=1.0):
    """A pair (p, q) in float64 such as a drafter and its verifier give."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(size, generator=generator, dtype=torch.float64) * spread
    return (base + distance * torch.randn(size, generator=generator, dtype=torch.float64)).softmax(0), base.softmax(0)


def chi_square_p(counts, law):
    """p-value of observed counts against a law; cells that expect fewer than 5 are pooled, 0 must stay empty."""
    counts, law = counts.double(), law.double()
    assert int(counts[law <= 0].sum()) == 0, "something was drawn that has probability 0"
    expected = law * counts.sum()
    small = expected < 5
    observed = torch.cat([counts[~small], counts[small].sum().view(1)])
    expected = torch.cat([expected[~small], expected[small].sum().view(1)])
    real = expected > 0
    statistic = float(((observed - expected)[real] ** 2 / expected[real]).sum())
    return float(chi2.sf(statistic, max(int(real.sum()) - 1, 1)))
