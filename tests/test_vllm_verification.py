from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from cactus_decoding.induced import induced_law
from cactus_decoding.integrations.vllm import verification
from cactus_decoding.integrations.vllm.ledger import Counts
from cactus_decoding.integrations.vllm.marks import uniforms
from cactus_decoding.integrations.vllm.relaxation import RESOLVED, Relaxation
from cactus_decoding.integrations.vllm.shift import Lift
from cactus_decoding.integrations.vllm.verification import Drafts, Relaxer, places_of, relaxed_rows
from cactus_decoding.rules import BoundedRatio, Cactus
from tests.tiny import random_laws

RELAXED = [
    Relaxation(Cactus(0.3)),
    Relaxation(Cactus(0.3, "exact")),
    Relaxation(Cactus(2.0, max_ratio=3.0)),
    Relaxation(BoundedRatio(3.0, "shift")),
]
IDS = ["second_order", "exact", "max_ratio", "ratio"]
LOSSLESS = None


def sampling_params(relaxation, seed=None, log=False, temperature=1.0):
    """As a worker of vLLM gets them."""
    extra_args = None if relaxation is None else {**relaxation.parameters(), RESOLVED: {"log": log}}
    return SimpleNamespace(extra_args=extra_args, seed=seed, temperature=temperature)


@dataclass
class Engine:
    """A lossless verifier of blocks that knows nothing of relaxation, and what it must be told.

    Every request drafts ``places`` tokens from the laws p ``[places, V]`` (None: a point mass on ``point``) against q
    ``[places + 1, V]``, anew in each step.
    """

    q: torch.Tensor
    p: torch.Tensor | None = None
    point: int = 0
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    dtype: torch.dtype = torch.float32

    @property
    def places(self):
        return len(self.q) - 1

    def step(self, relaxer, batch):
        """One verification: drafts ``[B, places]``, emitted ``[B, places + 1]``, accepted ``[B]``."""
        size, rows = len(batch), len(self.q)
        if self.p is None:
            n = torch.full((size, self.places), self.point)
            p = torch.nn.functional.one_hot(n, self.q.shape[1]).double()
        else:
            n = torch.multinomial(self.p, size, replacement=True, generator=self.generator).T
            p = self.p.expand(size, -1, -1)
        logits = self.q.log().to(self.dtype).repeat(size, 1)
        self.before, self.logits, self.seen = logits.clone(), logits, None
        self.u = torch.rand(size, self.places, generator=self.generator, dtype=torch.float64)
        padded = torch.cat([n, torch.full((size, 1), -1)], 1)
        owner = torch.arange(size).repeat_interleave(rows)
        drafts = Drafts(padded.flatten(), owner, torch.arange(rows).repeat(size))
        p_n = torch.cat([p.gather(2, n[..., None])[..., 0], torch.ones(size, 1)], 1).flatten()

        def sample(shifted):
            self.seen = shifted.clone()
            return self.sampled(shifted, n, p)

        emitted, accepted = relaxer.verify(
            batch, logits, drafts, [self.places] * size, lambda: p_n, sample, lambda sampled: sampled[1]
        )
        return n, emitted, accepted

    def sampled(self, logits, n, p):
        """Keep n where ``u p(n) < q(n)``, else draw its replacement from ``(q - p)_+``; one more behind them all."""
        q = logits.double().softmax(1).view(len(n), len(self.q), -1)
        p_n, q_n = (x.gather(2, n[..., None])[..., 0] for x in (p, q[:, :-1]))
        accepted = (self.u * p_n < q_n).long().cumprod(1).sum(1)
        at = torch.arange(len(n))
        recovery = (q - torch.cat([p, torch.zeros_like(q[:, :1])], 1)).clamp_min(0.0)[at, accepted]
        emitted = torch.cat([n, torch.full((len(n), 1), -1)], 1)
        emitted[at, accepted] = torch.multinomial(recovery, 1, generator=self.generator)[:, 0]
        return emitted, accepted


def relaxer_of(relaxations, seed=None):
    relaxer = Relaxer()
    batch = [f"request {i}" for i in range(len(relaxations))]
    for name, one in zip(batch, relaxations):
        relaxer.add(name, sampling_params(one, seed))
    return relaxer, batch


