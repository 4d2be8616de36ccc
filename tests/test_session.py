"""Sessions and lists: what a response gets does not depend on its neighbours, and what it held is given back."""

import random
from dataclasses import fields
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

from cactus_decoding.drafters import PromptLookup
from cactus_decoding.errors import BatchFailed, BrokenLogits, InvalidParameter
from cactus_decoding.generation.loading import load_pair
from cactus_decoding.generation.request import Request
from cactus_decoding.generation.statistics import Statistics
from cactus_decoding.models.cache import RaggedCache
from cactus_decoding.models.feeding import CHUNK
from cactus_decoding.models.rows import RaggedRows
from cactus_decoding.rules import BoundedRatio, Cactus, Lossless
from cactus_decoding.testing import MockModel, mock_pair, random_table
from tests.tiny import tiny_model

V = 7
EOS = 6
DOOMED, BAD = 4, 5  # see `broken_pair`
RULES = [Lossless(), Cactus(0.0), Cactus(0.5), Cactus(0.3, "exact"), BoundedRatio(2.0), BoundedRatio(2.0, "shift")]
COUNTS = [field.name for field in fields(Statistics) if not field.name.endswith("seconds")]

pytestmark = pytest.mark.filterwarnings("ignore:.*does nothing at temperature 0")


def table(seed):
    """The next id by the last two; the end comes seldom."""
    law = random_table(seed, V, order=2)
    law[..., EOS] *= 0.2
    return law / law.sum(-1, keepdim=True)


@pytest.fixture(scope="module", params=["model", "lookup", "short drafter"])
def pair(request):
    """The last one's drafter holds less than some responses need, so rows stop drafting at different times."""
    drafter = {
        "model": table(1),
        "lookup": PromptLookup(),
        "short drafter": MockModel(table(1), context=24, name="the drafter"),
    }[request.param]
    return mock_pair(table(0), drafter, eos=[EOS])


def broken_pair(role):
    """A pair of which one returns NaN behind BAD. Texts from DOOMED come to it sooner or later, others never do."""
    laws = torch.stack([random_table(seed, V) for seed in (0, 1)])
    laws[:, :, [DOOMED, BAD, EOS]] = 0.0
    laws[:, DOOMED] = 0.0
    laws[:, DOOMED, [DOOMED, BAD]] = torch.tensor([0.8, 0.2], dtype=laws.dtype)
    laws /= laws.sum(-1, keepdim=True)
    laws[("verifier", "drafter").index(role), BAD] = torch.nan
    return mock_pair(*laws)


prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=12)
options = st.fixed_dictionaries(
    {
        "rule": st.sampled_from(RULES),
        "m": st.integers(0, 6),
        "max_new_tokens": st.integers(1, 24),
        "seed": st.integers(0, 2**64 - 1),
    },
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.6]),
        "top_k": st.integers(1, V),
        "top_p": st.sampled_from([0.5, 0.9]),
        "min_p": st.sampled_from([0.02, 0.3]),
        "presence_penalty": st.sampled_from([-0.5, 0.8]),
        "frequency_penalty": st.sampled_from([0.3, 2.0]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.sampled_from([-2.0, 0.5, 3.0]), max_size=3),
        "stop_token_ids": st.sets(st.integers(0, V - 1), max_size=1),
        "ignore_eos": st.booleans(),
        "max_relaxed": st.one_of(st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.5])),
        "logprobs": st.integers(0, 3),
    },
)
actions = st.one_of(
    st.tuples(st.just("submit"), prompts, options),
    st.tuples(st.just("submit"), prompts, options),
    st.just(("step",)),
    st.tuples(st.just("cancel"), st.integers(0, 99)),
    st.tuples(st.just("pull"), st.integers(0, 99)),
)


def same(found, alone):
    """Token for token and verdict for verdict; of the numbers in the events, up to how a vector unit rounds."""
    assert found.ids == alone.ids
    assert found.finish_reason == alone.finish_reason
    assert found.text == alone.text
    assert {name: getattr(found.stats, name) for name in COUNTS} == {
        name: getattr(alone.stats, name) for name in COUNTS
    }
    for event, expected in zip(found.events, alone.events, strict=True):
        for numbers in ("p", "q", "h", "u"):
            assert getattr(event, numbers) == pytest.approx(getattr(expected, numbers), rel=1e-9, abs=1e-12)
        assert (event.draft, event.verdicts, event.emitted) == (expected.draft, expected.verdicts, expected.emitted)
        assert [[i for i, _ in top] for top in event.top] == [[i for i, _ in top] for top in expected.top]


