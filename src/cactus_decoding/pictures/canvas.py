"""What the pictures share: one style, lines that differ without colour, and files that are the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cactus_decoding.errors import InvalidParameter, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "font.size": 9.5,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
    "svg.fonttype": "path",  # looks the same wherever it is shown
    "svg.hashsalt": "cactus-decoding",  # else every file has ids of its own
}
# colours of different darkness, which a print in grey keeps apart
_COLOURS = (
    "#000000", "#b3360b", "#1461a8", "#3c8d5a", "#a8589b", "#8a6d00", "#5f5f5f", "#d9822b", "#00838f", "#5b3a8c",
    "#7a4a2b",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))


def require_matplotlib() -> None:
    """Raise `MissingExtra`, which names the command that brings it, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra('pictures need matplotlib: pip install "cactus-decoding[pictures]"') from error


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib has its own defaults and this project's changes to them, whatever the user's are."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def panels(title: str, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    """An empty figure, in inches, with a title and panels side by side. Call it inside `style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.012, ha="left", weight="bold", size=11.5)
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the line of that number; no two of the first forty agree in all."""
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": _DASHES[number % len(_DASHES)],
        "markersize": 4.5,
    }


def save(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``path.png`` and ``path.svg``, without dates, so that the same figure is the same bytes."""
    path = Path(path)
    files = [path.parent / f"{path.name}{suffix}" for suffix in (".png", ".svg")]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with style():
            figure.savefig(files[0], metadata={"Software": None})
            figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    except OSError as error:
        raise InvalidParameter(f"{str(path)!r} cannot be written: {error}. Choose another folder.") from error
    return files
