import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.vllm.engines import ENVIRONMENT, GREEDY, VERIFIER

SETTINGS = """
maximum: {delta: 2, alpha: 8, max_relaxed: 40}
log_requests: true
"""


class Server:
    """vLLM's server on the Abacus pair, in processes of its own, on loopback."""

    def __init__(self, folder, *options, **environment):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.log = folder / "server.log"
        command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", VERIFIER),
            *("--served-model-name", "abacus"),
            *("--host", "127.0.0.1", "--port", self.address.rsplit(":", 1)[1], "--dtype", "float32"),
            *("--max-model-len", "256", "--max-num-seqs", "16", "--enforce-eager"),
            *("--speculative-config", json.dumps(GREEDY), *options),
        ]
        settings = {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO", **environment}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **settings}, start_new_session=True
            )

    def wait(self, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{self.address}/health", timeout=5)
                return self
            time.sleep(0.5)
        raise AssertionError(f"the server does not answer: {self.log.read_text()[-4000:]}")

    def page(self):
        """The metrics page: {series: {labels: value}}."""
        text = urllib.request.urlopen(f"{self.address}/metrics", timeout=10).read().decode()
        found = {}
        for line in text.splitlines():
            if line.startswith("vllm:"):
                series, value = line.rsplit(" ", 1)
                name, _, labels = series.partition("{")
                found.setdefault(name, {})[labels.rstrip("}")] = float(value)
        return found

    def stop(self):
        os.killpg(self.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def server_with(tmp_path_factory):
    """Starts servers, and ends them all when the tests are done."""
    started = []

    def start(*options, **environment):
        started.append(Server(tmp_path_factory.mktemp("server"), *options, **environment))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(server_with, tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "cactus.yaml"
    path.write_text(SETTINGS)
    return server_with(CACTUS_VLLM_CONFIG=str(path)).wait()


@pytest.fixture(scope="session")
def client(server):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
