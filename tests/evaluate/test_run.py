"""The whole verb on a tiny model: resume after kills, judging, refusals, flat memory."""

import json
import shutil
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate import run as run_module
from sage_rlvr.evaluate.backends import make_backend
from sage_rlvr.evaluate.run import EvalArguments, Scribe, evaluate
from sage_rlvr.evaluate.sampling import Generation, Request
from sage_rlvr.stats.counts import counts_of
from sage_rlvr.store.samples import SampleStore, StoreError
from sage_rlvr.tasks import Problem, load_task, render
from sage_rlvr.verify import Verdict, judged_text
from tests import forked
from tests.evaluate import run_eval_tiny as world
from tests.models.tiny import save_broken
from tests.train import tiny

QUIET = Console(quiet=True)
KEYS = ["task", "problem", "seed", "index"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"), spread=0.5)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """An uninterrupted run."""
    return evaluate(world.arguments(model, tmp_path_factory.mktemp("runs") / "x"), QUIET)


def table(folder):
    return pd.read_parquet(Path(folder, "samples")).sort_values(KEYS, ignore_index=True)


def test_every_sample_is_there_once_and_judged(whole):
    rows = table(whole)
    assert len(rows) == (world.PROBLEMS - 1) * world.SEEDS * world.N  # one gold is not verifiable
    assert (rows.groupby(KEYS[:3]).size() == world.N).all()
    assert "parity-3" not in set(rows.problem)
    with SampleStore(whole, readonly=True) as store:
        assert store.problems["parity"].unverifiable == ["parity-3"]
    assert set(rows.run) == {"x"}
    assert set(rows.finish) == {"stop", "length"}
    ended = rows[rows.finish == "stop"]
    parity = {p.id: p.answer for p in load_task("parity", limit=world.PROBLEMS, split="test")}
    expected = [
        float(bool(c) and len(c) % 2 == int(parity[p])) for c, p in zip(ended.completion.str.strip(), ended.problem)
    ]
    assert ended.verdict.tolist() == expected
    assert 0 < sum(expected) < len(expected)
    assert rows.groupby(["problem", "seed"]).completion.nunique().min() > 2
    assert (rows.token_ids.map(len) == rows.tokens).all()
    assert (rows.logprob < 0).all()


def test_a_truncated_completion_without_an_answer_is_wrong(whole):
    cut = table(whole).query("finish == 'length'")
    assert len(cut) > 0
    assert set(cut.verdict) == {0.0}
    assert cut.answer.isna().all()
    assert set(cut.reason) == {"truncated"}
    assert set(cut.tokens) == {24}


@pytest.mark.parametrize(
    ("text", "finish", "judged"),
    [
        ("<SOLUTION>12</SOLUTION>", "stop", True),
        ("<SOLUTION>12", "stop", True),  # EOS instead of the closing tag
        ("<SOLUTION>12", "length", False),  # perhaps 123 was meant
        (r"so \boxed{12} and on and", "length", True),
        (r"\boxed{7} no, <SOLUTION>12", "length", False),
        ("<SOLUTION>7</SOLUTION> no, <SOLUTION>12", "length", False),
        ("the answer is 12", "length", False),
        ("the answer is 12", "stop", True),
    ],
)
def test_what_is_judged_of_a_completion(text, finish, judged):
    assert judged_text(text, truncated=finish == "length") == (text if judged else "")


@pytest.mark.slow
def test_kill_nine_at_ten_moments_then_resume(model, whole, tmp_path):
    said = forked.run(world.main, model, str(tmp_path / "x"), 10, 11, timeout=1200)
    assert said.returncode == 0, said.stderr[-2000:]
    report = json.loads(said.stdout.splitlines()[-1])
    total = (world.PROBLEMS - 1) * world.SEEDS * world.N
    assert report["finished"]
    assert report["stored"] == total  # in the raw shards: none lost, none doubled
    assert len({x for x in report["left"] if 0 < x < total}) >= 3, report  # kills fell in the middle of the work
    pd.testing.assert_frame_equal(table(tmp_path / "x"), table(whole), check_exact=True)


def test_told_to_end_it_writes_what_it_has_first(model, whole, tmp_path):
    ended = forked.run(world.told_to_end, model, str(tmp_path / "x"), 60)
    assert ended.returncode == 143, ended.stderr[-2000:]
    total = (world.PROBLEMS - 1) * world.SEEDS * world.N
    assert 60 <= world.stored(tmp_path / "x") < total
    evaluate(world.arguments(model, tmp_path / "x"), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), table(whole), check_exact=True)


def test_a_finished_run_loads_no_model(model, whole, monkeypatch):
    monkeypatch.setattr(run_module.backends, "make_backend", lambda *_, **__: pytest.fail("nothing is missing"))
    evaluate(world.arguments(model, whole), QUIET)


def test_a_run_may_be_extended_and_keeps_what_it_has(model, whole, tmp_path):
    evaluate(world.arguments(model, tmp_path / "x", n=3, seeds=1), QUIET)
    few = table(tmp_path / "x")
    evaluate(world.arguments(model, tmp_path / "x"), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), table(whole))
    assert len(few) == (world.PROBLEMS - 1) * 3


@pytest.mark.parametrize("fails", [False, True])
def test_the_backend_is_closed_whatever_happened(model, tmp_path, monkeypatch, fails):
    closed = []

    def made(*args, **more):
        backend = make_backend(*args, **more)
        backend.close = lambda: closed.append(backend)
        if fails:
            backend._eager = _no_space
        return backend

    monkeypatch.setattr(run_module.backends, "make_backend", made)
    with pytest.raises(OSError) if fails else nullcontext():
        evaluate(world.arguments(model, tmp_path / "x", n=2), QUIET)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.5), ("min_p", 0.2), ("max_tokens", 20), ("prompt_format", "plain"), ("dtype", "float32")],
)
def test_other_settings_in_the_same_folder_are_refused_by_name(model, whole, field, value):
    before = table(whole)
    with pytest.raises(UserError, match=field):
        evaluate(world.arguments(model, whole, **{field: value}), QUIET)
    pd.testing.assert_frame_equal(table(whole), before)


def test_other_weights_under_the_same_name_are_refused(model, tmp_path):
    own = shutil.copytree(model, tmp_path / "m")
    evaluate(world.arguments(own, tmp_path / "x", n=2), QUIET)
    before = table(tmp_path / "x")
    tiny.model(seed=1, spread=0.5).save_pretrained(own)
    for n in (2, 4):  # also where nothing is missing: the numbers would be shown as this model's
        with pytest.raises(UserError, match="other weights"):
            evaluate(world.arguments(own, tmp_path / "x", n=n), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), before)


def test_a_run_goes_on_after_its_folder_was_moved(model, whole, tmp_path):
    """As a study's does: run and model lie in one folder."""
    shutil.copytree(model, tmp_path / "old" / "m")
    evaluate(world.arguments(tmp_path / "old" / "m", tmp_path / "old" / "x", n=2), QUIET)
    shutil.copytree(tmp_path / "old", tmp_path / "new")  # not the times of the files
    shutil.rmtree(tmp_path / "old")
    evaluate(world.arguments(tmp_path / "new" / "m", tmp_path / "new" / "x"), QUIET)
    pd.testing.assert_frame_equal(
        table(tmp_path / "new" / "x").drop(columns="model"), table(whole).drop(columns="model")
    )
    assert SampleStore(tmp_path / "new" / "x", readonly=True).settings["model"] == str(tmp_path / "new" / "m")


def test_n_beyond_reason_is_a_sentence_before_anything_is_made(model, tmp_path):
    for more, said in (
        ({"n": 10**9}, "n=1,000,000,000 is more than 1,000,000"),
        ({"seeds": 10**9}, "seeds=1,000,000,000 asks for more"),
        ({"n": 10**6, "seeds": 100, "limit": 14}, "1,300,000,000 samples .13 problems × 100 seeds"),
    ):
        with pytest.raises(UserError, match=said):
            evaluate(world.arguments(model, tmp_path / "x", **more), QUIET)
        assert not (tmp_path / "x").exists()


def test_another_problem_under_the_same_name_is_refused(model, tmp_path):
    evaluate(world.arguments(model, tmp_path / "x", n=2, limit=3), QUIET)
    before, path = table(tmp_path / "x"), tmp_path / "x" / "problems.json"
    asked = path.read_text()
    for field in ("question", "answer"):
        known = json.loads(asked)
        known["parity"]["parity-1"][field] += "0"
        path.write_text(json.dumps(known))
        with pytest.raises(UserError, match="another question or answer for parity-1 of parity"):
            evaluate(world.arguments(model, tmp_path / "x", limit=3), QUIET)
        assert json.loads(path.read_text()) == known
    for spoilt in ("{", "[]", '{"parity": [1]}'):
        path.write_text(spoilt)
        with pytest.raises(UserError, match="remove it and run this again"):
            evaluate(world.arguments(model, tmp_path / "x", limit=3), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), before)
    path.unlink()
    evaluate(world.arguments(model, tmp_path / "x", n=2, limit=3), QUIET)
    assert json.loads(path.read_text()) == json.loads(asked)


