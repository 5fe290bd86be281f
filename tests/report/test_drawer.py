"""The explorer's drawer in Chromium: at the run's settings the stored q and pull, at any others those of the Python guides."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sage_rlvr.anchor import ESTIMATORS, Signals, anchor_penalty, make_guide
from sage_rlvr.report.page import build_report
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_log, write_store, write_trace

pytestmark = needs_browser
RUN = {"ratio": 0.37, "threshold": 0.7}  # of the traced run
READ = "return [...document.querySelectorAll('.drawer tbody tr')].map((r) => [...r.children].map((c) => c.textContent))"
CHOOSE = """
const box = document.querySelectorAll('.drawer select')[arguments[0]];
box.value = arguments[1];
box.dispatchEvent(new Event('change'));
document.activeElement.blur();
"""
TURN = """
const dial = document.querySelector(`.drawer [data-dial=${arguments[0]}]`);
dial.value = arguments[1];
dial.dispatchEvent(new Event('input'));
"""
POINT = (
    "document.querySelectorAll('.tokens span')[arguments[0]].dispatchEvent(new Event('pointerover', {bubbles: true}))"
)
TELL = "document.dispatchEvent(new CustomEvent('sage:token', { detail: arguments[0] }))"


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One run whose traced q is the branch guide's."""
    root = tmp_path_factory.mktemp("runs")
    folder = write_store(root / "branch" / "eval", {"aime": [1.0]}, n=1)
    write_log(root / "branch", steps=2, guide="branch", guide_args=RUN, beta=0.07)
    write_trace(folder, [("aime", "aime-000", 0, 0)], ["checkpoint-9", "checkpoint-10"])
    path = folder / "trace" / "000.parquet"
    table = pq.read_table(path)
    rows = [row | {"q": shape(row, "branch", RUN).exp().tolist()} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    return root


@pytest.fixture
def opened(browser, root):
    b = browser
    b.size(1440)
    b.open(build_report(root, root / "report.html", resamples=50))
    b.show("explorer")
    b.wait("return document.querySelectorAll('.tokens span').length > 10")
    yield b
    assert b.errors() == []


def shape(row, guide, args, reward=1.0):
    """(T,) log q of the Python guide."""
    one = {c: torch.tensor([row[c]]) for c in ("logps", "ref_logps", "entropies")}
    signals = Signals(**one, mask=torch.ones_like(one["logps"]), rewards=torch.tensor([reward]))
    return make_guide(guide, **args)(signals)[0]


def pulls(row, log_q, estimator):
    """(T,) the slope of the penalty in log π; for a reward, what a token is charged."""
    logps, ref = (torch.tensor(row[c], requires_grad=c == "logps") for c in ("logps", "ref_logps"))
    if estimator == "k1-reward":
        return (logps - ref - log_q).detach()
    anchor_penalty(logps, ref, log_q, estimator).sum().backward()
    return logps.grad


def stored(root):
    return next(r for r in pq.read_table(root / "branch/eval/trace").to_pylist() if r["checkpoint"] == "checkpoint-10")


def read(b):
    """(this run's, the drawer's) {q, Pull, …} as texts."""
    rows = b.js(READ)
    return tuple({row[0]: row[column] for row in rows} for column in (1, 2))


def close(shown, row, log_q, estimator, i):
    """Three digits are stored of every number, and ρ multiplies what was rounded."""
    scale = 1 + float((torch.tensor(row["ref_logps"]) + log_q - torch.tensor(row["logps"])).exp()[i])
    assert float(shown["q"]) == pytest.approx(float(log_q.exp()[i]), abs=2e-3 * float(log_q.exp()[i]))
    assert float(shown["Pull"]) == pytest.approx(float(pulls(row, log_q, estimator)[i]), abs=2e-3 * scale)


def test_at_the_runs_settings_it_gives_the_stored_numbers(opened, root):
    b, row = opened, stored(root)
    cells = "[...document.querySelectorAll('.numbers dl div')].map((x) => [...x.children].map((c) => c.textContent))"
    moved = 0
    for i in range(len(row["tokens"])):
        b.js(POINT, i)
        run, yours = read(b)
        facts = dict(b.js(f"return {cells}"))
        assert yours == run
        assert {
            "q": yours["q"],
            "Pull": yours["Pull"],
            "Guide's effect": yours["Guide's effect"],
        }.items() <= facts.items()
        close(yours, row, shape(row, "branch", RUN), "k3", i)
        assert b.text(".drawer .why") == ""  # the formula agrees with what is stored
        moved += yours["q"] != "1.000"
    assert moved > 3


@pytest.mark.parametrize(
    ("guide", "args", "estimator"),
    [
        ("branch", {"ratio": 1.1, "threshold": 0.2}, "forward-value"),
        ("tempered", {"ratio": 0.8, "threshold": 0.3, "kappa_max": 0.7}, "k2"),
        ("verified", {"kappa": 0.9}, "k1-reward"),
        ("none", {}, "forward"),
    ],
)
def test_at_other_settings_it_gives_the_guides_numbers(opened, root, guide, args, estimator):
    b, row = opened, stored(root)
    b.js(POINT, 0)
    b.js(CHOOSE, 0, guide)
    b.js(CHOOSE, 1, estimator)
    for name, value in {**args, "beta": 0.2}.items():
        b.js(TURN, name, value)
    log_q = torch.zeros(len(row["logps"])) if guide == "none" else shape(row, guide, args)
    for i in range(0, len(row["tokens"]), 3):  # the settings stay from token to token
        b.js(POINT, i)
        _, yours = read(b)
        close(yours, row, log_q, estimator, i)
        assert float(yours["β · pull"]) == pytest.approx(0.2 * float(yours["Pull"]), abs=1.1e-3)
    b.js("[...document.querySelectorAll('.drawer button')].find((x) => x.textContent.startsWith('Back')).click()")
    assert read(b)[0] == read(b)[1]


def test_every_estimator_of_the_package_is_there(opened):
    opened.js(POINT, 0)
    names = "return [...document.querySelectorAll('.drawer select')[1].options].map((o) => o.value)"
    assert set(opened.js(names)) == ESTIMATORS
    defaults = opened.js("return [...document.querySelectorAll('.drawer select')[0].options].map((o) => o.value)")
    for guide in (g for g in defaults if g != "none"):
        opened.js(CHOOSE, 0, guide)
        dials = opened.js(
            "return [...document.querySelectorAll('.drawer [data-dial]')].map((x) => [x.dataset.dial, +x.value])"
        )
        own = make_guide(guide, **(RUN if guide == "branch" else {})).settings()
        assert {k: v for k, v in dials if k != "beta"}.items() <= own.items()


TOKEN = {
    "run": "x",
    "index": 3,
    "estimator": "k3",
    "beta": 0.1,
    "logp": -1.0,
    "refLogp": -1.2,
    "entropy": 1.5,
    "refEntropy": None,
}


@pytest.mark.parametrize(
    ("guide", "args", "logq", "says", "q"),
    [
        ("random", {}, 0.1, "depends on the noise that training drew", "1.105"),
        ("branch-quantile", {}, None, "this trace has none", "–"),
        ("branch", {"source": "reference"}, 0.2, "reads the reference's entropy", "1.221"),
        ("branch", {}, 0.5, "something else shaped it too", "1.649"),
    ],
)
def test_what_a_trace_does_not_store_is_said(opened, guide, args, logq, says, q):
    b = opened
    b.js(POINT, 0)
    b.js(TELL, TOKEN | {"guide": guide, "guideArgs": args, "logq": logq})
    assert says in b.text(".drawer .why")
    assert read(b)[1]["q"] == q


def test_a_refused_pair_says_why(opened):
    b = opened
    b.js(POINT, 0)
    assert b.js("return [...document.querySelectorAll('.drawer :is(select, input)')].every((x) => x.labels.length)")
    b.js(TELL, TOKEN | {"guide": "branch", "guideArgs": {}, "logq": 0.0862})
    b.js(CHOOSE, 1, "k3+")
    assert "Training refuses the pair" in b.text(".drawer .why")
    b.js(CHOOSE, 0, "tempered")
    assert b.text(".drawer .why") == ""
