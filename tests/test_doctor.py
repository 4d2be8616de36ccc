"""The doctor: its arithmetic on made-up figures, its measuring on tiny models, its command as a person meets it."""

import json
from dataclasses import replace

import pytest
import torch

import cactus_decoding as cactus
from cactus_decoding.diagnosis import Plan, diagnose, examination, timing
from cactus_decoding.diagnosis.advice import PAYS, advise, findings
from cactus_decoding.diagnosis.prediction import DEEPEST, Acceptance, acceptance_of, best_draft, median_costs, predict
from cactus_decoding.diagnosis.report import Speed, ThreadTimes, Trial
from cactus_decoding.diagnosis.timing import BLOCKS, best_threads, thread_counts, time_threads
from cactus_decoding.errors import InvalidParameter, InvalidPrompt
from cactus_decoding.generation import costs
from cactus_decoding.generation.drafting import StepCosts, best_m
from cactus_decoding.generation.events import Event
from cactus_decoding.rules import Cactus, Lossless
from cactus_decoding.sampling import SamplingParams
from cactus_decoding.verify import Verdict
from tests.tiny import byte_tokenizer, tiny_model

K, R, U, I, X = Verdict.KEPT, Verdict.REFUSED, Verdict.UNEXAMINED, Verdict.IGNORED, Verdict.RELAXED  # noqa: E741
COSTS = StepCosts(((0, 1.0), (1, 1.4), (2, 1.6), (16, 4.4)))  # C(m) = 1.2 + .2 m behind m = 0


