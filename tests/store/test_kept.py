"""What the store keeps: keys beyond their first room, shards on the disk before they are named, a lock that is another's."""

import json
import os

import pytest

from sage_rlvr import lock
from sage_rlvr.errors import UserError
from sage_rlvr.store import SampleStore
from sage_rlvr.store import samples as module
from sage_rlvr.store.keys import Keys

from .test_samples import SETTINGS, filled, rows, sample


def test_keys_grow_and_keep_what_they_hold():
    """More cells and larger indices than there is room for at first, in batches that come in turn; two tasks share names."""
    keys, expected = Keys(), {}
    for turn in range(6):
        cells = [
            (task, f"p{p}", seed) for task in ("a", "b") for p in range(20 * turn, 20 * turn + 30) for seed in (0, 7)
        ]
        batch = [(cell, i) for n, cell in enumerate(cells) for i in (turn, 90 * turn + n % 3 + (cell[0] == "b"))]
        made = [sample(problem, seed, index, task=task) for (task, problem, seed), index in batch]
        first = []
        for cell, index in batch:
            first.append(index not in expected.setdefault(cell, set()))
            expected[cell].add(index)
        assert keys.add(module._to_batch(made)).tolist() == first
    assert len(expected) > 64
    assert max(map(max, expected.values())) > 64, "beyond the first room both ways"
    assert dict(keys) == expected
    assert sum(map(len, keys.values())) == sum(map(len, expected.values()))


def test_a_shard_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """In this order: the file is synced, renamed, and the folder that has its name is synced."""
    store, done = SampleStore(tmp_path / "x"), []
    fsync, replace = os.fsync, os.replace
    with monkeypatch.context() as watched:
        watched.setattr(module.os, "fsync", lambda fd: done.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
        watched.setattr(module.os, "replace", lambda a, b: done.append((str(a), str(b))) or replace(a, b))
        store.append([sample()])
        store.flush()
    (shard,) = store.shards()
    part = str(tmp_path / "x" / ".part" / shard.name)
    assert done == [part, (part, str(shard)), str(shard.parent)]
    store.close()


def test_a_rescoring_under_another_label_starts_over(tmp_path):
    folder = filled(tmp_path / "x")
    calls = []

    def stops(batch):
        calls.append(len(batch))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return [0.5] * len(batch)

    def interrupted(store):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            store.rescore(stops, label="strict")
        return calls[0]  # judged before that

    with SampleStore(folder, SETTINGS) as store:
        for label in ("other", None):
            interrupted(store)
            assert store.rescore(lambda batch: [0.0] * len(batch), label=label) == 48
        done = interrupted(store)
        assert store.rescore(lambda batch: [0.0] * len(batch), label="strict") == 48 - done
        assert not store.rescoring


def test_who_does_not_hold_the_lock_does_not_release_it(tmp_path):
    path = tmp_path / "writer.lock"
    theirs = {"pid": 1, "start": 1, "host": "elsewhere"}
    path.write_text(json.dumps(theirs))
    lock.release(path)
    assert json.loads(path.read_text()) == theirs
    path.write_text("")
    lock.acquire(path)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    lock.release(path)
    assert not path.exists()


def test_a_setting_that_was_not_there_is_a_difference(tmp_path):
    folder = filled(tmp_path / "x")
    with pytest.raises(UserError, match="top_k was 'unset' and is now 5"):
        SampleStore(folder, SETTINGS | {"top_k": 5})
    assert len(rows(folder)) == 48
