import pytest

from tests.vllm import engines

engines.in_this_process()


@pytest.fixture(scope="session")
def plugin():
    """The plugin, registered as vLLM does it, and registered again where a test took it off."""
    from vllm.plugins import load_general_plugins

    from cactus_decoding.integrations.vllm import plugin

    load_general_plugins()
    assert plugin.registered()
    return plugin


@pytest.fixture(scope="session")
def engine_of(plugin):
    """Engines by the name of their speculation, each made once and kept for the session."""
    made = {}

    def engine(name):
        if name not in made:
            made[name] = engines.engine(engines.SPECULATIONS[name])
        return made[name]

    return engine
