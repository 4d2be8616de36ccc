"""SmolLM2-135M-Instruct in float32: what holds for tiny random models holds for a model that people use.

Two ways of computing the same logits round differently, so two ways to decode may part where the largest logits
are nearly equal. Such places are measured and counted, and every other difference fails.
"""

import pytest
import torch

import cactus_decoding as cactus
from cactus_decoding.generation.statistics import total
from cactus_decoding.models.feeding import padded
from tests.real.smollm2 import CHATS, folder, without_last_layers

NEW_TOKENS = 64
ROWS = 16  # fewer than there are prompts: some responses end early, and others take their place
NEAR = 1e-3  # logits this close to the largest may change places with it
LEAN = "together, lean forward"
TEXTS = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "a b c a b c a b c a b c",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "The name of the dog was Max. Max was a good dog. Max",
    "<li>red</li>\n<li>green</li>\n<li>blue</li>\n",
    "To be, or not to be, that is the question:",
]
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


@pytest.fixture(scope="module")
def pair():
    return cactus.load_pair(str(folder()), "prompt-lookup", dtype="float32")


@pytest.fixture(scope="module")
def prompts(pair):
    """Ids of 14 chats and 6 plain texts, by the tokenizer itself."""
    chats = [[{"role": "user", "content": chat}] for chat in CHATS]
    templated = pair.tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)
    return [*templated, *(pair.tokenizer.encode(text) for text in TEXTS)]


@pytest.fixture(scope="module")
def reference(pair, prompts):
    """transformers' own greedy responses, made once, side by side."""
    return greedy_by_transformers(pair, prompts)


def greedy_by_transformers(pair, prompts):
    fed = pair.tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    found = pair.verifier.module.generate(**fed, do_sample=False, max_new_tokens=NEW_TOKENS)
    rows = found[:, fed["input_ids"].shape[1] :].tolist()
    end = pair.tokenizer.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


def ties(pair, outputs, expected):
    """How many responses leave the expected one at a near-tie of logits; fails where one leaves it otherwise."""
    found = 0
    for out, other in zip(outputs, expected, strict=True):
        ours = list(out.ids)
        if ours == other:
            continue
        place = next((i for i, (a, b) in enumerate(zip(ours, other)) if a != b), None)
        assert place is not None, f"{ours} and {other} end at different places"
        logits = pair.verifier.plain(torch.tensor([*out.prompt_ids, *ours[:place]]))[-1]
        behind = logits.max() - logits[[ours[place], other[place]]]
        assert behind.max() < NEAR, f"token {place} is {ours[place]} for {other[place]}, {behind.tolist()} off the best"
        found += 1
    return found


@pytest.mark.parametrize("m", range(1, 9))
def test_greedy_by_prompt_lookup_equals_transformers_own_greedy(pair, prompts, reference, m):
    outputs = pair.generate(prompts, rows=ROWS, m=m, temperature=0, max_new_tokens=NEW_TOKENS)
    assert ties(pair, outputs, reference) <= 1
    assert sum(out.stats.accepted for out in outputs) > 100


def test_greedy_with_adaptive_draft_length_equals_transformers_own_greedy(pair, prompts, reference):
    outputs = pair.generate(prompts, rows=4, m="auto", temperature=0, max_new_tokens=NEW_TOKENS)
    assert ties(pair, outputs, reference) <= 1
    assert sum(out.stats.drafted for out in outputs) > 0  # it tries at times even where drafting loses


def test_the_verifier_without_its_last_layers_drafts_better_than_a_lookup(pair, prompts, reference):
    chosen = [0, 2, 5, 6, 16]
    module = pair.verifier.module
    short = cactus.load_pair(module, without_last_layers(module, 28), tokenizer=pair.tokenizer)
    assert short.verifier.way == short.drafter.model.way == LEAN
    options = {"m": 4, "temperature": 0, "max_new_tokens": 24}
    drafted, found = (p.generate([prompts[i] for i in chosen], **options) for p in (short, pair))
    assert ties(pair, drafted, [reference[i][:24] for i in chosen]) <= 1
    assert acceptance(drafted) > 1.5 * acceptance(found) > 0


def acceptance(outputs):
    return total(out.stats for out in outputs).acceptance


def test_a_batch_of_greedy_responses_equals_the_single_ones(pair, prompts):
    batch, single = together_and_alone(pair, prompts, temperature=0)
    assert ties(pair, batch, single) == 0


def test_a_batch_of_sampled_responses_equals_the_single_ones(pair, prompts):
    batch, single = together_and_alone(pair, prompts, temperature=0.7, rule=cactus.Cactus(0.25))
    assert [list(out.ids) for out in batch] == single
    assert sum(out.stats.relaxed for out in batch) > 0


