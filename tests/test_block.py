"""Block verification against enumeration: whole texts have the verifier's law, and never fewer tokens are kept."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.divergences import DIVERGENCES
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.induced import induced_law
from cactus_decoding.rules import (
    BoundedRatio,
    Cactus,
    Cascade,
    Ears,
    Fly,
    Frontier,
    Interpolation,
    Lossless,
    Mentored,
    TopK,
    Typical,
)  # fmt: skip
from cactus_decoding.sampling import draw
from cactus_decoding.verify import Verdict, verify
from tests.test_verify import FIELDS, blocks
from tests.tiny import chi_square_p

DRAWS = 200_000
LOSSLESS = Lossless()
ROUNDING = 1e-15  # an outcome less likely than this is 1 - w of a w that should be 1


# --- a slow reference: laws are dicts from a prefix of ids to a list of probabilities -------------------------------


def prefixes(size, longest):
    return [ids for k in range(longest + 1) for ids in itertools.product(range(size), repeat=k)]


def table(size, m, generator, spread=1.5, cut=0.0):
    """A law behind every prefix of up to m ids; ``cut`` is the share of entries that are exactly 0."""
    rows = {}
    for prefix in prefixes(size, m):
        row = (spread * torch.randn(size, generator=generator, dtype=torch.float64)).softmax(0)
        gone = torch.rand(size, generator=generator) < cut
        gone[torch.randint(size, (), generator=generator)] = False
        row[gone] = 0.0
        rows[prefix] = (row / row.sum()).tolist()
    return rows


def residual(w, p_row, q_row):
    return [max(w * b - a, 0.0) for a, b in zip(p_row, q_row)]


def decisions(draft, p, q):
    """``(w, h)``: the running product behind each prefix, and the chance to stop there if nothing longer is kept."""
    w, h = [1.0], [1.0]
    for i, n in enumerate(draft, start=1):
        w.append(min(1.0, w[-1] * q[draft[: i - 1]][n] / p[draft[: i - 1]][n]))
        if i == len(draft):
            h.append(w[i])
        else:
            left = sum(residual(w[i], p[draft[:i]], q[draft[:i]]))
            h.append(left / (left + 1.0 - w[i]) if left + 1.0 - w[i] > 0.0 else 1.0)
    return w, h


def drafts_of(p, size, m):
    """Every block that can be drafted, with its probability."""
    for draft in itertools.product(range(size), repeat=m):
        weight = 1.0
        for i, n in enumerate(draft):
            weight *= p[draft[:i]][n]
        if weight > 0.0:
            yield draft, weight


def block_outcomes(p, q, size, m):
    """``(kept ids, weights of the emitted one, probability)`` of everything that can happen to a block."""
    for draft, drafted in drafts_of(p, size, m):
        chance = drafted
        w, h = decisions(draft, p, q)
        for kept in range(m, -1, -1):
            prefix = draft[:kept]
            row = q[prefix] if kept == m else residual(w[kept], p[prefix], q[prefix])
            if chance * h[kept] > ROUNDING:
                yield prefix, row, chance * h[kept]
            chance *= 1.0 - h[kept]


def kept_on_average(p, q, size, m):
    return sum(len(prefix) * chance for prefix, _, chance in block_outcomes(p, q, size, m))


def kept_token_by_token(p, q, size, m):
    total = 0.0
    for draft, drafted in drafts_of(p, size, m):
        chance = drafted
        for i, n in enumerate(draft):
            chance *= min(1.0, q[draft[:i]][n] / p[draft[:i]][n])
            total += chance
    return total


def continued(q, prefix, chance, longest):
    """``{text: probability}`` of texts of ``longest`` ids, from ``prefix`` on by the verifier."""
    if len(prefix) == longest:
        return {prefix: chance}
    law = {}
    for x, b in enumerate(q[prefix]):
        if b > 0.0:
            law |= continued(q, (*prefix, x), chance * b, longest)
    return law


def emitted_law(p, q, size, m):
    """Law of texts of m + 1 ids: a block's kept ids and its emitted one, continued by the verifier."""
    law = dict.fromkeys(itertools.product(range(size), repeat=m + 1), 0.0)
    for prefix, row, chance in block_outcomes(p, q, size, m):
        total = sum(row)
        assert total > 0.0, "a decision from which nothing can be emitted"
        for x, weight in enumerate(row):
            if weight > 0.0:
                for text, share in continued(q, (*prefix, x), chance * weight / total, m + 1).items():
                    law[text] += share
    return law