def adds_up(output):
    stats = output.stats
    assert stats.drafted == stats.kept + stats.relaxed + stats.refused + stats.unexamined + stats.ignored
    assert stats.drafted == sum(len(event.draft) for event in output.events)
    assert stats.tokens == len(output.ids) == stats.accepted + stats.recovered + stats.bonus
    assert [token for event in output.events for token, _ in event.tokens()] == list(output.ids)


def held(session):
    """How many ids each row holds: the verifier's, and the drafter's, which are none where it is no model."""
    verifier, drafter = session._batch._verifier, session._batch._drafter
    if hasattr(drafter, "_indexes"):
        return verifier.lengths, [0] * len(drafter._indexes)
    return verifier.lengths, drafter._rows.lengths


def rows_fit(session):
    """Every row belongs to a running response and holds what is settled less the last id: all, after a step."""
    verifier, drafter = held(session)
    assert len(verifier) == len(drafter) == session.running <= session.rows
    assert session.queued <= session.waiting
    for decoding, ours, theirs in zip(session._batch.decodings, verifier, drafter):
        assert ours == (len(decoding.settled) - 1 if decoding.events else 0)
        assert theirs < len(decoding.settled)


@settings(max_examples=20)
@given(
    schedule=st.lists(actions, min_size=1, max_size=30),
    rows=st.sampled_from([1, 3, 8]),
    waiting=st.integers(0, 3),
)
def test_every_response_equals_its_own_single_run(pair, schedule, rows, waiting):
    streams = []
    with pair.session(rows=rows, waiting=waiting) as session:
        for action, *arguments in schedule:
            if action == "submit":
                prompt, chosen = arguments
                streams.append((session.submit(prompt, **chosen), prompt, chosen))
            elif action == "step":
                session.step()
            elif streams and action == "cancel":
                streams[arguments[0] % len(streams)][0].close()
            elif streams:
                next(streams[arguments[0] % len(streams)][0], None)
            rows_fit(session)
        session.run()
        assert held(session) == ([], [])
    for stream, prompt, chosen in streams:
        alone = pair.generate(prompt, **chosen)
        adds_up(alone)
        assert stream.done
        assert stream.error is None
        if stream._decoding.stops.reason is None:  # cancelled
            assert stream.ids == alone.ids[: len(stream.ids)]
            continue
        same(stream.output, alone)
        adds_up(stream.output)


@pytest.mark.parametrize("penalty", ["presence_penalty", "repetition_penalty"])
def test_a_row_that_drafts_nothing_more_goes_with_rows_that_do(penalty):
    """One token before its cap a row drafts none, while its neighbours' laws are made in the same call."""
    pair = mock_pair(random_table(0, V), random_table(1, V))
    requests = [Request([1], {"max_new_tokens": cap, "m": 4, "seed": cap, penalty: 1.5}) for cap in (1, 2, 5, 20)]
    for output, request in zip(pair.generate(requests), requests):
        same(output, pair.generate(request))


def test_a_drafter_is_never_fed_more_than_it_holds():
    """One row is near the drafter's context, its neighbours are not; the mock would refuse an id too many."""
    pair = mock_pair(random_table(0, V), MockModel(random_table(1, V), context=12, name="the drafter"))
    requests = [Request([1] * length, {"max_new_tokens": 12, "m": 6, "seed": length}) for length in (1, 8, 10, 11)]
    outputs = pair.generate(requests)
    for output, request in zip(outputs, requests):
        same(output, pair.generate(request))
    assert all(output.stats.drafted for output in outputs[:3])
    assert all(
        len(output.prompt_ids) + event.position <= 12 for output in outputs for event in output.events if event.draft
    )


