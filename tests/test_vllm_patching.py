import inspect
import logging
import sys
import types
from types import SimpleNamespace

import pytest

from cactus_decoding.errors import InvalidParameter, UnsupportedEngine
from cactus_decoding.integrations.vllm import admission
from cactus_decoding.integrations.vllm.admission import Admission, completed, why_closed
from cactus_decoding.integrations.vllm.patching import Point, require_all
from cactus_decoding.integrations.vllm.relaxation import RESOLVED, Relaxation, parameters_in, relaxation_of
from cactus_decoding.integrations.vllm.settings import Settings
from cactus_decoding.rules import Cactus

ADD = Point("engine_of_tests", "Runner.add", ("self", "a", "b"))
SCALE = Point("engine_of_tests", "scale", ("x", "by"))
GONE = Point("engine_of_tests", "Runner.subtract", ("self",))
MISSING = Point("no_engine_of_tests.deep", "scale", ("x",))
CHANGED = Point("engine_of_tests", "scale", ("x", "factor", "offset"))


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """A module as another engine has it."""
    module = types.ModuleType("engine_of_tests")

    class Runner:
        """Adds."""

        def add(self, a, b=10, *rest, **more):
            """Add them."""
            return a + b + sum(rest) + sum(more.values())

    def scale(x, by=2):
        return x * by

    module.Runner, module.scale = Runner, scale
    monkeypatch.setitem(sys.modules, "engine_of_tests", module)
    return module


def through(call):
    return call.proceed()


def test_a_wrapped_function_does_what_it_did(engine):
    original = engine.Runner.add
    assert not ADD.wrapped()
    ADD.wrap(through)
    assert ADD.wrapped()
    assert engine.Runner.add is not original
    assert engine.Runner().add(1) == 11
    assert engine.Runner().add(1, b=2) == 3
    assert engine.Runner().add(1, 2, 3, 4, c=5) == 15
    assert engine.Runner.add.__doc__ == "Add them."
    assert inspect.signature(engine.Runner.add) == inspect.signature(original)
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        engine.Runner().add()


def test_arguments_are_read_by_name_however_they_were_given(engine):
    seen = []
    SCALE.wrap(lambda call: seen.append((call["x"], call["by"])) or call.proceed())
    assert [engine.scale(3), engine.scale(3, 4), engine.scale(x=3, by=5)] == [6, 12, 15]
    assert seen == [(3, 2), (3, 4), (3, 5)]


def test_a_function_goes_on_with_a_replaced_argument(engine):
    def around(call):
        call["by"] = 7
        return -call.proceed()

    SCALE.wrap(around)
    assert [engine.scale(3), engine.scale(3, 4), engine.scale(by=1, x=3)] == [-21, -21, -21]


def test_a_function_need_not_be_called_at_all(engine):
    SCALE.wrap(lambda call: "no")
    assert engine.scale(3) == "no"


def test_a_second_wrap_does_nothing_and_one_unwrap_undoes_it(engine):
    original = engine.scale
    SCALE.wrap(lambda call: call.proceed() + 1)
    SCALE.wrap(lambda call: call.proceed() + 100)
    assert engine.scale(3) == 7
    SCALE.unwrap()
    assert engine.scale is original
    assert not SCALE.wrapped()
    SCALE.unwrap()  # of what is not wrapped
    assert engine.scale is original


def test_there_is_no_problem_with_a_function_as_it_is_known():
    assert ADD.problem() is SCALE.problem() is None
    SCALE.wrap(through)
    assert SCALE.problem() is None  # of the function behind the wrapper


def test_a_problem_says_what_is_gone():
    assert MISSING.problem().startswith("no_engine_of_tests.deep.scale is gone (No module named 'no_engine_of_tests'")
    assert GONE.problem().startswith("engine_of_tests.Runner.subtract is gone (")
    assert Point("engine_of_tests", "Walker.add", ()).problem().startswith("engine_of_tests.Walker.add is gone (")
    assert not MISSING.wrapped()
    assert not GONE.wrapped()


