"""The sample store: nothing lost, nothing doubled, nothing half-written, and readable by anyone."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pandas
import pyarrow.parquet as pq
import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.store import Sample, SampleStore, StoreError
from sage_rlvr.store import samples as module
from tests.slow import but_few

SETTINGS = {"model": "tiny", "sampling": {"temperature": 0.3, "top_p": 0.95}, "stop": ["</SOLUTION>"]}


def sample(problem="p0", seed=0, index=0, task="amc23", verdict=1.0, answer="7", **more):
    fields = {"run": "r", "model": "m", "tokens": 3, "finish": "stop", "reason": None, "logprob": -1.5}
    fields |= {"completion": f"{problem} {seed} {index}"}
    fields |= more
    return Sample(
        task=task,
        problem=problem,
        seed=seed,
        index=index,
        verdict=verdict,
        answer=answer,
        token_ids=[1, 2, 3],
        **fields,
    )


def rows(folder):
    with SampleStore(folder, readonly=True) as store:
        return [row for batch in store.scan() for row in batch.to_pylist()]


def filled(folder, problems=3, seeds=2, n=8, shard_rows=10):
    with SampleStore(folder, SETTINGS, shard_rows=shard_rows) as store:
        store.ask("amc23", [f"p{i}" for i in range(problems)], n, range(seeds))
        for p in range(problems):
            for s in range(seeds):
                store.append([sample(f"p{p}", s, i) for i in range(n)])
    return folder


def test_what_goes_in_comes_out(tmp_path):
    odd = [
        sample(index=0, completion="zwei\u200b \x00 \u202e 𝔸", verdict=None, answer=None, reason="unverifiable gold"),
        sample(index=1, completion="", logprob=None, solution="1+2", finish="length"),
    ]
    with SampleStore(tmp_path / "x", SETTINGS) as store:
        store.append(odd)
    assert rows(tmp_path / "x") == [vars(s) for s in odd]


def test_half_a_surrogate_pair_is_kept_as_a_question_mark(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        store.append([sample(completion="a\ud800b", answer="\udfff")])
    assert [(r["completion"], r["answer"]) for r in rows(tmp_path / "x")] == [("a?b", "?")]


def test_pandas_and_datasets_read_it_in_one_line(tmp_path):
    folder = filled(tmp_path / "x")
    assert len(pq.ParquetFile(next((folder / "samples").glob("*"))).schema_arrow.names) == 15
    frame = pandas.read_parquet(f"{folder}/samples")
    assert len(frame) == 48
    assert frame.verdict.sum() == 48
    import datasets

    table = datasets.load_dataset("parquet", data_dir=f"{folder}/samples", cache_dir=tmp_path / "cache")["train"]
    assert table.num_rows == 48
    assert table[0]["token_ids"] == [1, 2, 3]


def test_other_settings_are_refused_by_field(tmp_path):
    folder = filled(tmp_path / "x")
    with pytest.raises(UserError, match=r"sampling\.temperature was 0\.3 and is now 1\.0"):
        SampleStore(folder, {**SETTINGS, "sampling": {"temperature": 1.0, "top_p": 0.95}})
    with pytest.raises(UserError, match="model was 'tiny' and is now 'unset'"):
        SampleStore(folder, {k: v for k, v in SETTINGS.items() if k != "model"})
    with SampleStore(folder, SETTINGS) as store:  # and the refusals let go of the lock
        assert store.settings == SETTINGS


def test_weights_are_known_by_their_files_not_by_their_place(tmp_path):
    first = {"model": "/a/m", "adapter": None, "model_weights": "abc", "temperature": 1.0}
    SampleStore(tmp_path / "x", first).close()
    with pytest.raises(UserError, match="other weights than /a/m has now"):
        SampleStore(tmp_path / "x", first | {"model_weights": "xyz"})
    with pytest.raises(UserError, match="model was '/a/m' and is now '/b/m'"):
        SampleStore(tmp_path / "x", first | {"model": "/b/m", "model_weights": "xyz"})
    with pytest.raises(UserError, match="temperature"):
        SampleStore(tmp_path / "x", first | {"model": "/b/m", "temperature": 0.5})
    SampleStore(tmp_path / "x", first | {"model": "/b/m"}).close()  # the folder was moved
    assert SampleStore(tmp_path / "x", readonly=True).settings["model"] == "/b/m"


def test_weights_that_were_not_here_at_first_are_learned(tmp_path):
    old = {"model": "/a/m", "temperature": 1.0}
    SampleStore(tmp_path / "x", old).close()
    SampleStore(tmp_path / "x", old | {"model_weights": "abc"}).close()
    with pytest.raises(UserError, match="other weights"):
        SampleStore(tmp_path / "x", old | {"model_weights": "xyz"})
    SampleStore(tmp_path / "x", old).close()  # weights that cannot be looked at are believed


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (None, "no sample store"),
        ("{", "cannot be read"),
        ('{"version": 99}', "version 99"),
        ("[]", "cannot be read"),
        ('{"version": 1}', "cannot be read"),
        ('{"version": 1, "settings": {}, "tasks": []}', "cannot be read"),
        ('{"version": 1, "settings": {}, "tasks": {"t": {"x": 1}}}', "cannot be read"),
        ('{"version": 1, "settings": {}, "tasks": {"t": {"problems": [], "n": "a", "seeds": []}}}', "cannot be read"),
    ],
)
def test_what_is_not_a_store_is_said(tmp_path, header, said):
    folder = tmp_path / "x"
    folder.mkdir()
    if header is not None:
        (folder / "store.json").write_text(header)
    with pytest.raises(UserError, match=said):
        SampleStore(folder, readonly=True)


def test_done_reads_the_key_columns_alone(tmp_path, monkeypatch):
    folder = filled(tmp_path / "x")
    asked = []
    read = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, *a, **k: asked.append(set(k["columns"])) or read(self, *a, **k)
    )
    done = SampleStore(folder, readonly=True).done()
    assert dict(done) == {("amc23", f"p{p}", s): set(range(8)) for p in range(3) for s in range(2)}
    assert done.get(("amc23", "p9", 0), set()) == set()
    assert all(columns == {"task", "problem", "seed", "index"} for columns in asked)


def test_a_doubled_sample_counts_once_and_the_first_stays(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        store.append([sample(index=0), sample(index=1), sample(index=1, completion="again")])
        store.flush()
        store.append([sample(index=1, completion="later"), sample(index=2)])
        assert sum(map(len, store.done().values())) == 3  # what still waits is counted too
    assert [(r["index"], r["completion"]) for r in rows(tmp_path / "x")] == [
        (0, "p0 0 0"),
        (1, "p0 0 1"),
        (2, "p0 0 2"),
    ]


def test_scan_takes_columns_and_a_task(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        store.append([sample(task=t, index=i) for t in ("a", "b") for i in range(3)])
        got = list(store.scan(["verdict"], task="b"))
        assert [b.schema.names for b in got] == [["verdict"]]
        assert sum(b.num_rows for b in got) == 3
        assert not list(store.scan(task="c"))
        with pytest.raises(UserError, match="no column verdikt"):
            list(store.scan(["verdikt"]))


def test_asking_again_adds(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        store.ask("amc23", ["p0", "p1"], 4, [0])
        store.ask("amc23", ["p1", "p2"], 2, [1], unverifiable=["bad"])
    asked = SampleStore(tmp_path / "x", readonly=True).problems["amc23"]
    assert (asked.problems, asked.n, asked.seeds, asked.unverifiable) == (["p0", "p1", "p2"], 4, [0, 1], ["bad"])


def test_a_problem_asked_after_all_is_no_longer_unverifiable(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        store.ask("amc23", ["p0"], 4, [0], unverifiable=["p1", "p2"])
        store.ask("amc23", ["p0", "p1"], 4, [0])
        assert store.problems["amc23"].unverifiable == ["p2"]
        store.ask("amc23", ["p1"], 4, [0], unverifiable=["p0"])  # its samples are there
        assert store.problems["amc23"].unverifiable == ["p2"]


def test_what_waits_too_long_is_written_without_another_sample(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with SampleStore(tmp_path / "x", shard_seconds=60) as store:
        store.append([sample()])
        now[0] = 59.0
        store.flush_late()
        assert store.waiting == 1
        now[0] = 60.0
        store.flush_late()
        assert store.waiting == 0
        assert len(store.shards()) == 1


def test_shards_are_written_by_rows_by_time_and_by_bytes(tmp_path, monkeypatch):
    store = SampleStore(tmp_path / "x", shard_rows=4, shard_seconds=1e9)
    store.append([sample(index=i) for i in range(3)])
    assert (store.waiting, len(store.shards())) == (3, 0)
    store.append([sample(index=3)])
    assert (store.waiting, len(store.shards())) == (0, 1)
    store.shard_seconds = 0
    store.append([sample(index=4)])
    assert len(store.shards()) == 2
    store.shard_seconds = 1e9
    monkeypatch.setattr(module, "SHARD_BYTES", 100)
    store.append([sample(index=5, completion="x" * 200)])
    assert len(store.shards()) == 3
    store.close()


def test_a_wrong_sample_or_a_readonly_store_is_refused(tmp_path):
    with SampleStore(tmp_path / "x") as store:
        for bad in (sample(finish="eos"), sample(index=-1)):
            with pytest.raises(UserError, match="finish must be one of"):
                store.append([bad])
    store = SampleStore(tmp_path / "x", readonly=True)
    for call in (
        lambda: store.append([sample()]),
        lambda: store.rescore(lambda r: r),
        lambda: store.ask("t", [], 1, []),
    ):
        with pytest.raises(UserError, match="readonly"):
            call()


# ---- two writers, and dead ones ----------------------------------------------------------------------------------

WRITER = textwrap.dedent("""
    import sys, time
    from tests.store.test_samples import sample
    from sage_rlvr.store import SampleStore
    store = SampleStore(sys.argv[1], {"a": 1}, shard_rows=7)
    start = store.done().get(("amc23", "p0", 0), set())
    print("open", flush=True)
    for i in range(100_000):
        if i not in start:
            store.append([sample(index=i)])
            time.sleep(0.0005)
