"""The model "cactus" of lm-evaluation-harness, and its tasks as tasks of this package, on files written here."""

import json
import random
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import cactus_decoding as cactus
from cactus_decoding.embedded import ABACUS_DIR
from cactus_decoding.embedded.problems import make_problems
from cactus_decoding.errors import InvalidParameter, MissingExtra
from cactus_decoding.evaluation.tasks.harness.catalogue import config_of
from cactus_decoding.evaluation.tasks.harness.data import on_local_data
from cactus_decoding.evaluation.tasks.lm_eval import LmEvalTask
from cactus_decoding.integrations.harness.requests import Once, options_of
from cactus_decoding.integrations.lm_eval import CactusLM

PROBLEMS = make_problems(8, seed=5_000_011)
QUESTIONS = [problem.question for problem in PROBLEMS]
SUMS = """
task: word_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer.split('#### ')[-1]}}}}"
generation_kwargs: {{until: ["</s>"], do_sample: true, temperature: 0.8, max_gen_toks: 90}}
filter_list:
  - name: last-number
    filter: [{{function: regex, group_select: -1, regex_pattern: "(-?[0-9]+)"}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A task of lm-eval over word problems in GSM8K's shape."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"question": problem.question, "answer": f"By hand.\n#### {problem.answer}"} for problem in PROBLEMS]
    write_lines(folder / "sums.jsonl", rows)
    (folder / "word_sums.yaml").write_text(SUMS.format(data=folder / "sums.jsonl", cache=folder / "cache"))
    return folder


@pytest.fixture
def evaluate(folder, monkeypatch):
    """`lm_eval.simple_evaluate` on these problems."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)  # it asks pip and git: ten seconds
    tasks = TaskManager(include_path=str(folder), include_defaults=False)

    def run(model, **options):
        return lm_eval.simple_evaluate(
            model, task_manager=tasks, bootstrap_iters=0, **{"tasks": ["word_sums"], "limit": 4, **options}
        )

    return run


def write_lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def texts(results):
    return [sample["resps"][0][0] for sample in results["samples"]["word_sums"]]


def requests(*contexts, **gen_kwargs):
    return [Instance("generate_until", {}, (context, gen_kwargs), 0) for context in contexts]


# --- the model


@pytest.mark.parametrize("chat", [True, False])
def test_texts_are_those_of_generate(abacus, evaluate, chat):
    model = CactusLM(pretrained=abacus, rule="cactus", delta=0.5, m=4, seed=7, batch_size=3)
    found = evaluate(model, apply_chat_template=chat)
    options = {"m": 4, "seed": 7, "temperature": 0.8, "stop": ["</s>"], "max_new_tokens": 90}
    expected = abacus.generate(QUESTIONS[:4], rule=cactus.Cactus(delta=0.5), chat=chat, **options)
    assert texts(found) == [out.text for out in expected]
    statistics = found["config"]["cactus"]["statistics"]
    assert statistics["tokens"] == sum(out.stats.tokens for out in expected)
    assert statistics["relaxed"] == sum(out.stats.relaxed for out in expected) > 0
    assert found["config"]["cactus"]["rule"] == "cactus:delta=0.5"


def test_greedy_texts_are_right_and_the_same_every_time(evaluate):
    options = {"gen_kwargs": "do_sample=False", "apply_chat_template": True, "limit": 8}
    found = evaluate("cactus", model_args="pretrained=abacus,m=4", **options)
    again = evaluate("cactus", model_args={"pretrained": "abacus", "m": 2, "batch_size": 2}, batch_size=1, **options)
    assert texts(found) == texts(again)
    assert found["results"]["word_sums"]["exact_match,last-number"] > 0.6


@pytest.mark.parametrize("gen_kwargs", ["do_sample=False", "do_sample=False,max_gen_toks=20,until=####"])
def test_greedy_texts_are_those_of_lm_evals_own_model(abacus, evaluate, gen_kwargs):
    reference = HFLM(pretrained=str(ABACUS_DIR / "verifier"), device="cpu", dtype="float32", batch_size=4)
    found = [
        texts(evaluate(model, gen_kwargs=gen_kwargs, apply_chat_template=chat))
        for model in (reference, CactusLM(pretrained=abacus, m=4))
        for chat in (True, False)
    ]
    assert found[:2] == found[2:]


def test_without_a_seed_torchs_decides(evaluate):
    runs = [evaluate("cactus", model_args="pretrained=abacus,m=4", limit=2, torch_random_seed=s) for s in (1, 1, 2)]
    assert texts(runs[0]) == texts(runs[1]) != texts(runs[2])


