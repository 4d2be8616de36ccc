"""The data behind each picture, the files, and the command that makes them."""

import json
import math
import sys

import pytest
import torch

from cactus_decoding.errors import InvalidParameter, MissingExtra
from cactus_decoding.fidelity import measure
from cactus_decoding.induced import induced_law
from cactus_decoding.pictures import (
    EXAMPLE,
    Line,
    Point,
    Tradeoff,
    canvas,
    draw_frontier,
    draw_gamma,
    draw_overshoot,
    draw_position,
    line_of,
    measure_tradeoff,
    overshoot_of,
    position_of,
    raises_of,
    save,
    synthetic_positions,
)
from cactus_decoding.pictures.frontier import acceptance_at
from cactus_decoding.rules import BoundedRatio, Cactus, Fly, Frontier, Interpolation, Lossless, Typical
from tests.test_divergences import REFERENCE
from tests.tiny import random_laws

P, Q = zip(*EXAMPLE.values())


@pytest.mark.parametrize("place", range(4))
def test_gamma_is_that_of_the_reference_table(place):
    delta = [0.01, 0.1, 0.5, 1.0][place]
    found = raises_of(delta, q=list(REFERENCE))
    assert found.second_order == pytest.approx([values[place][0] for values in REFERENCE.values()], abs=5.1e-5)
    assert found.exact == pytest.approx([values[place][1] for values in REFERENCE.values()], abs=5.1e-5)


@pytest.mark.parametrize(
    ("delta", "worst"), [(0.01, 0.0098), (0.1, 0.0823), (0.25, 0.1555), (0.5, 0.1931), (0.75, 0.1663), (1, 0.0986)]
)
def test_the_marked_overshoot_is_the_highest_of_its_line(delta, worst):
    found = overshoot_of(delta)
    assert found.worst == pytest.approx(worst, abs=5.1e-5)
    assert max(found.excess) == pytest.approx(found.worst, abs=1e-12)
    assert found.q[found.excess.index(max(found.excess))] == pytest.approx(found.worst_q, abs=1e-12)


def test_no_overshoot_from_1_2564_on():
    assert max(overshoot_of(1.25).excess) > 0 > max(overshoot_of(1.26).excess)


def test_a_position_shows_the_emitted_laws_and_their_figures():
    found = position_of(P, Q, list(EXAMPLE), [Lossless(), Cactus(0.1)])
    p, q = (torch.tensor(law, dtype=torch.float64) for law in (P, Q))
    assert found.tokens == sorted(EXAMPLE, key=lambda token: -EXAMPLE[token][1])
    places = [list(EXAMPLE).index(token) for token in found.tokens]
    lossless, cactus = found.laws
    assert (lossless.rule, cactus.rule) == ("lossless", "cactus:delta=0.1")
    assert lossless.law == pytest.approx(found.q, abs=1e-12)
    assert cactus.law == pytest.approx(induced_law(p, q, Cactus(0.1))[places].tolist(), abs=1e-12)
    exact = measure(p, q, Cactus(0.1))
    assert (cactus.acceptance, cactus.tv, cactus.kl) == pytest.approx((exact.acceptance, exact.tv, exact.kl))
    assert cactus.acceptance == pytest.approx(lossless.acceptance + cactus.tv, abs=1e-12)  # the exchange rate


def test_a_long_position_adds_up_its_unlikely_tokens():
    p, q = random_laws(3, size=1000)
    found = position_of(p, q, [f"token {i}" for i in range(1000)], [Cactus(0.1)], most=9)
    assert found.tokens[-1] == "991 others"
    for law in (found.p, found.q, found.laws[0].law):
        assert len(law) == len(found.tokens) == 10
        assert math.fsum(law) == pytest.approx(1)


@pytest.mark.parametrize("p", [P[:-1], [0.2] * 10, [-0.1, 1.1, *[0.0] * 8]])
def test_what_is_no_law_over_the_tokens_is_refused(p):
    with pytest.raises(InvalidParameter, match="p has shape .* for each of 10 tokens"):
        position_of(p, Q, list(EXAMPLE), [Lossless()])


def test_the_tradeoff_of_synthetic_positions_is_that_of_the_theory():
    """Lossless .638, and at .1 nats Cactus .798, bounded ratio .809, the frontier .815, interpolation .744."""
    p, q = synthetic_positions(300, 0)
    told = []
    found = measure_tradeoff(
        p,
        q,
        [line_of(rule) for rule in (Cactus(), BoundedRatio(), Frontier(), Interpolation())],
        "synthetic",
        lambda done, parts: told.append((done, parts)),
    )
    assert told == [(done, 160) for done in range(1, 161)]
    assert (found.positions, found.source, list(found.lines)) == (
        300,
        "synthetic",
        ["cactus", "ratio", "frontier", "interpolation"],
    )
    assert found.lossless == pytest.approx(0.638, abs=0.03)
    kept = {label: acceptance_at(points, 0.1) for label, points in found.lines.items()}
    for label, expected in {"cactus": 0.798, "ratio": 0.809, "frontier": 0.815, "interpolation": 0.744}.items():
        assert kept[label] == pytest.approx(expected, abs=0.03)
    assert kept["interpolation"] < kept["cactus"] < kept["ratio"] < kept["frontier"]