""")


def writer(folder):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    return process


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path):
    process = writer(tmp_path / "x")
    try:
        with pytest.raises(UserError, match=f"being written by process {process.pid} "):
            SampleStore(tmp_path / "x", {"a": 1})
        SampleStore(tmp_path / "x", readonly=True).done()  # a reader is welcome
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with SampleStore(tmp_path / "x", {"a": 1}), pytest.raises(UserError, match=f"by process {os.getpid()}"):
        SampleStore(tmp_path / "x", {"a": 1})  # within one process too


def shards(folder):
    return list((folder / "samples").glob("*.parquet"))


@pytest.mark.parametrize("times", but_few([3, 10], fast=[0]))
def test_killed_so_often_nothing_is_lost_or_doubled(times, tmp_path):
    folder, before = tmp_path / "x", 0
    for i in range(times):
        process, there = writer(folder), len(shards(folder))
        while len(shards(folder)) <= there:  # a busy machine may not write at all in a few hundredths of a second
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(0.013 * i)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        keys = [(r["problem"], r["seed"], r["index"]) for r in rows(folder)]
        assert len(keys) == len(set(keys)) >= before
        assert sorted(k[2] for k in keys) == list(range(len(keys))), "a resumed writer fills exactly what is missing"
        before = len(keys)
    assert before > 0
    assert len(pandas.read_parquet(folder / "samples")) == before


def test_a_number_given_to_another_process_does_not_hold_the_lock(tmp_path):
    SampleStore(tmp_path / "x").close()
    me = json.dumps({"pid": os.getppid(), "start": 1, "host": os.uname().nodename})
    (tmp_path / "x" / "writer.lock").write_text(me)
    SampleStore(tmp_path / "x").close()


def test_another_machine_cannot_be_seen_so_it_is_believed(tmp_path):
    SampleStore(tmp_path / "x").close()
    (tmp_path / "x" / "writer.lock").write_text(json.dumps({"pid": 1, "start": 1, "host": "elsewhere"}))
    with pytest.raises(UserError, match=r"on elsewhere; .*delete writer\.lock"):
        SampleStore(tmp_path / "x")


def test_what_a_killed_writer_left_is_swept_and_never_read(tmp_path):
    folder = filled(tmp_path / "x")
    part = folder / ".part" / "000099-dead.parquet"
    part.write_bytes(b"PAR1 half a shard")
    assert len(rows(folder)) == 48
    assert len(pandas.read_parquet(folder / "samples")) == 48
    SampleStore(folder, SETTINGS).close()
    assert not part.exists()


def test_nothing_half_written_lies_among_the_shards(tmp_path, monkeypatch):
    """Stopped between the write and the rename, the worst moment."""
    folder = filled(tmp_path / "x")
    before = sorted((folder / "samples").iterdir())
    store = SampleStore(folder, SETTINGS)
    store.append([sample("new")])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(module.os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    assert sorted((folder / "samples").iterdir()) == before
    assert len(pandas.read_parquet(folder / "samples")) == 48
    store.close()  # it still waited: the same shard again, once
    assert len(rows(folder)) == 49


def test_a_shard_cut_short_is_named_and_its_samples_are_missing(tmp_path, caplog):
    folder = filled(tmp_path / "x")
    shard = sorted((folder / "samples").iterdir())[1]
    gone = pq.read_table(shard).num_rows
    shard.write_bytes(shard.read_bytes()[:-50])
    store = SampleStore(folder, readonly=True)
    assert store.damaged == [shard.name]
    assert shard.name in caplog.text
    assert sum(map(len, store.done().values())) == 48 - gone
    with SampleStore(folder, SETTINGS) as store:  # a writer sets it aside, so that one line reads the rest
        assert sum(map(len, store.done().values())) == 48 - gone
    assert len(pandas.read_parquet(folder / "samples")) == 48 - gone
    assert (folder / "damaged" / shard.name).exists()


def test_a_shard_whose_pages_are_spoilt_is_named_and_its_samples_are_missing(tmp_path, caplog):
    folder = filled(tmp_path / "x")
    shard = sorted((folder / "samples").iterdir())[1]
    gone, content = pq.read_table(shard).num_rows, bytearray(shard.read_bytes())
    content[60:160] = bytes(b ^ 0xFF for b in content[60:160])  # the footer is whole
    shard.write_bytes(content)
    store = SampleStore(folder, readonly=True)
    assert sum(map(len, store.done().values())) == 48 - gone
    assert store.damaged == [shard.name]
    assert shard.name in caplog.text
    with SampleStore(folder, SETTINGS) as store:
        assert sum(map(len, store.done().values())) == 48 - gone
    assert len(pandas.read_parquet(folder / "samples")) == 48 - gone
    assert (folder / "damaged" / shard.name).exists()


# ---- disk full -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["write", "fsync"])
def test_a_full_disk_is_a_sentence_and_what_was_there_stays(tmp_path, monkeypatch, when):
    folder, full = filled(tmp_path / "x"), OSError(errno.ENOSPC, "No space left on device")

    def fail(*_, **__):
        raise full

    store = SampleStore(folder, SETTINGS)
    with monkeypatch.context() as disk:
        disk.setattr(*((module.pq, "write_table") if when == "write" else (module.os, "fsync")), fail)
        store.append([sample("new")])
        with pytest.raises(StoreError, match=r"the disk is full.*run the same command again"):
            store.flush()
        assert len(rows(folder)) == 48
        assert not list((folder / ".part").iterdir())
    store.close()  # there is room again: what waited is written
    assert len(rows(folder)) == 49


def test_a_really_full_disk(tmp_path):
    """The kernel's own refusal, through pyarrow: files may not grow beyond 4 kB."""
    code = """
    import resource, signal, sys
    from tests.store.test_samples import sample
    from sage_rlvr.store import SampleStore, StoreError
    import os
    store = SampleStore(sys.argv[1])
    store.append([sample(index=0)]); store.flush()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    store.append([sample(index=i, completion=os.urandom(50).hex()) for i in range(1, 1000)])
    try:
        store.flush()
    except StoreError as e:
        print(e)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert "could not be written" in done.stdout, done.stderr
    assert len(rows(tmp_path / "x")) == 1


def test_the_first_error_is_the_one_seen(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = SampleStore(tmp_path / "x")
    monkeypatch.setattr(module.pq, "write_table", fail)
    store.append([sample()])
    with pytest.raises(KeyError), store:
        raise KeyError("mine")
    monkeypatch.undo()
    SampleStore(tmp_path / "x").close()  # the lock was let go


# ---- re-scoring ----------------------------------------------------------------------------------------------------


def test_rescoring_changes_verdicts_and_nothing_else(tmp_path):
    folder = filled(tmp_path / "x")
    before = rows(folder)
    with SampleStore(folder) as store:
        judged = store.rescore(
            lambda batch: [{"verdict": float(r["index"] % 2), "answer": "8", "run": "no"} for r in batch]
        )
    assert judged == 48
    assert rows(folder) == [r | {"verdict": float(r["index"] % 2), "answer": "8"} for r in before]
    with SampleStore(folder) as store:
        store.rescore(lambda batch: [None] * len(batch))  # a bare verdict will do
    assert {r["verdict"] for r in rows(folder)} == {None}


@pytest.mark.parametrize("error", [ValueError("judge broke"), KeyboardInterrupt()])
def test_an_interrupted_rescoring_leaves_whole_shards_and_says_how_many(tmp_path, error, caplog):
    folder = filled(tmp_path / "x")
    shards, calls = len(list((folder / "samples").iterdir())), []

    def judge(batch):
        calls.append(len(batch))
        if len(calls) == 3:
            raise error
        return [0.0] * len(batch)

    with SampleStore(folder) as store, pytest.raises((StoreError, KeyboardInterrupt)) as raised:
        store.rescore(judge, label="strict")
    assert f"{shards - 2} of {shards} shards have their old verdicts" in str(raised.value) + caplog.text
    by_shard = [set(pq.read_table(p)["verdict"].to_pylist()) for p in sorted((folder / "samples").iterdir())]
    assert by_shard == [{0.0}] * 2 + [{1.0}] * (shards - 2)
    store = SampleStore(folder)
    assert len(store.rescoring) == shards - 2
    assert store.rescore(lambda b: [0.0] * len(b), label="strict") == 48 - sum(calls[:2])  # goes on where it was
    assert store.rescoring == []
    assert store.rescore(lambda b: [1.0] * len(b)) == 48
    store.close()


@pytest.mark.parametrize("mark", ["{", "[]", '{"label": "new"}'])
def test_a_damaged_mark_of_rescoring_means_that_nothing_is_done(tmp_path, mark, caplog):
    folder = filled(tmp_path / "x")
    (folder / "rescore.json").write_text(mark)
    with SampleStore(folder, SETTINGS) as store:
        assert store.rescoring == [p.name for p in store.shards()]
        assert "rescore.json cannot be read" in caplog.text
        assert store.rescore(lambda rows: [0.0] * len(rows), label="new") == 48
        assert not store.rescoring


def test_a_judge_that_miscounts_is_refused(tmp_path):
    folder = filled(tmp_path / "x")
    with SampleStore(folder) as store, pytest.raises(UserError, match="one per row"):
        store.rescore(lambda batch: [1.0])
    assert {r["verdict"] for r in rows(folder)} == {1.0}
