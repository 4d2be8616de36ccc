import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.errors import InvalidParameter
from cactus_decoding.integrations.vllm.relaxation import (
    NAMES,
    RESOLVED,
    Relaxation,
    describe,
    parameters_in,
    relaxation_of,
    resolved_relaxation,
)
from cactus_decoding.integrations.vllm.settings import Settings, of_environment
from cactus_decoding.rules import BoundedRatio, Cactus

NUMBERS = [-0.5, math.nan, math.inf, -math.inf, True, "0.25", None, [1.0], 10**400]
ratios = st.floats(1, 1e6)
relaxations = st.builds(
    Relaxation,
    st.one_of(
        st.builds(
            Cactus,
            st.floats(1e-9, 1e9),
            st.sampled_from(["second_order", "exact"]),
            max_ratio=st.none() | ratios.filter(lambda x: x > 1.0),
        ),
        st.builds(BoundedRatio, ratios.filter(lambda x: x > 1.0), st.just("shift")),
    ),
    st.none() | st.integers(1, 10**6),
)


def refusal(call, *args, **kwargs):
    """The message of the refusal."""
    with pytest.raises(InvalidParameter) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# one request


def test_what_a_request_says_is_the_rule_it_gets():
    assert relaxation_of({}) is None
    assert relaxation_of({"cactus_delta": 0.5}) == Relaxation(Cactus(0.5))
    assert relaxation_of({"cactus_delta": 1, "cactus_rule": "exact"}) == Relaxation(Cactus(1.0, "exact"))
    assert relaxation_of({"cactus_delta": 1, "cactus_max_ratio": 4}) == Relaxation(Cactus(1.0, max_ratio=4.0))
    ratio = relaxation_of({"cactus_rule": "ratio", "cactus_alpha": 4, "cactus_max_relaxed": 7})
    assert ratio == Relaxation(BoundedRatio(4.0, "shift"), 7)
    assert (ratio.delta, ratio.ceiling, ratio.exact) == (math.inf, 4.0, False)
    exact = relaxation_of({"cactus_rule": "exact", "cactus_delta": 0.5})
    assert (exact.delta, exact.ceiling, exact.exact) == (0.5, math.inf, True)


@pytest.mark.parametrize(
    "given_",
    [
        {"cactus_delta": 0},
        {"cactus_delta": 0.0, "cactus_rule": "exact"},
        {"cactus_delta": 0.5, "cactus_max_ratio": 1},
        {"cactus_rule": "ratio", "cactus_alpha": 1},
        {"cactus_delta": 0.5, "cactus_max_relaxed": 0},
    ],
)
def test_a_dial_at_its_lossless_end_is_no_relaxation(given_):
    assert relaxation_of(given_) is None
    # also where the server relaxes by default
    assert relaxation_of(given_, {"cactus_delta": 0.25, "cactus_max_relaxed": 5}) is None


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize(
    ("name", "others", "least"),
    [
        ("cactus_delta", {}, 0),
        ("cactus_delta", {"cactus_rule": "exact"}, 0),
        ("cactus_max_ratio", {"cactus_delta": 0.25}, 1),
        ("cactus_alpha", {"cactus_rule": "ratio"}, 1),
    ],
)
def test_a_dial_that_is_no_finite_number_in_its_range_is_refused(name, others, least, value):
    message = refusal(relaxation_of, {**others, name: value})
    assert message.startswith(f"{name} is {value!r}, but must be a finite number of at least {least} (")


@pytest.mark.parametrize("value", [0.5, 0, -3])
def test_a_ratio_below_1_is_refused(value):
    assert f"cactus_alpha is {value!r}" in refusal(relaxation_of, {"cactus_rule": "ratio", "cactus_alpha": value})
    assert f"cactus_max_ratio is {value!r}" in refusal(relaxation_of, {"cactus_delta": 0.25, "cactus_max_ratio": value})


