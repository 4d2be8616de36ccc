"""Nothing in the tests reaches a hub; models are random and tiny, or the pair that ships with the package."""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

import cactus_decoding as cactus
from cactus_decoding.cli import main
from tests.tiny import tiny_model

# no deadline: a busy machine is no failure; where CI says so the same examples every time, elsewhere new ones
settings.register_profile("tests", deadline=None, max_examples=60, derandomize=bool(os.environ.get("CI")))
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # tiny models: a second thread only adds waiting


@pytest.fixture(scope="session")
def tiny_pair():
    """Two unrelated random models over a vocabulary of 8, ids only."""
    return cactus.load_pair(tiny_model(seed=0, layers=1), tiny_model(seed=1, hidden=8, layers=1))


@pytest.fixture(scope="session")
def abacus():
    return cactus.load_pair("abacus")


@pytest.fixture
def cactus_command(monkeypatch, capsys):
    """Run ``cactus ...`` in this process: (exit status, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["cactus", *words])
        try:
            main()
            status = 0
        except SystemExit as left:
            status = left.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