def test_a_text_ends_before_its_stop_string(abacus):
    model = CactusLM(pretrained=abacus, m=4)
    asked = requests(model.apply_chat_template([{"role": "user", "content": QUESTIONS[0]}]), until=["\n####", ""])
    whole = abacus.generate(QUESTIONS[0], temperature=0).text
    assert model.generate_until(asked) == [whole[: whole.index("\n####")]]
    eos = abacus.tokenizer.eos_token
    assert model.generate_until(requests(asked[0].args[0], until=[eos])) == [whole]


def test_a_context_that_is_too_long_loses_its_beginning(abacus):
    model = CactusLM(pretrained=abacus, m=4)
    long = " ".join(QUESTIONS * 20)
    found = model.generate_until(requests(long, QUESTIONS[0], max_gen_toks=8, do_sample=False))
    ids = abacus.tokenizer.encode(long)[-(abacus.verifier.context - 8) :]
    assert found[0] == abacus.generate(ids, m=4, temperature=0, max_new_tokens=8).text
    assert model.get_model_info()["cactus"]["truncated_contexts"] == 1
    with pytest.raises(InvalidParameter, match="max_gen_toks"):
        model.generate_until(requests("Hi", max_gen_toks=abacus.verifier.context))


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, "pretrained is None"),
        ({"pretrained": "abacus", "dleta": 0.5}, "'dleta' is no argument .* pretrained, draft, .* delta"),
        ({"pretrained": "abacus", "delta": 0.5}, "'lossless' has no setting 'delta'"),
        ({"pretrained": "abacus", "rule": "cactus:delta=0.5", "delta": 0.5}, "twice"),
        ({"pretrained": "abacus", "rule": 3}, "rule is 3"),
        ({"pretrained": "abacus", "rule": cactus.Cactus(0.5), "delta": 0.5}, "Leave delta out"),
        ({"pretrained": "abacus", "batch_size": "auto"}, "batch_size is 'auto'"),
        ({"pretrained": "abacus", "max_batch_size": 8}, "max_batch_size is 8"),
        ({"pretrained": "abacus", "m": -1}, "m is -1"),
        ({"pretrained": "abacus", "top_p": 2}, "top_p is 2"),
        ({"pretrained": "abacus", "seed": 0.5}, "seed is 0.5"),
    ],
)
def test_what_is_no_argument_is_refused(given, names):
    with pytest.raises(InvalidParameter, match=names):
        CactusLM(**given)


def test_a_loaded_pair_needs_a_tokenizer_and_nothing_to_load(abacus, tiny_pair):
    with pytest.raises(InvalidParameter, match="without a tokenizer"):
        CactusLM(pretrained=tiny_pair)
    with pytest.raises(InvalidParameter, match="draft is given"):
        CactusLM(pretrained=abacus, draft="prompt-lookup")


def test_one_size_of_batch_is_enough():
    arguments = {"pretrained": "abacus", "batch_size": 4}
    assert CactusLM.create_from_arg_obj(arguments, {"batch_size": "1", "device": None}).arguments.rows == 4
    with pytest.raises(InvalidParameter, match=r"batch_size is 4 .* '2'"):
        CactusLM.create_from_arg_obj(arguments, {"batch_size": "2"})
    device = CactusLM.create_from_arg_string("pretrained=abacus,device=cpu", {"device": "cuda:0"}).pair.verifier.device
    assert device.type == "cpu"


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"num_beams": 4}, "num_beams=4.* until, max_gen_toks"),
        ({"length_penalty": 2}, "length_penalty=2"),
        ({"do_sample": "maybe"}, "do_sample is 'maybe'"),
        ({"until": 3}, "until is 3"),
        ({"max_gen_toks": 4, "max_new_tokens": 5}, "several times: max_gen_toks=4, max_new_tokens=5"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(asked, names):
    with pytest.raises(InvalidParameter, match=names):
        options_of(asked, {}, 256, Once())


@pytest.mark.parametrize(
    ("asked", "temperature"),
    [
        ({}, 0.6),
        ({"do_sample": True}, 0.6),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"temperature": 0.3}, 0.3),
        ({"temperature": 0.0}, 0.0),
        ({"do_sample": False, "temperature": 0.3}, 0.0),
    ],
)
def test_a_temperature_of_the_model_holds_where_the_task_leaves_it_open(asked, temperature):
    assert options_of(asked, {"temperature": 0.6, "top_p": 0.9}, 256, Once())["temperature"] == temperature
    assert options_of({**asked, "top_k": 3, "num_beams": 1}, {"top_k": 5}, 256, Once())["top_k"] == 3


