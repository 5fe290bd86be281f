"""The style of figures and of the page: as many families as the largest study has are told apart, at the size shown."""

import re
import xml.etree.ElementTree as ElementTree
from importlib.resources import files

import yaml

from sage_rlvr.show.style import line, panels, save, whole_steps

STUDIES = [f for f in (files("sage_rlvr") / "studies").iterdir() if f.name.endswith(".yaml")]
MOST = max(len(yaml.safe_load(f.read_text(encoding="utf-8"))["variants"]) for f in STUDIES)


def test_no_two_families_of_the_largest_study_look_the_same():
    assert MOST >= 30
    styles = [line(i) for i in range(MOST)]
    assert len({(s["color"], s["ls"]) for s in styles}) == MOST  # lines without markers
    assert len({(s["color"], s["marker"]) for s in styles}) == MOST  # markers without lines


def test_nor_do_they_on_the_page():
    parts = (files("sage_rlvr.report") / "assets" / "parts.js").read_text(encoding="utf-8")
    colours = int(re.search(r"const COLOURS = (\d+);", parts)[1])
    dashes = re.search(r"const DASHES = \[(.*)\];", parts)[1].count("[")
    assert colours * dashes >= MOST  # its i-th has colour i % colours and dash i // colours


def test_a_figure_is_as_wide_as_a_page_has_text_and_knows_the_dark(tmp_path):
    with panels(4) as (figure, axes):
        for i, ax in enumerate(axes.flat):
            ax.plot([0, 1, 2], [0.1, 0.4, 0.2], label=f"run {i}", **line(i))
            whole_steps(ax.xaxis)
        figure.canvas.draw()
        assert all(float(tick).is_integer() for tick in axes[0, 0].get_xticks())
        drawn = save(figure, tmp_path / "four.svg", "four panels").files[0]
    root = ElementTree.parse(drawn).getroot()
    assert float(root.get("width").removesuffix("pt")) <= 7.2 * 72
    assert "prefers-color-scheme: dark" in drawn.read_text()
    assert "step" in "".join(root.itertext())  # letters, not their outlines
