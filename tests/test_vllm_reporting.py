import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.integrations.vllm import ledger as ledger_module
from cactus_decoding.integrations.vllm import metrics
from cactus_decoding.integrations.vllm.ledger import Counts, Ledger
from cactus_decoding.integrations.vllm.metrics import MULTIPROCESS, POSITION, SERIES, CounterExport, FileExport, Page
from cactus_decoding.integrations.vllm.relaxation import Relaxation
from cactus_decoding.integrations.vllm.settings import COUNTS
from cactus_decoding.rules import BoundedRatio, Cactus

ONE = Relaxation(Cactus(0.25, max_ratio=4.0), 20)
LABELS = ("model", "0")


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    """Nothing of a server that this process might be part of."""
    monkeypatch.delenv(COUNTS, raising=False)
    monkeypatch.delenv(MULTIPROCESS, raising=False)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told."""
    now = [1000.0]
    monkeypatch.setattr(ledger_module.time, "monotonic", lambda: now[0])
    return now


def counts(*rows):
    return torch.tensor(rows, dtype=torch.int64)


# counts


def test_counts_by_hand():
    found = Counts()
    found.add(4, 4, 1)
    found.add(4, 2, 0)
    found.add(4, 0, 0)
    found.add(0, 0, 0)  # a step without drafts is none
    assert (found.drafts, found.draft_tokens, found.relaxed) == (3, 12, 1)
    assert found.examined == 4 + 3 + 1  # the refused one too, and none behind it
    assert found.accepted == [2, 2, 1, 1]
    assert found.relaxed_share == 1 / 8
    assert Counts().relaxed_share == 0.0


def test_drafts_may_grow_and_shrink():
    found = Counts()
    found.add(1, 1, 0)
    found.add(3, 2, 2)
    found.add(2, 1, 0)
    assert found.accepted == [3, 1, 0]
    assert found.draft_tokens == 6


@given(st.lists(st.integers(0, 6).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d), st.integers(0, d)))))
def test_counts_hang_together(steps):
    found = Counts()
    for drafted, accepted, relaxed in steps:
        found.add(drafted, accepted, min(relaxed, accepted))
    assert found.drafts == sum(drafted > 0 for drafted, _, _ in steps)
    assert sum(found.accepted) == sum(accepted for _, accepted, _ in steps)
    assert found.accepted == sorted(found.accepted, reverse=True)
    assert found.relaxed <= sum(found.accepted) <= found.examined <= found.draft_tokens
    assert found.examined - sum(found.accepted) <= found.drafts


# the ledger


def test_what_was_noted_is_counted_when_it_is_settled():
    ledger = Ledger()
    ledger.note(["a", None, "b"], counts([3, 2, 1], [3, 3, 3], [2, 0, 0]))
    ledger.note(["b", "a"], counts([2, 2, 1], [3, 3, 0]))
    assert ledger.total == Counts()
    assert ledger.settle(idle=True)
    assert ledger.requests == {"a": Counts(2, 6, 6, 1, [2, 2, 1]), "b": Counts(2, 4, 3, 1, [1, 1])}
    assert ledger.total == Counts(4, 10, 9, 2, [3, 3, 1])
    assert not ledger.settle(idle=True)  # nothing is left


def test_counts_are_read_once_a_second_or_when_the_engine_is_idle(clock):
    ledger = Ledger()

    def noted():
        ledger.note(["a"], counts([1, 1, 0]))

    noted()
    assert ledger.settle(idle=False)  # the first time, at once
    noted()
    clock[0] += 0.9
    assert not ledger.settle(idle=False)
    assert ledger.total.drafts == 1
    assert ledger.settle(idle=True)
    assert ledger.total.drafts == 2
    noted()
    clock[0] += 0.9
    assert not ledger.settle(idle=False)
    clock[0] += 0.2
    assert ledger.settle(idle=False)
    assert ledger.total.drafts == 3
    clock[0] += 5.0
    assert not ledger.settle(idle=True)


def test_the_line_of_a_request(caplog):
    ledger = Ledger()
    ledger.note(["r-7"], counts([4, 4, 2]))
    ledger.note(["r-7"], counts([4, 1, 0]))
    ledger.note(["r-7"], counts([4, 0, 0]))
    ledger.finish("r-7", ONE, log=True)
    with caplog.at_level(logging.INFO, "vllm.cactus"):
        assert not caplog.records
        ledger.settle(idle=True)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vllm.cactus", logging.INFO)
    assert record.getMessage() == (
        "Cactus: request r-7, cactus:delta=0.25,max_ratio=4: 3 drafts of 12 tokens, accepted 5 (by position "
        "2, 1, 1, 1), relaxed 2 of at most 20, 28.6% of 7 examined"
    )


def test_the_line_of_a_request_without_a_cap(caplog):
    ledger = Ledger()
    ledger.note(["r"], counts([1, 0, 0]))
    ledger.finish("r", Relaxation(BoundedRatio(4.0, "shift")), log=True)
    with caplog.at_level(logging.INFO, "vllm.cactus"):
        ledger.settle(idle=True)
    assert "ratio:alpha=4" in caplog.text
    assert "accepted 0 (by position 0), relaxed 0, 0.0% of 1 examined" in caplog.text


def test_a_request_that_ended_is_forgotten_and_its_counts_are_not(caplog):
    ledger = Ledger()
    ledger.note(["quiet", "other"], counts([2, 1, 1], [2, 2, 0]))
    ledger.finish("quiet", ONE, log=False)
    ledger.finish("never verified", ONE, log=True)
    with caplog.at_level(logging.INFO, "vllm.cactus"):
        ledger.settle(idle=True)
        assert set(ledger.requests) == {"other"}
        ledger.finish("other", ONE, log=True)  # in a later step, with nothing new to count
        assert ledger.settle(idle=True)
    assert not ledger.requests
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["Cactus: request other"]
    assert ledger.total.drafts == 2


def test_what_another_process_tells_of_is_discarded(caplog):
    ledger = Ledger()
    ledger.note(["a"], counts([2, 1, 1]))
    ledger.finish("a", ONE, log=True)
    ledger.discard()
    with caplog.at_level(logging.INFO, "vllm.cactus"):
        assert not ledger.settle(idle=True)
    assert ledger.total == Counts()
    assert not caplog.records


# on the way to the metrics page


SOME = Counts(3, 12, 7, 2, [2, 1, 1, 1])


def files_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_file_has_every_series_and_is_replaced_whole(tmp_path):
    export = FileExport(tmp_path, LABELS)
    export.write(Counts())
    export.write(SOME)
    (name,) = files_in(tmp_path)
    assert name.startswith(f"{os.getpid()}-")
    found = json.loads((tmp_path / name).read_text())
    assert found["labels"] == list(LABELS)
    assert found["values"] == [
        ["vllm:cactus_num_drafts", None, 3],
        ["vllm:cactus_num_draft_tokens", None, 12],
        ["vllm:cactus_num_accepted_tokens", None, 5],
        ["vllm:cactus_num_examined_tokens", None, 7],
        ["vllm:cactus_num_relaxed_tokens", None, 2],
        [POSITION, "0", 2],
        [POSITION, "1", 1],
        [POSITION, "2", 1],
        [POSITION, "3", 1],
    ]
    assert {name for name, _, _ in found["values"]} == set(SERIES)


def test_two_runners_of_one_process_have_a_file_each(tmp_path):
    FileExport(tmp_path, LABELS).write(SOME)
    FileExport(tmp_path, LABELS).write(SOME)
    assert len(files_in(tmp_path)) == 2


def test_a_folder_that_is_gone_costs_the_series_alone_and_is_logged_once(tmp_path, caplog):
    folder = tmp_path / "counts"
    folder.mkdir()
    export = FileExport(folder, LABELS)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, "vllm.cactus"):
        export.write(SOME)
        export.write(SOME)
    (record,) = caplog.records
    assert str(folder) in record.getMessage()
    assert "cannot be written" in record.getMessage()
    folder.mkdir()
    export.write(SOME)  # and goes on when it is back
    assert len(files_in(folder)) == 1


def test_where_counts_go(tmp_path, monkeypatch):
    assert metrics.export_of(LABELS) is None
    monkeypatch.setenv(COUNTS, str(tmp_path / "gone"))
    assert metrics.export_of(LABELS) is None
    monkeypatch.setenv(COUNTS, str(tmp_path))
    assert isinstance(metrics.export_of(LABELS), FileExport)


# the page itself


@pytest.fixture
def prometheus():
    return pytest.importorskip("prometheus_client")


def samples(collector):
    """Name, position and labels of every sample on the page, with its value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in collector.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def labelled(model="model", engine="0", **more):
    return tuple(sorted({"model_name": model, "engine": engine, **more}.items()))


