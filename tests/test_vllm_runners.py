import sys
import types
from types import SimpleNamespace

import pytest
import torch

from cactus_decoding.integrations.vllm import runner_v1, runner_v2
from cactus_decoding.integrations.vllm.relaxation import RESOLVED
from cactus_decoding.integrations.vllm.reporting import relaxer_of, report
from cactus_decoding.integrations.vllm.settings import COUNTS


def test_the_rows_of_the_v1_runner():
    n = torch.tensor([7, 8, 9, 6])
    drafts = runner_v1._drafts(n, [2, 0, 1, 1])
    assert torch.equal(drafts.n, n)
    assert drafts.owner.tolist() == [0, 0, 2, 3]
    assert drafts.place.tolist() == [0, 1, 0, 0]
    assert runner_v1._drafts(n[:0], [0, 0]).owner.tolist() == []


def test_the_rows_of_the_v2_runner():
    """Row i verifies what was fed at row i + 1; a request's first token is no draft, its last row has none."""
    fed = torch.tensor([100, 7, 8, 101, 102, 9], dtype=torch.int32)
    drafts = runner_v2._drafts(fed, torch.tensor([0, 3, 4, 6], dtype=torch.int32))
    assert drafts.n.tolist() == [7, 8, -1, -1, 9, -1]
    assert drafts.owner.tolist() == [0, 0, 0, 1, 2, 2]
    assert drafts.place.tolist() == [0, 1, 2, 0, 0, 1]


def test_the_drafters_probability_in_the_v2_runner():
    """Its logits lie by slot of the request, before temperature."""
    logits = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    slot = torch.tensor([2, 2, 2, 0, 0, 0], dtype=torch.int32)
    drafts = runner_v2._drafts(torch.tensor([4, 1, 2, 4, 3, 0]), torch.tensor([0, 3, 6]))
    call = {
        "draft_logits": logits,
        "expanded_idx_mapping": slot,
        "temperature": torch.tensor([0.5, 1.0, 2.0]),
    }
    p = runner_v2._probability_of_draft(call, drafts)
    expected = {
        0: (logits[2, 0] / 2.0).softmax(0)[1],
        1: (logits[2, 1] / 2.0).softmax(0)[2],
        3: (logits[0, 0] / 0.5).softmax(0)[3],
        4: (logits[0, 1] / 0.5).softmax(0)[0],
    }
    for row, value in expected.items():
        assert p[row].item() == pytest.approx(value.item(), rel=1e-6)
    point_mass = runner_v2._probability_of_draft({**call, "draft_logits": None}, drafts)
    assert point_mass.tolist() == [1.0] * 6


# what a runner keeps, and whom it tells


@pytest.fixture
def rank(monkeypatch):
    """The rank of this process among those that share the vocabulary."""
    found = SimpleNamespace(value=0)
    package, distributed = types.ModuleType("vllm"), types.ModuleType("vllm.distributed")
    distributed.get_tensor_model_parallel_rank = lambda: found.value
    package.distributed = distributed
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    return found


def runner_with_counts(**more):
    config = SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="m"), parallel_config=SimpleNamespace(data_parallel_index=1)
    )
    runner = SimpleNamespace(vllm_config=config, **more)
    extra_args = {"cactus_delta": 0.5, RESOLVED: {"log": False}}
    relaxer = relaxer_of(runner)
    for name in ("a", "b"):
        relaxer.add(name, SimpleNamespace(extra_args=extra_args, temperature=1.0, seed=None))
    relaxer.ledger.note(["a", "b"], torch.tensor([[2, 1, 1], [2, 2, 0]]))
    return runner


def step(*finished, tokens=0):
    return SimpleNamespace(finished_req_ids=set(finished), total_num_scheduled_tokens=tokens)


def test_a_runner_keeps_one_relaxer():
    runner = SimpleNamespace()
    assert relaxer_of(runner) is relaxer_of(runner)
    assert relaxer_of(runner) is not relaxer_of(SimpleNamespace())


def test_counts_go_where_the_page_reads_them(rank, tmp_path, monkeypatch):
    monkeypatch.setenv(COUNTS, str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    runner = runner_with_counts()
    report(runner, runner, step("a", "a stranger"))
    assert set(relaxer_of(runner).members) == {"b"}
    assert set(relaxer_of(runner).ledger.requests) == {"b"}
    (path,) = tmp_path.glob("*.json")
    assert '"labels": ["m", "1"]' in path.read_text()
    report(runner, runner, step("b"))
    assert list(tmp_path.glob("*.json")) == [path]
    assert not relaxer_of(runner).members


@pytest.mark.parametrize(("sharded", "tells"), [(None, False), (object(), True)])
def test_of_ranks_that_sample_the_same_requests_one_tells(rank, sharded, tells, monkeypatch):
    monkeypatch.delenv(COUNTS, raising=False)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    rank.value = 1
    runner = runner_with_counts(batch_sharder=sharded)
    report(runner, runner, step("a"))
    assert relaxer_of(runner).ledger.total.drafts == (2 if tells else 0)
    assert set(relaxer_of(runner).members) == {"b"}
    assert not relaxer_of(runner).ledger.settle(idle=True)  # nothing piles up