def test_a_problem_says_which_signature_was_found():
    expected = "engine_of_tests.scale has no argument factor, offset: it is scale(x, by=2)"
    assert CHANGED.problem() == expected
    SCALE.wrap(through)
    assert CHANGED.problem() == expected


def test_all_or_none(engine):
    require_all([ADD, SCALE], "1.2.3", "0.9")
    with pytest.raises(UnsupportedEngine) as caught:
        require_all([ADD, CHANGED, GONE, MISSING], "1.2.3", "0.9")
    message = str(caught.value)
    assert message.startswith("vLLM 1.2.3 differs from the versions this plugin knows (0.9): ")
    for point in (CHANGED, GONE, MISSING):
        assert point.problem() in message
    assert "Runner.add " not in message
    assert "scale(x, by=2)" in message
    assert "VLLM_PLUGINS=''" in message
    assert not ADD.wrapped()
    assert not SCALE.wrapped()


# requests come in


class Refused(ValueError):
    """Stands for vLLM's own."""


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    package, exceptions = types.ModuleType("vllm"), types.ModuleType("vllm.exceptions")
    exceptions.VLLMValidationError = Refused
    package.exceptions = exceptions
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.exceptions", exceptions)


class Params:
    """As vLLM's sampling parameters, as far as they are read."""

    def __init__(self, extra_args=None, temperature=1.0):
        self.extra_args = extra_args
        self.temperature = temperature

    def clone(self):
        return Params(None if self.extra_args is None else dict(self.extra_args), self.temperature)


PLAIN = SimpleNamespace(enable_batch_sharded_sampling=None)


def engine_config(parallel=PLAIN, **speculative):
    """Of an engine that drafts; without arguments, as vLLM has it by default."""
    drafts = SimpleNamespace(**{"rejection_sample_method": "standard", **speculative})
    return SimpleNamespace(speculative_config=drafts, parallel_config=parallel)


OPEN = engine_config()
CLOSED = {
    "drafts nothing": SimpleNamespace(speculative_config=None, parallel_config=PLAIN),
    "rejection_sample_method='block'": engine_config(rejection_sample_method="block"),
    "rejection_sample_method='fly'": engine_config(rejection_sample_method="fly"),
    "rejection_sample_method='synthetic'": engine_config(rejection_sample_method="synthetic"),
    "watermarks": SimpleNamespace(
        speculative_config=OPEN.speculative_config, parallel_config=PLAIN, watermark_config=object()
    ),
}


@pytest.fixture
def server(engine, monkeypatch):
    """An engine of this configuration whose three functions are wrapped for one admission."""

    monkeypatch.setattr(admission, "open_page", lambda: None)

    class Server:
        def __init__(self, settings=None, config=OPEN, copies=True):
            self.admission = Admission(lambda: settings or Settings())
            self.config, self.copies = config, copies

            def verify_args(self):
                """Checks its own."""

            def start(self, vllm_config):
                self.vllm_config = vllm_config

            def process_inputs(self, params):
                own = params.clone() if copies and hasattr(params, "clone") else params
                return SimpleNamespace(request_id="r1", sampling_params=own)

            engine.verify_args, engine.start, engine.process_inputs = verify_args, start, process_inputs
            self.engine = SimpleNamespace(vllm_config=config)
            for name, arguments, around in (
                ("verify_args", ("self",), self.admission.verify_args),
                ("start", ("self", "vllm_config"), self.admission.start),
                ("process_inputs", ("self", "params"), self.admission.process),
            ):
                Point("engine_of_tests", name, arguments).wrap(around)

        def start(self):
            engine.start(SimpleNamespace(), self.config)
            return self

        def check(self, extra_args):
            engine.verify_args(Params(extra_args))

        def process(self, params):
            return engine.process_inputs(self.engine, params)

    return Server


