"""examples/first_steps.ipynb runs from top to bottom: every code cell, in order, in one namespace."""

import json

import numpy as np
import pytest

from tests.paths import ROOT

FILE = ROOT / "examples" / "first_steps.ipynb"


@pytest.mark.slow  # a training of 40 steps and two evaluations; shorter ones: test_examples.py
def test_all_cells_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    cells = [cell for cell in json.loads(FILE.read_text())["cells"] if cell["cell_type"] == "code"]
    space = {"__name__": "__main__"}
    for i, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {i}", "exec"), space)
    plt.close("all")
    assert len(shown) == 2
    out = capsys.readouterr().out
    assert "40/40  reward" in out
    lab, q, counts, curves = (space[name] for name in ("lab", "q", "counts", "curves"))
    assert lab.final["k1-reward"]["branch"] < 1e-3 < 0.05 < lab.final["k3+"]["branch"]
    assert lab.inert["k3+"]["branch"] < 1e-9, "the page says that the guide does nothing there"
    assert (q >= 1).all()
    assert q.max() > 1
    for name, right in counts.items():
        assert np.isclose(curves[name][0], right.mean() / 64)
        assert np.isclose(curves[name][-1], (right > 0).mean())
    if space["task"] == "countdown-ltr-3":  # on the demo's base, which RL can teach something
        assert curves["trained"][0] > curves["base"][0]
        assert curves["trained"][-1] < curves["base"][-1]


def test_it_is_small_and_carries_no_outputs():
    cells = json.loads(FILE.read_text())["cells"]
    assert FILE.stat().st_size < 200_000
    assert not any(cell.get("outputs") for cell in cells)
