import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.errors import BrokenLogits, InvalidParameter
from cactus_decoding.fidelity import measure, relaxed_share
from cactus_decoding.induced import acceptance, induced_law
from cactus_decoding.rules import BoundedRatio, Cactus, Frontier, Lossless, Mentored, Typical
from cactus_decoding.sampling import Purpose, draw, uniforms
from cactus_decoding.verify import Verdict, verify
from tests.test_rules import EVERY_RULE, IDS
from tests.tiny import chi_square_p, laws, random_laws

DRAWS = 200_000


def examine(rule, p, q, draws=DRAWS, seed=5, point_mass=False):
    """``draws`` independent blocks of one token, all drawn from p and examined against q."""
    u = uniforms(seed, 0, 0, draws)
    rows = p.expand(draws, -1)
    draft = draw(rows, u[Purpose.DRAFT])[:, None]
    laws_of_draft = None if point_mass else rows[:, None]
    u_emit = u[Purpose.EMIT][:, None].expand(-1, 2)
    return verify(draft, laws_of_draft, q.expand(draws, 2, -1), rule, u[Purpose.ACCEPT][:, None], u_emit)


def first_tokens(verdicts):
    return torch.where(verdicts.kept == 1, verdicts.draft[:, 0], verdicts.emitted)


def pairs():
    p, q = random_laws(11, size=9)
    yield "overlapping", p, q
    cut = q.clone()
    cut[[1, 4, 5]] = 0.0
    yield "q is cut", p, cut / cut.sum()
    cut = p.clone()
    cut[[0, 2, 7]] = 0.0
    yield "p is cut", cut / cut.sum(), q
    yield "two tokens", torch.tensor([0.9, 0.1], dtype=torch.float64), torch.tensor([0.3, 0.7], dtype=torch.float64)
    yield "disjoint", torch.tensor([1.0, 0, 0], dtype=torch.float64), torch.tensor([0, 0.25, 0.75], dtype=torch.float64)
    yield (
        "one-hot p",
        torch.tensor([0, 1.0, 0], dtype=torch.float64),
        torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64),
    )
    yield (
        "one-hot q",
        torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64),
        torch.tensor([0, 1.0, 0], dtype=torch.float64),
    )


PAIRS = {name: (p, q) for name, p, q in pairs()}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
def test_emitted_law_kept_share_and_relaxed_share_are_the_exact_ones(rule, pair):
    p, q = PAIRS[pair]
    verdicts = examine(rule, p, q)
    counts = torch.bincount(first_tokens(verdicts), minlength=len(q))
    assert chi_square_p(counts, induced_law(p, q, rule)) > 1e-4
    h = rule.target(p, q, rule.statistics(p, q))
    relaxed = (torch.minimum(p, h) - torch.minimum(p, q)).clamp_min(0).sum().item()
    assert relaxed == pytest.approx(measure(p, q, rule).tv, abs=1e-12) or not rule.between
    exact = {"kept": acceptance(p, q, rule).item(), "relaxed": relaxed}
    found = {"kept": verdicts.kept.double().mean().item(), "relaxed": relaxed_share(verdicts.verdict)}
    for name, share in exact.items():
        spread = math.sqrt(max(share * (1 - share), 0.0) / DRAWS)
        assert found[name] == pytest.approx(share, abs=4.5 * spread + 1e-9), name


def test_draft_that_is_certain_needs_no_rows():
    p, q = PAIRS["one-hot p"]
    for rule in EVERY_RULE:
        if rule.reads_drafter:
            with pytest.raises(InvalidParameter, match="certain by construction"):
                examine(rule, p, q, 10, point_mass=True)
            continue
        with_rows, without = examine(rule, p, q, 5000), examine(rule, p, q, 5000, point_mass=True)
        assert torch.equal(first_tokens(with_rows), first_tokens(without))


