"""``sage-rlvr report``: one HTML file with everything in it. Nothing is fetched when it is looked at.

``explore --out`` writes the same file with the token explorer alone, which claims no scores.
"""

import base64
import hashlib
import json
import webbrowser
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.models import write_whole
from sage_rlvr.report.completions import choose
from sage_rlvr.report.data import finite, page_data, tokens_data
from sage_rlvr.report.find import FoundRuns, find_runs
from sage_rlvr.stats.intervals import RESAMPLES

LIMIT = 4_800_000  # bytes of the page: it opens at once, and can be mailed
LEAST = 1_500_000  # bytes for completions, also where the rest is large
SCRIPTS = (
    "parts.js", "charts.js", "plane.js", "first.js", "overview.js", "results.js", "curves.js", "support.js", "sources.js",
    "tex.js", "measures.js", "tokens.js", "beside.js", "explorer.js", "drawer.js", "follow.js", "start.js",
)  # fmt: skip
STYLES = ("page.css", "first.css", "explorer.css", "drawer.css")
# < and > could end the element, & could begin an entity in XHTML, the line separators end a line in old JavaScript
ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def build_report(
    folders: Sequence[str | Path] | str | Path,
    out: str | Path = "report.html",
    base: str | None = None,
    limit: int | None = None,
    resamples: int = RESAMPLES,
    title: str = "SAGE report",
    show: bool = False,
    only_tokens: bool = False,
) -> Path:
    """Finds the runs under ``folders`` and writes the page; ``show`` opens it in the browser. ``only_tokens``: the token
    explorer alone, without a score."""
    with Console(stderr=True).status("reading the runs") as line:
        runs = find_runs(folders, base)
        data = tokens_data(runs) if only_tokens else page_data(runs, resamples, tell=line.update)
        line.update("choosing completions")
        path = write_page(out, runs, data, title, limit)
    if show:
        webbrowser.open(path.resolve().as_uri())
    return path


def write_page(
    out: str | Path, runs: FoundRuns, data: dict[str, Any], title: str = "SAGE report", limit: int | None = None
) -> Path:
    """The one file, with as many completions as fit; who reads it meanwhile sees the old page or the new one, whole."""
    fixed = len(html(data, [], "").encode()) + 4096 * len(runs.evals)
    room = max(LIMIT - fixed, LEAST) if limit is None else limit - fixed
    chunks = choose(runs.evals, data["tasks"], room, runs.trains)
    more: dict[str, Any] = {
        "completions": [c.counts() for c in chunks],
        "traces": [{"count": len(c.traces.places), "with": finite(c.traces.settings)} for c in chunks],
    }
    if data.get("only_tokens"):  # the rates have chosen the completions; the page says no share of right ones
        more["tasks"] = {name: {k: v for k, v in task.items() if k != "rate"} for name, task in data["tasks"].items()}
    samples = [finite(c.samples) for c in chunks]  # a stored log-prob may be nan
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, html(data | more, samples, title))
    except OSError as e:
        raise UserError(f"--out {out}: cannot be written ({e.strerror}); name a file you can write to.") from e
    return path


def html(data: dict[str, Any], samples: Sequence[Any], title: str, connect: str = "'none'") -> str:
    script, style = _script(), _style()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    template = Environment(autoescape=True).from_string(_asset("templates/page.html"))
    return template.render(
        title=title,
        policy=policy,
        script=Markup(script),
        style=Markup(style),
        data=Markup(embedded(data)),
        samples=[Markup(embedded(s)) for s in samples],
        only_tokens=bool(data.get("only_tokens")),
    )


def embedded(x: Any) -> str:
    """JSON that may stand inside a <script> element, whatever its strings hold. Half a surrogate pair becomes "?"."""
    text = json.dumps(x, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.encode("utf-8", errors="replace").decode()
    for character, code in ESCAPES.items():  # five times str.replace is ten times as fast as translate
        text = text.replace(character, code)
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("sage_rlvr.report") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """uPlot, then our own files in one function of their own, the guides' formulas first."""
    anchor = (files("sage_rlvr") / "anchor" / "anchor.js").read_text(encoding="utf-8")
    ours = "\n".join([anchor, *(_asset(f"assets/{name}") for name in SCRIPTS)])
    return f'\n{_asset("assets/vendor/uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{ours}\n}})();\n'


@cache
def _style() -> str:
    return "\n" + "\n".join(_asset(f"assets/{name}") for name in ("vendor/uPlot.min.css", *STYLES)) + "\n"