@pytest.fixture(scope="module", autouse=True)
def _short_timings():
    """What is said is tested here, not how well it is timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_ENOUGH", 0.1)
        patch.setattr(costs, "_ENOUGH", 0.1)
        yield


def event(position, verdicts):
    none = (0.0,) * len(verdicts)
    return Event(position, (1,) * len(verdicts), none, none, none, none, tuple(verdicts), 1, 0.5, 0.5, False)


def steady(rate, steps=1000, drafted=1000):
    """So many drafts at every place that its acceptance is ``rate``, nearly."""
    reached = (10**9,) * DEEPEST
    return Acceptance(steps, drafted, reached, tuple(round(rate * n) for n in reached))


def trial(rate, fixed, auto, draft_cost=0.2, rounds=(0.98, 1.0, 1.02), acceptance=None):
    acceptance = acceptance or steady(rate)
    predictions = predict(COSTS, acceptance, 1)
    m = best_draft(predictions)
    speeds = [
        Speed(length, (100.0,) * 3, tuple(speed * noise for noise in rounds), (2.0,) * 3)
        for length, speed in ((m, fixed), ("auto", auto))
    ]
    return Trial(Cactus(0.25), acceptance, predictions, draft_cost, *speeds)


@pytest.fixture(scope="module")
def tiny_diagnosis(tiny_pair):
    return diagnose(tiny_pair, [[1, 2, 3]], Plan(rounds=2, new_tokens=12, threads=1))


@pytest.fixture
def cactus_doctor(cactus_command):
    """Run ``cactus doctor ...`` in this process: (exit status, stdout, stderr on one line)."""

    def run(*words):
        status, printed, errors = cactus_command("doctor", *map(str, words))
        return status, printed, " ".join(errors.replace("│", " ").split())

    return run


def saved(folder, tokenizer, **config):
    tiny_model(vocabulary=config.pop("vocabulary", len(tokenizer)), **config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_drafts_are_counted_by_place():
    events = [event(0, [K, X, R]), event(3, [R, U, U]), event(4, [K, I, I]), event(8, []), event(9, [])]
    found = acceptance_of(events, cap=10)
    assert found.reached[:4] == (3, 1, 1, 0)
    assert found.kept[:4] == (2, 1, 0, 0)
    assert (found.steps, found.drafted) == (4, 3)  # the step at the cap had no choice
    assert found.rate == pytest.approx(3 / 5)


def test_a_place_that_was_not_reached_is_like_the_one_before_it():
    found = Acceptance(1, 1, (100, 100, *(0,) * 10), (80, 40, *(0,) * 10))
    places = found.by_place()
    assert places[0] == pytest.approx(0.8, abs=0.02)
    assert places[1] == pytest.approx(0.4, abs=0.02)
    assert places[2:] == pytest.approx(places[1:-1])


@pytest.mark.parametrize("a", [0.3, 0.6, 0.9])
def test_the_prediction_is_the_formula_of_constant_acceptance(a):
    for prediction in predict(COSTS, steady(a), 1):
        m = prediction.m
        assert prediction.tokens == pytest.approx((1 - a ** (m + 1)) / (1 - a), rel=1e-6)
        assert prediction.cost == pytest.approx(1.2 + 0.2 * m if m else 1.0)
        assert prediction.speed == pytest.approx(prediction.tokens / prediction.cost)


def test_the_best_draft_is_what_the_engine_would_choose():
    for a in (0.5, 0.7, 0.9):
        survival = [a ** (j + 1) for j in range(DEEPEST)]
        assert best_draft(predict(COSTS, steady(a), 1)) == best_m(COSTS, [survival])
    assert best_m(COSTS, [[0.1] * 12]) == 0 < best_draft(predict(COSTS, steady(0.1), 1))


def test_steps_without_a_draft_are_in_the_prediction():
    half = steady(0.5, steps=100, drafted=50)
    one, two = predict(COSTS, half, 1)[1], predict(COSTS, half, 2)[1]
    assert (one.tokens, one.cost) == pytest.approx((1.25, 1.2))
    assert (two.tokens, two.cost) == pytest.approx((1.25, 1.3))  # one of two rows is enough to make a step long


def test_costs_are_medians_of_ratios():
    slow = StepCosts(((0, 10.0), (1, 20.0)))
    odd = StepCosts(((0, 1.0), (1, 9.0)))
    quick = StepCosts(((0, 1.0), (1, 2.0)))
    assert median_costs([slow, odd, quick]).seconds == ((0, 1.0), (1, 2.0))


def test_the_verdict_when_it_pays():
    tried = trial(0.8, fixed=1.7, auto=1.75)
    found = advise(tried)
    assert (found.pays, found.m, found.speed) == (True, tried.fixed.m, 1.7)
    assert found.text == f"speculating pays 1.70x (1.67 to 1.73): use m={tried.fixed.m}"


def test_the_verdict_prefers_auto_where_it_is_clearly_faster():
    assert advise(trial(0.8, fixed=1.5, auto=1.7)).m == "auto"
    assert advise(trial(0.8, fixed=0.9, auto=1.2)).text.startswith("speculating pays 1.20x")


def test_the_verdict_when_it_does_not_pay_says_why():
    found = advise(trial(0.5, fixed=0.9, auto=0.94, draft_cost=0.4))
    assert (found.pays, found.m) == (False, 0)
    assert "do not speculate here, use m=0: drafting 2, a step costs 1.60 times the verifier alone" in found.text
    assert "brings 1.75 tokens (a draft costs 0.40 of a verifier call, 0.50 of those examined are kept)" in found.text
    assert "measured 0.90x (0.88 to 0.92) with m=2" in found.text


def test_the_verdict_is_not_surer_than_the_rounds():
    found = advise(trial(0.8, fixed=1.2, auto=1.2, rounds=(0.7, 1.0, 1.1)))
    assert found.pays
    assert "though not in every round" in found.text
    assert not advise(trial(0.8, fixed=1.04, auto=1.04)).pays


def test_a_busy_moment_of_the_verifier_alone_is_no_gain():
    """Faster than alone without more tokens per step: it was the other one that was slow."""
    tried = trial(0.8, fixed=0.9, auto=1.6)
    undrafted = replace(tried.auto, tokens_per_step=(1.0,) * 3)
    assert not advise(replace(tried, auto=undrafted)).pays
    assert advise(tried).pays


def test_the_verdict_on_a_drafter_without_drafts():
    nothing = Acceptance(50, 0, (0,) * DEEPEST, (0,) * DEEPEST)
    found = advise(trial(0.0, fixed=0.97, auto=1.0, acceptance=nothing))
    assert "the drafter never had a draft" in found.text
    assert "steps have one" in advise(trial(0, 0.9, 0.9, acceptance=steady(0.5, 100, 40))).text


def test_a_prediction_that_misses_is_reported_with_its_cause(tiny_diagnosis):
    right, wrong = trial(0.8, fixed=1.5, auto=1.5), trial(0.8, fixed=1.0, auto=1.0)
    right = replace(right, fixed=replace(right.fixed, times_alone=(right.predicted.speed * 1.1,) * 3))
    found = findings(replace(tiny_diagnosis, trials=(right, wrong)))
    misses = [finding for finding in found if "differ by" in finding]
    assert len(misses) == 1
    assert f"A step brought 2.00 tokens (predicted {wrong.predicted.tokens:.2f}) and cost 2.00 times" in misses[0]


def test_the_fewest_threads_that_are_nearly_the_fastest():
    times = [ThreadTimes(1, 1.0, 2.0), ThreadTimes(2, 0.99, 1.98), ThreadTimes(4, 5.0, 10.0)]
    assert best_threads(times) == 1
    assert best_threads([*times, ThreadTimes(8, 0.5, 1.0)]) == 8


def test_a_default_of_too_many_threads_is_reported(tiny_diagnosis):
    times = (ThreadTimes(1, 1.0, 2.0), ThreadTimes(4, 5.0, 10.0))
    found = findings(replace(tiny_diagnosis, thread_times=times, threads=1, default_threads=4, trials=()))
    assert found == [
        "4 threads, the default here, made the verifier 5.0 times as slow as 1 thread: set OMP_NUM_THREADS=1 or pass "
        "--threads 1."
    ]


def test_the_best_threads_are_used_and_put_back_even_after_an_error(tiny_pair, monkeypatch):
    before, seen = torch.get_num_threads(), []
    times = (ThreadTimes(before, 2.0, 2.0), ThreadTimes(before + 1, 1.0, 1.0))
    monkeypatch.setattr(examination, "time_threads", lambda verifier, rows, counts: times)

    def watch(what, done, parts):
        if what == "timing forwards":
            seen.append(torch.get_num_threads())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(tiny_pair, [[1, 2]], Plan(), watch)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_threads_that_are_asked_for_are_used_and_put_back(tiny_pair):
    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(before + 1)
    try:
        plan = Plan(rounds=1, new_tokens=4, threads=1)
        found = diagnose(tiny_pair, [[1]], plan, lambda *_: seen.add(torch.get_num_threads()))
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert seen == {before + 1, 1}  # the first part is the one that sets them
    assert (found.threads, found.default_threads, found.thread_times, after) == (1, before + 1, (), before + 1)


def test_every_number_of_threads_is_timed(tiny_pair):
    before = torch.get_num_threads()
    times = time_threads(tiny_pair.verifier, 1, [1, 2])
    torch.set_num_threads(before)
    assert [tried.threads for tried in times] == [1, 2]
    assert all(tried.one > 0 and tried.six > 0 for tried in times)
    assert {1, before} <= set(thread_counts(before))


def test_nothing_measured_is_left_with_the_pair(tiny_pair):
    known = dict(tiny_pair._costs)
    diagnose(tiny_pair, [[1, 2]], Plan(rounds=1, new_tokens=4, threads=1))
    assert tiny_pair._costs == known


def test_a_small_drafter_of_the_same_mind_pays():
    """Nearly uniform laws on both sides: nearly everything is kept, and the verifier is many times as deep."""
    pair = cactus.load_pair(tiny_model(0, layers=10, std=0.02), tiny_model(1, hidden=8, layers=1, std=0.02))
    found = diagnose(pair, [[1, 2, 3]], Plan(rule=Lossless(), rounds=3, new_tokens=48, threads=1))
    (tried,) = found.trials
    assert tried.acceptance.rate > 0.9
    assert tried.predicted.speed > 1.5
    assert advise(tried).pays


def test_a_drafter_that_is_larger_than_the_verifier_does_not_pay():
    pair = cactus.load_pair(tiny_model(0, layers=1), tiny_model(1, layers=4))
    found = diagnose(pair, [[1, 2, 3]], Plan(rule=Lossless(), rounds=3, new_tokens=24, threads=1))
    (tried,) = found.trials
    assert tried.predicted.speed < 0.8
    assert tried.fixed.speed < 0.8
    assert tried.auto.gain < PAYS  # by hardly ever drafting
    assert not advise(tried).pays


def test_the_document_has_every_number(tiny_diagnosis):
    document = json.loads(json.dumps(tiny_diagnosis.to_dict(), allow_nan=False))
    assert document["match"] == {"shared": 8, "verifier_only": 0, "drafter_only": 0}
    assert document["verifier"]["context"] == 256
    assert document["verifier"]["way"] == "together, lean forward"
    assert [block["tokens"] for block in document["blocks"]["drafter"]] == list(BLOCKS)
    assert document["steps"][0]["ratio"] == 1.0
    assert [found["rule"]["name"] for found in document["trials"]] == ["lossless", "cactus"]
    for found in document["trials"]:
        assert len(found["predictions"]) == DEEPEST + 1
        assert [speed["m"] for speed in found["measured"]][1] == "auto"
        assert len(found["measured"][0]["times_alone"]) == document["rounds"] == 2
        assert found["verdict"]["text"]
    assert document["alone"]["times_alone"] == [1.0, 1.0]


def test_rows_that_decode_together(tiny_pair):
    parts = []
    plan = Plan(rows=3, rounds=1, new_tokens=6, threads=1, rule=Lossless())
    found = diagnose(tiny_pair, [[1, 2], [3]], plan, lambda what, done, total: parts.append((done, total)))
    assert found.plan.rows == 3
    assert sum(found.trials[0].acceptance.reached) > 0
    assert [done for done, _ in parts] == list(range(len(parts)))
    assert {total for _, total in parts} == {len(parts)}  # the bar ends where the work does


def test_prompt_lookup_has_no_second_model():
    pair = cactus.load_pair(tiny_model(0, layers=1), "prompt-lookup")
    found = diagnose(pair, [[1, 2, 3, 1, 2, 3]], Plan(rounds=1, new_tokens=16, threads=1))
    assert (found.drafter, found.match, found.drafter_blocks) == (None, None, ())
    assert all(tried.draft_cost == 0 for tried in found.trials)
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_a_shorter_drafter_context_is_reported():
    pair = cactus.load_pair(tiny_model(0, layers=1), tiny_model(1, layers=1, positions=64))
    found = findings(diagnose(pair, [[1]], Plan(rounds=1, new_tokens=4, threads=1)))
    assert "The drafter's context is the shorter one: beyond 64 tokens nothing is drafted." in found


def test_rows_one_at_a_time_are_reported(tiny_diagnosis):
    side = replace(tiny_diagnosis.verifier, way="one at a time (its cache has one length)")
    found = findings(replace(tiny_diagnosis, verifier=side, trials=()))
    assert found == [
        "Rows of the verifier (LlamaForCausalLM) are computed one after the other, so a batch gains little: one at a "
        "time (its cache has one length)."
    ]


def test_at_temperature_zero_only_lossless_is_tried(tiny_pair):
    plan = Plan(sampling=SamplingParams(temperature=0.0), rounds=1, new_tokens=4, threads=1)
    found = diagnose(tiny_pair, [[1]], plan)
    assert [tried.rule for tried in found.trials] == [Lossless()]
    assert "At temperature 0 the rule cactus does nothing, so lossless alone was tried." in findings(found)


@pytest.mark.parametrize(
    ("prompts", "plan", "error", "message"),
    [
        ([], Plan(), InvalidParameter, "there is no prompt"),
        ([[1]], Plan(rows=0), InvalidParameter, "rows is 0"),
        ([[1]], Plan(rounds=0), InvalidParameter, "rounds is 0"),
        ([[99]], Plan(), InvalidPrompt, "holds the id 99"),
        ([[1] * 300], Plan(threads=1, rounds=1), InvalidPrompt, "has 300 tokens"),
        ([[1]], Plan(new_tokens=300, threads=1, rounds=1), InvalidParameter, "max_new_tokens is 300"),
    ],
)
def test_what_does_not_fit_is_refused(tiny_pair, prompts, plan, error, message):
    with pytest.raises(error, match=message):
        diagnose(tiny_pair, prompts, plan)


def test_the_command_prints_tables_and_a_verdict_that_read_without_colour(cactus_doctor):
    status, out, err = cactus_doctor("--rounds", 1, "--max-new-tokens", 8, "--threads", 1, "--delta", 0.5)
    assert (status, err) == (0, "")
    assert "\x1b[" not in out
    for text in ("768, and 0 of its own", "passed the self-test", "together, lean forward", "Cost of a forward", "█"):
        assert text in out
    verdicts = [line for line in out.splitlines() if line.startswith(("lossless: ", "cactus 0.5: "))]
    assert len(verdicts) == 2
    assert all("use m=" in line for line in verdicts)


def test_the_command_in_json(cactus_doctor, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("Tom has 5 apples.\n\nMia has 8 coins. She finds 4 more coins.\n", encoding="utf-8")
    words = ("--prompts", file, "--prompt", "A third one.", "--rounds", 1, "--max-new-tokens", 4, "--threads", 1)
    status, out, err = cactus_doctor("abacus", *words, "--rule", "ratio:alpha=2", "--top-k", 20, "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["sampling"]["top_k"] == 20
    assert document["trials"][1]["rule"] == {"name": "ratio", "alpha": 2.0, "recovery": "exact"}
    steps = document["trials"][0]["acceptance"]["steps"]
    assert 3 <= steps <= 3 * 3  # three prompts of four tokens each; a step at the cap does not count


def test_the_command_counts_the_ids_of_both_sides(cactus_doctor, tmp_path):
    verifier = saved(tmp_path / "a", byte_tokenizer(), seed=0, layers=1, vocabulary=320)
    drafter = saved(tmp_path / "b", byte_tokenizer(extra=["<own>"]), seed=1, layers=1, vocabulary=272)
    words = ("--draft", drafter, "--prompt", "ab", "--rounds", 1, "--max-new-tokens", 4, "--threads", 1, "--json")
    document = json.loads(cactus_doctor(verifier, *words)[1])
    assert document["match"] == {"shared": 256, "verifier_only": 0, "drafter_only": 1}
    assert (document["verifier"]["tokens"], document["verifier"]["padded"]) == (256, 64)
    assert (document["drafter"]["tokens"], document["drafter"]["padded"]) == (257, 15)
    assert "Ids of the drafter alone: 1. They are never drafted." in document["findings"]


def test_different_tokenizers_are_a_finding(cactus_doctor, tmp_path):
    other = saved(tmp_path, byte_tokenizer(), seed=0, layers=1)
    status, out, err = cactus_doctor("abacus", "--draft", other, "--json")
    assert (status, out) == (2, "")
    assert "cactus: these two cannot speculate together: drafter and verifier have different tokenizers" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "magic"], "rule is 'magic'"),
        (["--delta", "-1"], "delta is -1.0"),
        (["--rule", "lossless", "--delta", "0.5"], "has no setting 'delta'"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["no/such/model"], "draft is missing"),
        (["--rows", "0"], "Invalid value for '--rows'"),
        (["--threads", "0"], "Invalid value for '--threads'"),
        (["--prompts", "no-such-file"], "does not exist"),
        (["--prompts", "/dev/null"], "holds no prompt"),
    ],
)
def test_errors_are_one_message_and_status_2(cactus_doctor, words, message):
    status, out, err = cactus_doctor(*words)
    assert (status, out) == (2, "")
    assert message in err