@pytest.mark.parametrize("value", [-1, 2.0, 1.5, math.nan, math.inf, True, "5", None, [1]], ids=repr)
def test_a_cap_that_is_no_whole_number_is_refused(value):
    message = refusal(relaxation_of, {"cactus_delta": 0.25, "cactus_max_relaxed": value})
    assert message.startswith(f"cactus_max_relaxed is {value!r}, but must be a whole number of at least 0 (")


@pytest.mark.parametrize("value", ["lossless", "Exact", "", None, 1, ["ratio"]], ids=repr)
def test_an_unknown_rule_is_refused_with_the_known_ones(value):
    message = refusal(relaxation_of, {"cactus_rule": value, "cactus_delta": 0.25})
    assert message == f"cactus_rule is {value!r}, which is none of second_order, exact, ratio."


def test_an_unknown_name_is_refused_with_the_nearest():
    assert "cactus_detla is no parameter of Cactus: did you mean cactus_delta?" in refusal(
        parameters_in, {"cactus_detla": 1}
    )
    assert "did you mean cactus_max_ratio?" in refusal(parameters_in, {"cactus_maxratio": 1})
    assert ", ".join(NAMES) in refusal(parameters_in, {"cactus_zzzzzzzzzzzzzzzz": 1})


def test_the_parameters_of_others_are_left_alone():
    assert parameters_in({"other": 1, "cactus_delta": 2, 3: 4, "my_cactus_delta": 5}) == {"cactus_delta": 2}
    assert parameters_in({}) == parameters_in(None) == {}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (
            {"cactus_alpha": 4},
            "cactus_alpha is 4, which cactus_rule 'second_order' does not read. Use it with 'ratio', or give "
            "cactus_delta.",
        ),
        (
            {"cactus_rule": "ratio", "cactus_alpha": 4, "cactus_delta": 0.5},
            "cactus_delta is 0.5, which cactus_rule 'ratio' does not read. Use it with 'second_order' or 'exact', or "
            "give cactus_alpha.",
        ),
        (
            {"cactus_rule": "ratio", "cactus_alpha": 4, "cactus_max_ratio": 2},
            "cactus_max_ratio is 2, which cactus_rule 'ratio' does not read. Use it with 'second_order' or 'exact', or "
            "give cactus_alpha.",
        ),
    ],
)
def test_a_dial_that_the_rule_does_not_read_is_refused(given_, message):
    assert refusal(relaxation_of, given_) == message


@pytest.mark.parametrize(
    ("given_", "dial"),
    [
        ({"cactus_rule": "exact"}, "cactus_delta"),
        ({"cactus_rule": "ratio"}, "cactus_alpha"),
        ({"cactus_max_ratio": 4}, "cactus_delta"),
        ({"cactus_max_relaxed": 4}, "cactus_delta"),
        ({"cactus_rule": "ratio", "cactus_max_relaxed": 4}, "cactus_alpha"),
    ],
)
def test_a_request_without_its_dial_is_refused(given_, dial):
    message = refusal(relaxation_of, given_)
    assert message.startswith(f"{', '.join(given_)} needs {dial}, which neither the request nor this server gives")
    assert message.endswith(f"Add {dial}, or leave the rest out.")


@given(relaxation=relaxations)
def test_the_parameters_of_a_relaxation_give_it_back(relaxation):
    parameters = relaxation.parameters()
    assert set(parameters) <= set(NAMES)
    assert relaxation_of(parameters) == relaxation
    assert resolved_relaxation({**parameters, RESOLVED: {"log": False}, "other": 1}, 1.0) == relaxation
    assert Settings().relaxation_of(parameters) == relaxation


@given(relaxation=relaxations, default=relaxations)
def test_a_request_in_full_owes_nothing_to_the_defaults_but_the_caps_it_left_out(relaxation, default):
    found = relaxation_of(relaxation.parameters(), default.parameters())
    assert type(found.rule) is type(relaxation.rule)
    assert found.parameters().items() >= relaxation.parameters().items()
    extra = found.parameters().keys() - relaxation.parameters().keys()
    assert extra <= {"cactus_max_ratio", "cactus_max_relaxed"}
    assert all(found.parameters()[name] == default.parameters()[name] for name in extra)