def test_prompts_are_trainings(model):
    from sage_rlvr.tasks import chat_template, to_messages

    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = chat_template(tokenizer, "paper")
    problem = load_task("countdown-ltr", limit=1, split="test")[0]
    (ask,) = run_module._asks([problem], run_module.get_format("paper"), tokenizer)
    as_trl = tokenizer.apply_chat_template(to_messages(problem), add_generation_prompt=True, tokenize=True)
    assert list(ask.prompt) == list(as_trl["input_ids"])
    assert render(problem, "paper", tokenizer).endswith("<start_working_out>")


def test_arguments():
    args = EvalArguments(model="m", tasks=["aime,amc23", "aime"], out="o", seeds=3)
    assert args.tasks == ["aime", "amc23"]
    assert args.seeds == [0, 1, 2]
    assert EvalArguments(model="m", tasks="amc23", out="o", seeds=[7, 4]).seeds == [4, 7]
    assert (args.temperature, args.top_p, args.min_p, args.top_k, args.max_tokens) == (1.0, 1.0, 0.01, 0, 2048)
    assert all(f.metadata.get("help") for f in EvalArguments.__dataclass_fields__.values())
    for missing in ("model", "tasks", "out"):
        with pytest.raises(UserError, match=f"--{missing.removesuffix('s')}: give"):
            EvalArguments(**({"model": "m", "tasks": "t", "out": "o"} | {missing: ""}))
    for field, value in (("n", 0), ("batch_size", 0), ("batch_size", -3), ("engines_per_gpu", 0), ("dtype", "float99")):
        with pytest.raises(UserError, match=f"{field}="):
            EvalArguments(**{"model": "m", "tasks": "t", "out": "o", field: value})


