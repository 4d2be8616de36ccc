"""``custom_generate=hf.generate`` against plain ``model.generate``: what comes out, and who sees what on the way."""

import copy
import gc
import itertools
import threading
import time
import weakref

import pytest
import torch
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
    TextStreamer,
    WatermarkingConfig,
)
from transformers.generation import logits_process as known

import cactus_decoding as cactus
from cactus_decoding import hf
from cactus_decoding.errors import BrokenLogits, InvalidParameter, InvalidPrompt, PairMismatch
from cactus_decoding.integrations.custom_generate import contract
from cactus_decoding.integrations.custom_generate.processed_law import ProcessedLaw
from tests.tiny import chi_square_p, tiny_model

SIZE, NEW = 64, 16
EOS = [3, 5, 7, 9, 11]
ONE = {"input_ids": torch.tensor([[3, 1, 4, 1, 5]])}
SEVERAL = {
    "input_ids": torch.tensor([[0, 0, 0, 7, 9, 2], [3, 1, 4, 1, 5, 9], [0, 0, 11, 12, 13, 14]]),
    "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]),
}
EVERY_M = ("auto", 1, 4, 8)
PROMPTS = pytest.mark.parametrize("prompt", [ONE, SEVERAL], ids=["one", "several"])


def near(model, by):
    """A drafter that is often right: the model with noise on its weights."""
    torch.manual_seed(1)
    drafter = copy.deepcopy(model)
    with torch.no_grad():
        for weight in drafter.parameters():
            weight.add_(torch.randn_like(weight) * by)
    return drafter


def gpt2():
    torch.manual_seed(3)
    no_ids = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=SIZE, n_positions=256, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, **no_ids)
    ).eval()


@pytest.fixture(scope="module")
def llama():
    model = tiny_model(0, vocabulary=SIZE)
    return model, near(model, 0.02)


@pytest.fixture(scope="module")
def pairs(llama):
    model = gpt2()
    return {"llama": llama, "gpt2": (model, near(model, 0.05))}


@pytest.fixture(scope="module")
def word_problems(abacus):
    return abacus.verifier.module, abacus.drafter.model.module, abacus.tokenizer


