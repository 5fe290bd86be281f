"""Pictures tell runs apart by place and colour: a run that lacks a panel lends its own to nobody."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from sage_rlvr.analysis import figures
from sage_rlvr.analysis.patterns import Frequency, TaskPatterns

RUNS = ["base", "first", "second", "third"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures as they stand before they are written."""
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, path, description: kept.append(figure))
    return kept


def test_bars_of_a_run_keep_their_place_and_colour(drawn, tmp_path):
    one = TaskPatterns("t", 4, 0, 6, {n: Frequency(0.5, 0.4, 0.6, 0.5, 3) for n in ("p", "r")}, {})
    found = {run: {"all": one} | ({} if run == "first" else {"some": one}) for run in RUNS}
    figures.patterns_figure(found, tmp_path / "x")
    panels = [{c.get_label(): c[0] for c in ax.containers if c.get_label() in RUNS} for ax in drawn[0].axes]
    looks = [
        {run: (to_hex(bar.get_facecolor()), bar.get_hatch(), bar.get_x()) for run, bar in panel.items()}
        for panel in panels
    ]
    assert looks[1] == {run: look for run, look in looks[0].items() if run != "first"}
    assert len({colour for colour, *_ in looks[0].values()}) == len(RUNS)


def test_lines_of_a_run_keep_their_colour():
    x = np.linspace(1.1, 9, 50)
    with figures.panels(2) as (_, axes):
        figures.draw_perplexity(axes[0, 0], dict.fromkeys(RUNS, x))
        figures.draw_perplexity(axes[0, 1], {run: x[:0] if run == "first" else x for run in RUNS})
        whole, some = ({x.get_label(): x.get_color() for x in ax.lines} for ax in axes.flat)
    assert some == {run: colour for run, colour in whole.items() if run != "first"}


def test_marks_that_lie_close_together_can_be_read(drawn, tmp_path):
    marks = {"base q0.5": 1.50, "base q0.90": 1.60, "base q0.95": 1.62, "base q0.99": 1.65}
    figures.perplexity_figure({"base": np.linspace(1.1, 9, 50)}, marks, tmp_path / "x")
    drawn[0].canvas.draw()
    boxes = [text.get_window_extent() for text in drawn[0].axes[1].texts]
    assert len(boxes) == len(marks)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
