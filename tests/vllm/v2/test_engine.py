"""A whole engine with the V2 runner, in Triton's interpreter: slow, so few and short."""

from cactus_decoding.integrations.vllm.ledger import Ledger
from cactus_decoding.integrations.vllm.reporting import relaxer_of
from tests.vllm.engines import accepted_length, generate, prompts, sampling, tokens

COUNT, LENGTH = 8, 16


def params(extra, seeds=range(COUNT), **settings):
    return [sampling(seed, max_tokens=LENGTH, extra_args=extra, **settings) for seed in seeds]


def test_it_is_the_v2_runner(llm):
    worker = llm.llm_engine.model_executor.driver_worker.worker
    assert type(worker.model_runner).__mro__[1].__module__ == "vllm.v1.worker.gpu.model_runner"


def test_at_zero_every_token_is_that_of_vllm_without_the_plugin(llm, plugin):
    ids = prompts(COUNT)
    zero = tokens(llm, ids, params({"cactus_delta": 0}))
    plugin.unregister()
    try:
        without = tokens(llm, ids, params(None))
    finally:
        plugin.register()
    assert zero == without


def test_acceptance_grows_with_delta_and_a_cap_holds_it_back(llm, monkeypatch):
    monkeypatch.setattr(Ledger, "settle", lambda ledger, idle: False)  # which forgets requests that ended
    ledger = relaxer_of(llm.llm_engine.model_executor.driver_worker.worker.model_runner.sampler).ledger
    ids, lengths, relaxed = prompts(COUNT), [], []
    for extra in (None, {"cactus_delta": 2, "cactus_max_relaxed": 1}, {"cactus_delta": 2}):
        before = set(ledger.requests)
        lengths.append(accepted_length(generate(llm, ids, params(extra))[1]))
        ledger._read()
        relaxed.append([counts.relaxed for name, counts in ledger.requests.items() if name not in before])
    assert lengths[0] < lengths[1] < lengths[2]
    assert [len(found) for found in relaxed] == [0, COUNT, COUNT]
    assert max(relaxed[1]) == 1 < max(relaxed[2])


def test_a_mixed_batch_leaves_each_request_as_it_is_alone(llm):
    """Without filters, for whose kernel the interpreter lacks something."""
    ids = prompts(4)
    mixed = [
        sampling(0, max_tokens=LENGTH),
        sampling(1, max_tokens=LENGTH, extra_args={"cactus_delta": 1}),
        sampling(2, max_tokens=LENGTH, temperature=0.0, extra_args={"cactus_delta": 1}),
        sampling(3, max_tokens=LENGTH, temperature=0.7, extra_args={"cactus_rule": "ratio", "cactus_alpha": 4}),
    ]
    assert tokens(llm, ids, mixed) == [tokens(llm, [prompt], [own])[0] for prompt, own in zip(ids, mixed)]