def plain(model, prompt, **options):
    return model.generate(**prompt, **{"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0} | options)


def ours(model, draft, prompt, m=4, **options):
    return plain(model, prompt, custom_generate=hf.generate, draft_model=draft, m=m, **options)


def until(sequences, prompt, options):
    """The new ids of each row up to its end."""
    ends = options.get("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    rows = sequences[:, prompt["input_ids"].shape[1] :].tolist()
    lengths = [next((place + 1 for place, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [row[:length] for row, length in zip(rows, lengths)]


class ByPlace(LogitsProcessor):
    """Another bias for each row of a batch and each text."""

    def __call__(self, input_ids, scores):
        assert not input_ids.is_inference()
        assert not scores.is_inference()
        rows = 1 + torch.arange(len(scores)).unsqueeze(1)
        return scores + 3 * torch.sin(rows * input_ids.sum(1, keepdim=True) * torch.arange(scores.shape[-1]))


def allowed(row, text):
    return [int(text[-1]) % 7 + row, 20 + row, 30, int(text.sum()) % 60]


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.7},
    "repetition wanted": {"repetition_penalty": 0.4},
    "ngrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[44], [25, 8]]},
    "min new": {"min_new_tokens": 12, "eos_token_id": EOS},
    "min length": {"min_length": 14, "eos_token_id": EOS},
    "forced end": {"forced_eos_token_id": 9, "eos_token_id": 9},
    "bias": {"sequence_bias": {(5,): 4.0, (6, 7): -2.0}},
    "suppressed": {"suppress_tokens": [1, 2, 44], "begin_suppress_tokens": [10, 25]},
    "decay": {"exponential_decay_length_penalty": (3, 1.3), "eos_token_id": 9},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=4.0, context_width=1)},
    "prefix": {"prefix_allowed_tokens_fn": allowed},
    "custom": {"logits_processor": LogitsProcessorList([ByPlace()])},
    "two": {
        "repetition_penalty": 1.7,
        "logits_processor": LogitsProcessorList([ByPlace()]),
        "renormalize_logits": True,
    },
}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@PROMPTS
def test_greedy_tokens_are_those_of_plain_generate(pairs, family, prompt):
    model, draft = pairs[family]
    for options in ({}, {"eos_token_id": EOS}, {"eos_token_id": 5, "pad_token_id": 63}):
        expected = plain(model, prompt, **options)
        for m in EVERY_M if not options else (4,):
            statistics = []
            found = ours(model, draft, prompt, m, statistics=statistics, **options)
            assert found.tolist() == expected.tolist()
            assert (found.dtype, found.device) == (expected.dtype, expected.device)
            assert [row.tokens for row in statistics] == [len(row) for row in until(expected, prompt, options)]
        if not options:
            assert sum(row.accepted for row in statistics) > 3
            assert sum(row.refused for row in statistics) > 3


@pytest.mark.parametrize("name", PROCESSORS)
@PROMPTS
def test_processors_see_for_each_token_what_plain_generate_shows_them(llama, prompt, name):
    options = PROCESSORS[name]
    expected = plain(llama[0], prompt, **options).tolist()
    for m in (1, 6):
        assert ours(*llama, prompt, m, **options).tolist() == expected
    if prompt is SEVERAL:
        assert plain(llama[0], prompt, eos_token_id=options.get("eos_token_id")).tolist() != expected


def test_a_processor_is_applied_once_to_each_position(llama):
    """Verifier alone: as many calls as tokens. With drafts: one more per position that was drafted."""
    texts = []

    class Watching(LogitsProcessor):
        def __call__(self, input_ids, scores):
            texts.append(tuple(input_ids[0].tolist()))
            scores += 1.0  # in place, as some do
            return scores

    options = {"logits_processor": LogitsProcessorList([Watching()])}
    found = ours(*llama, ONE, m=0, **options)[0].tolist()
    assert texts[2:] == [tuple(found[:length]) for length in range(5, len(found))]  # two calls prove it stateless
    texts.clear()
    statistics = []
    ours(*llama, ONE, m=3, statistics=statistics, **options)
    assert len(texts) == 2 + 2 * statistics[0].drafted + statistics[0].verifier_calls


def test_the_abacus_pair_answers_as_in_plain_generate(word_problems):
    model, draft, tokenizer = word_problems
    questions = [
        "Mia has 8 coins. She finds 4 more coins. She loses 3 coins. How many coins does Mia have now?",
        "Tom has 5 apples. He buys 7 more apples. How many apples does Tom have now?",
    ]
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompt = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True, padding_side="left"
    )
    assert (prompt["attention_mask"] == 0).any()
    expected = plain(model, prompt, max_new_tokens=40)
    for m in EVERY_M:
        statistics = []
        found = ours(model, draft, prompt, m, max_new_tokens=40, statistics=statistics)
        assert found.tolist() == expected.tolist()
        assert m == "auto" or all(row.accepted > 5 for row in statistics)


@PROMPTS
def test_prompt_lookup_needs_no_second_model(llama, prompt):
    statistics = []
    options = {"max_new_tokens": 60, "repetition_penalty": 0.8}  # which likes to say it again
    found = ours(llama[0], "prompt-lookup", prompt, statistics=statistics, **options)
    assert found.tolist() == plain(llama[0], prompt, **options).tolist()
    assert statistics[0].accepted > 0


# ------------------------------------------------------------------------------------------ criteria and streamers


class Log(list):
    """What criteria and streamers were shown, in the order in which they were."""

    def criterion(self, stops=lambda ids: torch.zeros(len(ids), dtype=torch.bool)):
        log = self

        class Seen(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                log.append(("criterion", input_ids.tolist(), scores is None))
                assert not input_ids.is_inference()
                return stops(input_ids)

        return StoppingCriteriaList([Seen()])

    def put(self, value):
        assert not value.is_inference()
        self.append(("put", value.tolist(), value.dtype, value.device.type))

    def end(self):
        self.append(("end",))


def after(lengths):
    """Stops row i once there are ``lengths[i]`` ids."""
    return lambda ids: torch.tensor([ids.shape[1] >= length for length in lengths])


@pytest.mark.parametrize("eos", [None, EOS])
@pytest.mark.parametrize("lengths", [(9, 20, 13), (13, 8, 8)])
@PROMPTS
def test_criteria_and_streamer_see_every_step_of_plain_generate(llama, prompt, lengths, eos):
    """Rows that a criterion ends before others are padded with an end-of-text criterion, and go on without one."""
    stops = after(lengths[: len(prompt["input_ids"])])
    expected = Log()
    first = plain(llama[0], prompt, stopping_criteria=expected.criterion(stops), streamer=expected, eos_token_id=eos)
    for m in EVERY_M:
        found = Log()
        options = {"stopping_criteria": found.criterion(stops), "streamer": found, "eos_token_id": eos}
        assert ours(*llama, prompt, m, **options).tolist() == first.tolist()
        assert found == expected
    assert sum(entry[0] == "criterion" for entry in found) == first.shape[1] - prompt["input_ids"].shape[1]


def test_tokens_behind_a_criterions_end_are_nowhere(llama):
    """Drafter = verifier: blocks are kept whole, so most ends lie inside one."""
    inside, free = 0, plain(llama[0], ONE)
    for length in range(6, 18):
        statistics = []
        criteria = Log().criterion(after([length]))
        found = ours(llama[0], llama[0], ONE, 6, stopping_criteria=criteria, statistics=statistics)
        assert found.tolist() == free[:, :length].tolist()
        (row,) = statistics
        assert row.tokens == length - 5 == row.kept + row.bonus
        assert row.drafted == row.kept + row.refused + row.unexamined + row.ignored
        inside += row.ignored > 0
    assert inside > 7


def test_statistics_of_rows_that_ran_ahead_end_where_the_rows_do(llama):
    """Row 0 agrees with its drafter and is far ahead when the criterion ends it; row 1 is slowed down by refusals."""

    class Disturb(LogitsProcessor):
        """Row 1: every other answer is the unlikeliest for its drafter."""

        def __call__(self, input_ids, scores):
            return torch.cat([scores[:1], scores[1:] * (1 if input_ids.shape[1] % 2 else -1)])

    prompt = {"input_ids": torch.tensor([[3, 1, 4], [2, 7, 1]])}
    options = {"logits_processor": LogitsProcessorList([Disturb()]), "eos_token_id": 63}
    statistics = []
    criteria = Log().criterion(after([14, 30]))
    found = ours(*llama, prompt, 8, stopping_criteria=criteria, statistics=statistics, **options)
    again = plain(llama[0], prompt, stopping_criteria=Log().criterion(after([14, 30])), **options)
    assert found.tolist() == again.tolist()
    assert [row.tokens for row in statistics] == [14 - 3, NEW]
    for row in statistics:
        assert row.tokens == row.accepted + row.recovered + row.bonus
        assert row.drafted == row.accepted + row.refused + row.unexamined + row.ignored


def test_stop_strings_end_the_text_in_the_middle_of_a_block(word_problems):
    model, _, tokenizer = word_problems
    prompt = tokenizer("Tom has 5 apples. He", return_tensors="pt")
    free = plain(model, prompt)[0]
    text, ignored = tokenizer.decode(free[prompt["input_ids"].shape[1] :]), 0
    for begin in range(8, len(text) - 3, 9):
        stops, statistics = ["never there", text[begin : begin + 3]], []
        expected = plain(model, prompt, stop_strings=stops, tokenizer=tokenizer)
        options = {"stop_strings": stops, "stop_tokenizer": tokenizer, "statistics": statistics}
        assert ours(model, model, prompt, 8, **options).tolist() == expected.tolist()
        assert expected.shape[1] <= len(free)
        ignored += statistics[0].ignored
    assert ignored > 4


@pytest.mark.parametrize("given", ["streamer", "token_streamer"])
@pytest.mark.parametrize("skip", [False, True])
def test_text_streamers_print_what_plain_generate_makes_them_print(word_problems, capsys, given, skip):
    model, draft, tokenizer = word_problems
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Tom has 5 apples. How many?"}], tokenize=False)
    prompt = tokenizer(text, return_tensors="pt")
    plain(model, prompt, streamer=TextStreamer(tokenizer, skip_prompt=skip))
    expected = capsys.readouterr().out
    ours(model, draft, prompt, **{given: TextStreamer(tokenizer, skip_prompt=skip)})
    assert capsys.readouterr().out == expected
    assert ("apples" in expected) or skip


def test_a_text_iterator_streamer_ends(word_problems):
    model, draft, tokenizer = word_problems
    prompt = tokenizer("Tom has 5 apples.", return_tensors="pt")
    pieces = []
    for options in ({}, {"custom_generate": hf.generate, "draft_model": draft, "m": 4}):
        streamer = TextIteratorStreamer(tokenizer, timeout=20)
        thread = threading.Thread(target=plain, args=(model, prompt), kwargs=options | {"streamer": streamer})
        thread.start()
        pieces.append(list(streamer))
        thread.join()
    assert pieces[0] == pieces[1]


def test_a_text_streamer_refuses_a_batch_as_in_plain_generate(word_problems):
    model, draft, tokenizer = word_problems
    prompt = tokenizer(["Tom has", "Mia has"], return_tensors="pt")
    for given in ("streamer", "token_streamer"):
        with pytest.raises(ValueError, match="TextStreamer only supports batch size 1"):
            ours(model, draft, prompt, **{given: TextStreamer(tokenizer)})


def test_a_streamer_is_found_behind_a_function_of_the_users(llama):
    def wrapped(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
        return hf.generate(
            model, input_ids, logits_processor, stopping_criteria, generation_config, draft_model=llama[1], **kwargs
        )

    expected, found = Log(), Log()
    plain(llama[0], ONE, streamer=expected)
    plain(llama[0], ONE, streamer=found, custom_generate=wrapped)
    assert found == expected


# ------------------------------------------------------------------------------------------ lengths, ends, outputs


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
def test_the_shortest_of_several_limits_counts(llama):
    config = GenerationConfig(max_new_tokens=7, do_sample=False)
    assert ours(*llama, ONE, generation_config=config, max_new_tokens=7).shape[1] == 12
    for options in (
        {"max_length": 9, "max_new_tokens": None},
        {"max_length": 9, "max_new_tokens": 6},  # which takes precedence
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(8)])},  # so does this
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(40)])},
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(2)])},  # one token always comes
        {"max_new_tokens": 1},
        {"max_new_tokens": None},
    ):
        for m in (1, 8):
            assert ours(*llama, ONE, m, **options).tolist() == plain(llama[0], ONE, **options).tolist(), options