def test_numbers_of_numpy_become_plain():
    """They go to another process as JSON or MessagePack."""
    found = relaxation_of(
        {"cactus_delta": np.float64(0.5), "cactus_max_ratio": np.int64(4), "cactus_max_relaxed": np.int64(3)}
    )
    assert json.loads(json.dumps(found.parameters())) == found.parameters()
    found = relaxation_of({"cactus_rule": "ratio", "cactus_alpha": np.float32(4)})
    assert json.loads(json.dumps(found.parameters())) == found.parameters()


def test_a_worker_relaxes_nothing_that_the_front_end_has_not_let_through():
    parameters = {"cactus_delta": 0.5, RESOLVED: {"log": True}}
    assert resolved_relaxation(parameters, 0.7) == Relaxation(Cactus(0.5))
    assert resolved_relaxation({"cactus_delta": 0.5}, 0.7) is None
    assert resolved_relaxation(None, 0.7) is None
    assert resolved_relaxation({}, 0.7) is None


def test_at_temperature_0_nothing_is_relaxed():
    parameters = {"cactus_delta": 0.5, RESOLVED: {"log": True}}
    assert resolved_relaxation(parameters, 0.0) is None
    assert resolved_relaxation(parameters, 0.9e-5) is None
    assert resolved_relaxation(parameters, 1e-5) is not None


def test_a_rule_is_described_as_its_spec():
    assert describe(Cactus(0.5)) == "cactus:delta=0.5"
    assert "alpha=4" in describe(BoundedRatio(4.0, "shift"))


# a server


def test_defaults_fill_what_a_request_leaves_out():
    settings = Settings({"cactus_delta": 0.25, "cactus_max_ratio": 4.0, "cactus_max_relaxed": 9})
    assert settings.relaxation_of(None) == Relaxation(Cactus(0.25, max_ratio=4.0), 9)
    assert settings.relaxation_of({"other": 1}) == settings.relaxation_of({})
    assert settings.relaxation_of({"cactus_delta": 1}) == Relaxation(Cactus(1.0, max_ratio=4.0), 9)
    assert settings.relaxation_of({"cactus_rule": "exact"}) == Relaxation(Cactus(0.25, "exact", max_ratio=4.0), 9)
    assert settings.relaxation_of({"cactus_max_relaxed": 3}) == Relaxation(Cactus(0.25, max_ratio=4.0), 3)
    # dials of another rule are left aside, and the cap is not
    ratio = settings.relaxation_of({"cactus_rule": "ratio", "cactus_alpha": 2})
    assert ratio == Relaxation(BoundedRatio(2.0, "shift"), 9)


def test_a_default_rule_holds_for_requests_that_name_none():
    settings = Settings({"cactus_rule": "ratio", "cactus_alpha": 4, "cactus_delta": 0.25})
    assert settings.relaxation_of({}) == Relaxation(BoundedRatio(4.0, "shift"))
    assert settings.relaxation_of({"cactus_rule": "exact"}) == Relaxation(Cactus(0.25, "exact"))
    assert "cactus_rule 'ratio' does not read" in refusal(settings.relaxation_of, {"cactus_delta": 0.5})


def test_delta_0_is_lossless_over_a_server_that_relaxes():
    settings = Settings({"cactus_delta": 0.25}, {"delta": 1.0, "max_relaxed": 5})
    assert settings.relaxation_of({}) is not None
    assert settings.relaxation_of({"cactus_delta": 0}) is None


def test_what_lies_above_a_bound_is_refused_and_what_lies_on_it_is_not():
    settings = Settings(maximum={"delta": 1, "alpha": 4, "max_relaxed": 100})
    assert settings.relaxation_of({"cactus_delta": 1}).delta == 1.0
    assert settings.relaxation_of({"cactus_rule": "ratio", "cactus_alpha": 4}).ceiling == 4.0
    assert settings.relaxation_of({"cactus_delta": 1, "cactus_max_relaxed": 100}).max_relaxed == 100
    for given_, message in [
        ({"cactus_delta": 1.5}, "cactus_delta is 1.5, and this server allows at most 1."),
        ({"cactus_delta": 2, "cactus_rule": "exact"}, "cactus_delta is 2, and this server allows at most 1."),
        ({"cactus_rule": "ratio", "cactus_alpha": 8}, "cactus_alpha is 8, and this server allows at most 4."),
        (
            {"cactus_delta": 1, "cactus_max_relaxed": 101},
            "cactus_max_relaxed is 101, and this server allows at most 100.",
        ),
    ]:
        assert refusal(settings.relaxation_of, given_) == message