def test_the_engine_gets_what_was_asked_of_it(model, tmp_path, monkeypatch):
    asked = {"batch_size": 5, "dtype": "bfloat16", "gpu_memory_utilization": 0.3, "trust_remote_code": True}
    asked |= {"kv_cache_gib": 1.5, "engines_per_gpu": 3}

    class Told(Exception):
        pass

    def told(*places, **engine):
        assert engine == asked | {"latest": None}  # no engine is there yet
        raise Told

    monkeypatch.setattr(run_module.backends, "make_backend", told)
    with pytest.raises(Told):
        evaluate(world.arguments(model, tmp_path / "x", **asked), QUIET)


# ---- what goes wrong on the way ----------------------------------------------------------------------------------


class Endless:
    """A backend that never runs out, and says how far it was asked to go."""

    batch_size = 4

    def __init__(self, batches, fails=None):
        self.batches, self.fails, self.given = batches, fails, 0

    def generate(self, requests=None):
        for i in range(self.batches):
            if self.fails is not None and i == self.fails:
                raise RuntimeError("the engine died")
            self.given += 1
            yield [Generation(Request("t", f"p{i}", 0, j, ()), [1], "x", "stop", -1.0) for j in range(4)]


class SlowJudges(run_module.Judges):
    fallback = True

    def __init__(self):
        self.judged, self.backend, self.ahead = 0, None, 0

    def judge(self, task, texts, golds, questions=None):
        time.sleep(0.005)
        self.judged += 1
        self.ahead = max(self.ahead, self.backend.given - self.judged)
        return [Verdict(0.0, text, "wrong") for text in texts]


