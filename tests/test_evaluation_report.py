"""From responses to figures, verdicts and samples, and from these to pages."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cactus_decoding.evaluation.outcomes import outcomes_of
from cactus_decoding.evaluation.paired import compare
from cactus_decoding.evaluation.plan import Setting, labels_of
from cactus_decoding.evaluation.report import write_report
from cactus_decoding.evaluation.report.markdown import marked
from cactus_decoding.evaluation.report.tables import brief_table, quality_table, speed_table
from cactus_decoding.evaluation.samples import most_differing
from cactus_decoding.evaluation.summary import Summary, TaskSummary, rows_of
from cactus_decoding.evaluation.sweep import Stopped
from cactus_decoding.evaluation.tasks.base import Item, Task
from cactus_decoding.evaluation.verdicts import holm
from cactus_decoding.sampling import SamplingParams
from tests.evaluated import CACTUS, LOSSLESS, PLAIN, VERIFIER, plan_of, record_of

RATIO = Setting.of("ratio:2", 5, PLAIN)
N = 40


def records(right=N, **stats):
    return [record_of(str(item), float(item < right), **stats) for item in range(N)]


def outcomes(**settings):
    named = {"lossless": LOSSLESS, "cactus": CACTUS, "ratio": RATIO, "verifier": VERIFIER}
    return {named[name]: outcomes_of(rows, 1) for name, rows in settings.items()}


# --- figures -------------------------------------------------------------------------------------------------------


def test_figures_are_those_counted_by_hand():
    audit = {"total_kl": 0.6, "tokens": 10}
    rows = [
        record_of("0"),
        record_of("1", 0.0, tokens=30, verifier_calls=6, kept=20, relaxed=3, refused=1, audit=audit),
    ]
    rows[1]["finish_reason"] = "length"
    (row,) = rows_of({LOSSLESS: outcomes_of(rows, 1)})
    assert {name: value.estimate for name, value in row.figures.items()} == pytest.approx(
        {
            "accepted_length": (7 + 23) / 10, "tokens_per_call": 40 / 10, "acceptance": 30 / 33,
            "relaxed_share": 4 / 33, "refusals_per_token": 3 / 40, "kl_per_token": 0.06, "calls_per_answer": 5,
            "tokens_per_answer": 20, "seconds_per_answer": 0.5, "tokens_per_second": 40, "cut": 0.5,
        }
    )  # fmt: skip
    assert row.score.estimate == 0.5
    assert row.places == [[10, 8, 2], [8, 6, 0]]


def test_samples_of_a_problem_stand_beside_each_other():
    rows = [
        record_of(item, score, sample)
        for item, scores in (("a", (1, 0, 0)), ("b", (1, 1, 0.5)))
        for sample, score in enumerate(scores)
    ]
    found = outcomes_of(rows, 3)
    assert found.scores.tolist() == [[1, 0, 0], [1, 1, 0.5]]
    assert found.columns["answers"].tolist() == [3, 3]
    assert found.columns["tokens"].tolist() == [30, 30]


def test_places_of_blocks_of_different_length_are_added_up():
    rows = [record_of("0"), record_of("1"), record_of("2")]
    rows[1]["places"], rows[2]["places"] = [], [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert outcomes_of(rows, 1).places.tolist() == [[6, 5, 2], [5, 4, 0], [1, 0, 0]]


def test_changes_are_against_lossless_and_the_verifier():
    rows = rows_of(
        outcomes(
            verifier=records(seconds=2.0, drafted=0, kept=0, relaxed=0, refused=0, verifier_calls=10),
            lossless=records(refused=2),
            cactus=records(refused=1, seconds=0.25),
        )
    )
    verifier, lossless, cactus = (row.changes for row in rows)
    assert verifier == {}
    assert set(lossless) == {"seconds_per_answer"}
    assert cactus["refusals_per_token"].estimate == pytest.approx(-0.5)
    assert cactus["seconds_per_answer"].estimate == pytest.approx(-0.875)
    assert cactus["tokens_per_answer"].estimate == 0
    assert [row[9] for row in speed_table(task_of(rows)).rows] == ["-", "4.00x", "8.00x"]


def test_p_is_adjusted_for_all_settings_in_question_and_only_they_get_a_verdict():
    found = outcomes(verifier=records(38), lossless=records(40), cactus=records(30), ratio=records(33))
    verifier, lossless, cactus, ratio = rows_of(found)
    p = [compare(found[LOSSLESS].scores, found[one].scores).p for one in (CACTUS, RATIO)]
    assert [cactus.adjusted_p, ratio.adjusted_p] == holm(p) == [2 * p[0], p[1]]
    assert (cactus.verdict.kind, ratio.verdict.kind) == ("loses", "loses")
    assert lossless.comparison is lossless.verdict is verifier.verdict is verifier.adjusted_p is None
    assert verifier.comparison.lost == 2
    cautious = rows_of(found, stopped=3)[2]  # three more were begun, and left out for what they showed
    assert cautious.adjusted_p == pytest.approx(5 * p[0])
    assert cautious.comparison.smallest_loss > cactus.comparison.smallest_loss
    assert cactus.comparison.smallest_loss > compare(found[LOSSLESS].scores, found[CACTUS].scores).smallest_loss


def test_a_rule_that_is_lossless_by_its_setting_is_in_no_question_but_no_reference_either():
    none = Setting.of("cactus:0", 5, PLAIN)
    rows = rows_of({LOSSLESS: outcomes_of(records(), 1), none: outcomes_of(records(39), 1)})
    assert rows[1].verdict is None
    assert [row[-1] for row in quality_table(task_of(rows)).rows] == ["the reference", "the verifier's law"]


def test_a_setting_is_compared_with_lossless_of_its_own_draft_length_and_law():
    cold = SamplingParams(temperature=0.5)
    pairs = [(5, PLAIN, 40, 30), (6, PLAIN, 35, 35), (5, cold, 20, 25)]
    found = {}
    for m, law, reference, right in pairs:
        found[Setting.of("lossless", m, law)] = outcomes_of(records(reference), 1)
        found[Setting.of("cactus:1", m, law)] = outcomes_of(records(right), 1)
    rows = rows_of(found)
    assert [row.comparison.difference.estimate * N for row in rows if row.comparison] == pytest.approx([-10, 0, 5])
    assert [row.label for row in rows[1::2]] == [
        "cactus:delta=1 m=5 T=1", "cactus:delta=1 m=6 T=1", "cactus:delta=1 m=5 T=0.5"
    ]  # fmt: skip


# --- samples -------------------------------------------------------------------------------------------------------

WORDS = "<script>alert(1)</script> a | b & ```c```"


class Asked(Task):
    name = "asked | <b>"

    def __init__(self):
        self.items = [Item(str(number), f"{number}: {WORDS}", "4 < 5") for number in range(N)]

    def score(self, item, text):
        return 0.0


def differing_of(lossless, cactus, ratio, samples=1):
    named = {LOSSLESS: lossless, CACTUS: cactus, RATIO: ratio}
    return most_differing(Asked(), named, labels_of(list(named)), samples)


def test_the_problems_that_differ_most_come_first_and_equal_texts_together():
    texts = [["same"] * 3, ["one", "two", "one"], ["x", "y", "z"], ["p", "p", "q"]]
    scores = [[1, 1, 1], [1, 0, 1], [0.5, 0.5, 0.6], [0, 0, 1]]
    by_setting = [[record_of(str(n), scores[n][s], text=texts[n][s]) for n in range(4)] for s in range(3)]
    found = differing_of(*by_setting)
    assert [one.item for one in found] == ["1", "3", "2"]
    assert [one.labels for one in found[0].responses] == [("lossless", "ratio:alpha=2"), ("cactus:delta=1",)]
    assert found[0].scores == {"lossless": 1.0, "cactus:delta=1": 0.0, "ratio:alpha=2": 1.0}
    assert found[0].prompt == f"1: {WORDS}"
    assert [len(one.responses) for one in found] == [2, 2, 3]


def test_at_most_five_problems_are_shown_and_none_where_all_agree():
    assert len(differing_of(records(), records(10), records())) == 5
    assert differing_of(records(), records(), records()) == ()


def test_tokens_are_marked_without_their_white_space():
    assert marked([("a", "kept"), (" b", "relaxed"), ("\n", "bonus"), (" c ", "recovered")]) == "a (b)\n [c] "


# --- pages ---------------------------------------------------------------------------------------------------------


def task_of(rows, differing=()):
    return TaskSummary(Asked.name, N, 1, rows, differing)


@pytest.fixture(scope="module")
def summary():
    rng = np.random.default_rng(0)
    named = {"verifier": records(drafted=0, kept=0, relaxed=0, refused=0), "lossless": records()}
    for name, right in (("cactus", 25), ("ratio", 38)):
        named[name] = [
            record_of(str(n), float(n < right), text=f"{name} {WORDS}", seconds=rng.uniform(0.1, 0.3)) for n in range(N)
        ]
    for record in named["verifier"]:
        record["places"] = []
    session = {
        "started": "2026-01-01", "command": f"cactus eval {WORDS}", "workers": 1, "threads": 1, "revision": None,
        "versions": {"torch": "2"}, "machine": {"processor": "<cpu>", "cores": 2},
    }  # fmt: skip
    run = {"plan": plan_of(max_relaxed=3).identity(), "sessions": [session, session]}
    differing = differing_of(*(named[name] for name in ("lossless", "cactus", "ratio")))
    task = TaskSummary(Asked.name, N, 1, rows_of(outcomes(**named)), differing)
    return Summary(run, 0.02, (task,), (Stopped("typical | x", "lossless", 16, "5% less <time>"),))


@pytest.fixture(scope="module")
def folder(summary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    files = write_report(summary, folder)
    assert sorted(files) == sorted(folder.iterdir())
    return folder


class Page(HTMLParser):
    """Tags in balance, and what refers to somewhere."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.targets, self.words = [], set(), [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.targets += [value for name, value in attrs if name in ("href", "src", "xlink:href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_needs_nothing_else_and_runs_nothing(folder, summary):
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "b|"})
    assert "svg" in page.tags
    assert all(target.startswith("#") for target in page.targets)
    assert not re.search(r"url\((?!#)|@import", text)
    words = " ".join("".join(page.words).split())
    for row in summary.tasks[0].rows:
        assert row.label in words
        assert row.verdict is None or row.verdict.text in words
    assert summary.tasks[0].rows[2].verdict.kind == "loses"
    assert f"cactus {WORDS}" in words
    assert f"0: {WORDS}" in words or f"25: {WORDS}" in words
    assert "typical | x after 16 problems: lossless was 5% less <time>." in words


