"""The token explorer in Chromium: its numbers against the stored ones, its links, TeX, and two completions side by side."""

import json
import math
import re

import pyarrow.parquet as pq
import pytest
import torch

from docs_tools.maths import Formula
from sage_rlvr.advantage import make_advantage
from sage_rlvr.cli import main
from sage_rlvr.report.advantages import advantages
from sage_rlvr.report.find import TrainRun, find_runs
from sage_rlvr.report.page import build_report
from sage_rlvr.store import SampleStore
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_log, write_store, write_trace
from tests.report.test_page import CONTRAST

LOST = "aime-001"  # the base solves it, the run never does
RIGHT = r"So $x^2 = \frac{%d}{2}$ holds." + "\nBoth say this very line.\n" + r"The answer is \boxed{42}."
WRONG = (
    r"So $x^2 = \frac{9}{2}$ holds."
    + "\nBoth say this very line.\n"
    + r"Hence \(\unknown{1}\) or $5 and $6 each, \boxed{%d}."
)
HOSTILE = r"$\text{<img src=x onerror=window.pwned=1>}$ $\href{javascript:window.pwned=2}{x}$ \(x" + "{" * 5000 + r"\)"
AS_IN_THE_DOCS = [
    r"\frac{a}{b}", r"x_i^2 + y^{10}", r"\pi_\tau \le 3.14", r"\hat{q} \cdot \pi_{\text{ref}}", r"f'(x) = -2", r"\mathbb{R}",
    r"\alpha \in \{0, 1\}", r"\tilde{p}_{t+1} \to \infty",
]  # fmt: skip
OF_THE_EXPLORER = {
    r"\sqrt[3]{x}": "<math><mrow><mroot><mrow><mi>x</mi></mrow><mrow><mn>3</mn></mrow></mroot></mrow></math>",
    r"\frac12": "<math><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow></math>",
    r"\left.\frac ab\right|": "<math><mrow><mrow><mrow><mfrac><mi>a</mi><mi>b</mi></mfrac></mrow><mo>|</mo></mrow></mrow></math>",
    r"n \not\in \{\}": "<math><mrow><mi>n</mi><mo>∉</mo><mo>{</mo><mo>}</mo></mrow></math>",
}
AS_WRITTEN = [
    r"$\constructor$",
    r"$x_{1$",
    r"$\begin{tikz}a\end{tikz}$",
    r"$\mathbb{X}$",
    r"$\left( x$",
    "``` $x$ ```",
    "US$5 and $6",
]
READY = "return document.documentElement.dataset.ready === 'true'"
STRUCTURE = """
const bare = (n) => (n.nodeType === 3 ? n.data : `<${n.localName}>${[...n.childNodes].map(bare).join('')}</${n.localName}>`);
return [...document.querySelectorAll('.text math')].map(bare);
"""


def keep_trace(folder, guide, problems):
    write_trace(folder, [("aime", p, 0, i) for p in problems for i in (0, 1, 2)], ["step-1", "step-9"])
    header = {"settings": {"guide": guide, "guide_args": {"ratio": 0.3}}, "checkpoints": []}
    (folder / "trace" / "_trace.json").write_text(json.dumps(header))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    formulas = "\n".join(f"${tex}$" for tex in [*AS_IN_THE_DOCS, *OF_THE_EXPLORER]) + "\n" + "\n".join(AS_WRITTEN)
    special = {("aime", "aime-002", 0, 4): HOSTILE, ("aime", "aime-002", 0, 5): formulas}
    right, wrong = ({("aime", LOST, 0, i): text % i for i in range(6)} for text in (RIGHT, WRONG))
    base = write_store(root / "base" / "eval", {"aime": [0.5, 1.0, 0.5]}, n=6, texts=right | special)
    keep_trace(base, "none", ["aime-000"])
    told = {"aime": {LOST: {"question": r"What is $\sqrt{1764}$?"}}}
    (base / "problems.json").write_text(json.dumps(told))
    run = write_store(root / "branch" / "eval", {"aime": [0.5, 0.0, 0.5]}, n=6, texts=wrong)
    write_log(root / "branch", steps=2, guide="branch", beta=0.07)
    keep_trace(run, "branch", ["aime-000", LOST])
    return root


def stored(folder):
    return [r for batch in SampleStore(folder, readonly=True).scan() for r in batch.to_pylist()]


@pytest.mark.parametrize(
    ("name", "args", "scale"),
    [("group", {}, "group"), ("group", {}, "none"), ("maxrl", {}, "group"), ("passk", {"k": 2}, "group"), ("risk", {}, "group"),
     (["focal", "signed"], {"focal": {"gamma": 0.5}}, "group")],
)  # fmt: skip
def test_an_advantage_is_the_trainers_own_over_the_problems_samples(root, name, args, scale):
    """Sample by sample against the advantage that training makes, on the verdicts in their stored order."""
    folder = root / "branch" / "eval"
    settings = {"advantage": name, "advantage_args": args, "scale_rewards": scale}
    (run,) = [e for e in find_runs([root]).evals if e.name == "branch/eval"]
    own = advantages(run, [TrainRun("branch", folder.parent, {"settings": settings}, [])])
    for problem in ("aime-000", LOST, "aime-002"):
        rows = [r for r in stored(folder) if r["problem"] == problem]
        rewards = torch.tensor([r["verdict"] for r in rows], dtype=torch.float64)
        told = {"scale": scale} if name == "group" else args
        wanted = make_advantage(name, **told)(rewards, len(rows), scale=scale).tolist()
        assert [own({"t": "aime", "p": problem, "v": int(r["verdict"])}) for r in rows] == pytest.approx(wanted)