def test_the_page_sums_the_files(tmp_path, prometheus):
    FileExport(tmp_path, LABELS).write(SOME)
    FileExport(tmp_path, LABELS).write(Counts(1, 2, 2, 1, [1, 0]))
    FileExport(tmp_path, ("model", "1")).write(Counts(1, 1, 1, 0, [1]))
    (tmp_path / "7-0.new").write_text("{ half a file")  # one that is being written
    found = samples(Page(tmp_path))
    assert found["vllm:cactus_num_drafts_total", labelled()] == 4
    assert found["vllm:cactus_num_draft_tokens_total", labelled()] == 14
    assert found["vllm:cactus_num_accepted_tokens_total", labelled()] == 6
    assert found["vllm:cactus_num_examined_tokens_total", labelled()] == 9
    assert found["vllm:cactus_num_relaxed_tokens_total", labelled()] == 3
    by_place = [found[f"{POSITION}_total", labelled(position=str(place))] for place in range(4)]
    assert by_place == [3, 1, 1, 1]
    assert found["vllm:cactus_num_drafts_total", labelled(engine="1")] == 1
    assert found[f"{POSITION}_total", labelled(engine="1", position="0")] == 1


def test_an_empty_page_names_the_series(tmp_path, prometheus):
    families = list(Page(tmp_path).collect())
    assert [family.name for family in families] == list(SERIES)
    assert [family.documentation for family in families] == list(SERIES.values())
    assert not samples(Page(tmp_path))
    assert not samples(Page(tmp_path / "gone"))