@st.composite
def blocks(draw_):
    """A batch of blocks of different lengths: laws, drafts, and the numbers to examine them with."""
    batch, m, size = draw_(st.integers(1, 4)), draw_(st.integers(0, 5)), draw_(st.integers(2, 6))
    seed = draw_(st.integers(0, 2**32))
    lengths = torch.tensor(draw_(st.lists(st.integers(0, m), min_size=batch, max_size=batch)))
    generator = torch.Generator().manual_seed(seed)
    p = (3 * torch.randn(batch, m, size, generator=generator)).softmax(-1)
    q = (3 * torch.randn(batch, m + 1, size, generator=generator)).softmax(-1)
    u = torch.rand(3, batch, m + 1, generator=generator, dtype=torch.float64)
    draft = draw(p.reshape(-1, size), u[0, :, :m].reshape(-1)).reshape(batch, m)
    return draft, p, q, u[1, :, :m], u[2], lengths


@pytest.mark.parametrize("rule", [Lossless(), Cactus(0.5), BoundedRatio(2.0), BoundedRatio(2.0, "shift")])
@given(block=blocks())
def test_a_batch_equals_its_rows_one_by_one(rule, block):
    draft, p, q, u, u_emit, lengths = block
    together = verify(draft, p, q, rule, u, u_emit, lengths)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = verify(
            draft[one, :length], p[one, :length], q[one, : length + 1], rule, u[one, :length], u_emit[one, : length + 1]
        )
        assert alone.emitted.item() == together.emitted[row].item()
        assert alone.kept.item() == together.kept[row].item()
        assert alone.bonus.item() == together.bonus[row].item()
        assert alone.verdict[0].tolist() == together.verdict[row, :length].tolist()
        assert set(together.verdict[row, length:].tolist()) <= {Verdict.ABSENT}


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@settings(max_examples=25)
@given(block=blocks())
def test_verdicts_account_for_every_drafted_token(rule, block):
    draft, p, q, u, u_emit, lengths = block
    found = verify(draft, p, q, rule, u, u_emit, lengths)
    for row, length in enumerate(lengths.tolist()):
        codes = [Verdict(code) for code in found.verdict[row].tolist()]
        kept = int(found.kept[row])
        assert all(code in (Verdict.KEPT, Verdict.RELAXED) for code in codes[:kept])
        assert codes[kept:length] == ([Verdict.REFUSED] + [Verdict.UNEXAMINED] * length)[: length - kept]
        assert bool(found.bonus[row]) == (kept == length)
        assert q[row, kept, found.emitted[row]] > 0
        for j in range(kept):
            needed = found.u[row, j] * found.p_n[row, j]
            assert needed < found.h_n[row, j]
            assert (needed >= found.q_n[row, j]) == (codes[j] == Verdict.RELAXED)


def target_at(rule, p, q, n, x):
    """h(x), x not n, of a refused n: from the definitions, in float64."""
    p, q = p.double(), q.double()
    s = rule.statistics(p, q)
    own = rule.recovery_row(p, q, s)
    if own is not None:
        return (own / own.sum())[x]
    if isinstance(rule, (Mentored, Frontier)) or getattr(rule, "recovery", "") == "exact":
        return induced_law(p, q, rule)[x]  # the one target, which is what is emitted
    if isinstance(rule, (Cactus, BoundedRatio)) and not rule.lossless:
        others = q.sum() - q[n]  # they share what n leaves, each in proportion to its q
        return (1 - rule.target(p[n], q[n], s)) * q[x] / others
    return q[x]