def test_an_advantage_that_reads_more_than_an_evaluation_has_is_not_shown(root):
    found = find_runs([root])
    run, record = found.evals[1], {"t": "aime", "p": "aime-000", "v": 1}
    assert run.name == "branch/eval"
    for settings in (
        {"advantage": "rarity"},
        {"advantage": "beta"},
        {"scale_rewards": "batch"},
        {"advantage": "my.own:Class"},
    ):
        found.trains[0].record["settings"] = {"guide": "none", **settings}
        assert advantages(run, found.trains)(record) is None
    assert advantages(found.evals[0], found.trains)(record) is None, "the base has no training"


# ---- in the browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def page(root):
    return build_report(root, root / "report.html", resamples=50)


@pytest.fixture(scope="module")
def tokens_alone(root):
    assert main(["explore", str(root), "--out", str(root / "tokens.html")]) in (0, None)
    return root / "tokens.html"


@pytest.fixture
def opened(browser, page):
    yield show(browser, page)
    assert browser.errors() == []
    own = ("file://", "data:", "chrome")
    assert [u for u in browser.requests() if not u.startswith(own)] == []


def show(b, page):
    b.size(1440)
    b.open(page)
    b.show("explorer")
    b.wait("return document.querySelectorAll('.tokens span').length > 10")
    return b


def traced(root, index, checkpoint="step-9", problem=LOST):
    rows = pq.read_table(root / "branch" / "eval" / "trace").to_pylist()
    return next(r for r in rows if (r["problem"], r["index"], r["checkpoint"]) == (problem, index, checkpoint))


def point(b, i):
    """The pointer on a token."""
    b.js(
        "document.querySelectorAll('.tokens span')[arguments[0]].dispatchEvent(new Event('pointerover', {bubbles: true}))",
        i,
    )


def press(b, text):
    b.js(
        "[...document.querySelectorAll('#explorer .choice label')].find((l) => l.textContent === arguments[0]).click()",
        text,
    )


def facts(b, inside):
    pairs = (
        "[...document.querySelectorAll(arguments[0] + ' dl div')].map((x) => [...x.children].map((c) => c.textContent))"
    )
    return dict(b.js(f"return {pairs}", inside))


def go(b, **where):
    """A link is followed in the open page."""
    b.js("location.hash = 'explorer?' + new URLSearchParams(arguments[0])", {"task": "aime", "seed": 0, **where})
    b.wait(
        "return document.querySelector('.detail h3').textContent.includes(arguments[0])".replace(
            "arguments[0]", repr(where["problem"])
        )
    )


@needs_browser
def test_it_opens_on_the_first_traced_run_with_a_guide(opened):
    """The base is traced too, without one."""
    assert facts(opened, ".detail")["Run"] == "branch/eval"


@needs_browser
def test_a_token_that_is_read_is_told_with_its_stored_numbers(opened, root):
    b = opened
    b.js("document.addEventListener('sage:token', (e) => { window.heard = e.detail; })")
    point(b, 4)
    heard, row = b.js("return window.heard"), traced(root, 0)
    assert (heard["run"], heard["task"], heard["problem"]) == ("branch/eval", "aime", LOST)
    assert heard["completion"] == {"seed": 0, "index": 0}
    assert (heard["index"], heard["token"], heard["checkpoint"]) == (4, row["tokens"][4], "step-9")
    own = {"estimator": "k3", "beta": 0.07, "guide": "branch", "guideArgs": {"ratio": 0.3}, "refEntropy": None}
    assert own.items() <= heard.items()
    wanted = {"logp": row["logps"], "refLogp": row["ref_logps"], "entropy": row["entropies"]}
    for name, values in wanted.items():
        assert heard[name] == pytest.approx(values[4], abs=6e-4)
    assert heard["logq"] == pytest.approx(math.log(row["q"][4]), abs=1e-3)
    b.click("[aria-label='Earlier checkpoint']")
    assert b.js("return window.heard.logp") == pytest.approx(traced(root, 0, "step-1")["logps"][4], abs=6e-4)
    go(b, run="branch/eval", problem="aime-000", index=1)
    point(b, 0)
    mine = [r for r in stored(root / "branch" / "eval") if r["problem"] == "aime-000"]
    rewards = torch.tensor([r["verdict"] for r in mine])
    wanted = make_advantage("group")(rewards, len(mine))[[r["index"] for r in mine].index(1)].item()
    assert wanted != 0
    assert b.js("return window.heard.advantage") == pytest.approx(wanted, rel=1e-4)
    assert float(facts(b, ".detail")["Advantage (group of 6)"]) == pytest.approx(wanted, abs=6e-4)


