"""The Abacus tokenizer: byte-level BPE whose words are those of the problems, digits one by one.

The split before BPE is that of Qwen2, which other engines know too: a word takes at most one sign or space
before it, every digit stands alone, line breaks stay with the signs before them.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cactus_decoding.embedded.problems import make_problem
from training.voices import VERIFIER_VOICE, write_solution

PAD, BOS, EOS, USER, ASSISTANT = "<pad>", "<bos>", "<eos>", "<|user|>", "<|assistant|>"
SPECIALS = (PAD, BOS, EOS, USER, ASSISTANT)
"""Special tokens; the position is the id."""

CONTEXT = 512
"""Longest text a model of the pair can read, in tokens."""

VOCABULARY_SIZE = 768
"""The words of the problems need a few entries less; the rest is filled with reserved special tokens."""

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + eos_token }}"
    "{% elif message['role'] == 'system' %}"
    "{{ raise_exception('Abacus has no system role: put all into the user message.') }}"
    "{% else %}{{ raise_exception('Abacus knows the roles user and assistant only.') }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(problems: int = 20_000, seed: int = 1) -> PreTrainedTokenizerFast:
    """Learn the merges from `problems` worked problems in the verifier's voice."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(problems, seed), trainer)
    spare = VOCABULARY_SIZE - bpe.get_vocab_size()
    bpe.add_special_tokens([f"<|reserved_{number}|>" for number in range(spare)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer's files in the form that transformers 4 and 5 both read."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("backend", "is_local", "extra_special_tokens", "local_files_only"):  # known to version 5 only
        config.pop(key, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["additional_special_tokens"] = [USER, ASSISTANT]
    config["model_max_length"] = CONTEXT
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _corpus(problems: int, seed: int) -> Iterable[str]:
    rng = Random(seed)
    for _ in range(problems):
        problem = make_problem(rng)
        yield problem.question
        yield write_solution(problem, VERIFIER_VOICE, rng).text
