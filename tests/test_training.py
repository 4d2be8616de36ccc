"""The training code: tokenizer, voices, reserved questions, a trial run; and the pair that is shipped."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from cactus_decoding import Cactus, Pair
from cactus_decoding.embedded import ABACUS_DIR
from cactus_decoding.embedded.problems import DEMO_SEED, is_correct, make_problems
from cactus_decoding.generation.statistics import total

training = pytest.importorskip("training", reason="the training code is part of the repository, not of the package")

from training.__main__ import DRAFTER, VERIFIER, save_model  # noqa: E402
from training.tokenizer import VOCABULARY_SIZE, save_tokenizer, train_tokenizer  # noqa: E402
from training.train import (  # noqa: E402
    SELECTION_SEED,
    TEST_SEED,
    batches,
    chat_text,
    fresh_problems,
    orthogonalize,
    rate_factor,
    reserved_questions,
    token_weights,
    train_model,
)
from training.voices import DRAFTER_VOICE, VERIFIER_VOICE, Voice, write_solution  # noqa: E402

FOLDERS = [ABACUS_DIR / "verifier", ABACUS_DIR / "drafter"]
SHIPPED = AutoTokenizer.from_pretrained(FOLDERS[0])


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(problems=3_000)


# --- voices ---------------------------------------------------------------------------------------------------


def test_solutions_are_right_in_either_voice() -> None:
    rng = Random(0)
    for problem in make_problems(300, seed=7):
        for voice in (VERIFIER_VOICE, DRAFTER_VOICE):
            assert is_correct(write_solution(problem, voice, rng).text, problem)


def test_about_a_third_of_the_tokens_are_free() -> None:
    rng = Random(0)
    solutions = [write_solution(problem, VERIFIER_VOICE, rng) for problem in make_problems(500, seed=7)]
    tokens = sum(len(SHIPPED(solution.text).input_ids) + 1 for solution in solutions)
    assert 0.28 < sum(len(solution.free) for solution in solutions) / tokens < 0.37


def test_the_verifier_voice_is_even_and_the_drafter_voice_is_not() -> None:
    rng = Random(0)
    for voice, low, high in ((VERIFIER_VOICE, 0.10, 0.15), (DRAFTER_VOICE, 0.45, 0.65)):
        draws = [voice.choose(rng, "opener", 8) for _ in range(5_000)]
        favourite = max(draws.count(form) for form in range(8)) / len(draws)
        assert low < favourite < high


def test_a_voice_cannot_prefer_its_last_form() -> None:
    with pytest.raises(ValueError, match=r"decay must be at least 1, got 0\.5"):
        Voice(0.5)


# --- tokenizer ------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert SHIPPED.decode(SHIPPED(text).input_ids) == text


def test_training_the_tokenizer_fills_the_vocabulary(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == VOCABULARY_SIZE
    assert VOCABULARY_SIZE % 64 == 0


def test_words_and_digits_are_single_tokens() -> None:
    assert SHIPPED.tokenize(" clearly has 12+5=17 apples.\n#### 17") == [
        "Ġclearly", "Ġhas", "Ġ", "1", "2", "+", "5", "=", "1", "7", "Ġapples", ".Ċ", "####", "Ġ", "1", "7",
    ]  # fmt: skip


def test_the_chat_template_is_the_training_text() -> None:
    messages = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "#### 7"}]
    assert SHIPPED.apply_chat_template(messages, tokenize=False) == chat_text("How many?", "#### 7")
    prompt = SHIPPED.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<bos><|user|>How many?<|assistant|>"


def test_the_chat_template_refuses_a_system_message() -> None:
    with pytest.raises(Exception, match="no system role"):
        SHIPPED.apply_chat_template([{"role": "system", "content": "Be kind."}], tokenize=False)


# --- training -------------------------------------------------------------------------------------------------


def test_the_three_seeds_differ_and_their_questions_are_never_trained_on() -> None:
    assert len({SELECTION_SEED, TEST_SEED, DEMO_SEED}) == 3
    reserved = reserved_questions()
    for seed in (SELECTION_SEED, TEST_SEED, DEMO_SEED):
        assert {problem.question for problem in make_problems(2_000, seed)} <= reserved
    # a stream that starts on a reserved seed meets nothing but reserved questions at first, and skips them all
    stream = fresh_problems(Random(SELECTION_SEED), reserved)
    assert all(next(stream).question not in reserved for _ in range(100))


def test_weights_follow_the_kinds_of_tokens() -> None:
    problem = make_problems(1, seed=7)[0]
    solution = write_solution(problem, VERIFIER_VOICE, Random(0))
    recipe = replace(VERIFIER, free_weight=0.25, digit_weight=3.0)
    ids, weights = token_weights(SHIPPED, problem.question, solution, recipe)
    begin = ids.index(SHIPPED.convert_tokens_to_ids("<|assistant|>")) + 1
    assert set(weights[:begin]) == {0.0}
    assert weights.count(0.25) == len(solution.free)
    for token, weight in zip(ids[begin:], weights[begin:], strict=True):
        assert (weight == 3.0) == SHIPPED.decode([token]).isdigit()
    assert weights[-1] == 1.0  # the end of the text is learned like any other token


def test_batches_are_deterministic() -> None:
    first, second = (next(batches(SHIPPED, DRAFTER, frozenset())) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.weights, second.weights)


def test_rate_rises_stays_and_falls() -> None:
    recipe = replace(VERIFIER, steps=1_000, cooldown=0.5)
    factors = [rate_factor(step, recipe) for step in range(1_000)]
    assert factors[0] == pytest.approx(0.02)
    assert factors[100] == factors[499] == 1.0
    assert 0 < factors[-1] < 0.003


@pytest.mark.parametrize("shape", [(3, 64, 192), (2, 192, 64), (1, 64, 64)])
def test_orthogonalize_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.quantile(0.1) > 0.5
    assert values.max() < 1.3


def test_a_quick_run_learns_and_saves(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    recipe = replace(DRAFTER, steps=30, batch=8)
    model, losses = train_model(recipe, tokenizer, frozenset(), report=lambda line: None)
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]
    save_tokenizer(tokenizer, tmp_path)
    save_model(model, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.dtype == torch.float16
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


# --- the shipped pair -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_shipped_model_is_a_plain_llama(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert type(model).__name__ == "LlamaForCausalLM"
    assert config.hidden_size // config.num_attention_heads in (32, 64)
    assert config.hidden_size % 64 == 0
    assert config.tie_word_embeddings
    assert config.vocab_size == len(SHIPPED) == VOCABULARY_SIZE
    ids = (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    assert ids == (SHIPPED.bos_token_id, SHIPPED.eos_token_id, SHIPPED.pad_token_id)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"], generation["pad_token_id"]) == ids


def test_the_shipped_pair_shares_its_tokenizer_and_is_small() -> None:
    verifier, drafter = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS)
    assert verifier == drafter
    assert sum(path.stat().st_size for path in ABACUS_DIR.rglob("*.safetensors")) < 12_000_000


def test_the_shipped_pair_does_what_its_card_says(abacus: Pair) -> None:
    """A small sample: the card has the figures of 1,000 problems."""
    problems = make_problems(40, DEMO_SEED)

    def solve(**options: object) -> tuple[float, float]:
        questions = [problem.question for problem in problems]
        outputs = abacus.generate(questions, rows=len(problems), seed=0, **{"m": 5, **options})
        right = sum(is_correct(output.text, problem) for output, problem in zip(outputs, problems, strict=True))
        return right / len(problems), total(output.stats for output in outputs).acceptance

    right, _ = solve(m=0)
    _, lossless = solve()
    _, relaxed = solve(rule=Cactus(0.5))
    assert right >= 0.8
    assert 0.65 < lossless < 0.88
    assert relaxed > lossless + 0.05