def test_every_row_has_a_budget_of_its_own():
    pair = mock_pair(random_table(0, V), random_table(1, V))
    budgets = [None, 0, 1, 2, 5, 0.1]
    common = {"m": 4, "max_new_tokens": 40, "rule": Cactus(1.0)}
    requests = [Request([1], {"max_relaxed": budget, "seed": seed, **common}) for seed, budget in enumerate(budgets)]
    outputs = pair.generate(requests)
    for output, request in zip(outputs, requests):
        same(output, pair.generate(request))
    assert outputs[0].stats.relaxed > 5
    assert [output.stats.relaxed for output in outputs[1:]] == [0, 1, 2, 5, 4]


class Scribbling(MockModel):
    """Writes ``value`` wherever the protocol says that what stands there means nothing."""

    value = 0.0

    def open(self):
        rows = super().open()
        extend = rows.extend

        def scribbled(ids, counts, keep, first=0):
            logits = extend(ids, counts, keep, first)
            for place, kept in enumerate(keep):
                logits[place, kept:] = self.value
            return logits

        rows.extend = scribbled
        return rows


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_what_a_model_leaves_behind_the_logits_asked_for_does_not_matter(value):
    requests = [
        Request([1] * length, {"max_new_tokens": 3 * length, "m": length, "seed": length, "rule": RULES[length]})
        for length in (1, 2, 3, 5)
    ]
    models = [Scribbling(random_table(seed, V)) for seed in (0, 1)]
    clean, pair = mock_pair(random_table(0, V), random_table(1, V)), mock_pair(*models)
    for model in models:
        model.value = value
    for output, request in zip(pair.generate(requests), requests):
        same(output, clean.generate(request))


@settings(max_examples=20)
@given(
    starts=st.lists(st.sampled_from([0, 1, DOOMED, BAD]), min_size=1, max_size=6),
    broken=st.sampled_from(["verifier", "drafter"]),
    m=st.integers(1, 4),
    rows=st.sampled_from([1, 2, 8]),
)
def test_nan_in_a_row_fails_that_row_only(starts, broken, m, rows):
    """At its first step or later on, with the message it has alone; the others end as if alone."""
    pair = broken_pair(broken)
    requests = [
        Request([start], {"m": m, "max_new_tokens": 12, "seed": seed, "rule": RULES[seed]})
        for seed, start in enumerate(starts)
    ]
    expected = [outcome_alone(pair, request) for request in requests]
    with pair.session(rows=rows) as session:
        streams = [session.submit(request.prompt, **request.options) for request in requests]
        session.run()
        assert held(session) == ([], [])
    for stream, outcome in zip(streams, expected):
        assert stream.done
        if isinstance(outcome, str):
            assert str(stream.error) == outcome
            with pytest.raises(BrokenLogits, match=f"the {broken} returned NaN"):
                list(stream)
        else:
            same(stream.output, outcome)


def test_a_list_with_failures_hands_over_the_rest():
    pair = broken_pair("verifier")
    requests = [Request([start], {"m": 3, "max_new_tokens": 12, "seed": 1}) for start in (0, BAD, 1, 2, BAD)]
    with pytest.raises(BatchFailed, match="2 of 5 responses failed, the first is number 1: behind token 0") as caught:
        pair.generate(requests, rows=2)
    assert caught.value.errors.keys() == {1, 4}
    assert all(isinstance(error, BrokenLogits) for error in caught.value.errors.values())
    for output, request in zip(caught.value.outputs, requests):
        if request.prompt == [BAD]:
            assert output is None
        else:
            same(output, pair.generate(request))


def outcome_alone(pair, request):
    """The output, or the message of the error."""
    try:
        return pair.generate(request)
    except BrokenLogits as error:
        return str(error)


def test_a_thousand_cancels_leave_nothing_behind(pair):
    """A third of them for each kind of drafter."""
    generator = random.Random(0)
    with pair.session(rows=8, waiting=4) as session:
        streams = []
        for seed in range(334):
            chosen = {"m": generator.randrange(5), "max_new_tokens": generator.randint(1, 24), "seed": seed}
            streams.append(session.submit([generator.randrange(V)] * generator.randint(1, 9), **chosen))
            for _ in range(generator.randrange(2)):
                session.step()
            stream = generator.choice(streams[-16:])
            taken, ended = session.running + session.queued, stream.done
            stream.close()
            assert stream.done
            assert session.running + session.queued == taken - (not ended)
            rows_fit(session)
        for stream in streams:
            stream.close()
        assert (session.running, session.queued) == (0, 0)
        assert held(session) == ([], [])
    assert sum(stream._decoding.stops.reason is None for stream in streams) > 100


