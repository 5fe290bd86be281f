"""``sage-rlvr report``: one HTML file with everything in it. Nothing is fetched when it is looked at."""

import base64
import hashlib
import json
import os
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
from sage_rlvr.report.completions import choose, in_reading_order
from sage_rlvr.report.data import finite, page_data
from sage_rlvr.report.find import Found, find_runs
from sage_rlvr.stats.intervals import RESAMPLES

LIMIT = 4_800_000  # bytes of the page: it opens at once, and can be mailed
SCRIPTS = (
    "parts.js",
    "charts.js",
    "plane.js",
    "first.js",
    "overview.js",
    "results.js",
    "curves.js",
    "support.js",
    "measures.js",
    "tokens.js",
    "explorer.js",
    "start.js",
)
STYLES = ("page.css", "first.css", "explorer.css")
# < and > could end the element, & could begin an entity in XHTML, the line separators end a line in old JavaScript
ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def build_report(
    folders: Sequence[str | Path] | str | Path,
    out: str | Path = "report.html",
    base: str | None = None,
    level: float = 0.95,
    limit: int = LIMIT,
    resamples: int = RESAMPLES,
    title: str = "SAGE report",
    show: bool = False,
    console: Console | None = None,
) -> Path:
    """Finds the runs under ``folders`` and writes the page; ``show`` opens it in the browser."""
    with (console or Console(stderr=True)).status("reading the runs") as line:
        found = find_runs([folders] if isinstance(folders, str | Path) else folders, base)
        data = page_data(found, level, resamples, tell=line.update)
        line.update("choosing completions")
        samples = _add_completions(data, found, limit)
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(html(data, samples, title), encoding="utf-8")
        os.replace(part, path)
    except OSError as e:
        raise UserError(f"--out {out}: cannot be written ({e.strerror}); name a file you can write to.") from e
    if show:
        webbrowser.open(path.resolve().as_uri())
    return path


def _add_completions(data: dict[str, Any], found: Found, limit: int) -> list[list[dict[str, Any]]]:
    """The completions that fit, run by run; ``data`` is told what is left out."""
    chunks = choose(found.evals, data["tasks"], int(limit - _fixed(data) - 4096 * len(found.evals)))
    data["completions"] = [c.said() for c in chunks]
    data["traces"] = [{"count": c.traced, "with": finite(c.traced_with)} for c in chunks]
    return [finite(list(in_reading_order(c))) for c in chunks]  # a stored log-prob may be nan


def live_page(
    found: Found,
    traces: Sequence[dict[str, Any]],
    title: str = "SAGE explorer",
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> str:
    """The same page for ``explore``: no completions in it, they are asked for. ``traces``: {count, with} of each evaluation."""
    data = page_data(found, level, resamples) | {"live": True, "traces": finite(list(traces))}
    return html(data, [], title, connect="'self'")


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
        live=bool(data.get("live")),
    )


def embedded(x: Any) -> str:
    """JSON that may stand inside a <script> element, whatever its strings hold. Half a surrogate pair becomes "?"."""
    text = json.dumps(x, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.encode("utf-8", errors="replace").decode()
    for character, code in ESCAPES.items():  # five times str.replace is ten times as fast as translate
        text = text.replace(character, code)
    return text


def _fixed(data: dict[str, Any]) -> int:
    """Bytes of the page without completions."""
    return len(html(data, [], "").encode())


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return (files("sage_rlvr.report") / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """uPlot, then our own files in one function of their own."""
    ours = "\n".join(_asset(f"assets/{name}") for name in SCRIPTS)
    return f'\n{_asset("assets/vendor/uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{ours}\n}})();\n'


@cache
def _style() -> str:
    return "\n" + "\n".join(_asset(f"assets/{name}") for name in ("vendor/uPlot.min.css", *STYLES)) + "\n"