def test_markdown_links_pictures_that_exist_and_its_tables_and_fences_hold(folder, summary):
    text = (folder / "report.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    assert all((folder / picture).exists() for picture in pictures)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in text.split("\n") if line.startswith("| ")}
    assert widths == {9, 12}
    for row in summary.tasks[0].rows:
        assert row.label in text
        assert row.verdict is None or row.verdict.text in text
    fences = re.findall(r"^(`{3,})", text, flags=re.MULTILINE)
    assert fences[::2] == fences[1::2]
    assert f"````text\ncactus {WORDS}\n````" in text


def test_cells_with_bars_stay_one_cell():
    from cactus_decoding.evaluation.report.markdown import _lines
    from cactus_decoding.evaluation.report.tables import Table

    assert _lines(Table("t", ("a|b",), (("c|d",),))).split("\n")[::2] == [r"| a\|b |", r"| c\|d |"]


def test_json_is_strict_and_the_summary(folder, summary):
    text = (folder / "report.json").read_text()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document == json.loads(json.dumps(summary.to_dict()))
    settings = document["tasks"][0]["settings"]
    assert [row["rule"] for row in settings] == ["verifier", "lossless", "cactus:delta=1", "ratio:alpha=2"]
    assert settings[0]["figures"]["acceptance"]["estimate"] is None


def test_pictures_show_something_and_are_the_same_every_time(folder, summary, tmp_path):
    from matplotlib.image import imread

    write_report(summary, tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    for path in folder.glob("*.png"):
        image = imread(path)
        assert min(image.shape[:2]) > 400
        assert len({tuple(pixel) for pixel in image[::4, ::4].reshape(-1, image.shape[2])}) > 20


def test_the_brief_table_fits_a_terminal_and_has_dashes_where_nothing_is_known(summary):
    table = brief_table(summary.tasks[0])
    assert all(len(row) == len(table.heads) for row in table.rows)
    assert table.rows[0][3] == table.rows[0][4] == "-"
    widths = [max(len(row[column]) for row in table.rows) for column in range(len(table.heads))]
    assert sum(widths) + 3 * len(widths) <= 80