def point_masses(size, m, generator):
    rows = {}
    for prefix in prefixes(size, m):
        rows[prefix] = [0.0] * size
        rows[prefix][int(torch.randint(size, (), generator=generator))] = 1.0
    return rows


def case(name, size, m, seed=3):
    """(p, q) tables of a named kind."""
    generator = torch.Generator().manual_seed(seed)
    q = table(size, m, generator, cut=0.4 if name in ("zeros", "zeros in q") else 0.0)
    p = table(size, m, generator, cut=0.4 if name in ("zeros", "zeros in p") else 0.0)
    if name == "equal":
        p = q
    if name == "equal at some places":
        p = {prefix: q[prefix] if len(prefix) != 1 else row for prefix, row in p.items()}
    if name == "one-hot p":
        p = point_masses(size, m, generator)
    if name == "one-hot q":
        q = point_masses(size, m, generator)
    if name == "both one-hot":
        p, q = point_masses(size, m, generator), point_masses(size, m, generator)
    return p, q


CASES = [
    "any",
    "zeros",
    "zeros in q",
    "zeros in p",
    "equal",
    "equal at some places",
    "one-hot p",
    "one-hot q",
    "both one-hot",
]
SHAPES = [(2, 2), (2, 3), (3, 2), (3, 3)]


@st.composite
def tables(draw_):
    size, m = draw_(st.sampled_from([*SHAPES, (2, 1), (3, 1)]))
    generator = torch.Generator().manual_seed(draw_(st.integers(0, 2**32)))
    spread, cut = draw_(st.sampled_from([0.1, 1.0, 4.0])), draw_(st.sampled_from([0.0, 0.3]))
    q = table(size, m, generator, spread, cut)
    return (q if draw_(st.integers(0, 9)) == 0 else table(size, m, generator, spread, cut)), q, size, m


def require_the_verifiers_law(p, q, size, m):
    joint = continued(q, (), 1.0, m + 1)
    for text, share in emitted_law(p, q, size, m).items():
        assert share == pytest.approx(joint.get(text, 0.0), abs=1e-12), text


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("size", "m"), SHAPES)
def test_the_reference_emits_the_verifiers_joint_law(name, size, m):
    require_the_verifiers_law(*case(name, size, m), size, m)


@given(given_=tables())
def test_whatever_the_tables_the_law_is_the_verifiers_and_no_fewer_tokens_are_kept(given_):
    p, q, size, m = given_
    require_the_verifiers_law(p, q, size, m)
    by_token = kept_token_by_token(p, q, size, m)
    assert kept_on_average(p, q, size, m) >= by_token - 1e-12
    if m == 1:
        assert kept_on_average(p, q, size, m) == pytest.approx(by_token, abs=1e-12)


# --- `verify` against the reference -------------------------------------------------------------------------------


def place(prefix, size):
    """Where a prefix stands among those of its length."""
    return sum(x * size**k for k, x in enumerate(reversed(prefix)))


def tensors(laws, size, m):
    """``[size^k, size]`` of each length k up to m."""
    rows = [torch.zeros(size**k, size, dtype=torch.float64) for k in range(m + 1)]
    for prefix, row in laws.items():
        rows[len(prefix)][place(prefix, size)] = torch.tensor(row, dtype=torch.float64)
    return rows