def test_a_cancelled_response_frees_its_row_at_once():
    pair = mock_pair()
    with pair.session(rows=1, waiting=2) as session:
        first, second, third = (session.submit("ab", seed=seed, max_new_tokens=20) for seed in range(3))
        next(first)
        assert (session.running, session.queued) == (1, 2)
        second.close()
        assert (session.running, session.queued) == (1, 1)
        said = first.ids
        first.close()
        assert (session.running, session.queued) == (0, 1)
        assert list(first) == []
        assert first.ids == said
        with pytest.raises(InvalidParameter, match="not iterated to its end"):
            _ = first.output
        same(read(third), pair.generate("ab", seed=2, max_new_tokens=20))
    assert second.ids == ()


def read(stream):
    for _ in stream:
        pass
    return stream.output


def test_submitting_beyond_rows_and_queue_steps_the_batch():
    pair = mock_pair()
    with pair.session(rows=2, waiting=1) as session:
        streams = [session.submit("ab", seed=seed, max_new_tokens=10, m=2) for seed in range(3)]
        assert not session.can_submit
        assert not any(stream.ids for stream in streams)  # nothing has run yet
        streams.append(session.submit("ab", seed=3, max_new_tokens=10, m=2))
        assert any(stream.done for stream in streams[:2])
        assert (session.running, session.queued) == (2, 1)
        session.run()
        assert session.can_submit
    for seed, stream in enumerate(streams):
        same(stream.output, pair.generate("ab", seed=seed, max_new_tokens=10, m=2))


def test_without_a_queue_a_request_waits_for_a_row():
    with mock_pair().session(rows=1, waiting=0) as session:
        first = session.submit("ab", seed=1, max_new_tokens=10)
        assert not session.can_submit
        second = session.submit("ab", seed=2, max_new_tokens=10)
        assert first.done
        assert not second.done


def test_a_bad_request_changes_nothing_for_the_others():
    pair = mock_pair()
    with pair.session(rows=2) as session:
        stream = session.submit("ab", seed=1, max_new_tokens=10)
        for options in ({"m": -1}, {"temprature": 1.0}, {"max_new_tokens": 10**6}):
            with pytest.raises(InvalidParameter):
                session.submit("ab", **options)
        assert (session.running, session.queued) == (1, 0)
        same(read(stream), pair.generate("ab", seed=1, max_new_tokens=10))


def test_a_closed_session_refuses_and_its_streams_have_ended():
    session = mock_pair().session(rows=1)
    streams = [session.submit("ab", seed=seed, max_new_tokens=10) for seed in range(2)]
    session.step()
    session.close()
    assert all(stream.done for stream in streams)
    assert list(streams[1]) == []  # it never had a row
    for stream in streams:
        stream.close()
    for use in (session.step, lambda: session.submit("ab")):
        with pytest.raises(InvalidParameter, match="session is closed"):
            use()


@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": 2.5}, {"waiting": -1}])
def test_a_session_without_room_is_refused(options):
    with pytest.raises(InvalidParameter, match=f"{next(iter(options))} is"):
        mock_pair().session(**options)


def test_pieces_of_streams_read_in_turn_join_to_their_texts():
    pair = mock_pair()
    with pair.session(rows=3) as session:
        streams = [session.submit("ab", seed=seed, max_new_tokens=25, stop="th", m=seed % 4) for seed in range(6)]
        pieces = [[] for _ in streams]
        while not all(stream.done for stream in streams):
            for stream, heard in zip(streams, pieces):
                heard.append(next(stream, ""))
        for stream, heard in zip(streams, pieces):
            heard.extend(stream)
    for seed, (stream, heard) in enumerate(zip(streams, pieces)):
        expected = pair.generate("ab", seed=seed, max_new_tokens=25, stop="th", m=seed % 4)
        assert "".join(heard) == stream.output.text == expected.text


