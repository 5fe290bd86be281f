"""The token explorer in Chromium: its numbers against the stored ones, its links, and what it tells the rest of the page."""

import math

import pyarrow.parquet as pq
import pytest

from sage_rlvr.report.page import build_report
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_log, write_store, write_trace

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    b = Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_store(root / "base" / "eval", {"aime": [0.5, 1.0, 0.5]}, n=6)
    folder = write_store(root / "branch" / "eval", {"aime": [0.5, 0.0, 0.5]}, n=6)
    write_log(root / "branch", steps=2, guide="branch", guide_args={"rho": 0.3}, beta=0.07)
    write_trace(folder, [("aime", f"aime-{p:03d}", 0, i) for p in (0, 1) for i in (0, 1, 2)], ["base", "checkpoint-9"])
    return root


@pytest.fixture(scope="module")
def page(root):
    return build_report(root, root / "report.html", resamples=50)


@pytest.fixture
def opened(browser, page):
    browser.size(1440)
    browser.open(page)
    browser.show("explorer")
    browser.wait("return document.querySelectorAll('.tokens span').length > 10")
    yield browser
    assert browser.errors() == []
    own = ("file://", "data:", "chrome://")
    assert [u for u in browser.requests() if not u.startswith(own)] == []


def stored(root, index, checkpoint="checkpoint-9", problem="aime-001"):
    rows = pq.read_table(root / "branch" / "eval" / "trace").to_pylist()
    return next(r for r in rows if (r["problem"], r["index"], r["checkpoint"]) == (problem, index, checkpoint))


def point(b, i):
    """The pointer on a token."""
    b.js(
        "document.querySelectorAll('.tokens span')[arguments[0]].dispatchEvent(new Event('pointerover', {bubbles: true}))",
        i,
    )


def test_a_token_that_is_read_is_told_with_its_stored_numbers(opened, root):
    b = opened
    b.js("document.addEventListener('sage:token', (e) => { window.heard = e.detail; })")
    point(b, 4)
    heard, row = b.js("return window.heard"), stored(root, 0)
    assert (heard["run"], heard["task"], heard["problem"]) == ("branch/eval", "aime", "aime-001")
    assert heard["completion"] == {"seed": 0, "index": 0}
    assert (heard["index"], heard["token"], heard["checkpoint"]) == (4, row["tokens"][4], "checkpoint-9")
    assert (heard["estimator"], heard["beta"], heard["guide"], heard["guideArgs"]) == (
        "k3",
        0.07,
        "branch",
        {"rho": 0.3},
    )
    wanted = {"logp": row["logps"], "refLogp": row["ref_logps"], "entropy": row["entropies"]}
    for name, values in wanted.items():
        assert heard[name] == pytest.approx(values[4], abs=6e-4)
    assert heard["logq"] == pytest.approx(math.log(row["q"][4]), abs=1e-3)
    b.click("[aria-label='Earlier checkpoint']")
    assert b.js("return window.heard.logp") == pytest.approx(stored(root, 0, "base")["logps"][4], abs=6e-4)
