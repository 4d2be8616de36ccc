"""What a user installs: the wheel carries the pair, its card and the type marker; imports stay light and downward."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cactus_decoding

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cactus_decoding"
# imports go downward only: a room may import from itself and from the rooms below it
ROOMS = [
    {"errors"}, {"divergences", "sampling", "block"}, {"rules", "held"}, {"induced", "sparse"}, {"verify", "laws"},
    {"fidelity", "embedded"}, {"models"}, {"drafters"}, {"generation"},
    {"diagnosis", "testing", "integrations", "calibration", "pictures"}, {"evaluation"}, {"cli"},
]  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_carries_the_pair_and_its_card(wheel):
    names = set(wheel.namelist())
    for role in ("verifier", "drafter"):
        for file in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
            assert f"cactus_decoding/embedded/abacus/{role}/{file}" in names
    assert "cactus_decoding/embedded/abacus/README.md" in names
    assert "cactus_decoding/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_weights_are_small(wheel):
    weights = sum(entry.file_size for entry in wheel.infolist() if entry.filename.endswith(".safetensors"))
    assert 0 < weights < 12_000_000


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward_only(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    level = next(i for i, rooms in enumerate(ROOMS) if room in rooms)
    allowed = {room}.union(*ROOMS[:level])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cactus_decoding."):
            assert node.module.split(".")[1] in allowed, f"{path}:{node.lineno} imports {node.module}"


def test_importing_the_package_alone_is_quick():
    code = "import sys, cactus_decoding; print('torch' in sys.modules, 'transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_every_public_name_can_be_imported():
    for name in cactus_decoding.__all__:
        assert getattr(cactus_decoding, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = cactus_decoding.nonsense