def examine(p, q, size, m, draws, seed=0, certain=False, rule=LOSSLESS, block=True):
    """Independent blocks, drafted from p: (their `Verdicts`, the drafts' probabilities under q)."""
    p, q = tensors(p, size, m), tensors(q, size, m)
    u = torch.rand(3, draws, m + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at, ids, p_rows, q_rows = torch.zeros(draws, dtype=torch.long), [], [], [q[0][:1].expand(draws, -1)]
    for k in range(m):
        p_rows.append(p[k][at])
        ids.append(draw(p_rows[-1], u[0, :, k]))
        at = at * size + ids[-1]
        q_rows.append(q[k + 1][at])
    draft = torch.stack(ids, -1)
    laws_of_draft = None if certain else torch.stack(p_rows, 1)
    return verify(draft, laws_of_draft, torch.stack(q_rows, 1), rule, u[1, :, :m], u[2], block=block)


def texts_of(found, q, size, m, seed=1):
    """``[draws]``: which text of m + 1 ids came, each block continued by the verifier."""
    q = tensors(q, size, m)
    draws = len(found.kept)
    u = torch.rand(draws, m + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at = torch.zeros(draws, dtype=torch.long)
    for k in range(m + 1):
        drafted = found.draft[:, k] if k < m else found.emitted
        more = torch.where(k == found.kept, found.emitted, torch.where(k < found.kept, drafted, -1))
        behind = k > found.kept
        more[behind] = draw(q[k][at[behind]], u[behind, k])
        at = at * size + more
    return at


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("size", "m"), [(2, 3), (3, 3)])
def test_texts_have_the_verifiers_joint_law_and_the_kept_count_is_the_exact_one(name, size, m):
    p, q = case(name, size, m)
    for certain in (False, True) if name in ("one-hot p", "both one-hot") else (False,):
        found = examine(p, q, size, m, DRAWS, certain=certain)
        counts = torch.bincount(texts_of(found, q, size, m), minlength=size ** (m + 1))
        joint = torch.zeros(size ** (m + 1), dtype=torch.float64)
        for text, share in continued(q, (), 1.0, m + 1).items():
            joint[place(text, size)] = share
        assert chi_square_p(counts, joint) > 1e-4
        kept = torch.zeros(m + 1, dtype=torch.float64)
        for prefix, _, chance in block_outcomes(p, q, size, m):
            kept[len(prefix)] += chance
        assert chi_square_p(torch.bincount(found.kept, minlength=m + 1), kept.clamp(0, 1)) > 1e-4


def test_more_is_kept_than_token_by_token_where_p_and_q_differ():
    size, m = 3, 3
    p, q = case("any", size, m)
    expected = kept_on_average(p, q, size, m)
    assert expected > kept_token_by_token(p, q, size, m) + 0.01
    assert examine(p, q, size, m, DRAWS).kept.double().mean().item() == pytest.approx(expected, abs=0.015)


def rows_as_laws(draft, p, q, m):
    """What one block's rows say, as tables that know only its own prefixes."""
    ids = tuple(draft.tolist())
    return {ids[:k]: p[k].tolist() for k in range(m)}, {ids[:k]: q[k].tolist() for k in range(m + 1)}, ids


@given(block=blocks(), certain=st.booleans())
def test_every_decision_and_every_recovery_is_the_references(block, certain):
    draft, p, q, u, u_emit, lengths = block
    p, q = p.double(), q.double()
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    if certain:
        p = torch.zeros_like(p).scatter(-1, draft.unsqueeze(-1), 1.0)
    found = verify(draft, None if certain else p, q, Lossless(), u, u_emit, lengths, block=True)
    for row, m in enumerate(lengths.tolist()):
        p_laws, q_laws, ids = rows_as_laws(draft[row, :m], p[row], q[row], m)
        w, h = decisions(ids, p_laws, q_laws)
        kept = max([i for i in range(1, m + 1) if u[row, i - 1] < h[i]], default=0)
        assert found.kept[row] == kept
        weights = q_laws[ids] if kept == m else residual(w[kept], p_laws[ids[:kept]], q_laws[ids[:kept]])
        emitted = draw(torch.tensor([weights], dtype=torch.float64), u_emit[row, kept].view(1)).item()
        assert found.emitted[row] == emitted
        assert kept == m or emitted != ids[kept], "a refused token comes back"
        assert found.q_emitted[row] == q[row, kept, emitted]
        assert found.h_emitted[row] == found.q_emitted[row]
        assert bool(found.bonus[row]) == (kept == m)
        codes = [Verdict.KEPT] * kept + [Verdict.REFUSED] + [Verdict.UNEXAMINED] * m
        assert found.verdict[row].tolist() == codes[:m] + [Verdict.ABSENT] * (draft.shape[1] - m)


@given(block=blocks(), certain=st.booleans())
def test_a_batch_equals_its_rows_one_by_one(block, certain):
    draft, p, q, u, u_emit, lengths = block
    together = verify(draft, None if certain else p, q, Lossless(), u, u_emit, lengths, block=True)
    for row, m in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        laws_of_draft = None if certain else p[one, :m]
        alone = verify(
            draft[one, :m], laws_of_draft, q[one, : m + 1], Lossless(), u[one, :m], u_emit[one, : m + 1], block=True
        )
        for name in ("emitted", "kept", "bonus", "q_emitted", "h_emitted"):
            assert getattr(alone, name).item() == getattr(together, name)[row].item(), name
        assert alone.verdict[0].tolist() == together.verdict[row, :m].tolist()


@given(block=blocks(), junk=st.integers(0, 5))
def test_padding_is_not_looked_at(block, junk):
    """Behind a block's own length there may be any ids and laws, even tokens that their law excludes."""
    draft, p, q, u, u_emit, lengths = block
    before = verify(draft, p, q, Lossless(), u, u_emit, lengths, block=True)
    draft, p, q, size = draft.clone(), p.clone(), q.clone(), q.shape[-1]
    for row, m in enumerate(lengths.tolist()):
        draft[row, m:] = junk % size
        p[row, m:] = torch.eye(size)[(junk + 1) % size]
        q[row, m + 1 :] = torch.eye(size)[(junk + 2) % size]
    after = verify(draft, p, q, Lossless(), u, u_emit, lengths, block=True)
    for name in ("kept", "emitted", "q_emitted", "h_emitted", "bonus", "verdict"):
        assert torch.equal(getattr(before, name), getattr(after, name)), name


@given(block=blocks(), seed=st.integers(0, 2**32))
def test_a_drafter_that_is_the_verifier_is_always_kept(block, seed):
    """In float32 as well, where nothing but rounding is left to recover from."""
    _, _, q, u, u_emit, lengths = block
    batch, m, size = len(q), u.shape[1], q.shape[-1]
    p = q[:, :m]
    numbers = torch.rand(batch * m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    draft = draw(p.reshape(-1, size), numbers).view(batch, m)
    assert torch.equal(verify(draft, p, q, Lossless(), u, u_emit, lengths, block=True).kept, lengths)


@given(block=blocks(), cut=st.floats(0, 0.8), last=st.booleans(), seed=st.integers(0, 2**32))
def test_float32_laws_with_zeros_emit_possible_tokens_only(block, cut, last, seed):
    _, p, q, u, u_emit, lengths = block
    generator = torch.Generator().manual_seed(seed)
    batch, m, size = p.shape

    def filtered(law):
        kept = torch.where(torch.rand(law.shape, generator=generator) < cut, 0.0, law)
        kept = torch.where(kept.sum(-1, keepdim=True) > 0, kept, law)
        return kept / kept.sum(-1, keepdim=True)

    p, q = filtered(p), filtered(q)
    if last:  # the largest number that `uniforms` gives
        u, u_emit = torch.full_like(u, 1 - 2**-52), torch.full_like(u_emit, 1 - 2**-52)
    draft = draw(p.reshape(-1, size), torch.rand(batch * m, generator=generator, dtype=torch.float64)).view(batch, m)
    for laws_of_draft in (p, p.double(), None):
        found = verify(draft, laws_of_draft, q, Lossless(), u, u_emit, lengths, block=True)
        for row, kept in enumerate(found.kept.tolist()):
            assert all(q[row, i, draft[row, i]] > 0 for i in range(kept))
            assert q[row, kept, found.emitted[row]] > 0


@pytest.mark.parametrize("certain", [False, True])
def test_a_place_without_a_shortfall_is_kept_for_certain_in_float32(certain):
    """q = p behind the first token, then a token that q excludes: were the second refused, nothing would be left."""
    q = torch.tensor([[[0.9, 0.1, 0.0], [1.0, 0.0, 0.0], [0.0, 0.3, 0.7], [0.5, 0.5, 0.0]]])
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        q[0, 2, 1:] = torch.rand(2, generator=generator).softmax(0)
        p = q[:, :3].clone()
        p[0, 2] = torch.rand(3, generator=generator).softmax(0)
        if certain:
            q[0, 0] = torch.tensor([1.0, 0.0, 0.0])
        u = torch.full((1, 4), 1 - 2**-52, dtype=torch.float64)
        draft = torch.tensor([[0, 0, 0]])
        found = verify(draft, None if certain else p, q, Lossless(), u[:, :3], u, block=True)
        assert found.kept.item() == 2
        assert q[0, 2, found.emitted.item()] > 0


def test_no_draft_is_plain_sampling():
    q = torch.tensor([[[0.2, 0.8]]])
    nothing = torch.empty(1, 0)
    for p in (None, torch.empty(1, 0, 2)):
        found = verify(nothing.long(), p, q, Lossless(), nothing, torch.tensor([[0.1]]), block=True)
        assert (found.emitted.item(), found.bonus.item(), found.kept.item()) == (0, True, 0)
        assert found.verdict.shape == (1, 0)


def test_a_token_that_the_verifier_excludes_ends_the_block_before_it():
    q = torch.tensor([[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]])
    p = torch.tensor([[[0.5, 0.5]] * 3])
    zeros = torch.zeros(1, 4)
    found = verify(torch.tensor([[0, 0, 1]]), p, q, Lossless(), zeros[:, :3], zeros, block=True)
    assert (found.kept.item(), found.emitted.item()) == (1, 1)


def test_a_good_token_lends_to_the_one_behind_it_only_what_it_was_short_of():
    """w = .5, then 1 again: a ratio above 1 makes good what an earlier token lacked, and no more than that."""
    q = torch.tensor([[[0.4, 0.6], [0.8, 0.2], [0.3, 0.7], [0.5, 0.5]]], dtype=torch.float64)
    p = torch.tensor([[[0.8, 0.2], [0.4, 0.6], [0.6, 0.4]]], dtype=torch.float64)
    draft, u = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0.9, 0.9, 0.49]], dtype=torch.float64)
    by_token = verify(draft, p, q, Lossless(), u, torch.zeros(1, 4))
    by_block = verify(draft, p, q, Lossless(), u, torch.zeros(1, 4), block=True)
    assert (by_token.kept.item(), by_block.kept.item()) == (0, 3)
    u[0, 2] = 0.51
    found = verify(draft, p, q, Lossless(), u, torch.zeros(1, 4), block=True)
    assert (found.kept.item(), found.emitted.item()) == (2, 1)


