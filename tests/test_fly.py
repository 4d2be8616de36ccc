"""FLy against its words, token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.rules import Fly, Lossless
from cactus_decoding.sampling import draw
from cactus_decoding.verify import Verdict, verify
from tests.tiny import laws


def stands(rule, place, native, q, n, length):
    """Whether a refused n stands after all."""
    largest = sorted(q, reverse=True)[:3]
    unsure = -sum(x * math.log(x) for x in largest if x > 0) >= rule.entropy
    behind = native[place + 1 : place + 1 + rule.window]
    return unsure and q[n] > 0 and place + rule.window < length and len(behind) == rule.window and all(behind)


@st.composite
def long_blocks(draw_):
    """One block of up to 9 drafts of a drafter near its verifier, so that runs of kept ones are common."""
    m, size = draw_(st.integers(1, 9)), draw_(st.integers(2, 6))
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 2**32)))
    q = (2 * torch.randn(1, m + 1, size, generator=generator, dtype=torch.float64)).softmax(-1)
    p = (q[:, :m].log() + draw_(st.sampled_from([0.1, 0.5])) * torch.randn(1, m, size, generator=generator)).softmax(-1)
    q[0, :, 0] *= draw_(st.sampled_from([1.0, 0.0]))
    q /= q.sum(-1, keepdim=True)
    u = torch.rand(3, 1, m + 1, generator=generator, dtype=torch.float64)
    return draw(p[0], u[0, 0, :m])[None], p, q, u[1, :, :m], u[2]


@settings(max_examples=200)
@given(block=long_blocks(), entropy=st.sampled_from([0.0, 0.3, 0.9]), window=st.integers(1, 4))
def test_what_stands_is_what_the_words_say(block, entropy, window):
    draft, p, q, u, u_emit = block
    rule, m = Fly(entropy, window), draft.shape[1]
    found = verify(draft, p, q, rule, u, u_emit)
    native = [bool(u[0, j] * p[0, j, draft[0, j]] < q[0, j, draft[0, j]]) for j in range(m)]
    expected = []
    for j in range(m):
        if not native[j] and not stands(rule, j, native, q[0, j].tolist(), int(draft[0, j]), m):
            expected.append(Verdict.REFUSED)
            break
        expected.append(Verdict.KEPT if native[j] else Verdict.RELAXED)
    expected += [Verdict.UNEXAMINED] * (m - len(expected))
    assert found.verdict[0].tolist() == expected
    if Verdict.REFUSED in expected:  # recovered as the lossless rule does
        alone = verify(draft, p, q, Lossless(), u, u_emit)
        if alone.kept.item() == found.kept.item():
            assert alone.emitted.item() == found.emitted.item()


@given(block=long_blocks())
def test_a_window_that_no_block_can_fill_is_the_lossless_rule(block):
    draft, p, q, u, u_emit = block
    found, lossless = (verify(draft, p, q, rule, u, u_emit) for rule in (Fly(0.0, 9), Lossless()))
    assert torch.equal(found.verdict, lossless.verdict)
    assert torch.equal(found.emitted, lossless.emitted)


@given(law=laws(count=1, least=3, zeros=False))
def test_nothing_passes_where_the_verifier_is_sure(law):
    q = torch.zeros(1, 4, len(law[0]), dtype=torch.float64)
    q[..., 0] = 1.0
    draft, u = torch.tensor([[1, 0, 0]]), torch.zeros(1, 3)
    found = verify(draft, law[0].expand(1, 3, -1), q, Fly(0.01, 1), u, torch.zeros(1, 4))
    assert found.kept.item() == 0


def test_padding_is_not_taken_for_agreement():
    """Two real tokens and a window of two: the first has one behind it, and stays refused."""
    q = torch.tensor([0.4, 0.6]).expand(1, 5, 2)
    p = torch.tensor([0.9, 0.1]).expand(1, 4, 2)
    draft, u = torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0.9, 0.1, 0.1, 0.1]])
    whole = verify(draft, p, q, Fly(0.3, 2), u, torch.zeros(1, 5))
    short = verify(draft, p, q, Fly(0.3, 2), u, torch.zeros(1, 5), lengths=torch.tensor([2]))
    assert whole.verdict.tolist() == [[Verdict.RELAXED, Verdict.KEPT, Verdict.KEPT, Verdict.KEPT]]
    assert short.verdict.tolist() == [[Verdict.REFUSED, Verdict.UNEXAMINED, Verdict.ABSENT, Verdict.ABSENT]]


@pytest.mark.parametrize("left", [0, 1])
def test_a_budget_of_relaxed_tokens_holds_here_too(left):
    q, p = torch.tensor([0.4, 0.6]).expand(1, 4, 2), torch.tensor([0.9, 0.1]).expand(1, 3, 2)
    draft, u = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0.9, 0.1, 0.1]])
    found = verify(draft, p, q, Fly(0.3, 2), u, torch.zeros(1, 4), relaxed_left=torch.tensor([left]))
    assert found.kept.item() == (3 if left else 0)