@pytest.mark.parametrize("bounded", ["delta", "alpha"])
def test_a_rule_without_a_bound_is_closed_where_the_other_dial_has_one(bounded):
    ratio, cactus = {"cactus_rule": "ratio", "cactus_alpha": 2}, {"cactus_rule": "exact", "cactus_delta": 0.1}
    settings = Settings(maximum={bounded: 3})
    offered, closed = (cactus, ratio) if bounded == "delta" else (ratio, cactus)
    assert settings.relaxation_of(offered) is not None
    message = refusal(settings.relaxation_of, closed)
    assert f"cactus_rule is {closed['cactus_rule']!r}, which this server does not offer" in message
    assert f"it bounds cactus_{bounded} at 3" in message
    assert message.endswith(f"Use cactus_{bounded}.")


def test_a_bound_on_the_relaxed_tokens_alone_closes_no_rule():
    settings = Settings(maximum={"max_relaxed": 3})
    assert settings.relaxation_of({"cactus_rule": "ratio", "cactus_alpha": 2}).max_relaxed == 3
    assert settings.relaxation_of({"cactus_delta": 2}).max_relaxed == 3


def test_a_bound_on_the_relaxed_tokens_is_their_default():
    settings = Settings({"cactus_delta": 0.25}, {"max_relaxed": 10})
    assert settings.relaxation_of({}).max_relaxed == 10
    assert settings.relaxation_of({"cactus_max_relaxed": 4}).max_relaxed == 4
    assert (
        Settings({"cactus_delta": 0.25, "cactus_max_relaxed": 7}, {"max_relaxed": 10}).relaxation_of({}).max_relaxed
        == 7
    )
    # nothing is relaxed, so nothing is capped
    assert Settings(maximum={"max_relaxed": 10}).relaxation_of({}) is None


def test_a_null_is_no_way_around_the_bound_on_the_relaxed_tokens():
    settings = Settings({"cactus_delta": 0.25}, {"max_relaxed": 10})
    assert "cactus_max_relaxed is None" in refusal(settings.relaxation_of, {"cactus_max_relaxed": None})


@pytest.mark.parametrize(
    ("maximum", "message"),
    [
        ({"delta": -1}, "maximum delta is -1, but must be a finite number of at least 0"),
        ({"delta": math.nan}, "maximum delta is nan, but must be"),
        ({"delta": math.inf}, "maximum delta is inf, but must be"),
        ({"delta": True}, "maximum delta is True, but must be"),
        ({"delta": "1"}, "maximum delta is '1', but must be"),
        ({"alpha": 0.5}, "maximum alpha is 0.5, but must be a finite number of at least 1"),
        ({"max_relaxed": 0}, "maximum max_relaxed is 0, but must be a whole number of at least 1"),
        ({"max_relaxed": 2.5}, "maximum max_relaxed is 2.5, but must be"),
    ],
)
def test_a_bound_out_of_its_range_is_refused(maximum, message):
    assert refusal(Settings, {}, maximum).startswith(message)


@pytest.mark.parametrize(
    ("defaults", "maximum", "message"),
    [
        ({"cactus_delta": 2}, {"delta": 1}, "cactus_delta is 2, and this server allows at most 1."),
        ({"cactus_delta": -1}, {}, "cactus_delta is -1, but must be"),
        ({"cactus_rule": "ratio", "cactus_alpha": 2}, {"delta": 1}, "which this server does not offer"),
        ({"cactus_delta": 1, "cactus_max_relaxed": 20}, {"max_relaxed": 10}, "cactus_max_relaxed is 20"),
        ({"cactus_rule": "lossy"}, {}, "cactus_rule is 'lossy'"),
        # of a rule that the defaults themselves do not use, or without the dial that would open it
        ({"cactus_delta": 1, "cactus_alpha": 0.5}, {}, "cactus_alpha is 0.5"),
        ({"cactus_max_ratio": 0.5}, {}, "cactus_max_ratio is 0.5"),
        ({"cactus_max_relaxed": -1}, {}, "cactus_max_relaxed is -1"),
    ],
)
def test_defaults_that_no_request_may_have_are_refused_at_once(defaults, maximum, message):
    assert message in refusal(Settings, defaults, maximum)