# --- a rule that is not lossless: its own law, by blocks -----------------------------------------------------------

RAISED = [
    Cactus(0.1), Cactus(0.5, "exact"), BoundedRatio(1.7), BoundedRatio(2.0, "shift"), Mentored(0.1), Frontier(2.5),
    Interpolation(0.4), Ears(0.4), Typical(), TopK(2), Cascade("token-v3"),
]  # fmt: skip


def emitted_by(rule, p, q, m):
    """The law of whole texts, as tables: what the rule emits at drafted places, and q behind them."""

    def law(prefix, row):
        if len(prefix) == m:
            return row
        return induced_law(*(torch.tensor(x, dtype=torch.float64) for x in (p[prefix], row)), rule).tolist()

    return {prefix: law(prefix, row) for prefix, row in q.items()}


@pytest.mark.parametrize("name", ["any", "zeros"])
@pytest.mark.parametrize("rule", RAISED, ids=repr)
def test_texts_have_the_joint_law_that_the_rule_emits_place_by_place(rule, name):
    size, m = 3, 3
    p, q = case(name, size, m)
    h = emitted_by(rule, p, q, m)
    found = examine(p, q, size, m, DRAWS, rule=rule)
    joint = torch.zeros(size ** (m + 1), dtype=torch.float64)
    for text, share in continued(h, (), 1.0, m + 1).items():
        joint[place(text, size)] = share
    assert chi_square_p(torch.bincount(texts_of(found, h, size, m), minlength=size ** (m + 1)), joint) > 1e-4
    by_token = examine(p, q, size, m, DRAWS, rule=rule, block=False)
    assert found.kept.double().mean() >= by_token.kept.double().mean() - 0.01


