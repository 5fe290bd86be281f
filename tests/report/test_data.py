"""What goes into the page: numbers against evaluate's own, what is left out, and that no text can leave its element."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate.results import results, support
from sage_rlvr.report import completions
from sage_rlvr.report.data import binned, page_data
from sage_rlvr.report.find import find_runs
from sage_rlvr.report.page import build_report, embedded
from sage_rlvr.report.traces import Traces, in_order
from sage_rlvr.store import Sample, SampleStore
from tests.report.synthetic import chances, write_everything, write_log, write_store, write_trace

NASTY = "</script><script>window.pwned = 1</script>\u2028\u2029<!--<script>&lt;\ud800"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_everything(tmp_path_factory.mktemp("runs"), problems=12, n=8)


@pytest.fixture(scope="module")
def data(root):
    return page_data(find_runs([root, root / "gone"]), resamples=200)


def test_every_run_is_found_or_named(root, data):
    assert [r["name"] for r in data["runs"] if r["kind"] == "evaluation"] == [
        "base/eval", "branch/eval", "grpo/eval", "grpo_nokl/eval", "half/eval",
    ]  # fmt: skip
    assert [r["name"] for r in data["runs"] if r["kind"] == "training"] == ["branch", "grpo", "grpo_nokl", "half"]
    assert "no such folder" in data["absent"][str(root / "gone")]
    assert "version 99" in data["absent"]["other/eval"]
    assert "cannot be read" in data["absent"]["broken/eval"]
    status = {r["name"]: r["status"] for r in data["runs"]}
    assert status["half/eval"].startswith("half finished: 10 of 12")
    assert status["half"] == "half finished: step 30 of 100"
    assert status["grpo"] == status["grpo/eval"] == "complete"


def test_a_folder_of_nothing_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="there is no run to show"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        find_runs([tmp_path / "gone"])


def test_base_is_chosen_or_refused(root):
    assert find_runs([root], base="grpo/eval").evals[0].name == "grpo/eval"
    with pytest.raises(UserError, match="not an evaluation that was found"):
        find_runs([root], base="nobody")


def test_without_a_name_the_base_is_what_a_training_started_from(tmp_path):
    """Before and after one training: the alphabet would hold the model before it against the one after."""
    write_store(tmp_path / "after", {"aime": [0.5]}, model="runs/mine")
    write_store(tmp_path / "before", {"aime": [0.5]}, model="toy/start")
    assert [run.name for run in find_runs(tmp_path).evals] == ["after", "before"], "nothing tells them apart"
    write_log(tmp_path / "mine", model_name_or_path="toy/start")
    assert [run.name for run in find_runs(tmp_path).evals] == ["before", "after"]
    write_store(tmp_path / "the_base", {"aime": [0.5]}, model="toy/other")
    assert find_runs(tmp_path).evals[0].name == "the_base"


def test_scores_are_those_of_evaluate(root, data):
    found = results(root / "grpo" / "eval", resamples=200)
    i = [r["name"] for r in data["runs"]].index("grpo/eval")
    for task, t in found.tasks.items():
        for k, e in t.pass_at.items():
            assert data["scores"][i][task]["pass"][str(k)] == pytest.approx([e.value, e.low, e.high], rel=1e-4)


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_first_right_gives_support_at_every_budget(root, data, budget):
    names = [r["name"] for r in data["runs"]]
    a, b = names.index("base/eval"), names.index("grpo_nokl/eval")
    for task, wanted in support(root / "base" / "eval", root / "grpo_nokl" / "eval", budget).items():
        t = data["tasks"][task]
        solved = [[0 < f <= budget for f in t["first"][str(i)]] for i in (a, b)]
        kinds = {"P": (True, True), "E": (False, True), "S": (True, False), "O": (False, False)}
        for kind, pair in kinds.items():
            mine = [p for p, x, y in zip(t["problems"], *solved) if (x, y) == pair]
            assert mine == getattr(wanted, kind)


def test_half_drawn_problems_are_marked(data):
    i = [r["name"] for r in data["runs"]].index("half/eval")
    t = data["tasks"]["aime"]
    assert t["first"][str(i)].count(-1) == 2
    assert sorted(set(t["drawn"][str(i)])) == [0, 8]


def test_curves_are_averaged_in_bins_and_say_so():
    assert binned([1, 2, 3], [1.0, 2.0, 3.0], 5) == ([1, 2, 3], [1.0, 2.0, 3.0], 1)
    assert binned(list(range(1, 8)), [float(x) for x in range(1, 8)], 3) == ([3, 6, 7], [2.0, 5.0, 7.0], 3)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("problems.json", "[]", "its questions are not shown"),
        ("problems.json", "{bad", "its questions are not shown"),
        ("problems.json", '{"t": {"p1": {}}}', "its questions are not shown"),
        ("problems.json", '{"t": [1]}', "its questions are not shown"),
        ("made.json", "[]", None),
        ("run.json", '{"finished": false, "settings": null}', "its settings are not known"),
        ("run.json", '{"finished": true, "settings": [1]}', "its settings are not known"),
        ("log.jsonl", '{"step": NaN, "reward": 1}\n', "1 lines of log.jsonl cannot be read"),
        ("rescore.json", "{bad", "re-scoring was cut short: 1 of 1 shards"),
        ("rescore.json", "[]", "re-scoring was cut short: 1 of 1 shards"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path, file, content, said):
    write_store(tmp_path / "good", {"t": [0.5, 0.5]}, n=4)
    (write_store(tmp_path / "bad", {"t": [0.5, 0.5]}, n=4) / file).write_text(content)
    build_report(tmp_path, tmp_path / "page.html", resamples=50)
    data = page_data(find_runs([tmp_path]), resamples=50)
    assert {"good", "bad"} <= {r["name"] for r in data["runs"]}
    notes = " ".join(n for r in data["runs"] if r["name"].startswith("bad") for n in r["notes"])
    assert said is None or said in notes


def test_a_log_prob_that_is_no_number_is_null(tmp_path):
    said = ("t", "p", 0, 0, "text", 1, "stop", "1", 1.0, None, [1])
    with SampleStore(tmp_path / "x") as store:
        store.append([Sample("r", "m", *said, -math.inf)])
    build_report(tmp_path, tmp_path / "page.html", resamples=50)
    assert '"lp":null' in (tmp_path / "page.html").read_text()


def test_checkpoints_are_in_the_order_of_training():
    assert in_order(["base", "checkpoint-100", "checkpoint-20", "base"]) == ["base", "checkpoint-20", "checkpoint-100"]


def test_traces_are_read_and_a_bad_file_is_named(tmp_path):
    folder = write_store(tmp_path / "run", {"aime": [0.5, 0.5]}, n=2)
    key = ("aime", "aime-001", 0, 1)
    write_trace(folder, [key], ["base", "checkpoint-5"])
    (folder / "trace" / "zz.parquet").write_bytes(b"not parquet")
    traces = Traces(folder)
    assert "zz.parquet" in traces.notes[0]
    ((found, trace),) = traces.read([key, ("aime", "aime-000", 0, 0)])
    assert found == key
    assert trace["checkpoints"] == ["base", "checkpoint-5"]
    sizes = {len(row) for name in ("entropy", "surprisal", "q", "penalty", "ref") for row in trace[name]}
    assert sizes == {len(trace["tokens"])}
    assert min(trace["surprisal"][0]) >= 0
    cut = dict(traces.read([key], most=3))[key]
    assert len(cut["tokens"]) == 3
    assert cut["of"] == trace["of"]


def test_a_trace_of_another_completion_is_not_shown(tmp_path):
    folder = write_store(tmp_path / "run", {"aime": [0.5]}, n=2)
    write_trace(folder, [("aime", "aime-000", 0, 0)], ["base"])
    (folder / "trace").rename(tmp_path / "trace")
    other = write_store(tmp_path / "run2", {"aime": [0.5]}, n=2, words=7)
    (tmp_path / "trace").rename(other / "trace")
    found = find_runs([other])
    (chunk,) = completions.choose(found.evals, page_data(found, resamples=50)["tasks"], 1_000_000)
    assert "another completion" in chunk.notes[0]
    assert not any("trace" in s for s in chunk.samples)


def test_choice_is_the_same_each_time_has_both_verdicts_and_keeps_its_budget(tmp_path):
    write_store(tmp_path / "a", {"aime": chances(30, 1, 0.2, 0.1)}, n=32)
    write_store(tmp_path / "b", {"aime": chances(30, 1, 0.9, 0.2)}, n=32)
    found = find_runs([tmp_path])
    tasks = page_data(found, resamples=50)["tasks"]
    one, two = (completions.choose(found.evals, tasks, 60_000) for _ in range(2))
    assert [c.samples for c in one] == [c.samples for c in two]
    for chunk in one:
        assert 0 < len(chunk.samples) < chunk.stored == 30 * 32
        assert {s["v"] for s in chunk.samples} == {0, 1}
    assert sum(completions._size(c.samples) for c in one) < 62_000
    assert {s["p"] for s in one[0].samples} == {s["p"] for s in one[1].samples}


class Elements(HTMLParser):
    """What a browser would see: every script element, and tags with on… attributes."""

    def __init__(self):
        super().__init__()
        self.scripts, self.handlers = [], []

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, text):
        if self.cdata_elem == "script":
            self.scripts[-1][1] += text


def test_no_text_can_leave_its_element():
    assert not re.search(r"[<>&\u2028\u2029]", embedded({"x": NASTY}))
    assert json.loads(embedded({"x": NASTY}))["x"].startswith("</script><script>window.pwned")


def test_hostile_texts_leave_the_page_whole_small_and_cut(tmp_path):
    key = ("aime", "aime-000", 0, 0)
    texts = {key: NASTY, (*key[:3], 1): "x" * 10_000_000, (*key[:3], 2): "<" * 300_000}
    write_store(tmp_path / "r<b>un", {"aime": [0.5]}, n=4, texts=texts)
    out = build_report(tmp_path, tmp_path / "out.html", title="<script>1</script>", resamples=50)
    assert out.stat().st_size < 500_000
    seen = Elements()
    seen.feed(out.read_text(encoding="utf-8"))
    assert [s[0].get("type") for s in seen.scripts] == ["application/json"] * 2 + [None]
    assert not seen.handlers
    samples = json.loads(seen.scripts[1][1])
    cut = {s["i"]: s["cut"] for s in samples if "cut" in s}
    assert cut == {1: 10_000_000, 2: 300_000}
    assert json.loads(seen.scripts[0][1])["completions"][0]["cut"] == 2


def test_the_page_keeps_its_limit_and_cannot_go_where_it_may_not(tmp_path):
    write_store(tmp_path / "run", {"aime": [0.5] * 20}, n=16, words=200)
    out = build_report(tmp_path / "run", tmp_path / "out.html", limit=300_000, resamples=50)
    assert 150_000 < out.stat().st_size < 300_000
    with pytest.raises(UserError, match="cannot be written"):
        build_report(tmp_path / "run", tmp_path / "run" / "store.json" / "x.html", resamples=50)