def test_without_a_temperature_a_request_is_greedy_unless_it_samples():
    assert [options_of(asked, {}, 9, Once())["temperature"] for asked in ({}, {"do_sample": True})] == [0.0, 1.0]


def test_a_temperature_that_does_nothing_is_said_once():
    once = Once()
    for _ in range(3):
        options_of({"do_sample": False}, {"temperature": 0.6}, 9, once)
    (message,) = once.said
    assert "--gen_kwargs do_sample=True,temperature=0.6" in message


def test_likelihoods_are_refused(abacus):
    model = CactusLM(pretrained=abacus)
    for ask in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(InvalidParameter, match="only what is generated.*model hf"):
            ask([])


def test_the_chat_template_is_the_tokenizers(abacus):
    model = CactusLM(pretrained=abacus)
    assert model.chat_template(True) == abacus.tokenizer.chat_template
    assert model.chat_template(False) is None
    with pytest.raises(InvalidParameter, match="'other'"):
        model.chat_template("other")


def test_the_entry_point_is_the_model():
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    group, value = re.search(r'\[project.entry-points."(lm_eval.models)"].*\ncactus = "(.*)"', project).groups()
    assert EntryPoint("cactus", value, group).load() is CactusLM


def test_the_command_line(folder, tmp_path):
    words = ["--model", "cactus", "--model_args", "pretrained=abacus,rule=cactus,delta=0.5,m=4,threads=1"]
    words += ["--tasks", "word_sums", "--include_path", folder, "--limit", "2", "--output_path", tmp_path]
    command = [sys.executable, "-c", "from cactus_decoding.cli import main; main()", "lm-eval", *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "word_sums" in done.stdout
    assert re.search(r"cactus:delta=0.5: \d+ tokens in \d+ verifier calls", done.stderr)
    (results,) = tmp_path.rglob("results*.json")
    assert json.loads(results.read_text())["config"]["cactus"]["statistics"]["verifier_calls"] > 0


def test_a_refusal_is_one_line_on_the_command_line(cactus_command, monkeypatch):
    def refuse():
        assert sys.argv == ["lm-eval", "run", "--help"]
        raise InvalidParameter("no")

    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", refuse)
    assert cactus_command("lm-eval", "run", "--help") == (2, "", "cactus: no\n")


# --- the tasks


@pytest.fixture
def ifeval(tmp_path, monkeypatch):
    monkeypatch.setattr("nltk.download", lambda *names: False)  # which the task calls when it is imported
    rows = [
        {"prompt": "Praise the sea.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {
            "prompt": "Be short.",
            "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
            "kwargs": [{}, {"num_words": 3, "relation": "less than"}],
        },
    ]
    return write_lines(tmp_path / "ifeval.jsonl", [{"key": key, **row} for key, row in enumerate(rows)])


@pytest.fixture
def gpqa(tmp_path):
    wrong = {f"Incorrect Answer {k}": f"wrong {k}" for k in (1, 2, 3)}
    rows = [{"Question": f"What is {k}?", "Correct Answer": "right", **wrong} for k in range(6)]
    path = tmp_path / "gpqa.json"
    path.write_text(json.dumps(rows))  # one list
    return path


def test_gsm8k_asks_and_judges_as_lm_eval_does(folder):
    task = LmEvalTask("gsm8k", folder / "sums.jsonl", shots=0)
    item = task.items[0]
    assert item.prompt == f"Question: {QUESTIONS[0]}\nAnswer:"
    assert item.answer == f"By hand.\n#### {PROBLEMS[0].answer}"
    assert item.options == {"stop": ["Question:", "</s>", "<|im_end|>"]}
    right, wrong = f"It is ${PROBLEMS[0].answer}.", f"It is {PROBLEMS[0].answer + 1}."
    assert [task.score(item, text) for text in (right, wrong, "")] == [1.0, 0.0, 0.0]
    assert task.judged_by(item).startswith("gsm8k, exact_match by flexible-extract, lm-eval ")


def test_examples_are_the_same_every_time_and_never_the_problem_itself(folder):
    first, again = (LmEvalTask("gsm8k", folder / "sums.jsonl") for _ in range(2))
    assert first.fingerprint(8) == again.fingerprint(8)
    for item, question in zip(first.items, QUESTIONS, strict=True):
        assert item.prompt.count("Question:") == 6
        assert item.prompt.count(question) == 1


def test_prompts_are_those_that_lm_eval_sends(abacus, evaluate, folder):
    config = on_local_data(config_of("gsm8k"))
    data = {"dataset_path": "json", "dataset_name": None}
    data["dataset_kwargs"] = {"data_files": {"local": str(folder / "sums.jsonl")}, "cache_dir": str(folder / "cache")}
    sent = evaluate(CactusLM(pretrained=abacus), tasks=[{**config, **data}], limit=3, gen_kwargs="max_gen_toks=1")
    prompts = [sample["arguments"][0][0] for sample in sent["samples"]["gsm8k"] if sample["filter"] == "strict-match"]
    assert [item.prompt for item in LmEvalTask("gsm8k", folder / "sums.jsonl").items[:3]] == prompts


def test_ifeval_judges_the_whole_prompt_strictly(ifeval):
    task = LmEvalTask("ifeval", ifeval)
    assert [item.prompt for item in task.items] == ["Praise the sea.", "Be short."]
    assert task.items[0].options == {"stop": [], "max_new_tokens": 1280}
    assert [task.score(task.items[0], text) for text in ("So wide", "So wide, so blue", "")] == [1.0, 0.0, 0.0]
    assert [task.score(task.items[1], text) for text in ("Yes indeed", "Yes I would", "Yes, I")] == [1.0, 0.0, 0.0]
    assert "prompt_level_strict_acc" in task.judged_by(task.items[0])


def test_gpqa_shuffles_its_choices_the_same_way_every_time(gpqa):
    state = random.getstate()
    task, again = LmEvalTask("gpqa", gpqa), LmEvalTask("gpqa_diamond_cot_zeroshot", gpqa)
    assert random.getstate() == state
    assert [item.prompt for item in task.items] == [item.prompt for item in again.items]
    assert len({item.answer for item in task.items}) > 1
    item = task.items[0]
    assert f"{item.answer} right" in item.prompt
    other = "(A)" if item.answer != "(A)" else "(B)"
    assert [task.score(item, f"So the answer is {a}.") for a in (item.answer, other)] == [1.0, 0.0]


def test_a_pairs_responses_are_judged(abacus, folder):
    task = LmEvalTask("gsm8k", folder / "sums.jsonl", shots=0)
    outputs = abacus.generate(QUESTIONS, m=4, temperature=0)
    assert sum(task.score(item, out.text) for item, out in zip(task.items, outputs, strict=True)) > 4


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gsm9k", "The nearest names are gsm8k"),
        ("gpqa_main_zeroshot", "'multiple_choice'.* 'gpqa_main_cot_zeroshot' does"),
        ("wikitext", "'loglikelihood_rolling'"),
        ("mmlu", "is a group of tasks"),
        ("humaneval", "runs the programs.* cactus lm-eval"),
        ("squadv2", "Python class"),
        ("gsm8k_cot_self_consistency", "judges 64 responses"),
        ("triviaqa", "mandarjoshi/trivia_qa, cannot be had: .* Give a local file"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(name, says):
    with pytest.raises(InvalidParameter, match=says):
        LmEvalTask(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"question": "a", "answer": "b"}\n{"question"', "line 2 is no JSON"),
        ('{"question": "a", "answer": "b"}\n\n{"question": "a"}', "line 3 has no 'answer'"),
        ('{"question": "a", "answer": "b"}\n7', "line 2 has no 'answer', 'question'"),
        ('[{"question": "a", "answer": "b"}, {}]', "entry 2 has no 'answer', 'question'"),
        ('{"question": "a", "answer": "b"}\n{"question": "a", "answer": 3}', "do not fit each other"),
        ("", "holds no problem"),
        ('{"question": "a", "answer": "b"}', "5 examples .* 1 rows"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_their_line(tmp_path, text, says):
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match=says):
        LmEvalTask("gsm8k", path, shots=None if "examples" in says else 0)


def test_data_of_functions_are_checked_too(tmp_path, ifeval):
    with pytest.raises(InvalidParameter, match="line 1 has no 'key', 'instruction_id_list', 'kwargs'"):
        LmEvalTask("ifeval", write_lines(tmp_path / "x", [{"prompt": "Hi"}]))
    row = {"key": 1, "prompt": "Hi", "instruction_id_list": ["count:what"], "kwargs": [{}]}
    with pytest.raises(InvalidParameter, match="knows nothing of 'count:what'"):
        LmEvalTask("ifeval", write_lines(tmp_path / "x", [row]))


def test_a_metric_that_is_no_number_per_response_is_named(tmp_path):
    row = {"translation": {"de": "Guten Tag", "en": "Good day"}}
    with pytest.raises(InvalidParameter, match="no metric .* 'bleu', 'ter', 'chrf'"):
        LmEvalTask("wmt16-de-en", write_lines(tmp_path / "x.jsonl", [row]))


def test_without_lm_eval_the_command_that_brings_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingExtra, match=r"pip install \"cactus-decoding\[eval\]\""):
        LmEvalTask("gsm8k")