@needs_browser
def test_a_token_can_be_sent_to_a_colleague(opened, browser, page):
    b = opened
    b.js("document.querySelectorAll('.samples button')[1].click()")
    b.wait("return location.hash.includes('index=1')")
    press(b, "Pull")
    b.click("[aria-label='Earlier checkpoint']")
    b.js("document.querySelectorAll('.tokens span')[6].click()")
    point(b, 6)
    link, said = b.js("return location.href"), facts(b, ".detail")
    assert link.endswith("token=7")
    b.open(link)
    b.js("location.reload()")
    b.wait(READY)
    b.wait("return document.activeElement.i === 6")
    assert facts(b, ".detail") == said
    assert "token 7 of" in b.text(".numbers")
    assert b.text(".key").startswith("Pull")
    assert "step-1 (1 of 2)" in b.text(".stepper output")
    b.js("location.hash = location.hash.replace('index=1', 'index=7')")
    b.wait("return document.querySelector('.detail').textContent.includes('does not hold sample 7 (seed 0)')")


@needs_browser
def test_a_lost_problem_side_by_side(opened, root):
    """The likeliest of all stored samples, by their log-prob; the same after a reload."""
    b = opened
    press(b, "Lost (1)")
    b.wait("return document.querySelector('.side-by-side') !== null")
    best = [
        max((r for r in stored(root / run / "eval") if r["problem"] == LOST), key=lambda r: r["logprob"])
        for run in ("base", "branch")
    ]
    assert [r["verdict"] for r in best] == [1, 0]
    for _ in range(2):
        heads = b.js("return [...document.querySelectorAll('.side-by-side th')].map((x) => x.textContent)")
        for name, row, head in zip(("base/eval", "branch/eval"), best, heads):
            assert head.startswith(name)
            assert float(re.search(r"log π\(y\) (-[\d.]+)", head)[1]) == pytest.approx(row["logprob"], abs=0.006)
        assert b.text(".question math") == "1764"
        assert b.text(".side-by-side .same") == "Both say this very line."
        cells = b.js(
            "return [...document.querySelectorAll('.side-by-side tr:not(.same) td')].map((x) => x.textContent)"
        )
        assert cells[0] == f"So x2=({best[0]['index']})2 holds.".replace("(", "").replace(")", "")
        assert r"\(\unknown{1}\) or $5 and $6 each" in cells[3]
        marks = b.js("return [...document.querySelectorAll('.side-by-side .differs')].map((x) => x.textContent)")
        assert marks[:2] == [f"x2={best[0]['index']}2", "x2=92"]
        b.js("location.reload()")
        b.wait(READY)
        b.wait("return document.querySelector('.side-by-side') !== null")
    for width, dark in ((390, False), (390, True), (1440, True)):
        b.size(width, 900, dark)
        assert b.js(CONTRAST) == []
        assert b.js("return document.documentElement.scrollWidth <= innerWidth")
    b.js("document.querySelector('.side-by-side th button').click()")
    b.wait("return !document.querySelector('.side-by-side')")
    assert facts(b, ".detail")["Seed"] == f"0, sample {best[0]['index']}"
    assert facts(b, ".detail")["Run"] == "base/eval"


@needs_browser
def test_tex_is_drawn_as_in_the_docs_and_what_is_not_known_stays_as_written(opened):
    b = opened
    go(b, run="base/eval", problem="aime-002", index=5)
    docs = [re.sub(r" [a-z]+=\"[^\"]*\"|</?span>", "", Formula(tex).mathml()) for tex in AS_IN_THE_DOCS]
    assert b.js(STRUCTURE) == [*docs, *OF_THE_EXPLORER.values()]
    assert b.text(".text").endswith("\n".join(AS_WRITTEN))
    press(b, "Source")
    assert b.text(".text").startswith(f"${AS_IN_THE_DOCS[0]}$\n")


@needs_browser
def test_tex_of_a_model_is_never_markup(opened):
    b = opened
    go(b, run="base/eval", problem="aime-002", index=4)
    assert b.js(STRUCTURE) == ["<math><mrow><mtext><img src=x onerror=window.pwned=1></mtext></mrow></math>"]
    assert r"$\href{javascript:window.pwned=2}{x}$" in b.text(".text")
    assert b.js("return window.pwned") is None
    assert b.js("return document.querySelectorAll('main img, main a, main [href]').length") == 0


@needs_browser
def test_the_page_of_tokens_alone_reports_no_score(browser, tokens_alone):
    b = show(browser, tokens_alone)
    assert b.js("return [...document.querySelectorAll('main > section')].map((s) => s.id)") == ["explorer", "overview"]
    said = b.js("return document.body.innerText")
    assert "It reports no scores." in said
    for word in ("pass@", "% right", "majority", "solved"):
        assert word not in said
    assert '"rate"' not in tokens_alone.read_text(encoding="utf-8")
    press(b, "Beside base/eval")
    b.wait("return document.querySelector('.side-by-side') !== null")
    assert b.errors() == []
    assert [u for u in b.requests() if not u.startswith(("file://", "data:", "chrome"))] == []
