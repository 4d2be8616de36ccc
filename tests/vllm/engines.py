"""What the tests on vLLM share: the Abacus pair as an engine of vLLM, problems for it, and what it counted."""

import os
from pathlib import Path

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
PAIR = Path(__file__).parents[2] / "src" / "cactus_decoding" / "embedded" / "abacus"
VERIFIER = str(PAIR / "verifier")
M = 3
GREEDY = {"method": "draft_model", "model": str(PAIR / "drafter"), "num_speculative_tokens": M}
PROBABILISTIC = {**GREEDY, "draft_sample_method": "probabilistic"}
NGRAM = {"method": "ngram", "num_speculative_tokens": M, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SPECULATIONS = {"greedy": GREEDY, "probabilistic": PROBABILISTIC, "ngram": NGRAM}


def in_this_process():
    """Settings under which an engine lives in the process of the test, where functions can be put back and read."""
    os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0")


def engine(speculation, **settings):
    """Both models in float32, where a response does not depend on its neighbours."""
    from vllm import LLM

    return LLM(
        VERIFIER,
        speculative_config=speculation,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=32,
        enforce_eager=True,
        disable_log_stats=False,
        distributed_executor_backend="uni",
        per_request_spec_decode_metrics="detailed",
        **settings,
    )


def prompts(count, seed=11):
    """Problems in the pair's chat template, as ids."""
    from transformers import AutoTokenizer

    from cactus_decoding.embedded.problems import make_problems

    tokenizer = AutoTokenizer.from_pretrained(VERIFIER)
    chats = [[{"role": "user", "content": problem.question}] for problem in make_problems(count, seed)]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


def sampling(seed, *, temperature=1.0, max_tokens=48, extra_args=None, **settings):
    from vllm import SamplingParams

    return SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=True, extra_args=extra_args, **settings
    )


def generate(llm, ids, params):
    """The ids of each response, and vLLM's own record of how its drafts fared."""
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in ids], params, use_tqdm=False)
    return [list(o.outputs[0].token_ids) for o in outputs], [o.outputs[0].spec_decode_metrics for o in outputs]


def tokens(llm, ids, params):
    return generate(llm, ids, params)[0]


def accepted_length(metrics):
    """Accepted drafts per verification, over all responses."""
    steps = [step for record in metrics for step in record.per_step_accepted]
    return sum(steps) / len(steps)
