"""The form without a patch: a logits processor of the V2 runner."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cactus_decoding.errors import InvalidParameter, UnsupportedEngine
from cactus_decoding.integrations.vllm.relaxation import relaxation_of
from cactus_decoding.integrations.vllm.shift import Dials, lift
from tests.vllm import engines
from tests.vllm.engines import generate, prompts, sampling, tokens

NAME = "cactus_decoding.integrations.vllm.processor:CactusProcessor"
STATES = SimpleNamespace(max_num_reqs=4, device=torch.device("cpu"))
CONFIG = SimpleNamespace(speculative_config=SimpleNamespace(rejection_sample_method="standard"))


@pytest.fixture
def processor_type(plugin):
    from cactus_decoding.integrations.vllm.processor import CactusProcessor

    plugin.unregister()
    yield CactusProcessor
    plugin.register()


@pytest.fixture(scope="module")
def engine_with_processor(plugin):
    plugin.unregister()
    llm = engines.engine(engines.GREEDY, logits_processors=[NAME])
    yield llm
    plugin.register()


def test_beside_the_plugin_it_refuses_to_start(plugin):
    from cactus_decoding.integrations.vllm.processor import CactusProcessor

    with pytest.raises(UnsupportedEngine, match="VLLM_PLUGINS="):
        CactusProcessor(CONFIG, STATES)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"top_p": 0.9}, "top_p is 0.9"),
        ({"top_k": 5}, "top_k is 5"),
        ({"min_p": 0.1}, "min_p is 0.1"),
        ({"extra_args": {"cactus_delta": 1, "cactus_max_relaxed": 3}}, "cactus_max_relaxed is 3"),
        ({"extra_args": {"cactus_delta": -1}}, "cactus_delta is -1"),
    ],
    ids=str,
)
def test_what_it_cannot_do_exactly_is_refused(processor_type, settings, reason):
    params = sampling(1, **{"extra_args": {"cactus_delta": 1}, **settings})
    with pytest.raises(InvalidParameter, match=reason):
        processor_type.validate_params(params)


def test_the_shift_is_that_of_the_law_at_the_requests_temperature(processor_type):
    processor = processor_type(CONFIG, STATES)
    extra = {"cactus_delta": 0.3}
    assert processor.add_request(2, sampling(1, temperature=0.5, extra_args=extra))
    assert not processor.add_request(0, sampling(1))
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    ids = torch.tensor([0, 4, 6, 0, 3])
    context = SimpleNamespace(
        idx_mapping_np=np.array([2, 0]),
        idx_mapping=torch.tensor([2, 0]),
        expanded_idx_mapping=torch.tensor([2, 2, 2, 0, 0]),
        expanded_local_pos=torch.tensor([0, 1, 2, 0, 1]),
        input_ids=ids,
    )
    processor.apply(logits, context)
    dials = Dials.of([relaxation_of(extra)] * 2, logits.device)
    expected = lift(before[:2] / 0.5, ids[1:3], dials).gamma.float()
    found = torch.softmax(logits[:2] / 0.5, 1).gather(1, ids[1:3, None])[:, 0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(logits[2:], before[2:])  # behind the last draft, and of the lossless request


def test_an_engine_emits_what_the_plugin_emits(llm, engine_with_processor, plugin):
    """The same seeds give the same texts: one shifts before temperature, one after it."""
    ids = prompts(4)
    params = [sampling(s, max_tokens=16, temperature=0.9, extra_args={"cactus_delta": 1}) for s in range(4)]
    by_processor, metrics = generate(engine_with_processor, ids, params)
    assert sum(sum(record.per_step_accepted) for record in metrics) > 0
    plugin.register()
    try:
        assert tokens(llm, ids, params) == by_processor
    finally:
        plugin.unregister()
