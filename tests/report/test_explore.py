"""The served explorer: its addresses, what it refuses, its end, and the page over it in Chromium."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPConnection

import pytest

from sage_rlvr.cli import main
from sage_rlvr.errors import UserError
from sage_rlvr.report.explore import SLICE, Explorer, explore
from tests.report.browser import Browser, needs_browser
from tests.report.synthetic import write_log, write_store, write_trace

LONG = "é" * (SLICE + 50)
PROBLEM = """
const box = document.querySelectorAll('#explorer select')[2];
box.value = arguments[0];
box.dispatchEvent(new Event('change'));
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    texts = {("aime", "aime-001", 0, 3): LONG, ("aime", "aime-002", 0, 5): "needle .* in <b>hay</b>"}
    store = write_store(root / "base", {"aime": [0.5] * 4, "amc23": [0.3] * 3}, n=80, texts=texts)
    write_trace(store, [("aime", "aime-000", 0, i) for i in (0, 7)], ["base", "checkpoint-10"])
    write_store(root / "grpo", {"aime": [0.5] * 4}, n=8, seeds=2)
    return root


@pytest.fixture(scope="module")
def server(root):
    with Explorer(root, 0, resamples=50) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def get(server, path, **query):
    with urllib.request.urlopen(f"{server.address}{path}?{urllib.parse.urlencode(query)}") as reply:
        return json.loads(reply.read())


def refused(server, path, **query):
    with pytest.raises(urllib.error.HTTPError) as e:
        get(server, path, **query)
    return e.value.code, json.loads(e.value.read())["error"]


def test_a_problem_is_listed_in_order_with_traced_ones_first(server):
    found = get(server, "api/samples", run="base", task="aime", problem="aime-000", limit=50)
    assert found["total"] == 80
    assert found["more"]
    assert [r["i"] for r in found["rows"][:4]] == [0, 7, 1, 2]
    rest = get(server, "api/samples", run="base", task="aime", problem="aime-000", limit=50, offset=50)
    assert len({r["i"] for r in found["rows"] + rest["rows"]}) == 80
    assert not rest["more"]


@pytest.mark.parametrize(("verdict", "value"), [("right", 1), ("wrong", 0)])
def test_verdicts_filter(server, verdict, value):
    found = get(server, "api/samples", run="base", task="aime", problem="aime-001", verdict=verdict, limit=200)
    assert {r["v"] for r in found["rows"]} == {value}
    both = [
        get(server, "api/samples", run="base", task="aime", problem="aime-001", verdict=v)["total"]
        for v in ("right", "wrong")
    ]
    assert sum(both) == 80


def test_search_is_of_the_very_text_over_all_problems(server):
    found = get(server, "api/samples", run="base", task="aime", problem="", search="NEEDLE .* in")
    assert [(r["p"], r["i"]) for r in found["rows"]] == [("aime-002", 5)]
    assert found["total"] is None
    assert "<b>hay</b>" in found["rows"][0]["c"]


def test_paging_over_all_problems_gives_each_sample_once(server):
    seen = []
    more = True
    while more:
        found = get(server, "api/samples", run="base", task="amc23", problem="", offset=len(seen), limit=100)
        seen += [(r["p"], r["s"], r["i"]) for r in found["rows"]]
        more = found["more"]
    assert len(seen) == len(set(seen)) == 240


def test_a_long_text_comes_in_slices(server):
    key = {"run": "base", "task": "aime", "problem": "aime-001", "seed": 0, "index": 3}
    one, two = get(server, "api/sample", **key), get(server, "api/sample", **key, **{"from": SLICE})
    assert one["cut"] == len(LONG)
    assert one["c"] + two["c"] == LONG
    assert "cut" not in two


def test_a_traced_sample_brings_its_numbers(server):
    found = get(server, "api/sample", run="base", task="aime", problem="aime-000", seed=0, index=7)
    assert "".join(found["trace"]["tokens"]) == found["c"]
    assert found["trace"]["checkpoints"] == ["base", "checkpoint-10"]


