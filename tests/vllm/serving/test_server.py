"""vLLM's OpenAI-compatible server with the plugin, asked by the openai client."""

import json
import time
import urllib.error
import urllib.request

import openai
import pytest

from cactus_decoding.embedded.problems import make_problems

QUESTIONS = [problem.question for problem in make_problems(24, seed=31)]


def ask(client, question, *, stream=False, seed=1, temperature=1.0, **parameters):
    """A chat answer's text."""
    extra = {"vllm_xargs": parameters} if parameters else {}
    got = client.chat.completions.create(
        model="abacus",
        messages=[{"role": "user", "content": question}],
        temperature=temperature,
        max_tokens=100,
        seed=seed,
        stream=stream,
        extra_body=extra,
    )
    if stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in got)
    return got.choices[0].message.content


def drafted(server):
    """Drafts, accepted drafts, and what the plugin counted, once it has settled."""
    time.sleep(1.5)
    page = server.page()
    return {name: sum(values.values()) for name, values in page.items() if "spec_decode" in name or "cactus" in name}


def grown(before, after, name):
    return after.get(name, 0) - before.get(name, 0)


def test_answers_with_and_without_the_parameter_streamed_or_not(client):
    question = QUESTIONS[0]
    plain, lossless = ask(client, question), ask(client, question, cactus_delta=0)
    assert plain == lossless == ask(client, question, stream=True)
    relaxed = ask(client, question, cactus_delta=1)
    assert "####" in relaxed
    assert relaxed == ask(client, question, stream=True, cactus_delta=1)
    assert ask(client, question, temperature=0) == ask(client, question, temperature=0, cactus_delta=1)


def test_the_completions_endpoint_takes_it_as_well(client, server):
    before = drafted(server)
    got = client.completions.create(
        model="abacus",
        prompt=f"<bos><|user|>{QUESTIONS[1]}<|assistant|>",
        max_tokens=60,
        extra_body={"vllm_xargs": {"cactus_rule": "ratio", "cactus_alpha": 4, "cactus_max_relaxed": 5}},
    )
    assert got.choices[0].text
    assert grown(before, drafted(server), "vllm:cactus_num_drafts_total") > 0


def test_several_answers_to_one_question(client, server):
    before = drafted(server)
    got = client.chat.completions.create(
        model="abacus",
        messages=[{"role": "user", "content": QUESTIONS[2]}],
        n=3,
        max_tokens=60,
        extra_body={"vllm_xargs": {"cactus_delta": 1}},
    )
    assert len(got.choices) == 3
    after = drafted(server)
    assert grown(before, after, "vllm:cactus_num_drafts_total") > 0
    assert grown(before, after, "vllm:cactus_num_drafts_total") == grown(
        before, after, "vllm:spec_decode_num_drafts_total"
    )


def test_acceptance_rises_and_the_page_says_what_it_cost(client, server):
    start = drafted(server)
    for seed, question in enumerate(QUESTIONS):
        ask(client, question, seed=seed)
    middle = drafted(server)
    for seed, question in enumerate(QUESTIONS):
        ask(client, question, seed=seed, cactus_delta=1)
    end = drafted(server)

    def length(a, b, prefix):
        accepted = grown(a, b, f"vllm:{prefix}_num_accepted_tokens_total")
        return accepted / grown(a, b, f"vllm:{prefix}_num_drafts_total")

    assert grown(start, middle, "vllm:cactus_num_drafts_total") == 0
    assert length(middle, end, "spec_decode") > length(start, middle, "spec_decode")
    for what in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"):
        both = {grown(middle, end, f"vllm:{prefix}_num_{what}_total") for prefix in ("spec_decode", "cactus")}
        assert len(both) == 1, what
    relaxed = grown(middle, end, "vllm:cactus_num_relaxed_tokens_total")
    examined = grown(middle, end, "vllm:cactus_num_examined_tokens_total")
    assert 0 < relaxed < examined < grown(middle, end, "vllm:cactus_num_draft_tokens_total")


def test_the_series_have_the_labels_of_vllms_own(server):
    page = server.page()
    assert page["vllm:cactus_num_drafts_total"].keys() == page["vllm:spec_decode_num_drafts_total"].keys()
    by_position = "num_accepted_tokens_per_pos_total"
    assert page[f"vllm:cactus_{by_position}"].keys() == page[f"vllm:spec_decode_{by_position}"].keys()


def test_a_request_that_was_relaxed_is_logged(client, server):
    ask(client, QUESTIONS[3], cactus_delta=0.7, cactus_max_ratio=4)
    time.sleep(1.5)
    lines = [line for line in server.log.read_text().splitlines() if "Cactus: request chatcmpl-" in line]
    assert any("cactus:delta=0.7,max_ratio=4" in line and "relaxed" in line and "by position" in line for line in lines)


BAD = [
    ({"cactus_delta": -1}, "cactus_delta is -1"),
    ({"cactus_delta": "much"}, "cactus_delta is 'much'"),
    ({"cactus_delta": "NaN"}, "cactus_delta is 'NaN'"),
    ({"cactus_delta": 2.5}, "cactus_delta is 2.5, and this server allows at most 2"),
    ({"cactus_rule": "ratio", "cactus_alpha": 9}, "cactus_alpha is 9, and this server allows at most 8"),
    ({"cactus_rule": "ratio", "cactus_alpha": 0.5}, "cactus_alpha is 0.5"),
    ({"cactus_rule": "ratio", "cactus_delta": 1}, "cactus_delta is 1, which cactus_rule 'ratio' does not read"),
    ({"cactus_rule": "fly", "cactus_delta": 1}, "cactus_rule is 'fly', which is none of second_order, exact, ratio"),
    ({"cactus_delta": 1, "cactus_max_relaxed": 41}, "cactus_max_relaxed is 41, and this server allows at most 40"),
    ({"cactus_delta": 1, "cactus_max_relaxed": 0.5}, "cactus_max_relaxed is 0.5"),
    ({"cactus_detla": 1}, "did you mean cactus_delta?"),
    ({"cactus_resolved": 1}, "cactus_resolved"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("parameters", "reason"), BAD, ids=str)
def test_bad_values_are_refused_with_the_reason(client, parameters, reason, stream):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, QUESTIONS[0], stream=stream, **parameters)
    assert raised.value.status_code == 400
    assert reason in raised.value.message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused_too(server, number):
    body = json.dumps({"model": "abacus", "prompt": "x", "vllm_xargs": {"cactus_delta": "?"}}).replace('"?"', number)
    request = urllib.request.Request(
        f"{server.address}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    assert raised.value.code == 400
    assert "cactus_delta is " in raised.value.read().decode()


def test_after_all_that_it_still_answers(client):
    assert ask(client, QUESTIONS[0], cactus_delta=1)