def test_when_a_model_fails_altogether_everyone_is_told():
    """Not NaN in a row but an exception: the caches are in doubt, so the session ends, and no response looks whole."""
    law = random_table(0, V)

    def failing(ids):
        if len(ids) > 9:
            raise RuntimeError("out of memory")
        return law[ids[-1]]

    session = mock_pair(MockModel(failing, V)).session(rows=2, waiting=1)
    streams = [session.submit([1], seed=seed, max_new_tokens=20) for seed in range(3)]
    with pytest.raises(RuntimeError, match="out of memory"):
        session.run()
    assert all(stream.done for stream in streams)
    for stream in streams[:2]:
        with pytest.raises(RuntimeError, match="out of memory"):
            list(stream)
    with pytest.raises(InvalidParameter, match="session is closed"):
        session.submit([1])


def gpt2(seed, positions=1024):
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": positions, "vocab_size": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.5, bos_token_id=None, eos_token_id=None)).eval()


def bloom(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    return BloomForCausalLM(BloomConfig(**sizes, initializer_range=0.5, bos_token_id=None, eos_token_id=None)).eval()


def llama(seed, layers=2):
    return tiny_model(seed, vocabulary=32, positions=4096, layers=layers)


KINDS = {"lean forward": llama, "the module's forward": gpt2, "one at a time": bloom}


@pytest.fixture(scope="module", params=KINDS)
def real(request):
    """A pair of real modules, requests long and short, and what each gets alone."""
    make = KINDS[request.param]
    pair = load_pair(make(0), make(1))
    assert request.param in pair.verifier.way
    requests = [
        Request(
            [(7 * number + place) % 32 for place in range(length)],
            {"max_new_tokens": cap, "m": number % 5, "seed": number, "rule": RULES[number % len(RULES)], **extra},
        )
        for number, (length, cap, extra) in enumerate(
            [
                (3, 20, {}), (300, 40, {"temperature": 0.8}), (1, 1, {}), (30, 12, {"frequency_penalty": 0.5}),
                (2, 33, {"top_p": 0.9}), (64, 5, {}), (5, 8, {"temperature": 0}), (33, 18, {"max_relaxed": 2}),
                (1, 60, {"presence_penalty": 0.7}), (9, 4, {}), (2, 25, {}), (150, 10, {"top_k": 5}),
            ]
        )
    ]  # fmt: skip
    return pair, requests, [pair.generate(request) for request in requests]


def capacity(session):
    """Ids that the verifier's cache has room for per row; 0 where every row has a cache of the library's own."""
    rows = session._batch._verifier
    return rows.cache._capacity if isinstance(rows, RaggedRows) else 0


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_of_real_models_equal_single_runs(real, rows):
    """Across admissions, finishes, and caches that grow and shrink."""
    pair, requests, expected = real
    capacities = []
    with pair.session(rows=rows, waiting=2) as session:
        streams = []
        for request in requests:
            streams.append(session.submit(request.prompt, **request.options))
            session.step()
            capacities.append(capacity(session))
        while session.running or session.queued:
            session.step()
            capacities.append(capacity(session))
    for stream, output in zip(streams, expected):
        assert stream.output.ids == output.ids
        assert [event.verdicts for event in stream.events] == [event.verdicts for event in output.events]
        assert stream.output.finish_reason == output.finish_reason
    if pair.verifier.way.startswith("together"):
        steps = list(pairwise(capacities))
        assert any(0 < before < after for before, after in steps)
        assert rows == 1 or any(0 < after < before for before, after in steps)


def test_rows_of_real_models_survive_cancels_at_any_moment(real):
    """A row may go before it was ever fed, and its neighbours before theirs were."""
    pair, requests, expected = real
    generator = random.Random(1)
    with pair.session(rows=4, waiting=1) as session:
        short = [number for number, output in enumerate(expected) if len(output.ids) < 40]
        for turn in range(12):
            streams = []
            for number in generator.sample(short, 4):
                streams.append((session.submit(requests[number].prompt, **requests[number].options), expected[number]))
                for _ in range(generator.randrange(2)):
                    session.step()
            for stream, _ in generator.sample(streams, 2 + turn % 2):
                stream.close()
            session.run()
            for stream, output in streams:
                assert stream.ids == output.ids[: len(stream.ids)]
                assert stream.ids == output.ids or stream._decoding.stops.reason is None
            assert held(session) == ([], [])


def test_long_prompts_beside_short_ones_go_in_chunks(monkeypatch):
    widths, extend = [], RaggedRows.extend

    def watched(self, ids, counts, keep, first=0):
        widths.append(ids.shape[1])
        return extend(self, ids, counts, keep, first)

    module = llama(0)
    pair = load_pair(module, llama(1))
    monkeypatch.setattr(RaggedRows, "extend", watched)
    lengths = [3, 2 * CHUNK + 100, 1, CHUNK, CHUNK + 1, 40]
    requests = [
        Request(
            [(3 * place + length) % 32 for place in range(length)], {"m": 3, "max_new_tokens": 12, "temperature": 0}
        )
        for length in lengths
    ]
    for request, output in zip(requests, pair.generate(requests, rows=4)):
        ids = torch.tensor([request.prompt])
        greedy = module.generate(ids, do_sample=False, max_new_tokens=12)[0, ids.shape[1] :]
        assert list(output.ids) == greedy.tolist()
        assert pair.generate(request).ids == output.ids
    assert max(widths) == CHUNK + 3  # a prompt alone takes its draft along


@given(st.lists(st.one_of(st.integers(1, 300), st.sampled_from(["first leaves", "last leaves"])), max_size=40))
def test_a_cache_keeps_what_its_rows_hold_in_little_more_room(moves):
    """Rows of these lengths come and go, eight at a time at most; each writes a number of its own."""
    cache, marks, longest = RaggedCache(torch.float32, torch.device("cpu")), [], 0
    for mark, move in enumerate(moves):
        if isinstance(move, int) and len(marks) < 8:
            cache.add()
            marks.append(mark)
            window = cache.window(len(marks) - 1, 1, move)
            cache.write(0, window, torch.full((1, move, 1, 1), float(mark)), torch.full((1, move, 1, 1), -float(mark)))
            cache.advance(len(marks) - 1, [move])
            longest = max(longest, move)
        elif isinstance(move, str) and marks:
            row = 0 if move == "first leaves" else len(marks) - 1
            cache.drop(row)
            marks[row] = marks[-1]
            marks.pop()
        for row, held in enumerate(marks):
            keys, values = (tensor[row, : cache.lengths[row]].flatten() for tensor in cache._layers[0])
            assert keys.tolist() == (-values).tolist() == [held] * cache.lengths[row]
        assert cache.bytes <= 8 * 2 * 4 * (1.125 * longest + 32)
        assert cache.bytes <= 8 * 2 * 4 * 4 * max(32, *cache.lengths) if marks else cache.bytes == 0


def test_memory_stays_near_what_the_longest_rows_need(monkeypatch):
    """200 requests of any length through 8 rows; old and new of one tensor stand side by side while a cache grows."""
    peaks, empty = {}, RaggedCache._empty

    def watched(self, like):
        fresh = empty(self, like)
        peaks[id(self)] = max(peaks.get(id(self), 0), self.bytes + fresh.nbytes)
        return fresh

    monkeypatch.setattr(RaggedCache, "_empty", watched)
    layers = 8
    pair = load_pair(llama(0, layers), llama(1, layers=1))
    generator = random.Random(3)
    lengths = [(generator.randint(1, 400), generator.randint(1, 12)) for _ in range(200)]
    with pair.session(rows=8) as session:
        cache = session._batch._verifier.cache
        for seed, (length, cap) in enumerate(lengths):
            session.submit([seed % 32] * length, max_new_tokens=cap, m=2, seed=seed)
        session.run()
        assert cache.bytes == session._batch._drafter._rows.cache.bytes == 0
    slot = layers * 2 * 16 * 4  # bytes of one id: layers, keys and values, hidden size, float32
    needed = 8 * max(map(sum, lengths)) * slot
    assert 0.8 * needed < peaks[id(cache)] < 1.3 * needed