class NoLine:
    def advance(self, *numbers):
        pass


def scribe(store, backend, judges):
    judges.backend = backend
    asked = {("t", f"p{i}"): Problem(f"p{i}", "t", "0 + 1?", "1") for i in range(200)}
    return Scribe(store, judges, asked, "run", "m", NoLine())


@pytest.fixture
def any_task(monkeypatch):
    monkeypatch.setattr(run_module, "distinct_solution", lambda *a: None)


def test_sampling_waits_for_judging_so_memory_stays_flat(tmp_path, any_task):
    backend, judges = Endless(100), SlowJudges()
    with SampleStore(tmp_path / "x") as store:
        writer = scribe(store, backend, judges)
        writer.write(backend.generate())
    assert judges.judged == 100
    assert writer.peak <= run_module.QUEUE + 2
    assert judges.ahead <= run_module.QUEUE + 2  # batches drawn and not yet judged
    assert writer.peak >= run_module.QUEUE  # and the queue was full, so the bound is what held it
    assert len(table(tmp_path / "x")) == 400


def test_what_is_judged_is_written_in_time_while_a_batch_takes_long(tmp_path, any_task):
    with SampleStore(tmp_path / "x", shard_seconds=0.05) as store:

        def slow():
            yield from Endless(1).generate()
            give_up = time.monotonic() + 300
            while not store.shards() and time.monotonic() < give_up:
                time.sleep(0.02)
            assert store.shards(), "the first batch is still in memory"

        scribe(store, Endless(0), SlowJudges()).write(slow())


@pytest.mark.parametrize("batches", [1, 20])  # sampling is over; sampling waits
def test_a_scorer_that_stands_still_is_named_once(tmp_path, any_task, monkeypatch, batches):
    """It stands still until it was looked at three times, and then goes on."""
    monkeypatch.setattr(run_module, "STILL_S", 0.0)
    said, looks, backend = [], threading.Semaphore(0), Endless(batches)

    class Still(SlowJudges):
        def judge(self, task, texts, golds, questions):
            if not self.judged:
                assert all(looks.acquire(timeout=1200) for _ in range(3)), "nobody looks"
                run_module.STILL_S = 1e9  # the others do not stand still
            return super().judge(task, texts, golds, questions)

    with SampleStore(tmp_path / "x") as store:
        writer = scribe(store, backend, Still())
        look, writer.line.say = writer._notice, said.append
        writer._notice = lambda: (look(), looks.release())
        writer.write(backend.generate())
    assert len(said) == 1
    assert "(p0)" in said[0]
    assert len(table(tmp_path / "x")) == 4 * batches


class Verdicts:
    """Judges that answer with the reasons given, call by call."""

    def __init__(self, *calls):
        self.calls, self.asked = list(calls), []

    def judge(self, task, texts, golds, questions=None):
        self.asked.append(list(golds))
        scores = {"right": 1.0, "timeout": 0.0, "gold timeout": None, "unverifiable gold": None}
        return [Verdict(scores[reason], "", reason) for reason in self.calls.pop(0)]


def test_a_gold_that_ran_out_of_time_is_tried_again_and_named(monkeypatch, caplog):
    golds = ["1", "2", "3", "4"]
    monkeypatch.setattr(run_module, "load_task", lambda *a, **k: [Problem(f"p{g}", "amc23", "q", g) for g in golds])
    judges = Verdicts(["right", "gold timeout", "timeout", "unverifiable gold"], ["right", "gold timeout"])
    args = EvalArguments(model="m", tasks="amc23", out="o", verifier_timeout_s=3)
    kept, dropped = run_module._kept("amc23", args, judges)
    assert ([p.id for p in kept], dropped) == (["p1", "p2"], ["p3", "p4"])
    assert judges.asked == [golds, ["2", "3"]]
    assert "1 of them ran out of time, twice (p3): give --verifier_timeout_s more than 3" in caplog.text


