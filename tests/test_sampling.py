import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.errors import BrokenLogits, InvalidParameter
from cactus_decoding.sampling import Purpose, RandomStream, SamplingParams, draw, probabilities, require_sound, uniforms
from tests.tiny import chi_square_p, laws, logit

row_of_logits = st.lists(logit, min_size=2, max_size=12).map(lambda xs: torch.tensor(xs, dtype=torch.float64))
settings_of = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 1.0),
)


def by_definition(logits, params):
    """The documented order, one token at a time."""
    exps = [math.exp((x - max(logits)) / params.temperature) for x in logits]
    kept = set(range(len(logits)))
    if params.top_k:
        kth = sorted(logits, reverse=True)[min(params.top_k, len(logits)) - 1]
        kept = {i for i in kept if logits[i] >= kth}
    if params.top_p < 1:
        total, mass = sum(exps[i] for i in kept), 0.0
        for i in sorted(kept, key=lambda i: -exps[i]):
            mass += exps[i] / total
            smallest = exps[i]
            if mass >= params.top_p:
                break
        kept = {i for i in kept if exps[i] >= smallest}
    largest = max(exps[i] for i in kept)
    kept = {i for i in kept if exps[i] >= params.min_p * largest}
    total = sum(exps[i] for i in kept)
    return [exps[i] / total if i in kept else 0.0 for i in range(len(logits))]


@given(logits=row_of_logits, params=settings_of)
def test_filters_follow_their_documented_order(logits, params):
    expected = by_definition(logits.tolist(), params)
    found = probabilities(logits, params)
    near_a_border = (found - torch.tensor(expected)).abs().max() > 1e-9
    if near_a_border:  # a sum that meets top_p, or a ratio that meets min_p, to the last bit may fall on either side
        nudged = [
            SamplingParams(params.temperature, params.top_k, min(1.0, params.top_p * a), min(1.0, params.min_p * b))
            for a in (1 - 1e-12, 1 + 1e-12)
            for b in (1 - 1e-12, 1 + 1e-12)
        ]
        assert any(found.tolist() == pytest.approx(by_definition(logits.tolist(), other), abs=1e-9) for other in nudged)


@given(logits=row_of_logits, params=settings_of)
def test_always_a_law_and_the_largest_logit_always_survives(logits, params):
    law = probabilities(logits, params)
    assert law.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert bool((law >= 0).all())
    assert law[logits.argmax()] > 0


def test_rows_are_independent():
    logits = torch.randn(3, 4, 9)
    params = SamplingParams(0.8, top_k=5, top_p=0.9, min_p=0.05)
    assert torch.equal(probabilities(logits, params)[1, 2], probabilities(logits[1, 2], params))


def test_a_tiny_temperature_is_greedy_not_broken():
    assert probabilities(torch.tensor([1.0, 3.0, 2.0]), SamplingParams(temperature=1e-40)).tolist() == [0, 1, 0]


def test_half_precision_logits_give_float32_laws():
    assert probabilities(torch.randn(5).bfloat16(), SamplingParams()).dtype == torch.float32


def test_temperature_zero_is_all_mass_on_the_largest_logit():
    assert probabilities(torch.tensor([1.0, 3.0, 2.0]), SamplingParams(temperature=0)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.0), SamplingParams(0.7, 2, 0.9, 0.1)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 3])
def test_broken_logits_are_reported_with_model_and_row(params, bad, place):
    logits = torch.zeros(2, 5)
    logits[1, place] = bad
    with pytest.raises(BrokenLogits, match=r"the drafter returned NaN.*row \[1\].*float32"):
        require_sound(probabilities(logits, params), "drafter")


def test_a_row_without_any_possible_token_is_broken_but_single_exclusions_are_not():
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    assert probabilities(logits, SamplingParams())[0, 1] == 0
    require_sound(probabilities(logits, SamplingParams()), "verifier")
    with pytest.raises(BrokenLogits):
        require_sound(probabilities(torch.full((1, 3), -math.inf), SamplingParams()), "verifier")


@given(law=laws(count=1), u=st.one_of(st.floats(0, 1 - 2**-52), st.sampled_from([0.0, 1 - 2**-52])))
def test_draws_invert_the_cumulative_sum_and_never_hit_a_zero(law, u):
    (weights,) = law
    index = draw(weights[None], torch.tensor([u], dtype=torch.float64)).item()
    assert weights[index] > 0
    below = weights[:index].sum().item()
    assert below - 1e-9 <= u * weights.sum().item() <= below + weights[index].item() + 1e-9


def test_draws_follow_their_weights():
    weights = torch.tensor([0.1, 0.0, 2.0, 0.5, 0.0])
    u = torch.cat([uniforms(1, 0, i * 4096, 4096)[Purpose.EMIT] for i in range(50)])
    counts = torch.bincount(draw(weights.expand(len(u), -1), u), minlength=5)
    assert chi_square_p(counts, weights / weights.sum()) > 1e-4


def test_randomness_depends_on_seed_request_position_and_purpose_alone():
    whole = uniforms(seed=7, request=3, position=10, count=6)
    assert torch.equal(uniforms(7, 3, 12, 3), whole[:, 2:5])
    others = [
        uniforms(8, 3, 10, 6),
        uniforms(2**63, 3, 10, 6),
        uniforms(2**63 + 1, 3, 10, 6),
        uniforms(7, 4, 10, 6),
        uniforms(7, 3, 16, 6),
    ]
    assert all(not torch.isin(other, whole).any() for other in others)
    assert len({tuple(other.flatten().tolist()) for other in others}) == len(others)
    assert whole.unique().numel() == whole.numel()
    assert bool(((whole >= 0) & (whole < 1)).all())


def test_a_stream_gives_the_same_numbers_in_any_order():
    stream = RandomStream(7, 3)
    for position, count in [(0, 5), (3, 6), (200, 9), (1, 300), (64, 64)]:
        assert torch.equal(stream.at(position, count), uniforms(7, 3, position, count))


def test_randomness_is_the_same_on_every_machine():
    """Fixed values: a change here changes every text that anybody made with a seed."""
    found = [number.hex() for number in uniforms(2024, 0, 0, 2)[:, 0].tolist()]
    assert found == ["0x1.820628bc8e4fap-1", "0x1.4eab9c867688ep-1", "0x1.a938c315c2c58p-1"]


def test_parameters_compare_by_value_so_that_equal_rows_go_together():
    one, other = (SamplingParams(logit_bias=bias) for bias in ({5: 1, 2: -math.inf}, {2: -math.inf, 5: 1.0}))
    assert one == other
    assert hash(one) == hash(other)
    assert one != SamplingParams(logit_bias={5: 1.0})
    assert not one.penalised
    assert SamplingParams(frequency_penalty=-0.1).penalised


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias names the id -1"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias names the id '5'"),
        ({"logit_bias": {5: math.nan}}, "logit_bias of id 5 is nan"),
        ({"logit_bias": {5: math.inf}}, "logit_bias of id 5 is inf"),
    ],
)
def test_settings_out_of_range_are_refused_with_the_value(settings, message):
    with pytest.raises(InvalidParameter, match=message):
        SamplingParams(**settings)