def together_and_alone(pair, prompts, **options):
    """Eight prompts of 12 to 53 ids, decoded in one batch, and each by itself."""
    chosen = [prompts[i] for i in (0, 7, 8, 9, 11, 12, 15, 17)]
    options |= {"m": 3, "max_new_tokens": 20}
    batch = pair.generate(chosen, rows=8, seed=100, **options)
    single = [list(pair.generate(ids, seed=100 + row, **options).ids) for row, ids in enumerate(chosen)]
    return batch, single


@torch.inference_mode()
def test_lean_logits_equal_the_modules_own(pair, prompts):
    """Four rows of different lengths, each led astray and taken back once, behind every id from the second block on."""
    assert pair.verifier.way == LEAN
    chosen, first = [prompts[i] for i in (0, 12, 15, 19)], 5
    rows = pair.verifier.open()
    for row, ids in enumerate(chosen):
        rows.add()
        rows.extend(torch.tensor([ids[: first + row]]), [first + row], [0], row)
    lengths = list(rows.lengths)
    rows.extend(torch.full((4, 3), 7), [3, 2, 1, 3], [1, 1, 1, 1])
    for row, length in enumerate(lengths):
        rows.rewind(row, length)
    rest = [ids[length:] for ids, length in zip(chosen, lengths)]
    counts = [len(ids) for ids in rest]
    logits = rows.extend(padded(rest, pair.verifier.device), counts, counts)
    for row, (ids, count) in enumerate(zip(chosen, counts)):
        expected = pair.verifier.plain(torch.tensor(ids))[-count:]
        assert torch.allclose(logits[row, :count], expected, atol=1e-3, rtol=0)


def test_texts_and_messages_go_through_the_models_template(pair):
    question = {"role": "user", "content": "Hi"}
    asked = f"{SYSTEM}<|im_start|>user\nHi<|im_end|>\n"
    answer = "<|im_start|>assistant\n"
    brief = {"role": "system", "content": "Be brief."}
    more = [question, {"role": "assistant", "content": "Hello."}, question]
    expected = [
        ("Hi", asked + answer),
        ([question], asked + answer),
        ([brief, question], f"<|im_start|>system\nBe brief.<|im_end|>\n{asked[len(SYSTEM) :]}{answer}"),
        (more, f"{asked}{answer}Hello.<|im_end|>\n{asked[len(SYSTEM) :]}{answer}"),
    ]
    for prompt, text in expected:
        out = pair.generate(prompt, m=0, max_new_tokens=1)
        assert pair.tokenizer.decode(out.prompt_ids) == text
    assert pair.generate("Hi", chat=False, m=0, max_new_tokens=1).prompt_ids == tuple(pair.tokenizer.encode("Hi"))


def test_a_response_ends_at_the_models_end_of_turn(pair):
    out = pair.generate(CHATS[0], temperature=0)
    assert pair.eos == {pair.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert out.finish_reason == "eos"
    assert out.text == "The capital of France is Paris."
    assert out.ids[-1] in pair.eos


def test_a_streams_pieces_join_to_the_whole_text(pair):
    stream = pair.stream("Write a line with emoji and a line in Chinese.", m=4, seed=3, max_new_tokens=40)
    pieces = list(stream)
    assert len(pieces) > 10
    assert "".join(pieces) == stream.output.text
    assert stream.output.text == pair.tokenizer.decode(stream.output.ids, skip_special_tokens=True)


@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_the_modules_own_bfloat16(pair, prompts):
    """Texts may differ: at the first token of this very response the two largest logits are 0.1 apart."""
    half = cactus.load_pair(str(folder()), "prompt-lookup", dtype="bfloat16")
    assert half.verifier.way == LEAN
    out = half.generate(prompts[0], m=2, temperature=0, max_new_tokens=12)
    assert out.stats.drafted > 0
    ids = torch.tensor([*out.prompt_ids, *out.ids])
    exact = pair.verifier.plain(ids)
    emitted = exact[len(out.prompt_ids) - 1 : -1]
    assert (emitted.amax(-1) - emitted.gather(-1, ids[len(out.prompt_ids) :, None])[:, 0]).max() < 1
    rows = half.verifier.open()
    rows.add()
    lean = rows.extend(ids.unsqueeze(0), [len(ids)], [len(ids)])[0]
    errors = [(logits.float() - exact).abs().mean() for logits in (lean, half.verifier.plain(ids))]
    assert errors[0] < 1.2 * errors[1] < 0.5