def test_nothing_in_a_request_becomes_a_path(server):
    for run in ("nobody", "0", "../base"):
        assert refused(server, "api/samples", run=run, task="aime")[0] == 404
    assert refused(server, "api/samples", run="base", verdict="maybe")[0] == 400
    assert refused(server, "api/sample", run="base", task="aime", problem="../../x", seed=0, index=0)[0] == 404
    assert refused(server, "api/sample", run="base", task="aime", problem="aime-000", seed=0, index="")[0] == 400
    for path in ("store.json", "base/", "..%2f..%2fetc/passwd", "api", "samples/", "../../../../etc/passwd"):
        assert refused(server, path)[0] == 404


def ask(server, host, path="/"):
    connection = HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    return connection.getresponse()


def test_only_this_machine_and_this_name(server):
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "evil.example").status == 403  # a name that was made to point here
    good = ask(server, f"localhost:{server.server_port}")
    assert good.status == 200
    assert good.headers["X-Content-Type-Options"] == "nosniff"
    assert "connect-src 'self'" in html.unescape(good.read().decode())


def test_what_cannot_be_served_is_said(root, server, tmp_path, capsys):
    with pytest.raises(UserError, match="there is no run to show"):
        explore(tmp_path)
    for port in (server.server_port, 99_999):
        with pytest.raises(UserError, match="cannot be used"):
            Explorer(root, port, resamples=50)
    for seconds in ("0", "-1", "nan", "inf"):
        assert main(["report", str(root), "--watch", seconds]) == 2
        assert f"--watch {seconds}: the seconds between two looks must be above 0" in capsys.readouterr().err


