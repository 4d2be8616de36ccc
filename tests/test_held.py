"""Laws held as they came equal the dense ones, one by one and through `verify`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.errors import BrokenLogits
from cactus_decoding.held import DenseLaws, MixedLaws, SoftmaxLaws, SparseLaws, drawn_first, of_drafts, stacked
from cactus_decoding.laws import laws_of, plain_laws
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.sampling import SamplingParams, draw, probabilities
from cactus_decoding.sparse import largest_entries
from cactus_decoding.verify import verify
from tests.test_rules import EVERY_RULE, IDS

KINDS = {
    SoftmaxLaws: [SamplingParams(), SamplingParams(0.7), SamplingParams(1.6, logit_bias={1: -math.inf, 3: 2.0})],
    SparseLaws: [
        SamplingParams(0.0), SamplingParams(top_k=1), SamplingParams(0.8, top_k=5),
        SamplingParams(0.8, top_k=4, top_p=0.83), SamplingParams(1.3, top_k=9, top_p=0.71, min_p=0.11),
    ],
    DenseLaws: [SamplingParams(top_p=0.9), SamplingParams(min_p=0.2)],
}  # fmt: skip
PARAMS = [params for kind in KINDS.values() for params in kind]
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-12}
SIZES = [2, 11, 700, 5000]


@pytest.fixture(autouse=True, scope="module")
def _long_rows_only():
    """The rows of these tests are short, and are to be held as long ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cactus_decoding.laws.SHORT", 0)
        yield


def random_logits(seed, n, k, size, dtype=torch.float32, excluded=0.0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, size, generator=generator, dtype=dtype)
    cut = torch.rand(n, k, size, generator=generator) < excluded
    cut[..., 0] = False
    return logits.masked_fill(cut, -math.inf)


def everywhere(laws):
    n, k, _ = laws.shape
    return tuple(x.flatten() for x in torch.meshgrid(torch.arange(n), torch.arange(k), indexing="ij"))


def usable(params, size):
    return all(token < size for token, _ in params.biases)


@pytest.mark.parametrize(("kind", "params"), [(kind, params) for kind in KINDS for params in KINDS[kind]])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32), size=st.sampled_from(SIZES), dtype=st.sampled_from([torch.float32, torch.float64]),
    excluded=st.sampled_from([0.0, 0.5, 0.999]), offset=st.sampled_from([0.0, 0.0, 500.0, -500.0]),
)  # fmt: skip
def test_every_kind_says_what_the_dense_law_says(kind, params, seed, size, dtype, excluded, offset):
    if not usable(params, size):
        return
    logits = random_logits(seed, 3, 2, size, dtype, excluded) + offset
    # torch.softmax itself is 1e-6 off in float32
    expected = probabilities(logits if kind is DenseLaws else logits.double(), params).to(dtype)
    laws = plain_laws(logits, params)
    assert isinstance(laws, kind) or (params.top_k >= size and isinstance(laws, (SoftmaxLaws, DenseLaws)))
    assert laws.shape == expected.shape
    # a logit of 500 has 2e-5 between it and the next float: what a shift by its row's largest cancels, a bias does not
    close = CLOSE[dtype] if offset == 0.0 else 1e3 * CLOSE[dtype]
    same = {"rtol": 0.0, "atol": close}
    torch.testing.assert_close(laws.dense(), expected, **same)
    at = everywhere(laws)
    torch.testing.assert_close(laws.rows(at), laws.dense().flatten(0, 1))
    assert not laws.broken().any()
    ids = torch.randint(size, (6, 4), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(laws.at(at, ids), laws.dense()[at].gather(-1, ids))
    own, law = laws.support(at)
    if own is not None:
        assert bool((own.diff() > 0).all())
        torch.testing.assert_close(law.sum(-1), torch.ones(6, dtype=dtype), **same)
    torch.testing.assert_close(laws.part([2, 0], 1).dense(), laws.dense()[[2, 0], :1])


@given(seed=st.integers(0, 2**32), k=st.integers(1, 12), size=st.sampled_from([13, 900, 5000]), data=st.data())
def test_ties_with_the_kth_are_kept(seed, k, size, data):
    """Logits of few different values, as low precision makes them, in whole rows or a few places."""
    logits = random_logits(seed, 2, 2, size).mul(data.draw(st.sampled_from([0.3, 1.0, 20.0]))).round()
    if data.draw(st.booleans()):
        logits = logits.bfloat16()
    params = SamplingParams(0.9, top_k=k)
    laws = plain_laws(logits, params)
    torch.testing.assert_close(laws.dense(), probabilities(logits, params), rtol=0, atol=1e-6)
    assert torch.equal(laws.dense() > 0, probabilities(logits, params) > 0)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 40), size=st.sampled_from([64 * 170, 64 * 170 + 9, 300]))
