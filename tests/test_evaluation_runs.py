"""A run in its folder: what may grow, what is refused, what a full disk or a damaged file costs."""

import gzip
import json
import subprocess
import sys

import pytest

from cactus_decoding.errors import InvalidParameter, OutputFailed
from cactus_decoding.evaluation.plan import Plan, Setting
from cactus_decoding.evaluation.running import Run
from cactus_decoding.evaluation.store import ChunkWriter, read_chunk
from cactus_decoding.evaluation.summary import summarise
from tests.evaluated import (
    CACTUS,
    LOSSLESS,
    PLAIN,
    alike,
    bytes_in,
    carried_out,
    lines_in,
    plan_of,
    record_of,
    responses_in,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """8 problems, two settings, in two chunks each; not to be written to."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    carried_out(plan_of(rows=1), folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    for path, data in bytes_in(finished).items():
        (tmp_path / "out" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / path).write_bytes(data)
    return tmp_path / "out"


def begun(kept, folder):
    """Every line of one is in the other, byte for byte, at the same place in the same file."""
    now = lines_in(folder)
    return all(now[place][: len(lines)] == lines for place, lines in kept.items())


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", ["in the middle", "in a character", "before the line's end", "not at all"])
def test_a_torn_last_line_is_run_again(copy, finished, cut):
    packed = copy / "responses/abacus/lossless,m=5/0001.jsonl.gz"
    data = gzip.decompress(packed.read_bytes())
    head, last = data[: data.rfind(b"\n", 0, -1) + 1], data[data.rfind(b"\n", 0, -1) + 1 :]
    torn = {
        "in the middle": last[: len(last) // 2],
        "in a character": '{"item":"ä'.encode()[:-1],
        "before the line's end": last[:-1],
        "not at all": b"",
    }[cut]
    packed.unlink()
    packed.with_suffix("").write_bytes(head + torn)
    carried_out(plan_of(rows=1), copy)
    assert not packed.with_suffix("").exists()
    assert alike(responses_in(copy), responses_in(finished))
    assert gzip.decompress(packed.read_bytes()).startswith(head)


@pytest.mark.parametrize("packed_too", [False, True])
def test_a_chunk_that_was_finished_but_not_packed_costs_nothing(copy, packed_too):
    packed = copy / "responses/abacus/lossless,m=5/0000.jsonl.gz"
    before = bytes_in(copy / "responses")
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    if not packed_too:
        packed.unlink()
    carried_out(plan_of(rows=1), copy)
    assert {path: data for path, data in bytes_in(copy / "responses").items() if path.suffix == ".gz"} == before


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"item": "0"}', b"\xff\xfe"])
def test_a_broken_line_is_an_error_with_file_and_number(tmp_path, line):
    path = tmp_path / "0000.jsonl.gz"
    whole = json.dumps(record_of("0")).encode()
    path.with_suffix("").write_bytes(whole + b"\n" + line + b"\n" + whole + b"\n")
    with pytest.raises(InvalidParameter, match="line 2, is no response") as caught:
        read_chunk(path)
    assert repr(str(path.with_suffix(""))) in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:30] + b"????" + data[34:], lambda data: b"no gz"]
)
def test_a_damaged_packed_file_is_an_error_with_its_name(copy, damage):
    packed = copy / "responses/abacus/lossless,m=5/0000.jsonl.gz"
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(InvalidParameter, match=r"cannot be read.*Delete it") as caught:
        carried_out(plan_of(rows=1), copy)
    assert repr(str(packed)) in str(caught.value)


FULL = """
import resource, signal, sys
from cactus_decoding.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
main()
"""


def test_a_full_disk_says_what_is_safe_and_the_same_command_goes_on(tmp_path):
    words = [
        "eval",
        "--rules",
        "lossless",
        "--limit",
        "8",
        "--rows",
        "2",
        "--threads",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    found = subprocess.run([sys.executable, "-c", FULL, *words], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Every response that was finished before is safe" in found.stderr
    assert "run the same command again" in found.stderr
    kept = lines_in(tmp_path / "out")
    assert 0 < sum(map(len, kept.values())) < 8
    carried_out(plan_of([LOSSLESS], rows=2), tmp_path / "out")
    assert begun(kept, tmp_path / "out")
    assert len(responses_in(tmp_path / "out")) == 8


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_of_itself(tmp_path, monkeypatch):
    path = tmp_path / "0000.jsonl.gz"
    with ChunkWriter(path) as writer:
        writer.write(record_of("0"))
        before = path.with_suffix("").read_bytes()
        file = writer._file

        class Full:
            def tell(self):
                return file.tell()

            def write(self, data):
                file.write(data[:10])
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(writer, "_file", Full())
        with pytest.raises(OutputFailed, match="No space left on device"):
            writer.write(record_of("1"))
        assert path.with_suffix("").read_bytes() == before
        monkeypatch.setattr(writer, "_file", file)


# --- growing, and what is refused ----------------------------------------------------------------------------------


def test_a_run_grows_in_problems_rules_and_samples_and_keeps_what_it_has(copy):
    ratio = Setting.of("ratio:2", 5, PLAIN)
    kept = lines_in(copy)
    for more in ({"limit": 10}, {"limit": 10, "settings": (LOSSLESS, ratio)}, {"limit": 10, "samples": 2}):
        plan = plan_of(**{"rows": 1, "settings": (LOSSLESS, CACTUS), **more})
        tasks = carried_out(plan, copy)
        assert begun(kept, copy)
        kept = lines_in(copy)
        assert summarise(plan, copy, tasks).tasks[0].problems == 10
    assert len(responses_in(copy)) == 10 * (2 + 2 + 1)
    described = json.loads((copy / "run.json").read_text())
    assert described["settings"] == [LOSSLESS.key, CACTUS.key, ratio.key]
    assert len(described["sessions"]) == 4


def test_fewer_problems_run_nothing_and_keep_the_rest(copy):
    before = bytes_in(copy / "responses")
    plan = plan_of(rows=1, limit=3)
    assert summarise(plan, copy, carried_out(plan, copy)).tasks[0].problems == 3
    assert bytes_in(copy / "responses") == before
    assert json.loads((copy / "run.json").read_text())["tasks"]["abacus"]["count"] == 8


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 2}, "it has seed 1, not 2"),
        ({"max_new_tokens": 20}, "it has max_new_tokens None, not 20"),
        ({"rows": 2}, "it has rows 1, not 2"),
        ({"audit_every": 0, "block": True}, "it has block False, not True, audit_every 10, not 0"),
    ],
)
def test_a_folder_of_another_run_is_refused_untouched_with_the_difference(copy, change, difference):
    before = bytes_in(copy)
    with pytest.raises(InvalidParameter) as caught:
        carried_out(plan_of(**{"rows": 1, **change}), copy)
    assert difference in str(caught.value)
    assert bytes_in(copy) == before


def test_another_drafter_is_another_run(copy):
    before = bytes_in(copy)
    with pytest.raises(InvalidParameter, match="it has draft None, not 'prompt-lookup'"):
        carried_out(Plan("abacus", "prompt-lookup", (LOSSLESS,), ("abacus",), limit=8, rows=1), copy)
    assert bytes_in(copy) == before


@pytest.mark.parametrize("change", ["a word", "the first is gone", "all but one are gone"])
def test_other_problems_under_the_same_name_are_refused(tmp_path, change):
    path, folder = tmp_path / "mine.jsonl", tmp_path / "out"
    lines = [json.dumps({"prompt": f"What is {n} plus 1?", "answer": n + 1}) for n in range(3)]
    path.write_text("\n".join(lines))
    plan = plan_of([LOSSLESS], [str(path)], limit=None, max_new_tokens=4)
    carried_out(plan, folder)
    before = bytes_in(folder)
    lines[0] = lines[0].replace("plus", "and")
    path.write_text(
        "\n".join({"a word": lines, "the first is gone": lines[1:], "all but one are gone": lines[1:2]}[change])
    )
    with pytest.raises(InvalidParameter, match="holds a run on other problems of the task"):
        carried_out(plan, folder)
    assert bytes_in(folder) == before


def test_folders_with_other_things_and_files_are_refused(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InvalidParameter, match="holds other things"):
        carried_out(plan_of(), tmp_path)
    with pytest.raises(InvalidParameter, match="is a file"):
        carried_out(plan_of(), tmp_path / "notes")
    assert bytes_in(tmp_path) == {(tmp_path / "notes").relative_to(tmp_path): b"mine"}
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(InvalidParameter, match="has format 99"):
        carried_out(plan_of(), tmp_path)


def test_a_start_that_was_killed_as_it_described_itself_is_no_other_thing(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "run.json.new").write_text('{"for')
    carried_out(plan_of([LOSSLESS], limit=1), tmp_path)
    assert len(responses_in(tmp_path)) == 1


def test_one_folder_is_for_one_process(copy):
    with Run(plan_of(rows=1), copy):
        before = bytes_in(copy)
        with pytest.raises(InvalidParameter, match="another process is working on"), Run(plan_of(rows=1), copy):
            pass
        assert bytes_in(copy) == before
    with Run(plan_of(rows=1), copy):
        pass


def test_what_cannot_be_written_at_the_start_keeps_its_own_words(tmp_path):
    (tmp_path / "run.json.new").mkdir()
    with pytest.raises(OutputFailed, match=r"run\.json' cannot be written: .*directory"):
        carried_out(plan_of(), tmp_path)