def test_a_problem_that_was_judged_after_all_counts(tmp_path):
    """Also in a store whose header, of an earlier release, still calls it unverifiable."""
    from tests.evaluate.runs import make_run

    run = make_run(tmp_path / "x", {"a": {"p": ["11"], "q": ["01"]}}, unverifiable=["r"])
    header = json.loads((run / "store.json").read_text())
    header["tasks"]["a"]["unverifiable"] = ["q", "r"]
    (run / "store.json").write_text(json.dumps(header))
    found = counts_of(run).tasks["a"]
    assert (found.problems, found.unverifiable) == (["p", "q"], ["r"])


def test_what_was_sampled_before_a_failure_stays(tmp_path, any_task):
    backend = Endless(100, fails=30)
    with pytest.raises(RuntimeError, match="the engine died"), SampleStore(tmp_path / "x") as store:
        scribe(store, backend, SlowJudges()).write(backend.generate())
    assert len(table(tmp_path / "x")) == 120


@pytest.mark.parametrize("greedy", [False, True])
def test_a_model_whose_weights_are_not_numbers_is_named_and_nothing_stored(tmp_path, greedy):
    broken = save_broken(tmp_path / "m")
    with pytest.raises(UserError, match=r"log-probs that are not numbers, so its weights or its engine are broken"):
        evaluate(world.arguments(broken, tmp_path / "x", temperature=0.0 if greedy else 1.0), QUIET)
    assert not list(tmp_path.joinpath("x", "samples").glob("*"))


def test_an_engine_that_breaks_on_the_way_stops_there(tmp_path, any_task):
    def breaks():
        for i, batch in enumerate(Endless(100).generate()):
            yield [replace(g, logprob=float("nan")) if (i, g.request.index) == (7, 2) else g for g in batch]

    with pytest.raises(UserError, match="m gives tokens of t/p7 log-probs"), SampleStore(tmp_path / "x") as store:
        scribe(store, Endless(0), SlowJudges()).write(breaks())
    assert set(table(tmp_path / "x").problem) == {f"p{i}" for i in range(7)}  # not the batch's other three either


def test_a_full_disk_stops_sampling_with_a_sentence(tmp_path, any_task, monkeypatch):
    backend = Endless(100_000)
    store = SampleStore(tmp_path / "x", shard_rows=8)
    real, shards = store._write_shard, []

    def until_full(*args):
        shards.append(args)
        if len(shards) > 3:
            monkeypatch.setattr("os.fsync", _no_space)
        real(*args)

    monkeypatch.setattr(store, "_write_shard", until_full)
    writer = scribe(store, backend, SlowJudges())
    with pytest.raises(StoreError, match="the disk is full"), store:
        writer.write(backend.generate())
    assert backend.given < 50
    assert len(table(tmp_path / "x")) == 24  # three shards of eight
    assert not [t for t in threading.enumerate() if t.name == "judge"]


def _no_space(*_):
    raise OSError(28, "No space left on device")


def test_a_model_without_weights_leaves_the_samples_alone(model, whole, tmp_path):
    broken = shutil.copytree(model, tmp_path / "m")
    evaluate(world.arguments(broken, tmp_path / "x", n=2), QUIET)
    before = table(tmp_path / "x")
    (broken / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        evaluate(world.arguments(broken, tmp_path / "x"), QUIET)
    pd.testing.assert_frame_equal(table(tmp_path / "x"), before)


def test_progress_without_a_terminal(model, tmp_path):
    with open(tmp_path / "log", "w") as file:
        evaluate(world.arguments(model, tmp_path / "x", n=2), Console(file=file, width=200))
    said = (tmp_path / "log").read_text()
    assert "sampling 52/52" in said
    assert "tokens/s" in said
    assert "right" in said