def test_an_engine_that_drafts_is_open():
    assert why_closed(OPEN) is None
    assert why_closed(SimpleNamespace(speculative_config=SimpleNamespace(), watermark_config=None)) is None


@pytest.mark.parametrize("reason", CLOSED)
def test_why_an_engine_is_closed(reason):
    assert reason in why_closed(CLOSED[reason])


def test_an_engine_that_drafts_nothing_is_told_how_to():
    assert "--speculative-config" in why_closed(CLOSED["drafts nothing"])
    assert "start it with 'standard'" in why_closed(CLOSED["rejection_sample_method='fly'"])


BAD = [
    ({"cactus_delta": -1}, "cactus_delta is -1"),
    ({"cactus_delta": "0.5"}, "cactus_delta is '0.5'"),
    ({"cactus_delta": 3.0}, "cactus_delta is 3, and this server allows at most 2."),
    ({"cactus_detla": 1}, "did you mean cactus_delta"),
    ({"cactus_rule": "ratio", "cactus_alpha": 2}, "does not offer"),
    ({"cactus_rule": "exact"}, "needs cactus_delta"),
]


@pytest.mark.parametrize(("extra_args", "message"), BAD)
def test_what_a_request_may_not_have_is_refused_as_vllm_refuses(server, extra_args, message):
    here = server(Settings(maximum={"delta": 2.0})).start()
    for call in (here.check, lambda given: here.process(Params(given))):
        with pytest.raises(Refused, match=message) as caught:
            call(extra_args)
        assert isinstance(caught.value.__cause__, InvalidParameter)


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}, {"cactus_delta": 0.5}, {"cactus_delta": 0}])
def test_what_a_request_may_have_passes(server, extra_args):
    here = server().start()
    here.check(extra_args)
    here.process(Params(extra_args))


@pytest.mark.parametrize("copies", [True, False], ids=["vLLM copies", "vLLM keeps"])
def test_the_requests_own_copy_says_in_full_what_it_gets(server, copies):
    here = server(Settings({"cactus_max_ratio": 4.0}, {"max_relaxed": 9}, log_requests=True), copies=copies).start()
    given = {"cactus_delta": 0.5, "other": [1]}
    params = Params(given)
    request = here.process(params)
    assert request.sampling_params.extra_args == {
        "cactus_rule": "second_order",
        "cactus_delta": 0.5,
        "cactus_max_ratio": 4.0,
        "cactus_max_relaxed": 9,
        "other": [1],
        RESOLVED: {"log": True},
    }
    # the caller may send the same parameters again, to another server too
    assert params.extra_args is given
    assert given == {"cactus_delta": 0.5, "other": [1]}
    assert request.sampling_params is not params
    assert here.process(params).sampling_params.extra_args == request.sampling_params.extra_args


def test_defaults_reach_a_request_that_says_nothing(server):
    here = server(Settings({"cactus_delta": 0.25})).start()
    assert here.process(Params()).sampling_params.extra_args == {
        "cactus_rule": "second_order", "cactus_delta": 0.25, RESOLVED: {"log": False},
    }  # fmt: skip
    assert here.process(Params({"cactus_delta": 0})).sampling_params.extra_args is None
    assert here.process(Params({"cactus_max_relaxed": 0, "other": 1})).sampling_params.extra_args == {"other": 1}


def test_a_lossless_request_is_left_alone(server):
    here = server(copies=False).start()
    params = Params({"other": 1})
    assert here.process(params).sampling_params is params
    assert params.extra_args == {"other": 1}


def test_pooling_passes(server):
    pooling = SimpleNamespace(task="embed")
    assert server(Settings({"cactus_delta": 0.25})).start().process(pooling).sampling_params is pooling


@pytest.mark.parametrize("value", [{"log": True}, None, {}])
def test_a_client_cannot_say_that_it_was_let_through(server, value):
    here = server(Settings(maximum={"delta": 1.0})).start()
    with pytest.raises(Refused, match="cactus_resolved is set by this server alone"):
        here.process(Params({"cactus_delta": 50.0, RESOLVED: value}))


