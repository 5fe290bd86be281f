"""Several engines, a process each: whose turn it is, and how they are called. Their samples and their deaths: test_engine.py."""

import multiprocessing as mp
import queue
import threading
from dataclasses import replace

import pytest

from sage_rlvr.evaluate import vllm_backend
from sage_rlvr.evaluate.sampling import Sampling
from sage_rlvr.evaluate.vllm_backend import EngineSettings

HOW = Sampling(temperature=1.0, min_p=0.0, max_tokens=12)
EAGER = (("enforce_eager", True),)


@pytest.fixture
def settings(base):
    more = (("kv_cache_memory_bytes", 2**27), *EAGER)
    return EngineSettings(model=base, how=HOW, eos=(1,), context=44, dtype="float32", more=more)


@pytest.mark.parametrize("sized", [False, True])
def test_engines_that_share_a_gpu_start_in_turn_and_work_side_by_side(settings, monkeypatch, sized):
    """Each holds the GPU's turn while it starts, unless its cache's size is given, and not while it works."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # put back afterwards
    turn, box, seen = threading.Lock(), queue.Queue(), []

    class Watched:
        def __init__(self, settings):
            seen.append(turn.locked())

        def run(self, pull):
            seen.append(turn.locked())
            yield ["a sample"]

        def close(self):
            seen.append("closed")

    monkeypatch.setattr(vllm_backend, "Engine", Watched)
    assert "kv_cache_memory_bytes" in dict(settings.more)
    vllm_backend._work(settings if sized else replace(settings, more=EAGER), "0", turn, queue.Queue(), box)
    assert seen == [not sized, False, "closed"]
    assert [box.get_nowait() for _ in range(2)] == [("done", ["a sample"]), ("end", "0")]
    given = []
    monkeypatch.setattr(mp, "get_context", lambda kind: Recorded(given))
    vllm_backend.Workers(settings, ["0", "0", "1"])
    turns = [args[2] for args, _ in given]
    assert turns[0] is turns[1] is not turns[2], "one turn a GPU"
    assert [name for _, name in given] == ["vllm-gpu0", "vllm-gpu0", "vllm-gpu1"]


class Recorded:
    """multiprocessing's context, whose processes are only written down."""

    def __init__(self, given):
        self.given = given

    Lock = staticmethod(threading.Lock)
    Queue = staticmethod(queue.Queue)

    def Process(self, target, args, name):
        self.given.append((args, name))
        return threading.Thread()