def marks_of(relaxer):
    """How many tokens each request was charged in the last step, ``[B]``."""
    return relaxer.ledger._noted[-1][1][:, 2]


def p_value(counts, law):
    """Of a chi-square test; cells that expect fewer than 5 are pooled, those of probability 0 must be empty."""
    counts, law = counts.double().flatten(), law.flatten()
    law = torch.where(law < 1e-9, 0.0, law)  # what rounding leaves of an exact 0
    assert counts[law == 0.0].sum() == 0.0
    expected = law / law.sum() * counts.sum()
    small = expected < 5.0
    observed = torch.cat([counts[~small], counts[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    possible = expected > 0.0
    return chisquare(observed[possible].numpy(), expected[possible].numpy()).pvalue


STEPS, BATCH = 200, 1000


@pytest.fixture
def relaxed(monkeypatch):
    """The marks of each verification, row by row."""
    found = []

    def seen(*args):
        found.append(relaxed_rows(*args))
        return found[-1]

    monkeypatch.setattr(verification, "relaxed_rows", seen)
    return found


@pytest.mark.parametrize("drafter", ["point mass", "random"])
@pytest.mark.parametrize("one", RELAXED, ids=IDS)
def test_the_emitted_law_is_the_rules_and_the_marks_have_the_law_of_the_true_ones(one, drafter, relaxed):
    (p0, q0), (p1, q1) = (random_laws(seed, size=6, spread=0.7) for seed in (3, 4))
    q = torch.stack([q0, q1, p0])
    point = int((q0 * q1).argsort()[1])  # unlikely at both places
    p = torch.stack([p0, p1]) if drafter == "random" else torch.eye(6, dtype=torch.float64)[[point, point]]
    engine = Engine(q, p if drafter == "random" else None, point)

    relaxer, batch = relaxer_of([one] * BATCH)
    # by place, what was emitted there, and whether it is a replacement, kept as lossless, or kept only because lifted
    drawn, true = torch.zeros(2, 2, 18, dtype=torch.int64)
    for _ in range(STEPS):
        n, tokens, accepted = engine.step(relaxer, batch)
        marks = relaxed.pop().view(BATCH, 3)
        assert not marks[:, 2].any()
        for place in range(2):
            examined, kept = accepted >= place, accepted > place
            own = n[:, place]
            truly = engine.u[:, place] * p[place][own] >= q[place][own]
            for counts, mark in ((drawn, marks[:, place]), (true, truly)):
                kind = torch.where(kept, 1 + mark.long(), 0)
                counts[place].add_((kind * 6 + tokens[:, place])[examined].bincount(minlength=18))
    assert drawn[0].sum() == STEPS * BATCH

    tv = []
    for place in range(2):
        law = induced_law(p[place], q[place], one.rule)
        lossless = torch.minimum(p[place], q[place])
        kept = torch.minimum(p[place], one.rule.target(p[place], q[place]))
        assert p_value(drawn[place].view(3, 6).sum(0), law) > 1e-4
        joint = torch.stack([law - kept, lossless, kept - lossless])
        assert p_value(true[place], joint) > 1e-4
        assert p_value(drawn[place], joint) > 1e-4
        tv.append(0.5 * (law - q[place]).abs().sum().item())
        assert joint[2].sum().item() == pytest.approx(tv[-1], abs=1e-12)
        assert tv[-1] > 0.005  # there is something to tell apart

    relaxer.ledger.settle(idle=True)
    total, examined = relaxer.ledger.total, drawn.sum(1).tolist()
    assert total.examined == sum(examined)
    assert total.relaxed == drawn[:, 12:].sum()
    expected = sum(t * e for t, e in zip(tv, examined)) / total.examined
    error = sum(t * (1 - t) * e for t, e in zip(tv, examined)) ** 0.5 / total.examined
    assert abs(total.relaxed_share - expected) < 4 * error


def test_marks_by_hand():
    """Kept below min(1, gamma / p) and relaxed from q / p on: the share is 1 - min(p, q) / min(p, gamma)."""
    q = torch.tensor([0.2, 0.2, 0.5, 0.2, 0.0, 0.2], dtype=torch.float64)
    gamma = torch.tensor([0.4, 0.4, 0.8, 0.2, 0.0, 0.4], dtype=torch.float64)
    p = torch.tensor([1.0, 0.3, 0.4, 0.9, 0.5, 1.0], dtype=torch.float64)
    lifted = Lift(q, gamma, q, q)
    drafts = Drafts(torch.tensor([1, 1, 1, 1, 1, -1]), torch.zeros(6, dtype=torch.int64), torch.arange(6))
    # the least u that marks: 0.2 / 0.4, 0.2 / 0.3, and never in the rows behind
    for marks, expected in [
        ([0.49, 0.66, 0.99, 0.99, 0.99, 0.99], [False, False, False, False, False, False]),
        ([0.51, 0.67, 0.99, 0.99, 0.99, 0.99], [True, True, False, False, False, False]),
    ]:
        marks_ = torch.tensor(marks, dtype=torch.float64)
        assert relaxed_rows(lifted, drafts, torch.tensor([6]), p, marks_).tolist() == expected
    # what was not kept is not relaxed
    assert relaxed_rows(lifted, drafts, torch.tensor([1]), p, marks_).tolist() == [True] + [False] * 5
    assert not relaxed_rows(lifted, drafts, torch.tensor([0]), p, marks_).any()


# the cap


def tempting(places=3):
    """Where a relaxed request has nearly every draft kept that a lossless one would refuse."""
    q = torch.full((places + 1, 4), 0.3, dtype=torch.float64)
    q[:, 0] = 0.1
    return Engine(q, None, point=0)


@pytest.mark.parametrize("cap", [1, 2, 5, 12])
def test_the_cap_is_never_exceeded(cap):
    relaxer, batch = relaxer_of([Relaxation(BoundedRatio(9.0, "shift"), cap)] * 40)
    engine, charged = tempting(), torch.zeros(40, dtype=torch.int64)
    for _ in range(30):
        engine.step(relaxer, batch)
        charged += marks_of(relaxer)
        assert bool((charged <= cap).all())
    assert charged.tolist() == [cap] * 40  # and is used up
    assert [relaxer.members[name].spent.item() for name in batch] == [cap] * 40


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 4])
def test_places_beyond_what_is_left_are_lossless(cap):
    one = Relaxation(BoundedRatio(9.0, "shift"), 4)
    relaxer, batch = relaxer_of([one])
    relaxer.members[batch[0]].spent = torch.tensor(4 - cap)
    engine = tempting()
    engine.step(relaxer, batch)
    lifted = (engine.seen != engine.before).any(1)
    assert lifted.tolist() == [place < cap for place in range(3)] + [False]
    assert torch.equal(engine.seen[~lifted], engine.before[~lifted])


# the logits


@pytest.mark.parametrize("one", RELAXED, ids=IDS)
def test_the_logits_are_put_back(one):
    relaxer, batch = relaxer_of([one, LOSSLESS, one])
    engine = Engine(torch.stack([*random_laws(1), *random_laws(2)]), None, point=5)
    engine.step(relaxer, batch)
    assert not torch.equal(engine.seen, engine.before)
    assert torch.equal(engine.logits, engine.before)


def test_the_logits_are_put_back_when_the_sampler_fails():
    relaxer, batch = relaxer_of([Relaxation(Cactus(0.5))])
    engine = tempting()

    def fails(shifted, n, p):
        assert not torch.equal(shifted, engine.before)
        raise RuntimeError("out of memory")

    engine.sampled = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step(relaxer, batch)
    assert torch.equal(engine.logits, engine.before)
    assert not relaxer.ledger._noted


def test_half_precision_is_widened_and_left_as_it_was():
    relaxer, batch = relaxer_of([Relaxation(Cactus(0.5)), LOSSLESS])
    q = torch.stack(random_laws(1))
    engine = Engine(q, None, point=5, dtype=torch.bfloat16)
    engine.step(relaxer, batch)
    assert engine.logits.dtype == torch.bfloat16
    assert torch.equal(engine.logits, engine.before)
    assert engine.seen.dtype == torch.float32  # a shift would be lost in 8 bits
    wide = engine.before.float()
    q_n = wide.double().softmax(1)[0, 5]
    gamma = Cactus(0.5).target(q_n, q_n)
    assert engine.seen.double().softmax(1)[0, 5].item() == pytest.approx(gamma.item(), abs=1e-6)
    assert torch.equal(engine.seen[1:], wide[1:])


def test_lossless_neighbours_see_their_own_bits():
    relaxer, batch = relaxer_of([LOSSLESS, RELAXED[0], LOSSLESS, RELAXED[1], RELAXED[3], LOSSLESS])
    assert set(relaxer.members) == {batch[1], batch[3], batch[4]}
    engine = Engine(torch.stack([*random_laws(5), random_laws(6)[0]]), torch.stack(random_laws(7)))
    for _ in range(20):
        n, _, _ = engine.step(relaxer, batch)
        seen, before = (x.view(6, 3, -1) for x in (engine.seen, engine.before))
        assert torch.equal(seen[[0, 2, 5]], before[[0, 2, 5]])
        assert torch.equal(seen[:, 2], before[:, 2])  # the row behind the last draft has no drafted token
        assert bool((seen != before).any(2)[[1, 3, 4], :2].all())
        # nothing but the drafted token's logit
        others = torch.ones_like(seen, dtype=torch.bool).scatter_(2, torch.cat([n, n[:, :1]], 1)[..., None], False)
        others[:, 2] = True
        assert torch.equal(seen[others], before[others])
    relaxer.ledger.settle(idle=True)
    assert set(relaxer.ledger.requests) == {batch[1], batch[3], batch[4]}


# randomness


def charges(batch_of, steps=25):
    """What the seeded request "mine" is charged in each step, its engine's own draws being the same."""
    relaxer = Relaxer()
    found = []
    for step in range(steps):
        batch = batch_of(step)
        for name in batch:
            if name not in relaxer.members:
                relaxer.add(
                    name, sampling_params(Relaxation(BoundedRatio(3.0, "shift")), seed=11 if name == "mine" else 5)
                )
        engine = tempting()
        engine.sampled = lambda logits, n, p: (n, torch.full((len(n),), 3))
        engine.step(relaxer, batch)
        found.append(marks_of(relaxer)[batch.index("mine")].item())
    return found


def test_the_marks_of_a_seeded_request_do_not_depend_on_its_neighbours():
    alone = charges(lambda step: ["mine"])
    assert len(set(alone)) > 1
    assert charges(lambda step: ["a", "mine", "b"]) == alone
    assert charges(lambda step: [*(f"{step} {i}" for i in range(step % 4)), "mine"]) == alone


def test_requests_of_one_seed_have_the_same_marks_and_those_without_one_their_own():
    one = Relaxation(BoundedRatio(3.0, "shift"))

    def marks(name, seed):
        relaxer = Relaxer()
        relaxer.add(name, sampling_params(one, seed))
        return uniforms(torch.tensor(relaxer.members[name].key), torch.arange(8)).tolist()

    assert marks("a", 7) == marks("b", 7) != marks("a", 8)
    assert marks("a", None) != marks("b", None)
    assert marks("a", None) == marks("a", None)  # every rank of a group draws the same
    assert marks("a", -1) != marks("a", 2**64 - 1)  # vLLM takes any whole number


def test_a_step_without_drafts_uses_up_no_marks():
    relaxer, (name,) = relaxer_of([Relaxation(Cactus(0.5))])
    drafts = Drafts(torch.tensor([-1]), torch.tensor([0]), torch.tensor([0]))
    logits = torch.zeros(1, 4)
    sampled = relaxer.verify(
        [name], logits, drafts, [0], lambda: torch.ones(1), lambda seen: seen.clone(), lambda _: torch.tensor([0])
    )
    assert torch.equal(sampled, torch.zeros(1, 4))
    assert relaxer.members[name].marked == 0
    relaxer.ledger.settle(idle=True)
    assert relaxer.ledger.total.drafts == 0


def test_drafts_of_different_lengths_are_told_apart():
    """As the V1 runner has them: no row behind the last draft, and a request may have none at all."""
    relaxer, batch = relaxer_of([Relaxation(BoundedRatio(9.0, "shift"))] * 3)
    counts = [2, 0, 3]
    drafts = Drafts(torch.zeros(5, dtype=torch.int64), torch.tensor([0, 0, 2, 2, 2]), torch.tensor(places_of(counts)))
    assert drafts.place.tolist() == [0, 1, 0, 1, 2]
    logits = torch.tensor([[0.1, 0.3, 0.6]]).log().repeat(5, 1)
    relaxer.verify(
        batch, logits, drafts, counts, lambda: torch.ones(5), lambda seen: None, lambda _: torch.tensor([2, 0, 1])
    )
    assert [relaxer.members[name].marked for name in batch] == counts
    relaxer.ledger.settle(idle=True)
    found = relaxer.ledger.requests
    told = [(found[name].drafts, found[name].draft_tokens, sum(found[name].accepted)) for name in (batch[0], batch[2])]
    assert told == [(1, 2, 2), (1, 3, 1)]
    assert found[batch[1]] == Counts()


# requests come and go


def test_lossless_requests_are_not_remembered():
    relaxer = Relaxer()
    relaxer.add("no", sampling_params(None))
    relaxer.add("unchecked", SimpleNamespace(extra_args={"cactus_delta": 0.5}, seed=None, temperature=1.0))
    relaxer.add("greedy", sampling_params(Relaxation(Cactus(0.5)), temperature=0.0))
    assert not relaxer.members


def test_a_request_that_was_preempted_goes_on_where_it_was():
    one = Relaxation(BoundedRatio(9.0, "shift"), 5)
    relaxer, (name,) = relaxer_of([one])
    engine = tempting()
    while relaxer.members[name].spent is None or not relaxer.members[name].spent:
        engine.step(relaxer, [name])
    spent, marked = relaxer.members[name].spent.item(), relaxer.members[name].marked
    relaxer.add(name, sampling_params(one))
    assert (relaxer.members[name].spent.item(), relaxer.members[name].marked) == (spent, marked)
    for _ in range(40):
        engine.step(relaxer, [name])
    assert relaxer.members[name].spent.item() == 5


def test_a_request_that_has_left_is_forgotten():
    one = Relaxation(BoundedRatio(9.0, "shift"), 5)
    relaxer, (name,) = relaxer_of([one])
    for _ in range(40):
        tempting().step(relaxer, [name])
    relaxer.finish([name, "never seen"])
    assert not relaxer.members
    relaxer.ledger.settle(idle=True)
    assert not relaxer.ledger.requests
    relaxer.add(name, sampling_params(one))  # another one of the same name
    assert relaxer.members[name].spent is None
    assert relaxer.members[name].marked == 0


def test_whether_a_request_is_logged_is_its_own():
    relaxer = Relaxer()
    relaxer.add("yes", sampling_params(Relaxation(Cactus(0.5)), log=True))
    relaxer.add("no", sampling_params(Relaxation(Cactus(0.5)), log=False))
    assert (relaxer.members["yes"].log, relaxer.members["no"].log) == (True, False)


def test_a_request_that_goes_on_with_other_parameters_is_judged_anew():
    relaxer, first = Relaxer(), sampling_params(Relaxation(Cactus(0.5), 4), seed=1)
    relaxer.add("a", first)
    member = relaxer.members["a"]
    member.marked, member.spent = 6, torch.tensor(3)
    relaxer.add("a", first)
    assert relaxer.members["a"] is member
    relaxer.add("a", sampling_params(Relaxation(Cactus(0.1), 4), seed=1))
    assert relaxer.members["a"].relaxation.delta == 0.1
    assert (relaxer.members["a"].marked, relaxer.members["a"].spent) == (6, torch.tensor(3))
    relaxer.add("a", sampling_params(LOSSLESS))
    assert not relaxer.members
    relaxer.finish(["a"])
    assert not relaxer.seen