def test_completed_parameters_pass_the_second_check(server):
    """vLLM makes the parameters anew in other processes, where nobody knows the settings."""
    here = server(Settings({"cactus_delta": 0.25, "cactus_max_ratio": 4.0})).start()
    extra_args = here.process(Params()).sampling_params.extra_args
    server(Settings(maximum={"alpha": 2.0})).check(extra_args)


@pytest.mark.parametrize("reason", CLOSED)
def test_a_closed_engine_serves_lossless_requests_alone(server, reason):
    here = server(config=CLOSED[reason]).start()
    for call in (here.check, lambda given: here.process(Params(given))):
        with pytest.raises(Refused) as caught:
            call({"cactus_delta": 0.5})
        assert str(caught.value).startswith(
            "The request asks for relaxed acceptance (cactus:delta=0.5), and this engin"
        )
        assert reason in str(caught.value)
        call(None)
        call({"cactus_delta": 0})


@pytest.mark.parametrize("reason", CLOSED)
def test_defaults_that_a_closed_engine_cannot_honour_end_the_start(server, reason):
    with pytest.raises(UnsupportedEngine) as caught:
        server(Settings({"cactus_delta": 0.25}), CLOSED[reason]).start()
    assert "This server's defaults relax acceptance (cactus:delta=0.25), and this engine" in str(caught.value)
    assert reason in str(caught.value)
    server(Settings({"cactus_delta": 0}), CLOSED[reason]).start()


def test_what_any_engine_of_the_process_can_relax_passes_the_early_check(server):
    here = server(config=CLOSED["drafts nothing"]).start()
    with pytest.raises(Refused, match="drafts nothing"):
        here.check({"cactus_delta": 0.5})
    here.config = OPEN
    here.start().check({"cactus_delta": 0.5})
    here.config = CLOSED["drafts nothing"]
    here.start().check({"cactus_delta": 0.5})


def test_a_process_without_a_front_end_judges_nothing(server):
    """Parameters are made anew where they arrive in the engine's process, whose end an error would be."""
    server(Settings(maximum={"delta": 0.1})).check({"cactus_delta": 5.0, "cactus_detla": "?"})


def test_a_cap_is_refused_where_ranks_share_out_the_requests(server):
    here = server(config=engine_config(SimpleNamespace(enable_batch_sharded_sampling=True))).start()
    here.process(Params({"cactus_delta": 0.5}))
    with pytest.raises(Refused, match="cactus_max_relaxed is 3, but .*enable_batch_sharded_sampling"):
        here.process(Params({"cactus_delta": 0.5, "cactus_max_relaxed": 3}))


def test_temperature_0_is_let_through_with_a_warning(server, caplog):
    here = server().start()
    with caplog.at_level(logging.WARNING, "vllm.cactus"):
        here.process(Params({"cactus_delta": 0.5}, temperature=0.7))
        assert not caplog.records
        request = here.process(Params({"cactus_delta": 0.5}, temperature=0.0))
    (record,) = caplog.records
    assert record.name == "vllm.cactus"
    assert "request r1 asks for cactus:delta=0.5 at temperature 0" in record.getMessage()
    assert RESOLVED in request.sampling_params.extra_args


def test_completed_parameters_are_read_back():
    relaxation = Relaxation(Cactus(0.5, "exact"), 3)
    found = completed({"other": 1, "cactus_delta": 9, "cactus_alpha": 2}, relaxation, True)
    assert found.pop(RESOLVED) == {"log": True}
    assert found.pop("other") == 1
    assert relaxation_of(parameters_in(found)) == relaxation


def test_every_point_of_admission_is_one_that_admission_reads():
    found = Admission(Settings)
    assert admission.around(found) == {
        admission.VERIFY: found.verify_args,
        admission.START: found.start,
        admission.PROCESS: found.process,
    }