# where a server's settings come from


def test_no_variables_are_no_settings():
    assert of_environment({}) == of_environment({"PATH": "/bin", "VLLM_PLUGINS": "", "CACTUS_OTHER": "1"}) == Settings()


def test_variables_are_read():
    settings = of_environment(
        {
            "CACTUS_VLLM_DELTA": "0.25",
            "CACTUS_VLLM_RULE": "exact",
            "CACTUS_VLLM_MAX_RATIO": "4",
            "CACTUS_VLLM_MAX_RELAXED": "7",
            "CACTUS_VLLM_MAXIMUM_DELTA": "1",
            "CACTUS_VLLM_MAXIMUM_ALPHA": "4",
            "CACTUS_VLLM_MAXIMUM_MAX_RELAXED": "100",
            "CACTUS_VLLM_LOG_REQUESTS": "1",
            "CACTUS_VLLM_COUNTS": "/somewhere",
        }
    )
    assert settings.relaxation_of({}) == Relaxation(Cactus(0.25, "exact", max_ratio=4.0), 7)
    assert settings.maximum == {"delta": 1, "alpha": 4, "max_relaxed": 100}
    assert settings.log_requests is True


@pytest.mark.parametrize(("text", "meaning"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_log_requests_is_true_or_false(text, meaning):
    assert of_environment({"CACTUS_VLLM_LOG_REQUESTS": text}).log_requests is meaning


@pytest.mark.parametrize("text", ["maybe", "2", "[]"])
def test_log_requests_that_is_neither_is_refused(text):
    message = refusal(of_environment, {"CACTUS_VLLM_LOG_REQUESTS": text})
    assert message.startswith("log_requests is ")
    assert message.endswith(", but must be true or false.")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DETLA": "1"}, "the variable CACTUS_VLLM_DETLA is no setting of Cactus for vLLM: did you mean"),
        ({"MAXIMUM_DELT": "1"}, "did you mean CACTUS_VLLM_MAXIMUM_DELTA?"),
        ({"ZZZZZZZZZ": "1"}, "the names are CONFIG, LOG_REQUESTS"),
        ({"MAXIMUM_MAX_RATIO": "1"}, "CACTUS_VLLM_MAXIMUM_MAX_RATIO is no setting"),
        ({"DELTA": "much"}, "cactus_delta is 'much', but must be a finite number"),
        ({"DELTA": "-1"}, "cactus_delta is -1, but must be a finite number of at least 0"),
        ({"DELTA": ".nan"}, "cactus_delta is nan, but must be"),
        ({"DELTA": ".inf"}, "cactus_delta is inf, but must be"),
        ({"DELTA": "true"}, "cactus_delta is True, but must be"),
        ({"DELTA": "[0.25"}, "DELTA is '[0.25', which cannot be read"),
        ({"MAXIMUM_DELTA": "lots"}, "maximum delta is 'lots', but must be"),
        ({"CONFIG": "/no/such/file.yaml"}, "CACTUS_VLLM_CONFIG is '/no/such/file.yaml', which cannot be read"),
    ],
)
def test_variables_that_mean_nothing_are_refused(variables, message):
    assert message in refusal(of_environment, {f"CACTUS_VLLM_{name}": value for name, value in variables.items()})


@pytest.fixture
def file(tmp_path):
    """Write a settings file and give the environment that names it."""

    def written(text, **variables):
        path = tmp_path / "cactus.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return {"CACTUS_VLLM_CONFIG": str(path), **{f"CACTUS_VLLM_{k}": v for k, v in variables.items()}}

    return written