@pytest.mark.parametrize("rule", [rule for rule in RAISED if rule.between], ids=repr)
def test_the_relaxed_share_of_the_first_place_is_its_total_variation(rule):
    size, m = 3, 3
    p, q = case("any", size, m)
    found = examine(p, q, size, m, DRAWS, rule=rule)
    share = (found.verdict[:, 0] == Verdict.RELAXED).double().mean().item()
    law, wanted = (torch.tensor(laws[()]) for laws in (emitted_by(rule, p, q, m), q))
    assert share == pytest.approx(DIVERGENCES["tv"].value(law, wanted).item(), abs=0.005)


def test_lossless_blocks_relax_nothing():
    found = examine(*case("any", 3, 3), 3, 3, 10_000)
    assert not bool((found.verdict == Verdict.RELAXED).any())


def test_what_has_no_law_of_its_own_is_refused():
    p, q = torch.full((1, 1, 2), 0.5), torch.full((1, 2, 2), 0.5)
    numbers = (torch.zeros(1, 1), torch.zeros(1, 2))
    with pytest.raises(InvalidParameter, match="needs the law that the rule emits"):
        verify(torch.zeros(1, 1, dtype=torch.long), p, q, Fly(), *numbers, block=True)
    left = torch.ones(1, dtype=torch.long)
    with pytest.raises(InvalidParameter, match="relaxed_left caps relaxed tokens in the middle"):
        verify(torch.zeros(1, 1, dtype=torch.long), p, q, Cactus(0.5), *numbers, relaxed_left=left, block=True)


@pytest.mark.parametrize("rule", [Cactus(0.0), BoundedRatio(1.0), Mentored(0.0)])
@given(block=blocks())
def test_rules_at_their_lossless_settings_are_the_lossless_one(rule, block):
    draft, p, q, u, u_emit, lengths = block
    found = verify(draft, p, q, rule, u, u_emit, lengths, block=True)
    expected = verify(draft, p, q, Lossless(), u, u_emit, lengths, block=True)
    for name in FIELDS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