def embedded(text):
    """The numbers that a page draws."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def steps(page):
    return {run["name"]: run["steps"] for run in page["runs"] if run["kind"] == "training"}


def test_a_watched_page_follows_its_runs_whatever_becomes_of_them(tmp_path):
    """A real process, ended by Ctrl-C: a log grows and is cut mid-line, a run without samples and one of another trainer come,
    one is deleted, and at last all of them. The file stays whole and is the last that could be made."""
    write_store(tmp_path / "runs" / "base", {"aime": [0.5] * 4}, n=4)
    grpo = write_log(tmp_path / "runs" / "grpo", steps=10, finished=False)
    code = "import sys; from sage_rlvr.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = ["report", "runs", "--out", "out/page.html", "--watch", "0.1", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # a test run in the background (nohup, some CIs) hands down a SIGINT that is ignored; a terminal does not
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    address = process.stdout.readline().split()[0]

    def until(wanted):
        while True:
            page = embedded((tmp_path / "out" / "page.html").read_text())
            if steps(page) == wanted:
                return page
            assert process.poll() is None
            time.sleep(0.05)

    first = until({"grpo": 10})
    with urllib.request.urlopen(address) as reply:
        served = reply.read().decode()
    version = embedded(served)["live"]
    assert "live" not in first
    assert "connect-src 'none'" in html.unescape((tmp_path / "out" / "page.html").read_text())
    with (grpo / "log.jsonl").open("a") as file:
        file.write('{"step": 11, "reward": 0.5}\n{"step": 12, "rew')
    page = until({"grpo": 11})
    assert "cannot be read and are left out" in str(page["runs"])
    now = version
    while now == version:  # the file is written first
        with urllib.request.urlopen(f"{address}api/version") as reply:
            now = reply.read().decode()
        time.sleep(0.05)
    (tmp_path / "runs" / "fresh").mkdir()
    (tmp_path / "runs" / "fresh" / "log.jsonl").write_text('{"step": 3, "reward": 0.5}\n')
    until({"grpo": 11, "fresh": 3})
    other = tmp_path / "runs" / "trl" / "checkpoint-7"
    other.mkdir(parents=True)
    (other / "trainer_state.json").write_text('{"max_steps": 9, "log_history": [{"step": 7, "reward": 1}]}')
    page = until({"grpo": 11, "fresh": 3, "trl": 7})
    assert [r["status"] for r in page["runs"] if r["name"] == "trl"] == ["half finished: step 7 of 9"]
    shutil.rmtree(grpo)
    until({"fresh": 3, "trl": 7})
    (tmp_path / "runs").rename(tmp_path / "gone")  # at once: a page of half of them would be right too
    while "not read again: there is no run to show" not in (line := process.stdout.readline()):
        assert line.startswith("not read again"), "at most a file that went while it was read"
    process.send_signal(signal.SIGINT)
    said, wrong = process.communicate(timeout=1200)
    assert process.returncode == 0
    *again, last = said.splitlines()  # on a busy machine it may have looked once more before the signal came
    assert last == f"ended; the page is {tmp_path / 'out' / 'page.html'}"
    assert all(line.startswith("not read again: there is no run to show") for line in again)
    assert wrong == ""
    assert steps(embedded((tmp_path / "out" / "page.html").read_text())) == {"fresh": 3, "trl": 7}
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["page.html"]


@needs_browser
def test_the_page_loads_on_demand(server):
    b = Browser()
    try:
        b.size(1440)
        b.open(server.address)
        assert not [u for u in b.requests() if "/api/" in u]
        b.show("explorer")
        b.wait("return document.querySelectorAll('.samples button').length === 50")
        b.js("document.querySelectorAll('#explorer .pager button')[1].click()")
        b.wait("return document.querySelector('#explorer .note').textContent.startsWith('51–80 of 80')")
        b.js(PROBLEM, "aime-001")
        b.wait("return document.querySelector('#explorer .note').textContent === '1–50 of 80'")
        b.js("[...document.querySelectorAll('.samples button')].find(x => x.textContent.includes('#3 ')).click()")
        b.wait("return document.querySelector('.cut button') !== null")
        b.click(".cut button")
        b.wait(f"return document.querySelector('.text').textContent.length === {len(LONG)}")
        b.js(PROBLEM, "aime-000")
        b.wait("return document.querySelectorAll('.tokens span').length > 5")
        b.js("location.hash = 'explorer?run=base&task=aime&problem=aime-002&seed=0&index=77'")  # not listed yet
        b.wait("return document.querySelector('.facts')?.textContent.includes('sample 77')")
        assert b.errors() == []
        assert all(u.startswith((server.address, "data:")) for u in b.requests())
    finally:
        b.close()


@needs_browser
def test_the_page_follows_its_runs_and_the_reader_keeps_the_place(tmp_path):
    """New steps come in by themselves; scroll, choices, switched-off runs, the explorer's filters and the address stay."""
    for name in ("base", "grpo"):
        write_store(tmp_path / name / "eval", {"aime": [0.5] * 4}, n=8)
    log = write_log(tmp_path / "grpo", steps=10, finished=False) / "log.jsonl"
    b = Browser()
    state = (
        "return [document.getElementById('training').getBoundingClientRect().top, location.hash, "
        "document.querySelector('#explorer input[type=search]').value, "
        "[...document.querySelectorAll('main section:not(#explorer) input')].map((c) => c.checked).join(), "
        "document.getElementById('runs-button').textContent]"
    )
    with Explorer(tmp_path, 0, resamples=50) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            b.size(1440)
            b.open(server.address)
            b.show("explorer")
            b.wait("return document.querySelectorAll('.samples button').length > 3")
            b.js(
                "const box = document.querySelector('#explorer input[type=search]');"
                "box.value = 'product'; box.dispatchEvent(new Event('input'))"
            )
            b.wait("return document.querySelectorAll('.samples mark').length > 0")
            b.js("document.querySelectorAll('.samples button')[1].click()")
            b.wait("return location.hash.includes('index=')")
            b.js("document.querySelector('#results fieldset.choice label:last-of-type').click()")
            b.js("document.querySelectorAll('#runs-panel label.check input')[1].click()")
            b.show("training")
            b.wait("return document.querySelectorAll('canvas').length > 8")
            b.js("scrollBy({top: 150, behavior: 'instant'}); window.old = true")
            was = b.js(state)
            log.write_text(log.read_text() + '{"step": 11, "reward": 0.5}\n')
            server.look()
            b.wait("return !window.old && document.documentElement.dataset.ready === 'true'")
            b.wait("return document.querySelector('#explorer .samples mark') !== null")
            assert "11" in b.text("#overview table")
            b.wait(f"return Math.abs(document.getElementById('training').getBoundingClientRect().top - {was[0]}) < 3")
            assert b.js(state)[1:] == was[1:]
            assert b.errors() == []
            assert [u for u in b.requests() if not u.startswith((server.address, "data:", "chrome"))] == []
            server.shutdown()
        finally:
            b.close()