def test_a_file_is_read(file):
    settings = of_environment(
        file(
            "defaults: {delta: 0.25, max_ratio: 4}\nmaximum: {delta: 1, alpha: 4, max_relaxed: 100}\nlog_requests: true"
        )
    )
    assert settings.relaxation_of({}) == Relaxation(Cactus(0.25, max_ratio=4.0), 100)
    assert settings.maximum == {"delta": 1, "alpha": 4, "max_relaxed": 100}
    assert settings.log_requests


def test_the_environment_beats_the_file_name_by_name(file):
    text = "defaults: {delta: 0.25, max_ratio: 4}\nmaximum: {delta: 1, max_relaxed: 9}\nlog_requests: true"
    settings = of_environment(file(text, DELTA="2", MAXIMUM_DELTA="3", LOG_REQUESTS="false"))
    assert settings.relaxation_of({}) == Relaxation(Cactus(2.0, max_ratio=4.0), 9)
    assert settings.maximum == {"delta": 3, "max_relaxed": 9}
    assert settings.log_requests is False


def test_an_empty_file_sets_nothing(file):
    assert of_environment(file("")) == of_environment(file("# nothing\n")) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: {delta: 1}", "default is no setting of Cactus for vLLM: did you mean defaults?"),
        ("defaults: {detla: 1}", "defaults: detla is no setting of Cactus for vLLM: did you mean delta?"),
        ("maximum: {max_ratio: 4}", "maximum: max_ratio is no setting of Cactus for vLLM"),
        ("maximum: {3: 4}", "maximum: 3 is no setting of Cactus for vLLM: the names are delta, alpha, max_relaxed."),
        ("defaults: 0.25", "defaults is 0.25, but must be a mapping."),
        ("[1, 2]", "holds [1, 2], but must be a mapping of defaults, maximum, log_requests."),
        ("defaults: {delta: [}", "which cannot be read"),
        (b"\xff\xfe\xff", "which cannot be read"),
        ("log_requests: often", "log_requests is 'often', but must be true or false."),
        ("defaults: {delta: -1}", "cactus_delta is -1"),
    ],
)
def test_a_file_that_means_nothing_is_refused(file, text, message):
    assert message in refusal(of_environment, file(text))


def test_a_folder_is_no_file(tmp_path):
    assert f"CACTUS_VLLM_CONFIG is '{tmp_path}', which cannot be read" in refusal(
        of_environment, {"CACTUS_VLLM_CONFIG": str(tmp_path)}
    )


@pytest.mark.parametrize("cap", [2**31, 2**64, 10**30])
def test_a_cap_beyond_every_response_is_refused(cap):
    with pytest.raises(InvalidParameter, match=f"cactus_max_relaxed is {cap}"):
        relaxation_of({"cactus_delta": 1, "cactus_max_relaxed": cap})


def test_what_is_empty_is_not_set(tmp_path):
    path = tmp_path / "cactus.yaml"
    path.write_text("defaults:\nmaximum:\n")
    assert of_environment({"CACTUS_VLLM_DELTA": "", "CACTUS_VLLM_CONFIG": str(path)}) == Settings()


def test_numbers_may_have_an_exponent(tmp_path):
    path = tmp_path / "cactus.yaml"
    path.write_text("maximum: {delta: 1e0}")
    found = of_environment({"CACTUS_VLLM_DELTA": "25e-2", "CACTUS_VLLM_CONFIG": str(path)})
    assert found == Settings({"cactus_delta": 0.25}, {"delta": 1.0})


def test_what_kubernetes_says_of_a_service_is_none_of_ours():
    """Of one called cactus-vllm, to every pod of its namespace."""
    of_a_service = {
        "CACTUS_VLLM_SERVICE_HOST": "10.0.0.1",
        "CACTUS_VLLM_SERVICE_PORT_HTTP": "8000",
        "CACTUS_VLLM_PORT": "tcp://10.0.0.1:8000",
        "CACTUS_VLLM_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert of_environment(of_a_service) == Settings()
