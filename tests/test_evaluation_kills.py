"""Runs that are killed, again and again, end as one that was left alone, and lose at most the line being written."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cactus_decoding.cli import main
from tests.evaluated import alike, lines_in, responses_in

WORDS = ("eval", "--rules", "lossless,cactus:1", "--limit", "44", "--rows", "4", "--audit-every", "5", "--threads", "1")
TIMES = {"seconds_per_answer", "tokens_per_second"}


@pytest.fixture(scope="module")
def start():
    """``cactus eval`` in a process of its own, which begins where torch is imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cactus_decoding.evaluation.running", "cactus_decoding.cli", __name__])

    def started(folder, *more):
        process = context.Process(target=_evaluate, args=((*WORDS, *more, "--out", str(folder)),))
        process.start()
        return process

    return started


def _evaluate(words):
    sys.argv = ["cactus", *words]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    main()


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    process = start(folder)
    process.join()
    assert process.exitcode == 0
    return folder


def report_in(folder):
    """Without times and sessions."""
    report = json.loads((folder / "report.json").read_text())
    del report["run"]["sessions"]
    for task in report["tasks"]:
        for row in task["settings"]:
            row["figures"] = {name: value for name, value in row["figures"].items() if name not in TIMES}
    return report


def require_kept(before, folder):
    """Every line that was whole is there still, byte for byte, in its place."""
    now = lines_in(folder)
    for place, lines in before.items():
        assert now[place][: len(lines)] == lines


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def count(folder):
    return sum(map(len, lines_in(folder).values()))


def test_ten_kills_at_random_moments_change_nothing(start, undisturbed, tmp_path):
    chance = random.Random(5)
    folder, growing = tmp_path / "out", 0
    for kill in range(10):
        before = lines_in(folder)
        process = start(folder)
        if kill % 3 == 2:
            time.sleep(chance.uniform(0, 1))  # while it loads, mostly
        else:
            more = count(folder) + chance.randrange(1, 9)
            wait_for(lambda more=more, process=process: count(folder) >= more or not process.is_alive())
            time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        require_kept(before, folder)
        growing += bool(list(folder.glob("responses/*/*/*.jsonl")))
    assert growing >= 3, "no kill came while a chunk was worked on"
    before = lines_in(folder)
    process = start(folder)
    process.join()
    assert process.exitcode == 0
    require_kept(before, folder)
    assert alike(responses_in(folder), responses_in(undisturbed))
    assert alike(report_in(folder), report_in(undisturbed))
    assert not list(folder.glob("responses/*/*/*.jsonl"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the processes from /proc")
def test_workers_end_with_a_killed_parent_and_a_killed_worker_ends_the_run(undisturbed, tmp_path):
    folder = tmp_path / "out"
    command = [sys.executable, "-c", "from cactus_decoding.cli import main; main()", *WORDS]
    command += ["--workers", "2", "--out", str(folder)]

    def begun():
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    process = begun()
    wait_for(lambda: count(folder) >= 5)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: not any(alive(worker) for worker in workers), seconds=10)
    before = lines_in(folder)
    assert list(folder.glob("responses/*/*/*.jsonl"))

    process = begun()
    wait_for(lambda: count(folder) >= sum(map(len, before.values())) + 5)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, told = process.communicate()
    assert process.returncode == 2
    assert "a worker process ended unexpectedly" in told
    require_kept(before, folder)

    before, process = lines_in(folder), begun()
    process.communicate()
    assert process.returncode == 0
    require_kept(before, folder)
    assert alike(responses_in(folder), responses_in(undisturbed))
    assert alike(report_in(folder), report_in(undisturbed))


def workers_of(parent):
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def alive(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