@pytest.mark.parametrize("rule", EVERY_RULE, ids=IDS)
@settings(max_examples=25)
@given(block=blocks())
def test_the_emitted_token_carries_its_q_and_its_h(rule, block):
    draft, p, q, u, u_emit, lengths = block
    found = verify(draft, p, q, rule, u, u_emit, lengths)
    for row in range(len(draft)):
        kept, x = int(found.kept[row]), int(found.emitted[row])
        assert found.q_emitted[row] == q[row, kept, x]
        if found.bonus[row]:
            assert found.h_emitted[row] == found.q_emitted[row]
        else:
            n = int(draft[row, kept])
            assert x != n or isinstance(rule, Typical)
            h = target_at(rule, p[row, kept], q[row, kept], n, x)
            assert float(found.h_emitted[row]) == pytest.approx(float(h), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("rule", [Cactus(0.5), BoundedRatio(3.0)])
def test_recovery_from_a_certain_draft_carries_its_q_and_its_h_too(rule):
    q = torch.tensor([[[0.5, 0.2, 0.3], [1.0, 0, 0]]])
    found = verify(torch.tensor([[1]]), None, q, rule, torch.tensor([[0.999]]), torch.tensor([[0.9, 0.5]]))
    assert (found.emitted.item(), found.bonus.item()) == (2, False)
    h = target_at(rule, torch.tensor([0, 1.0, 0]), q[0, 0], 1, 2)
    assert found.q_emitted.item() == pytest.approx(0.3)
    assert found.h_emitted.item() == pytest.approx(float(h), rel=1e-5)


# --- a budget of relaxed tokens -----------------------------------------------------------------------------------

RELAXING = [Cactus(0.5), Cactus(2.0, "exact"), BoundedRatio(2.0), BoundedRatio(2.0, "shift")]
FIELDS = ("p_n", "q_n", "h_n", "verdict", "kept", "emitted", "q_emitted", "h_emitted", "bonus")


def require_same(found, expected):
    for name in FIELDS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("rule", RELAXING)
@given(block=blocks())
def test_without_a_budget_left_every_rule_is_the_lossless_one(rule, block):
    draft, p, q, u, u_emit, lengths = block
    none_left = torch.zeros(len(draft), dtype=torch.long)
    for laws_of_draft in (p, None):
        found = verify(draft, laws_of_draft, q, rule, u, u_emit, lengths, none_left)
        require_same(found, verify(draft, laws_of_draft, q, Lossless(), u, u_emit, lengths))


@pytest.mark.parametrize("rule", RELAXING)
@given(block=blocks(), more=st.integers(0, 2**62))
def test_a_budget_of_a_whole_block_or_more_limits_nothing(rule, block, more):
    draft, p, q, u, u_emit, lengths = block
    enough = torch.full((len(draft),), draft.shape[1] + more)
    require_same(verify(draft, p, q, rule, u, u_emit, lengths, enough), verify(draft, p, q, rule, u, u_emit, lengths))


def one_by_one(draft, p, q, rule, u, u_emit, left):
    """A row's block examined token by token: (verdicts, emitted id, its h), lossless once ``left`` are relaxed."""
    verdicts = []
    for j in range(draft.shape[1]):
        at, behind = slice(j, j + 1), slice(j, j + 2)
        one = verify(draft[:, at], p[:, at], q[:, behind], rule if left else Lossless(), u[:, at], u_emit[:, behind])
        verdicts.append(Verdict(one.verdict.item()))
        if verdicts[-1] is Verdict.REFUSED:
            return verdicts, one.emitted.item(), one.h_emitted.item()
        left -= verdicts[-1] is Verdict.RELAXED
    last = q[0, -1]
    emitted = draw(last[None], u_emit[:, -1]).item()
    return verdicts, emitted, last[emitted].item()


@pytest.mark.parametrize("rule", RELAXING)
@given(block=blocks(), data=st.data())
def test_the_token_behind_the_last_relaxed_one_is_examined_losslessly_in_the_same_block(rule, block, data):
    draft, p, q, u, u_emit, lengths = block
    left = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(draft), max_size=len(draft))))
    found = verify(draft, p, q, rule, u, u_emit, lengths, left)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        verdicts, emitted, h_emitted = one_by_one(
            draft[one, :length], p[one, :length], q[one, : length + 1], rule, u[one, :length],
            u_emit[one, : length + 1], int(left[row]),
        )  # fmt: skip
        examined = len(verdicts)
        assert found.verdict[row, :examined].tolist() == verdicts
        assert set(found.verdict[row, examined:length].tolist()) <= {Verdict.UNEXAMINED}
        assert found.emitted[row].item() == emitted
        assert found.h_emitted[row].item() == h_emitted
        assert verdicts.count(Verdict.RELAXED) <= left[row]