def test_the_page_is_text_that_prometheus_reads(tmp_path, prometheus):
    FileExport(tmp_path, LABELS).write(SOME)
    registry = prometheus.CollectorRegistry()
    registry.register(Page(tmp_path))
    text = prometheus.generate_latest(registry).decode()
    assert 'vllm:cactus_num_relaxed_tokens_total{engine="0",model_name="model"} 2.0' in text


@pytest.fixture
def pages(prometheus, monkeypatch):
    """The pages that are registered meanwhile; taken off, and their folders removed, in the end."""
    registered, closed = [], []
    register = prometheus.REGISTRY.register

    def seen(page):
        registered.append(page)
        register(page)

    monkeypatch.setattr(prometheus.REGISTRY, "register", seen)
    monkeypatch.setattr(metrics.atexit, "register", lambda *call: closed.append(call))
    yield registered
    for page in registered:
        prometheus.REGISTRY.unregister(page)
    for close, *args in closed:
        close(*args)
    assert not any(Path(args[0]).exists() for _, *args in closed)


def test_the_page_is_opened_once(pages, monkeypatch):
    monkeypatch.setenv(COUNTS, "")  # so that it is put back in the end
    metrics.open_page()
    folder = os.environ[COUNTS]
    assert Path(folder).is_dir()
    metrics.open_page()
    assert os.environ[COUNTS] == folder
    assert len(pages) == 1
    metrics.export_of(LABELS).write(SOME)
    assert samples(pages[0])["vllm:cactus_num_drafts_total", labelled()] == 3


def test_no_page_is_opened_where_prometheus_carries_counters_itself(pages, monkeypatch, tmp_path):
    monkeypatch.setenv(MULTIPROCESS, str(tmp_path))
    metrics.open_page()
    assert not pages
    assert COUNTS not in os.environ


def test_a_forked_child_leaves_the_folder(tmp_path):
    metrics._close_page(str(tmp_path), os.getpid() + 1)
    assert tmp_path.is_dir()
    metrics._close_page(str(tmp_path), os.getpid())
    assert not tmp_path.exists()


@pytest.fixture
def counters(prometheus, monkeypatch):
    """A set of counters of its own."""
    made = {}
    monkeypatch.setattr(CounterExport, "_counters", made)
    yield made
    for counter in made.values():
        prometheus.REGISTRY.unregister(counter)


def test_counters_rise_by_what_is_new(prometheus, counters, monkeypatch, tmp_path):
    monkeypatch.setenv(MULTIPROCESS, str(tmp_path))
    first = metrics.export_of(LABELS)
    assert isinstance(first, CounterExport)
    second = CounterExport(LABELS)  # a second runner of the process shares the counters
    other = CounterExport(("model", "1"))
    first.write(Counts(1, 4, 2, 1, [1, 0]))
    first.write(SOME)
    first.write(SOME)
    second.write(Counts(1, 1, 1, 1, [1]))
    other.write(Counts(1, 1, 1, 0, [0]))
    assert set(counters) == set(SERIES)

    def value(name, engine="0", **more):
        return prometheus.REGISTRY.get_sample_value(f"{name}_total", {"model_name": "model", "engine": engine, **more})

    assert value("vllm:cactus_num_drafts") == 4
    assert value("vllm:cactus_num_accepted_tokens") == 6
    assert value("vllm:cactus_num_relaxed_tokens") == 3
    assert [value(POSITION, position=str(place)) for place in range(4)] == [3, 1, 1, 1]
    assert value("vllm:cactus_num_drafts", engine="1") == 1