def test_max_time_ends_a_text(llama):
    class Slow(LogitsProcessor):
        def __call__(self, input_ids, scores):
            time.sleep(0.01)
            return scores

    found = ours(*llama, ONE, logits_processor=LogitsProcessorList([Slow()]), max_time=0.2, max_new_tokens=200)
    assert 5 < found.shape[1] < 60
    assert found.tolist() == plain(llama[0], ONE, max_new_tokens=200)[:, : found.shape[1]].tolist()


def test_ids_of_another_type_give_ids_of_the_type_that_plain_generate_gives(llama):
    prompt = {"input_ids": ONE["input_ids"].to(torch.int32)}
    found, expected = ours(*llama, prompt), plain(llama[0], prompt)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


@PROMPTS
def test_scores_and_logits_are_those_of_plain_generate(llama, prompt):
    wants = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {**wants, "repetition_penalty": 1.4, "eos_token_id": EOS}
    expected = plain(llama[0], prompt, **options)
    found = ours(*llama, prompt, **options)
    assert type(found) is type(expected)
    assert found.sequences.tolist() == expected.sequences.tolist()
    ends = [int((row != 0).nonzero()[-1]) for row in expected.sequences[:, prompt["input_ids"].shape[1] :]]
    for name in ("scores", "logits"):
        assert len(found[name]) == len(expected[name]) == max(ends) + 1
        for place, (first, second) in enumerate(zip(found[name], expected[name])):
            rows = [row for row, end in enumerate(ends) if place <= end]
            torch.testing.assert_close(first[rows], second[rows], rtol=1e-4, atol=1e-4)
            assert first.shape == second.shape
    moved = llama[0].compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    assert torch.isfinite(moved).all()
    assert all((moved[row, end + 1 :] == 0).all() for row, end in enumerate(ends))  # padding is certain