def test_a_budget_runs_out_inside_a_block():
    """Four drafts, each kept thanks to the rule alone; two may be."""
    q = torch.tensor([0.2, 0.8]).expand(1, 5, 2)
    p, draft, u = torch.tensor([0.9, 0.1]).expand(1, 4, 2), torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), 0.5)
    free = verify(draft, p, q, Cactus(1.0), u, torch.full((1, 5), 0.5))
    assert free.verdict.tolist() == [[Verdict.RELAXED] * 4]
    found = verify(draft, p, q, Cactus(1.0), u, torch.full((1, 5), 0.5), relaxed_left=torch.tensor([2]))
    assert found.verdict.tolist() == [[Verdict.RELAXED, Verdict.RELAXED, Verdict.REFUSED, Verdict.UNEXAMINED]]
    assert bool((found.h_n[0, :2] > 0.7).all())
    assert found.h_n[0, 2:].tolist() == pytest.approx([0.2, 0.2])
    assert (found.emitted.item(), found.h_emitted.item()) == (1, pytest.approx(0.8))


def test_u_of_zero_does_not_keep_a_token_of_probability_zero():
    q = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    p = torch.tensor([[[1.0, 0.0]]])
    zero = torch.zeros(1, 1)
    found = verify(torch.tensor([[0]]), p, q, Cactus(1.0), zero, torch.zeros(1, 2))
    assert found.kept.item() == 0
    assert found.emitted.item() == 1


def test_no_draft_is_plain_sampling():
    q = torch.tensor([[[0.2, 0.8]]])
    found = verify(torch.empty(1, 0, dtype=torch.long), None, q, Lossless(), torch.empty(1, 0), torch.tensor([[0.1]]))
    assert (found.emitted.item(), found.bonus.item(), found.kept.item()) == (0, True, 0)


@pytest.mark.parametrize(
    "rule", [Lossless(), Cactus(0.5), Cactus(0.5, "exact"), BoundedRatio(2.0), BoundedRatio(2.0, "shift")]
)
@settings(max_examples=50)
@given(pair=laws(dtype=torch.float32, least=2, most=20), u=st.floats(0, 1 - 2**-52))
def test_float32_edges_always_emit_a_possible_token(rule, pair, u):
    p, q = pair
    for n in torch.nonzero(p).flatten().tolist():
        numbers = torch.tensor([[u]], dtype=torch.float64)
        found = verify(torch.tensor([[n]]), p[None, None], q.expand(1, 2, -1), rule, numbers, numbers.expand(1, 2))
        assert 0 <= found.emitted.item() < len(q)
        assert q[found.emitted.item()] > 0


def test_broken_rows_are_errors_not_tokens():
    q = torch.full((1, 2, 3), math.nan)
    good = torch.full((1, 2, 3), 1 / 3)
    for p_rows, q_rows, who in [(None, q, "verifier"), (good[:, :1], q, "verifier"), (q[:, :1], good, "drafter")]:
        with pytest.raises(BrokenLogits, match=who):
            verify(torch.tensor([[0]]), p_rows, q_rows, Lossless(), torch.rand(1, 1), torch.rand(1, 2))


@pytest.mark.parametrize("name", ["q", "p", "u", "u_emit"])
def test_shapes_that_do_not_fit_are_refused_by_name(name):
    shapes = {"p": (1, 2, 4), "q": (1, 3, 4), "u": (1, 2), "u_emit": (1, 3)}
    given_ = {key: torch.full(shape, 0.25) for key, shape in shapes.items()}
    given_[name] = given_[name][:, 1:]
    with pytest.raises(InvalidParameter, match=f"^{name} has shape"):
        verify(torch.zeros(1, 2, dtype=torch.long), given_["p"], given_["q"], Lossless(), given_["u"], given_["u_emit"])
