"""Options of one response among several: log probabilities, ends, budgets of relaxed tokens, lists and their seeds."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.errors import BatchFailed, InvalidParameter, InvalidPrompt
from cactus_decoding.generation.events import Mark
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.request import Request
from cactus_decoding.rules import BoundedRatio, Cactus, Fly, Lossless
from cactus_decoding.sampling import SamplingParams, probabilities
from cactus_decoding.verify import Verdict
from tests.test_verify import target_at
from tests.tiny import byte_tokenizer, chi_square_p, tiny_model

V = 8
PROMPT = [3, 1, 4]
RELAXING = [Cactus(0.5), Cactus(0.5, "exact"), BoundedRatio(3.0), BoundedRatio(3.0, "shift")]
RULES = [Lossless(), *RELAXING]


@pytest.fixture(scope="module")
def lookup_pair():
    return load_pair(tiny_model(seed=0, layers=1), "prompt-lookup")


@pytest.fixture(scope="module")
def text_pair():
    tokenizer = byte_tokenizer(extra=["<|end|>"])
    modules = (tiny_model(seed, layers=1, hidden=hidden, vocabulary=257) for seed, hidden in ((0, 16), (1, 8)))
    return load_pair(*modules, tokenizer=tokenizer)


def log(law):
    return law.log().tolist()


# --- log probabilities --------------------------------------------------------------------------------------------


@torch.inference_mode()
def laws_of_text(model, out, params):
    """``[k, V]``: the law at the position of each emitted id, by one plain forward over all of them."""
    text = torch.tensor([*out.prompt_ids, *out.ids[:-1]])
    return probabilities(model.plain(text)[len(out.prompt_ids) - 1 :], params)


def require_logprobs(pair, out, rule, params, count):
    """Every token against plain forwards; returns the marks that were met."""
    q = laws_of_text(pair.verifier, out, params)
    p = laws_of_text(pair.drafter.model, out, params)
    marks = [mark for event in out.events for _, mark in event.tokens()]
    refused = {
        event.position + event.kept: event.draft[event.kept]
        for event in out.events
        if Verdict.REFUSED in event.verdicts
    }
    for place, (token, mark) in enumerate(zip(out.logprobs, marks, strict=True)):
        x = token.id
        assert x == out.ids[place]
        assert token.logprob == pytest.approx(float(q[place, x].log()), abs=1e-3)
        h = q[place, x]
        if mark in (Mark.KEPT, Mark.RELAXED):
            h = rule.target(p[place, x], q[place, x])
        elif mark is Mark.RECOVERED:
            h = target_at(rule, p[place], q[place], refused[place], x)
        assert math.exp(token.h_logprob) == pytest.approx(float(h), rel=1e-2, abs=1e-5)
        values, ids = q[place].topk(min(count, V))
        assert [i for i, _ in token.top] == ids.tolist()
        assert [value for _, value in token.top] == pytest.approx(log(values), abs=1e-3)
    return marks


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(0.6), SamplingParams(1.4)])
@pytest.mark.parametrize("rule", RULES)
def test_log_probabilities_are_those_of_the_row_where_a_token_was_emitted(tiny_pair, rule, params):
    marks = set()
    options = {"rule": rule, "temperature": params.temperature, "max_new_tokens": 20, "rows": 8, "seed": 0}
    for m, count in ((0, 1), (1, 3), (4, V), (6, V + 5)):
        for out in tiny_pair.generate([PROMPT] * 8, m=m, logprobs=count, **options):
            marks |= set(require_logprobs(tiny_pair, out, rule, params, count))
    assert marks == set(Mark) - ({Mark.RELAXED} if rule.lossless else set())


def test_filtered_ids_have_a_log_probability_of_minus_infinity(tiny_pair):
    out = tiny_pair.generate(PROMPT, top_k=2, m=4, max_new_tokens=30, logprobs=3, seed=1)
    for token in out.logprobs:
        assert [value > -math.inf for _, value in token.top] == [True, True, False]
        assert token.logprob == dict(token.top)[token.id]
        assert sum(math.exp(value) for _, value in token.top) == pytest.approx(1.0, abs=1e-6)


def test_without_being_asked_for_there_are_no_lists_of_the_likeliest(tiny_pair):
    out = tiny_pair.generate(PROMPT, m=4, max_new_tokens=10, seed=1)
    asked = tiny_pair.generate(PROMPT, m=4, max_new_tokens=10, seed=1, logprobs=2)
    assert [token.top for token in out.logprobs] == [()] * 10
    assert [token.logprob for token in out.logprobs] == [token.logprob for token in asked.logprobs]
    assert out.ids == asked.ids


def test_events_with_lists_go_into_json(tiny_pair):
    out = tiny_pair.generate(PROMPT, rule=Cactus(0.5), m=4, max_new_tokens=10, seed=1, logprobs=2)
    for event in out.events:
        again = json.loads(json.dumps(event.to_dict()))
        assert again["q_emitted"] == event.q_emitted
        assert len(again["top"]) == len(event.tokens())
        assert [tuple(map(tuple, top)) for top in again["top"]] == list(event.top)


@given(m=st.integers(0, 6), cap=st.integers(1, 12), seed=st.integers(0, 10**6), end=st.integers(0, V - 1))
def test_log_probabilities_end_where_the_text_ends(m, cap, seed, end):
    out = ALIKE.generate(PROMPT, m=m, max_new_tokens=cap, seed=seed, logprobs=2, stop_token_ids=[end])
    free = ALIKE.generate(PROMPT, m=m, max_new_tokens=cap, seed=seed, logprobs=2)
    assert [token.id for token in out.logprobs] == list(out.ids)
    for event in out.events:
        assert len(event.top) == len(event.tokens())
        assert (event.emitted is None) == (event.q_emitted is None) == (event.h_emitted is None)
    assert out.logprobs == free.logprobs[: len(out.ids)]
    assert out.finish_reason == ("stop" if end in free.ids else "length")


# --- ends ---------------------------------------------------------------------------------------------------------

# a drafter that is its own verifier: every draft is kept, so ends fall inside blocks
ALIKE = load_pair(tiny_model(0, layers=1), tiny_model(0, layers=1))


@pytest.mark.parametrize("m", [0, 1, 6])
def test_stop_ids_end_the_response_and_stay_in_its_ids(m):
    free = ALIKE.generate(PROMPT, m=m, max_new_tokens=20, seed=5)
    for stop in sorted(set(free.ids)):
        out = ALIKE.generate(PROMPT, m=m, max_new_tokens=20, seed=5, stop_token_ids=(stop,))
        assert out.ids == free.ids[: free.ids.index(stop) + 1]
        assert out.finish_reason == "stop"
        assert out.stats.tokens == len(out.ids)
    never = sorted(set(range(V)) - set(free.ids))
    assert ALIKE.generate(PROMPT, m=m, max_new_tokens=20, seed=5, stop_token_ids=never).ids == free.ids


def test_stop_ids_do_not_show_in_the_text(text_pair):
    options = {"m": 4, "max_new_tokens": 60, "seed": 2}
    free = text_pair.generate("ab", **options)
    stop = next(i for i in free.ids[10:] if 0 < i < 256 and text_pair.tokenizer.decode([i]).isalpha())
    out = text_pair.generate("ab", stop_token_ids=[stop], **options)
    assert out.ids[-1] == stop
    assert out.text == text_pair.tokenizer.decode(out.ids[:-1])


def test_ignore_eos_goes_on_behind_the_end():
    pair = load_pair(tiny_model(0, layers=1), tiny_model(0, layers=1))
    free = pair.generate(PROMPT, m=4, max_new_tokens=20, seed=5)
    end = free.ids[7]
    pair.eos = frozenset({end})
    options = {"m": 4, "max_new_tokens": 20, "seed": 5}
    cut = pair.generate(PROMPT, **options)
    assert (cut.ids, cut.finish_reason) == (free.ids[: free.ids.index(end) + 1], "eos")
    on = pair.generate(PROMPT, ignore_eos=True, **options)
    assert (on.ids, on.finish_reason) == (free.ids, "length")
    assert pair.generate(PROMPT, stop_token_ids=[end], **options).finish_reason == "eos"
    stopped = pair.generate(PROMPT, ignore_eos=True, stop_token_ids=[end], **options)
    assert (stopped.ids, stopped.finish_reason) == (cut.ids, "stop")


# --- a budget of relaxed tokens -----------------------------------------------------------------------------------


def relaxed_places(out):
    return [
        event.position + place
        for event in out.events
        for place, verdict in enumerate(event.verdicts)
        if verdict is Verdict.RELAXED
    ]


@settings(max_examples=40)
@given(
    rule=st.sampled_from(RELAXING), m=st.integers(1, 7), budget=st.integers(0, 6), cap=st.integers(1, 25),
    seed=st.integers(0, 10**6), lookup=st.booleans(),
)  # fmt: skip
def test_a_budget_is_never_exceeded_and_behind_it_the_rule_is_lossless(
    tiny_pair, lookup_pair, rule, m, budget, cap, seed, lookup
):
    pair, prompt = (lookup_pair, [3, 1, 4, 3, 1, 4, 3]) if lookup else (tiny_pair, PROMPT)
    options = {"rule": rule, "m": m, "max_new_tokens": cap, "seed": seed}
    out, free = pair.generate(prompt, max_relaxed=budget, **options), pair.generate(prompt, **options)
    places = relaxed_places(out)
    assert out.stats.relaxed == len(places) <= budget
    assert free.stats.lossless_from is None
    if len(places) < budget:
        assert out.stats.lossless_from is None
        assert out.ids == free.ids
        return
    spent = out.stats.lossless_from
    assert spent == (places[-1] + 1 if budget else 0)
    assert out.ids[:spent] == free.ids[:spent]
    for event in out.events:
        for place, verdict in enumerate(event.verdicts):
            if event.position + place >= spent and verdict in (Verdict.KEPT, Verdict.REFUSED):
                assert event.h[place] == event.q[place]
        if event.emitted is not None and event.position + event.kept >= spent:
            assert event.h_emitted == event.q_emitted


@pytest.mark.parametrize("lookup", [False, True], ids=["drafter", "prompt lookup"])
@pytest.mark.parametrize("rule", RELAXING)
def test_a_budget_of_nothing_is_the_lossless_rule(tiny_pair, lookup_pair, rule, lookup):
    pair, prompt = (lookup_pair, [3, 1, 4, 3, 1, 4, 3]) if lookup else (tiny_pair, PROMPT)
    options = {"m": 4, "max_new_tokens": 25, "seed": 0, "rows": 20}
    outputs = pair.generate([prompt] * 20, rule=rule, max_relaxed=0, **options)
    expected = pair.generate([prompt] * 20, rule=Lossless(), **options)
    assert [out.ids for out in outputs] == [out.ids for out in expected]
    assert [out.events for out in outputs] == [out.events for out in expected]
    assert {out.stats.lossless_from for out in outputs} == {0}
    assert sum(out.stats.relaxed for out in pair.generate([prompt] * 20, rule=rule, **options)) > 20


@pytest.mark.parametrize(("given_", "cap", "budget"), [(0.1, 40, 4), (0.99, 10, 9), (0.05, 10, 0), (3, 10, 3)])
def test_a_budget_may_be_a_share_of_the_cap(tiny_pair, given_, cap, budget):
    options = {"rule": Cactus(3.0), "m": 5, "max_new_tokens": cap, "seed": 3}
    by_share, by_number = (tiny_pair.generate(PROMPT, max_relaxed=x, **options) for x in (given_, budget))
    assert by_share.events == by_number.events
    assert by_share.stats.relaxed <= budget
    assert by_share.stats.lossless_from == by_number.stats.lossless_from


def test_budgets_are_per_response_and_spent_over_several_blocks(tiny_pair):
    options = {"rule": Cactus(3.0), "m": 2, "max_new_tokens": 40}
    requests = [Request(PROMPT, {"max_relaxed": budget}) for budget in (0, 1, 5, 12, 1000)]
    outputs = tiny_pair.generate(requests, seed=0, rows=5, **options)
    assert [out.stats.relaxed for out in outputs[:4]] == [0, 1, 5, 12]
    assert 0 < outputs[4].stats.relaxed < 1000
    assert outputs[4].stats.lossless_from is None
    for number, (out, request) in enumerate(zip(outputs, requests)):
        alone = tiny_pair.generate(PROMPT, seed=number, **request.options, **options)
        assert out.ids == alone.ids
        assert [event.verdicts for event in out.events] == [event.verdicts for event in alone.events]


def transforms(pair, outputs, spent):
    """For the tokens on one side of the end of the budget, their place in the verifier's law, a number in [0, 1).

    ``F(x - 1) + v q(x)``, with F the cumulative law behind the token's own text and v uniform: uniform if the token
    was drawn from q.
    """
    generator, numbers = torch.Generator().manual_seed(0), []
    for out in outputs:
        q = laws_of_text(pair.verifier, out, SamplingParams()).double()
        begin = len(out.ids) if out.stats.lossless_from is None else out.stats.lossless_from
        x = torch.tensor(out.ids)[:, None]
        share = q.gather(1, x)[:, 0]
        below = q.cumsum(1).gather(1, x)[:, 0] - share
        places = below + share * torch.rand(len(x), generator=generator, dtype=torch.float64)
        numbers.append(places[begin:] if spent else places[:begin])
    return torch.cat(numbers)


@pytest.mark.parametrize("lookup", [False, True], ids=["drafter", "prompt lookup"])
@pytest.mark.parametrize("rule", [Cactus(1.0), BoundedRatio(4.0)])
def test_behind_the_budget_the_law_is_the_verifiers(tiny_pair, lookup_pair, rule, lookup):
    pair, prompt = (lookup_pair, [3, 1, 4, 3, 1, 4, 3]) if lookup else (tiny_pair, PROMPT)
    outputs = pair.generate([prompt] * 400, rule=rule, m=3, max_relaxed=2, max_new_tokens=14, seed=0, rows=200)
    after, before = (transforms(pair, outputs, spent) for spent in (True, False))
    assert len(after) > 1500
    even = torch.full((20,), 0.05)
    assert chi_square_p(torch.histc(after, 20, 0, 1), even) > 1e-4
    assert chi_square_p(torch.histc(before, 20, 0, 1), even) < 1e-4, "the test has no power"


# --- lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_the_seed_of_a_list_counts_up(tiny_pair, rows):
    """Row i is the run of its own with seed 7 + i, whoever its neighbours are and whenever it found a place."""
    prompts = [PROMPT, [5], [1, 2, 3, 4, 5, 6, 7], PROMPT, [2, 2]]
    options = {"rule": Cactus(0.5), "m": 4, "max_new_tokens": 25}
    outputs = tiny_pair.generate(prompts, seed=7, rows=rows, **options)
    assert [out.seed for out in outputs] == [7, 8, 9, 10, 11]
    for number, (prompt, out) in enumerate(zip(prompts, outputs)):
        alone = tiny_pair.generate(prompt, seed=7 + number, **options)
        assert (out.ids, out.finish_reason, out.prompt_ids) == (alone.ids, alone.finish_reason, tuple(prompt))
        assert [event.verdicts for event in out.events] == [event.verdicts for event in alone.events]


def test_seeds_count_around_the_largest(tiny_pair):
    outputs = tiny_pair.generate([PROMPT] * 3, seed=2**64 - 2, m=2, max_new_tokens=3)
    assert [out.seed for out in outputs] == [2**64 - 2, 2**64 - 1, 0]


def test_without_a_seed_every_response_has_one_of_its_own(tiny_pair):
    options = {"m": 3, "max_new_tokens": 20, "temperature": 3.0}  # hot, or two texts might be equal by chance
    outputs = tiny_pair.generate([PROMPT] * 6, **options)
    assert len({out.seed for out in outputs}) == len({out.ids for out in outputs}) == 6
    for out in outputs:
        assert tiny_pair.generate(PROMPT, seed=out.seed, **options).ids == out.ids


VARIED = [
    Request(PROMPT, {"rule": Cactus(0.5), "m": 6, "logprobs": 2}),
    Request([5, 6], {"m": 0, "temperature": 0}),
    Request(PROMPT, {"rule": BoundedRatio(2.0), "m": 2, "temperature": 0.7, "top_k": 3, "max_new_tokens": 9}),
    Request([1], {"presence_penalty": 1.0, "frequency_penalty": 0.2, "repetition_penalty": 1.2, "seed": 99}),
    Request(PROMPT, {"rule": Cactus(0.5), "max_relaxed": 2, "stop_token_ids": [6], "logit_bias": {2: -math.inf}}),
    Request([7, 7, 7], {"m": 1, "min_p": 0.2, "top_p": 0.9}),
]


@pytest.mark.parametrize("rows", [2, 6])
def test_requests_of_a_list_have_options_of_their_own(tiny_pair, rows):
    common = {"m": 4, "max_new_tokens": 30, "seed": 20}
    outputs = tiny_pair.generate(VARIED, rows=rows, **common)
    assert [out.seed for out in outputs] == [20, 21, 22, 99, 24, 25]
    for out, request in zip(outputs, VARIED):
        alone = tiny_pair.generate(request.prompt, **{**common, "seed": out.seed, **request.options})
        assert (out.ids, out.finish_reason) == (alone.ids, alone.finish_reason)
        assert [event.verdicts for event in out.events] == [event.verdicts for event in alone.events]
        assert [len(token.top) for token in out.logprobs] == [len(token.top) for token in alone.logprobs]
    assert len(outputs[2].ids) == 9
    assert outputs[1].stats.drafted == 0


def test_a_single_request_goes_before_the_common_options(tiny_pair):
    request = Request(PROMPT, {"m": 2, "seed": 5})
    expected = tiny_pair.generate(PROMPT, m=2, seed=5, max_new_tokens=12)
    assert tiny_pair.generate(request, m=7, seed=1, max_new_tokens=12).events == expected.events
    stream = tiny_pair.stream(request, m=7, seed=1, max_new_tokens=12)
    list(stream)
    assert stream.output.events == expected.events


def test_what_is_a_list_of_prompts_and_what_is_one(text_pair, abacus):
    options = {"m": 4, "max_new_tokens": 6, "seed": 3}
    ids = text_pair.tokenizer.encode("ab")
    one = text_pair.generate("ab", **options)
    for prompt in (ids, tuple(ids), torch.tensor(ids), torch.tensor([ids])):
        assert text_pair.generate(prompt, **options).ids == one.ids
    for prompts in (["ab", "ab"], ("ab", ids), [ids, tuple(ids)], [torch.tensor(ids), "ab"], [Request("ab"), "ab"]):
        outputs = text_pair.generate(prompts, **options)
        assert [out.prompt_ids for out in outputs] == [one.prompt_ids] * 2
        assert outputs[0].ids == one.ids
    assert text_pair.generate([], **options) == []
    question = "Ann has 3 pens. She buys 2 more pens. How many pens does Ann have now?"
    messages = [{"role": "user", "content": question}]
    single = abacus.generate(messages, **options)
    assert single.ids == abacus.generate(question, **options).ids
    both = abacus.generate([messages, question], **options)
    assert [out.prompt_ids for out in both] == [single.prompt_ids] * 2


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request(PROMPT, {"temperature": -1.0}), InvalidParameter, "temperature is -1.0"),
        (Request(PROMPT, {"temprature": 1.0}), InvalidParameter, "'temprature' is no option"),
        (Request(PROMPT, {"m": -2}), InvalidParameter, "m is -2"),
        (Request([]), InvalidPrompt, "empty"),
        ([1, 8], InvalidPrompt, "id 8"),
        ("text", InvalidPrompt, "no tokenizer"),
        (Request([1] * 250), InvalidParameter, "room for 6 more"),
    ],
)
def test_a_bad_request_in_a_list_is_refused_before_anything_runs(tiny_pair, monkeypatch, request_, error, message):
    monkeypatch.setattr(tiny_pair, "session", lambda **options: pytest.fail("something ran"))
    with pytest.raises(error, match=message):
        tiny_pair.generate([PROMPT, Request([1, 2]), request_], m=2, max_new_tokens=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_relaxed": -1}, "max_relaxed is -1, but must be a whole number, at least 0"),
        ({"max_relaxed": 1.0}, r"max_relaxed is 1.0, but a share must lie in \[0, 1\)"),
        ({"max_relaxed": -0.1}, "max_relaxed is -0.1"),
        ({"max_relaxed": math.nan}, "max_relaxed is nan"),
        ({"max_relaxed": True}, "max_relaxed is True"),
        ({"max_relaxed": "many"}, "max_relaxed is 'many'"),
        ({"max_relaxed": 3, "block": True, "rule": Cactus(0.5)}, "max_relaxed is 3, which can run out in the middle"),
        ({"block": True, "rule": Fly()}, "block verification needs the law that the rule emits"),
        ({"block": 1}, "block is 1, but must be True or False"),
        ({"audit": 1, "rule": Fly()}, "audit is 1, but Fly"),
        ({"audit": -1}, "audit is -1"),
        ({"logprobs": -1}, "logprobs is -1, but must be a whole number, from 0 to 100"),
        ({"logprobs": 101}, "logprobs is 101"),
        ({"logprobs": True}, "logprobs is True"),
        ({"stop_token_ids": [8]}, "stop_token_ids names the id 8.*vocabulary of 8"),
        ({"stop_token_ids": [-1]}, "a stop_token_id is -1"),
        ({"stop_token_ids": [1.5]}, "a stop_token_id is 1.5"),
        ({"logit_bias": {8: 1.0}}, "logit_bias names the id 8.*vocabulary of 8"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of id 1 is nan"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": math.nan}, "presence_penalty is nan"),
        ({"frequency_penalty": math.inf}, "frequency_penalty is inf"),
        ({"rows": 2}, "'rows' is no option of a response"),
    ],
)
def test_options_out_of_range_are_refused_with_the_value(tiny_pair, options, message):
    with pytest.raises(InvalidParameter, match=message):
        tiny_pair.stream(PROMPT, **options)


def test_a_list_needs_at_least_one_row(tiny_pair):
    with pytest.raises(InvalidParameter, match="rows is 0, but must be a whole number, at least 1"):
        tiny_pair.generate([PROMPT], rows=0)


# --- the draft length ---------------------------------------------------------------------------------------------


def test_greedy_texts_do_not_depend_on_the_draft_length(tiny_pair):
    prompts = [PROMPT, [5, 5, 5], [2]]
    options = {"temperature": 0, "max_new_tokens": 40}
    expected = [out.ids for out in tiny_pair.generate(prompts, m=0, **options)]
    for m in (1, 4, "auto"):
        assert [out.ids for out in tiny_pair.generate(prompts, m=m, **options)] == expected
        assert [tiny_pair.generate(prompt, m=m, **options).ids for prompt in prompts] == expected
    mixed = [Request(prompt, {"m": m}) for prompt, m in zip(prompts, (0, "auto", 6))]
    assert [out.ids for out in tiny_pair.generate(mixed, **options)] == expected


@pytest.mark.parametrize("positions", [2, 4, 5, 6, 9])
def test_an_adapted_draft_length_fits_into_the_shortest_context(positions):
    pair = load_pair(tiny_model(0, layers=1, positions=positions), tiny_model(1, layers=1, positions=positions))
    out = pair.generate([1], temperature=0)
    assert len(out.ids) == positions - 1
    assert out.ids == pair.generate([1], temperature=0, m=0).ids


def shorter_drafter():
    """Ids from 50 on have no row in the drafter."""
    return load_pair(tiny_model(0, vocabulary=60), tiny_model(1, layers=1, vocabulary=50))


def test_rows_that_are_done_drafting_feed_a_shorter_drafter_nothing_it_has_no_row_for():
    requests = [Request([1, 2, 3], {"m": 5}), Request([1, 2, 4], {"m": 2})]
    options = {"presence_penalty": 0.5, "seed": 1, "max_new_tokens": 30}
    outputs = shorter_drafter().generate(requests, **options)
    for number, request in enumerate(requests):
        alone = shorter_drafter().generate(request, **{**options, "seed": 1 + number})
        assert outputs[number].ids == alone.ids


def test_a_broken_drafter_fails_the_rows_that_it_drafts_for():
    pair = shorter_drafter()
    pair.drafter.model.module.model.norm.weight.data.fill_(math.nan)
    requests = [Request([1, 2], {"m": 3}), Request([1, 2], {"m": 0})]
    with pytest.raises(BatchFailed, match="1 of 2 responses failed.*the drafter returned NaN") as failure:
        pair.generate(requests, seed=1, max_new_tokens=10)
    assert failure.value.outputs[0] is None
    assert len(failure.value.outputs[1].ids) == 10


def test_what_waits_when_a_session_breaks_has_its_error_too(monkeypatch):
    pair = shorter_drafter()
    with pair.session(rows=1) as session:
        running, waiting = session.submit([1], m=0), session.submit([2], m=0)
        monkeypatch.setattr(session._batch, "_verify", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(running)
        with pytest.raises(ZeroDivisionError):
            next(waiting)


def test_a_wider_drafter_recovers_too():
    pair = load_pair(tiny_model(0), tiny_model(1).double())
    assert pair.generate([1], m=3, seed=1, max_new_tokens=40).stats.recovered > 0


def test_a_share_of_the_cap_is_not_lost_to_rounding():
    pair = shorter_drafter()
    stream = pair.stream([1], rule=Cactus(0.5), max_relaxed=0.29, max_new_tokens=100)
    assert stream._decoding.job.max_relaxed == 29


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": [5]}, "stop holds 5, but must be text.*stop_token_ids"),
        ({"temperature": "0.7"}, "temperature is '0.7', but must be a number"),
        ({"rule": 0}, "rule is 0, but must be a rule"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(options, message):
    with pytest.raises(InvalidParameter, match=message):
        shorter_drafter().stream([1], **options)


def test_none_is_the_default_of_every_option():
    options = dict.fromkeys(("stop", "stop_token_ids", "logit_bias", "seed", "max_relaxed", "rule", "temperature"))
    assert len(shorter_drafter().generate([1], max_new_tokens=5, **options).ids) == 5


@pytest.mark.parametrize("options", [{}, {"rule": Cactus(0.5), "m": 0}])
def test_a_budget_of_relaxed_tokens_that_does_nothing_is_said(options):
    with pytest.warns(UserWarning, match="max_relaxed does nothing"):
        shorter_drafter().generate([1], max_relaxed=3, max_new_tokens=3, **options)