def test_the_largest_entries_are_found_through_their_blocks(seed, count, size):
    logits = random_logits(seed, 2, 2, size).mul(2).round()
    values, ids = largest_entries(logits, count)
    assert torch.equal(values, logits.topk(count, dim=-1).values)
    assert torch.equal(logits.gather(-1, ids), values)
    assert all(len(set(row)) == count for row in ids.flatten(0, 1).tolist())


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("size", [11, 5000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, "all -inf"])
def test_broken_rows_are_found_and_only_they(params, size, bad):
    logits = random_logits(0, 2, 3, size)
    logits[1, 2, ... if bad == "all -inf" else 7] = -math.inf if bad == "all -inf" else bad
    laws = plain_laws(logits, params)
    assert laws.broken().tolist() == [[False] * 3, [False, False, True]]
    assert torch.equal(laws.broken(), probabilities(logits, params)[..., 0].isnan())
    message = r"the verifier returned NaN.*row \[1, 2\] of \[2, 3\]"
    for q in (laws, probabilities(logits, params)):
        with pytest.raises(BrokenLogits, match=message):
            verify(torch.zeros(2, 2, dtype=torch.long), None, q, Lossless(), torch.rand(2, 2), torch.rand(2, 3))


def bits(laws):
    at = everywhere(laws)
    own, law = laws.support(at)
    rows = (
        [dict(zip(i, x)) for i, x in zip((at[0:1] if own is None else own).tolist(), law.tolist())]
        if own is not None
        else law.tolist()
    )
    rows = rows if own is None else [{i: x for i, x in row.items() if x > 0} for row in rows]
    n, k, _ = laws.shape
    return [rows[k * row : k * row + k] for row in range(n)]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("size", [11, 5000])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(params, size):
    logits = random_logits(3, 5, 3, size)
    logits[1] = logits[1].round()  # ties
    logits[2] += 900.0  # a shift of its own
    together = plain_laws(logits, params)
    ids = torch.randint(size, (5, 3))
    for row in range(5):
        alone = plain_laws(logits[row : row + 1].clone(), params)
        assert bits(alone) == bits(together.part([row], 3))
        assert torch.equal(of_drafts(alone, ids[row : row + 1])[0], of_drafts(together, ids)[row])


def mixed(logits, shapings):
    n, k, _ = logits.shape
    none = torch.empty(n, 0, dtype=torch.long)
    return laws_of(logits, shapings, [()] * n, none, [0] * n, [k] * n)


def test_rows_of_different_kinds_stand_side_by_side():
    logits, shapings = random_logits(5, 4, 3, 50), [PARAMS[0], PARAMS[5], PARAMS[0], PARAMS[8]]
    laws = mixed(logits, shapings)
    assert isinstance(laws, MixedLaws)
    alone = [plain_laws(logits[row : row + 1], shapings[row]) for row in range(4)]
    assert torch.equal(laws.dense(), torch.cat([one.dense() for one in alone]))
    assert torch.equal(laws.rows(everywhere(laws)), laws.dense().flatten(0, 1))
    ids = torch.randint(50, (4, 2))
    assert torch.equal(of_drafts(laws, ids), torch.cat([of_drafts(one, ids[i : i + 1]) for i, one in enumerate(alone)]))
    assert sorted(len(rows) for rows in laws.alike(torch.arange(4))) == [1, 1, 2]
    for rows in ([2, 3], [0, 2], [1]):
        assert torch.equal(laws.part(rows, 2).dense(), laws.dense()[rows, :2])
    assert not laws.broken().any()
    assert of_drafts(laws, torch.empty(4, 0, dtype=torch.long)).shape == (4, 0)


