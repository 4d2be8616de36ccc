import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from cactus_decoding.integrations.vllm.marks import uniforms

KEYS = st.integers(-(2**63), 2**63 - 1)


def split_mix(key, counter):
    """SplitMix64 as it is written down, in whole numbers without bound."""
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


@given(KEYS, st.integers(0, 2**40))
def test_it_is_the_generator_as_it_is_written_down(key, counter):
    assert uniforms(torch.tensor(key), torch.tensor(counter)).item() == split_mix(key, counter)


@pytest.mark.parametrize("key", [0, 1, -1, 2**62])
def test_the_numbers_of_a_key_are_uniform_and_so_are_those_of_neighbouring_keys(key):
    counters = torch.arange(100_000)
    for found in (uniforms(torch.tensor(key), counters), uniforms(counters + key % 1000, torch.tensor(3))):
        assert 0.0 <= found.min() < found.max() < 1.0
        assert kstest(found.numpy(), "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.015


def test_a_batch_is_its_entries():
    keys, counters = torch.tensor([5, -7, 5]), torch.tensor([0, 3, 1])
    alone = [uniforms(key, counter) for key, counter in zip(keys, counters)]
    assert torch.equal(uniforms(keys, counters), torch.stack(alone))