def test_a_rule_is_turned_along_its_dial_with_its_other_settings():
    line = line_of(Cactus(delta=7.0, solver="exact"))
    assert line.label == "cactus exact"
    assert all(rule == Cactus(delta, solver="exact") for delta, rule in line.rules)
    typical = line_of(Typical()).rules
    assert all(rule.a == math.sqrt(epsilon) == math.sqrt(rule.epsilon) for epsilon, rule in typical)
    for rule in (Lossless(), Fly()):
        with pytest.raises(InvalidParameter, match="cannot be set by measurement"):
            line_of(rule)


def test_acceptance_between_points():
    points = [Point(1, 0.1, 0.5), Point(2, 0.3, 0.7), Point(3, 0.2, 0.9)]
    assert acceptance_at(points, 0.2) == pytest.approx(0.6)
    assert acceptance_at(points, 0.1) == 0.5
    assert math.isnan(acceptance_at(points, 0.05))
    assert math.isnan(acceptance_at(points, 0.31))


def figures():
    p, q = synthetic_positions(20, 1)
    few = [Line(line.label, line.rules[::6]) for line in map(line_of, (Cactus(), Interpolation(), Typical()))]
    yield lambda: draw_gamma([raises_of(0.1), raises_of(1.0)])
    yield lambda: draw_overshoot([overshoot_of(0.25), overshoot_of(2.0)])
    yield lambda: draw_position(position_of([0.5, 0.5], [0.9, 0.1], ["$x_1", " \n"], [Cactus(0.1)]))
    yield lambda: draw_frontier(measure_tradeoff(p, q, few, "synthetic"))
    yield lambda: draw_frontier(Tradeoff({"one": [Point(1.0, 0.2, 0.7)]}, 0.6, 1, "a single point"))


@pytest.mark.parametrize("draw", [*figures()], ids=["gamma", "overshoot", "position", "frontier", "one point"])
def test_the_same_data_are_the_same_bytes(draw, tmp_path):
    first, second = save(draw(), tmp_path / "new" / "first.v1"), save(draw(), tmp_path / "second")
    assert [file.name for file in first] == ["first.v1.png", "first.v1.svg"]
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    svg = first[1].read_text()
    assert svg.rstrip().endswith("</svg>")
    assert "dc:date" not in svg


def test_a_users_own_style_changes_nothing(tmp_path):
    import matplotlib

    plain = save(draw_gamma([raises_of(0.1)]), tmp_path / "plain")[1].read_bytes()
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "svg.fonttype": "none"}):
        styled = save(draw_gamma([raises_of(0.1)]), tmp_path / "styled")[1].read_bytes()
        assert matplotlib.rcParams["font.size"] == 20
    assert plain == styled


def test_lines_differ_without_colour():
    looks = [(look["marker"], str(look["linestyle"])) for look in map(canvas.line_style, range(12))]
    assert len(set(looks)) == 12


def test_a_missing_matplotlib_is_an_error_that_names_the_command(monkeypatch, cactus_command, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r'pip install "cactus-decoding\[pictures\]"'):
        draw_gamma([raises_of(0.1)])
    status, out, err = cactus_command("explain", "gamma", "--out", str(tmp_path))
    assert (status, out) == (2, "")
    assert "cactus-decoding[pictures]" in err
    assert cactus_command("explain", "gamma", "--json")[0] == 0


def test_the_command_writes_every_picture_and_prints_their_names(cactus_command, tmp_path):
    words = ("--out", str(tmp_path / "pictures"), "--rule", "cactus:delta=0.5", "--rule", "ratio", "--positions", "5")
    status, out, err = cactus_command("explain", "all", *words)
    names = [f"{name}.{kind}" for name in ("gamma", "overshoot", "position", "frontier") for kind in ("png", "svg")]
    assert (status, err) == (0, "")
    assert out.splitlines() == [str(tmp_path / "pictures" / name) for name in names]
    assert sorted(file.name for file in (tmp_path / "pictures").iterdir()) == sorted(names)


def test_the_command_in_json_draws_nothing(cactus_command, tmp_path):
    words = ("--delta", "0.5", "--rule", "cactus:delta=0.5", "--positions", "5", "--out", str(tmp_path / "none"))
    status, out, err = cactus_command("explain", "--json", *words)
    document = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert (status, err) == (0, "")
    assert not (tmp_path / "none").exists()
    assert [line["delta"] for line in document["gamma"]] == [0.5]
    assert document["overshoot"][0]["worst"] == pytest.approx(math.log(2) - 0.5)
    assert [law["rule"] for law in document["position"]["laws"]] == ["cactus:delta=0.5"]
    assert len(document["frontier"]["lines"]["cactus"]) == 40
    assert set(document["frontier"]["lines"]["cactus"][0]) == {"setting", "kl", "acceptance"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cubism"], "picture is 'cubism', which is none of gamma, overshoot, position, frontier, all"),
        (["gamma", "--delta", "-1"], "delta is -1.0"),
        (["overshoot", "--delta", "nan"], "delta is nan"),
        (["position", "--rule", "magic"], "rule is 'magic'"),
        (["frontier", "--rule", "fly"], "cannot be set by measurement"),
    ],
)
def test_errors_are_one_message_and_status_2(cactus_command, words, message, tmp_path):
    status, out, err = cactus_command("explain", *words, "--out", str(tmp_path))
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_folder_that_cannot_be_written_is_refused(cactus_command, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = cactus_command("explain", "gamma", "--out", str(tmp_path / "file"))
    assert status == 2
    assert "cannot be written" in err