def test_places_of_a_draft_are_stacked_and_drawn_from():
    params, u = SamplingParams(top_k=3), torch.rand(2, dtype=torch.float64)
    logits = torch.stack([random_logits(6, 2, 1, 30), random_logits(7, 2, 1, 30).round()])
    for shaping in (params, SamplingParams(), [params, SamplingParams()]):
        places = [mixed(x, shaping if isinstance(shaping, list) else [shaping] * 2) for x in logits]
        found = [drawn_first(laws, u) for laws in places]
        dense = torch.cat([laws.dense() for laws in places], dim=1)
        assert torch.equal(stacked([laws for laws, _ in found]).dense(), dense)
        for place, (_, ids) in enumerate(found):
            assert ids.tolist() == draw(dense[:, place], u).tolist()


# --- through verify -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32), params=st.sampled_from(PARAMS), size=st.sampled_from([11, 200]),
    certain=st.booleans(),
)  # fmt: skip
def test_every_rule_decides_and_emits_as_on_dense_laws(rule, seed, params, size, certain):
    generator = torch.Generator().manual_seed(seed)
    logits = random_logits(seed, 3, 4, size, torch.float64)
    near = logits[:, :3] + torch.randn(3, 3, size, generator=generator, dtype=torch.float64)
    p, q = plain_laws(near, params), plain_laws(logits, params)
    u = torch.rand(3, 3, 4, generator=generator, dtype=torch.float64)
    draft = draw(p.dense().flatten(0, 1), u[2, :, :3].flatten()).view(3, 3)
    given_p = None if certain and not rule.reads_drafter else p
    dense_p = None if given_p is None else probabilities(near, params)
    found = verify(draft, given_p, q, rule, u[0, :, :3], u[1])
    expected = verify(draft, dense_p, probabilities(logits, params), rule, u[0, :, :3], u[1])
    for name in ("verdict", "kept", "emitted", "bonus"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for name in ("p_n", "q_n", "q_emitted", "h_emitted"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-7)
    # above p(n) a target says "for certain" and no more: rounding may put it anywhere there
    kept, wanted = (torch.minimum(each.h_n, each.p_n) for each in (found, expected))
    torch.testing.assert_close(kept, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.5), BoundedRatio(1.7), BoundedRatio(1.7, "shift")])
def test_a_batch_of_mixed_kinds_is_examined_as_its_rows_alone(rule):
    logits, shapings = random_logits(8, 6, 4, 300), (PARAMS[0], PARAMS[5], PARAMS[9]) * 2
    near = logits[:, :3] + random_logits(9, 6, 3, 300) / 3
    p, q, u = mixed(near, shapings), mixed(logits, shapings), torch.rand(3, 6, 4, dtype=torch.float64)
    draft = draw(p.dense().flatten(0, 1), u[2, :, :3].flatten()).view(6, 3)
    together = verify(draft, p, q, rule, u[0, :, :3], u[1])
    for row in range(6):
        one = slice(row, row + 1)
        own_p, own_q = (mixed(x[one], [shapings[row]]) for x in (near, logits))
        alone = verify(draft[one], own_p, own_q, rule, u[0, one, :3], u[1, one])
        for name in ("p_n", "q_n", "h_n", "verdict", "kept", "emitted", "q_emitted", "h_emitted", "bonus"):
            assert torch.equal(getattr(alone, name), getattr(together, name)[one]), name


# --- long rows are drawn from in two levels -----------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32), size=st.sampled_from([4096, 5000, 4224]), positive=st.sampled_from([1, 3, 200, 4000]),
    u=st.one_of(st.floats(0, 1 - 2**-52), st.sampled_from([0.0, 1 - 2**-52])),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_long_rows_are_drawn_from_as_short_ones(seed, size, positive, u, dtype):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(2, size, dtype=dtype)
    ids = torch.randperm(size, generator=generator)[:positive]
    weights[0, ids] = torch.rand(positive, generator=generator, dtype=dtype).clamp_min(1e-6)
    weights[1] = 1.0
    index = draw(weights, torch.tensor([u, u], dtype=torch.float64)).tolist()
    assert weights[0, index[0]] > 0
    total, below = weights[0].double().sum().item(), weights[0, : index[0]].double().sum().item()
    slack = 1e-6 * total
    assert below - slack <= u * total <= below + weights[0, index[0]].item() + slack
    assert abs(index[1] - u * size) <= 1 + 1e-6 * size
    assert draw(weights[:1], torch.tensor([u], dtype=torch.float64)).item() == index[0]