def test_scores_reach_the_criteria_where_they_are_asked_for(llama):
    seen = {"plain": [], "ours": []}

    def watching(name):
        class Sure(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                seen[name].append(len(scores))
                return scores[-1].softmax(-1).amax(-1) > 0.5

        return StoppingCriteriaList([Sure()])

    wants = {"return_dict_in_generate": True, "output_scores": True}
    first = plain(llama[0], ONE, stopping_criteria=watching("plain"), **wants)
    second = ours(*llama, ONE, 8, stopping_criteria=watching("ours"), **wants)
    assert second.sequences.tolist() == first.sequences.tolist()
    assert seen["ours"] == seen["plain"]
    assert first.sequences.shape[1] < 5 + NEW


def test_a_dict_alone_has_the_sequences(llama):
    found = ours(*llama, ONE, return_dict_in_generate=True)
    assert found.sequences.tolist() == plain(llama[0], ONE).tolist()
    assert found.scores is found.logits is found.cache is None


# ------------------------------------------------------------------------------------------ sampling

WARPERS = {
    "bare": ({}, []),
    "filters": (
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
        [known.TemperatureLogitsWarper(0.7), known.TopKLogitsWarper(4), known.TopPLogitsWarper(0.9)],
    ),
    "penalty": (
        {"repetition_penalty": 1.6, "temperature": 1.3, "min_p": 0.05},
        [
            known.RepetitionPenaltyLogitsProcessor(1.6),
            known.TemperatureLogitsWarper(1.3),
            known.MinPLogitsWarper(0.05),
        ],
    ),
}


def enumerated(model, prompt, processors, k):
    """The joint law of the next ``k`` ids, ``[V] * k``."""
    logits = model(torch.tensor([prompt])).logits[:, -1].float()
    law = LogitsProcessorList(processors)(torch.tensor([prompt]), logits).softmax(-1)[0]
    if k == 1:
        return law
    return torch.stack([p * enumerated(model, [*prompt, n], processors, k - 1) for n, p in enumerate(law)])


@pytest.mark.parametrize("name", WARPERS)
@torch.no_grad()
def test_samples_follow_the_law_that_the_processors_make(name):
    options, processors = WARPERS[name]
    model = tiny_model(0, layers=1, vocabulary=5)
    draft = near(model, 0.4)
    sampled = {"do_sample": True, "top_k": 0, "max_new_tokens": 3, "num_return_sequences": 600} | options
    statistics = []
    found = ours(model, draft, {"input_ids": torch.tensor([[3, 1]])}, seed=5, statistics=statistics, **sampled)
    counts = torch.zeros(5, 5, 5).index_put_(tuple(found[:, 2:].T), torch.ones(600), accumulate=True)
    law = enumerated(model, [3, 1], processors, 3)
    assert chi_square_p(counts.flatten(), law.flatten()) > 1e-3
    acceptance = sum(row.accepted for row in statistics) / sum(row.examined for row in statistics)
    assert 0.2 < acceptance < 0.95


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_way_through_top_k_keeps_what_the_processors_keep(seed):
    """With equal scores at the cuts, too: there it is a matter of order in a sort that is not stable."""
    generator = torch.Generator().manual_seed(seed)
    for top_k, top_p, size in itertools.product((1, 5, 40), (0.3, 0.5, 0.9), (7, 50, 300)):
        scores = torch.randn(4, size, generator=generator) * 2
        scores = [scores, scores.bfloat16().float(), scores.round()][seed % 3]
        list_ = [known.TemperatureLogitsWarper(0.7), known.TopKLogitsWarper(top_k), known.TopPLogitsWarper(top_p)]
        processors = LogitsProcessorList([*list_, known.MinPLogitsWarper(0.05)][: 3 + seed % 2])
        expected = processors(torch.zeros(4, 1), scores.clone()).softmax(-1)
        law = ProcessedLaw(processors, cactus.SamplingParams(), torch.zeros(1, 1, dtype=torch.long), 0, 0)
        found = law(scores, [1, 2], torch.tensor([1, 2, 3]))
        assert torch.equal(found > 0, expected > 0)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("top_p", [0.6, 0.9, 1.0])
def test_a_drafter_that_is_the_verifier_is_always_right(llama, temperature, top_p):
    """It is not in transformers' assisted generation, which applies the filters to the drafter twice."""
    statistics = []
    sampled = {"do_sample": True, "temperature": temperature, "top_p": top_p, "repetition_penalty": 1.2}
    ours(llama[0], llama[0], ONE, 5, max_new_tokens=80, statistics=statistics, seed=1, **sampled)
    assert statistics[0].examined > 60
    assert statistics[0].acceptance == 1.0


def test_randomness_comes_from_torchs_generator_or_from_a_seed(llama):
    prompt, sampled = ONE, {"do_sample": True, "num_return_sequences": 4, "max_new_tokens": 10}

    def after_seed(torch_seed, **options):
        torch.manual_seed(torch_seed)
        return ours(*llama, prompt, **sampled, **options).tolist()

    assert after_seed(1) == after_seed(1) != after_seed(2)
    assert after_seed(1, seed=9) == after_seed(2, seed=9)
    rows = after_seed(1, seed=9)
    assert len({tuple(row) for row in rows}) == 4  # a seed each, counting up
    assert after_seed(1, seed=10)[:3] == rows[1:]
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    ours(*llama, prompt)
    assert torch.equal(torch.random.get_rng_state(), state)  # greedy draws nothing


def test_a_lossy_rule_relaxes_and_keeps_to_its_budget(llama):
    found = {}
    for budget in (None, 3, 0.1):
        statistics = []
        options = {"do_sample": True, "max_new_tokens": 60, "seed": 1, "max_relaxed": budget, "statistics": statistics}
        ours(*llama, ONE, rule=cactus.Cactus(1.0), **options)
        found[budget] = statistics[0].relaxed
    assert found[None] > 6 >= found[0.1] > 0
    assert found[3] == 3


def test_a_lossy_rule_that_has_nothing_to_do_warns(llama):
    with pytest.warns(UserWarning, match="does nothing without do_sample") as caught:
        found = ours(*llama, ONE, rule=cactus.Cactus(0.5))
    assert len(caught) == 1
    assert found.tolist() == plain(llama[0], ONE).tolist()


# ------------------------------------------------------------------------------------------ what is refused


class Counting(LogitsProcessor):
    """Forces a script, a token per call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.tensor([self.calls]), 50.0)


class Matcher(LogitsProcessor):
    """Takes in the newest token at every call but the first, and minds a token that does not fit."""

    seen = 0

    def __call__(self, input_ids, scores):
        assert self.seen in (0, input_ids.shape[1] - 1)
        self.seen = input_ids.shape[1]
        return scores


def taken_cache(model):
    cache = DynamicCache(config=model.config)
    model(ONE["input_ids"][:, :3], cache=cache)
    return cache


TABLE = {
    "num_beams": ({"num_beams": 2}, "num_beams is 2, but beam search"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha is 0.6, but contrastive"),
    "dola": ({"dola_layers": "low"}, "dola_layers is 'low'"),
    "lookup": ({"prompt_lookup_num_tokens": 4}, 'prompt_lookup_num_tokens is 4, but pass draft_model="prompt-lookup"'),
    "assistant tokens": ({"num_assistant_tokens": 4}, "num_assistant_tokens is 4, but pass m="),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit is 1"),
    "no cache": ({"use_cache": False}, "use_cache is False"),
    "static": ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
    "offloaded": ({"cache_implementation": "offloaded"}, "cache_implementation is 'offloaded'"),
    "chunks": ({"prefill_chunk_size": 2}, "prefill_chunk_size is 2"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    "states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states is True"),
    "positions": ({"position_ids": torch.tensor([[2, 3, 4, 5, 6]])}, "position_ids is given"),
    "short positions": ({"position_ids": torch.tensor([[0, 1, 2]])}, "position_ids is given"),
    "synced": ({"synced_gpus": True}, "synced_gpus is not possible"),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale is given.*carries a state"),
    "counting": ({"logits_processor": [Counting()]}, "logits processor Counting answers .* differently"),
    "matcher": ({"logits_processor": [Matcher()]}, "logits processor Matcher answers .* differently"),
    "synthid": (
        {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=2), "do_sample": True},
        "watermarking_config .SynthID. is given",
    ),
    "no draft": ({"draft_model": None}, "draft_model is None"),
    "hub id": ({"draft_model": "some/model"}, "draft_model is 'some/model', but must be a module"),
    "stop": ({"stop_strings": "x"}, "stop_strings needs a tokenizer.*stop_tokenizer="),
    "rule": ({"rule": "cactus"}, "rule is 'cactus', but must be a rule"),
    "m": ({"m": -1}, "m is -1"),
    "seed": ({"seed": -1}, "seed is -1"),
    "budget": ({"max_relaxed": -1}, "max_relaxed is -1"),
    "context": ({"max_new_tokens": 300}, "room for 251 more of its 256"),
    "both": ({"streamer": Log(), "token_streamer": Log()}, "streamer and token_streamer are both given"),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_cannot_be_honoured_is_refused_by_name(llama, name):
    options, message = TABLE[name]
    with pytest.raises(InvalidParameter, match=message):
        ours(*llama, ONE, **options) if "draft_model" not in options else ours(
            llama[0], prompt=ONE, **{"draft": options["draft_model"]}
        )


def test_an_assistant_model_is_pointed_to_its_own_name(llama):
    with pytest.raises(InvalidParameter, match="assistant_model is given.*draft_model="):
        ours(*llama, ONE, assistant_model=llama[1])


def test_sharded_models_are_refused(llama, monkeypatch):
    monkeypatch.setattr(contract, "is_fsdp_managed_module", lambda module: True)
    with pytest.raises(InvalidParameter, match="synced_gpus is not possible here"):
        ours(*llama, ONE)


def test_rows_that_cannot_be_padded_are_refused(llama):
    """Plain generate ends in a TypeError here."""
    criteria = StoppingCriteriaList([EosTokenCriteria(EOS)])
    options = {"stopping_criteria": criteria, "pad_token_id": None}
    with pytest.raises(InvalidParameter, match="pad_token_id is not set"):
        ours(*llama, SEVERAL, **options)
    assert ours(*llama, ONE, **options).tolist() == plain(llama[0], ONE, eos_token_id=EOS).tolist()


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_a_cache_of_the_users_is_refused(llama):
    with pytest.raises(InvalidParameter, match="cache .past_key_values. is given"):
        ours(*llama, ONE, cache=taken_cache(llama[0]))
    with pytest.raises(InvalidParameter, match="cache .past_key_values. is given"):
        ours(*llama, ONE, past_key_values=DynamicCache(config=llama[0].config))


def test_other_inputs_than_ids_are_refused(llama, pairs):
    config = T5Config(vocab_size=SIZE, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(InvalidParameter, match="encoder_outputs is given"):
        ours(T5ForConditionalGeneration(config).eval(), llama[1], ONE)
    embedded = llama[0].get_input_embeddings()(ONE["input_ids"])
    with pytest.raises(InvalidParameter, match="inputs_embeds is given"):
        ours(*llama, {"inputs_embeds": embedded})
    with pytest.raises(InvalidParameter, match="token_type_ids is given"):
        ours(*pairs["gpt2"], ONE, token_type_ids=torch.ones(1, 5, dtype=torch.long))


def test_gaps_in_a_prompt_are_refused(llama):
    for mask in ([1, 1, 0, 1, 1], [1, 1, 1, 1, 0]):
        with pytest.raises(InvalidPrompt, match="padding_side='left'"):
            ours(*llama, {**ONE, "attention_mask": torch.tensor([mask])})
    with pytest.raises(InvalidPrompt, match="empty"):
        ours(*llama, {**SEVERAL, "attention_mask": SEVERAL["attention_mask"] * torch.tensor([[1], [0], [1]])})


def test_a_module_in_training_mode_is_refused(llama):
    model, draft = (copy.deepcopy(module) for module in llama)
    for module, name in ((draft, "draft_model"), (model, "the model")):
        module.train()
        with pytest.raises(InvalidParameter, match=f"{name} is in training mode"):
            ours(model, draft, ONE)


def test_a_drafter_of_another_vocabulary_is_refused(llama):
    with pytest.raises(PairMismatch, match="64 ids and draft_model 600"):
        ours(llama[0], tiny_model(1, vocabulary=600, layers=1), ONE)


@pytest.mark.parametrize("rows", [SIZE - 8, SIZE + 8])
def test_heads_padded_to_other_sizes_fit(llama, rows):
    draft = tiny_model(1, vocabulary=rows, layers=1)
    assert ours(llama[0], draft, SEVERAL).tolist() == plain(llama[0], SEVERAL).tolist()


def test_nan_from_a_model_is_an_error_unless_it_is_asked_to_be_removed(llama):
    model = copy.deepcopy(llama[0])
    ours(model, llama[1], ONE)
    with torch.no_grad():
        model.lm_head.weight[2] = torch.nan
    with pytest.raises(BrokenLogits, match="verifier"):
        ours(model, llama[1], ONE)
    cleaned = {"remove_invalid_values": True}
    assert ours(model, llama[1], ONE, **cleaned).tolist() == plain(model, ONE, **cleaned).tolist()


# ------------------------------------------------------------------------------------------ models, kept weakly


@pytest.fixture
def selftests(monkeypatch):
    calls = []
    real = cactus.models.transformers.require_rewind
    monkeypatch.setattr(
        cactus.models.transformers, "require_rewind", lambda model: (calls.append(model.name), real(model))
    )
    return calls


def test_a_pair_is_tested_once_and_again_when_its_modules_change(llama, selftests):
    model, draft = (copy.deepcopy(module) for module in llama)

    def checks():
        selftests.clear()
        short = {"max_new_tokens": 8}
        assert ours(model, draft, ONE, **short).tolist() == plain(model, ONE, **short).tolist()
        return len(selftests)

    assert checks() == 2
    assert checks() == 0
    ours(model, "prompt-lookup", ONE, max_new_tokens=8)
    assert checks() == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = plain(model, ONE).tolist()
    with torch.enable_grad():
        model(**ONE, labels=ONE["input_ids"]).loss.backward()
    optimizer.step()
    assert plain(model, ONE).tolist() != before
    assert checks() == 0  # the same parameters, read anew
    model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()}, assign=True)
    assert checks() > 0
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, found: found * 0.5)
    assert checks() > 0
    model.lm_head = torch.nn.Linear(16, SIZE)
    assert checks() > 0
    model.double()
    assert checks() > 0


def test_nothing_here_keeps_a_model_alive(llama):
    for kind in ("module", "itself", "prompt-lookup"):
        model = copy.deepcopy(llama[0])
        draft = {"module": copy.deepcopy(llama[1]), "itself": model}.get(kind, kind)
        ours(model, draft, ONE, max_new_tokens=4)
        gone = [weakref.ref(module) for module in (model, draft) if isinstance(module, torch.nn.Module)]
        gone += [weakref.ref(weight) for module in gone for weight in module().parameters()]
        del model, draft
        gc.collect()
        assert not any(reference() is not None for reference in gone)


def test_the_short_name_is_the_module():
    assert cactus.hf is hf
    assert "hf" in dir(cactus)
