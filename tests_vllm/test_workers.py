"""Several engines, a process each, as on several GPUs: the samples of one, a sentence when one dies, none that stays behind."""

import multiprocessing as mp
import os
import signal

import psutil
import pytest

from sage_rlvr.evaluate.sampling import Sampling
from sage_rlvr.evaluate.vllm_backend import EngineSettings, VllmBackend

from .small import requests, run

HOW = Sampling(temperature=1.0, min_p=0.0, max_tokens=12)


@pytest.fixture
def settings(base):
    more = (("kv_cache_memory_bytes", 2**27), ("enforce_eager", True))
    return EngineSettings(model=base, how=HOW, eos=(1,), context=44, dtype="float32", more=more)


@pytest.fixture
def several(settings):
    backend = VllmBackend(settings, ["0", "1"])
    yield backend
    backend.close()


def test_two_engines_give_the_samples_of_one(several, settings, base, monkeypatch):
    one = VllmBackend(settings, ["0"])
    monkeypatch.setattr("sage_rlvr.evaluate.vllm_backend.HANDED", 5)
    rows = requests(base, 40)
    got, wanted = run(several, rows), run(one, rows)
    assert set(got) == set(rows)
    assert {r: g.token_ids for r, g in got.items()} == {r: g.token_ids for r, g in wanted.items()}
    for row in rows:
        assert got[row].logprob == pytest.approx(wanted[row].logprob, abs=1e-3)
    (own,) = (child for child in mp.active_children() if child.name.startswith("EngineCore"))
    one.close()
    own.join(60)  # on a busy machine vLLM loses patience and kills it, without waiting for that
    assert not own.is_alive(), "at the end of this process it would be waited for, for ever"


def test_an_engine_that_is_killed_is_named_and_none_stays_behind(several, base):
    sampled = several.generate(iter(requests(base, 40_000)))
    next(sampled)
    workers = [psutil.Process(process.pid) for process in several.workers.processes]
    engines = [engine for worker in workers for engine in worker.children(recursive=True)]
    assert {engine.name().split(":")[0] for engine in engines} == {"VLLM"}
    os.kill(workers[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"vllm-gpu1 died with exit code -9; what was sampled before stays"):
        for _ in sampled:
            pass
    several.close()  # the other, in the middle of its work
    assert not psutil.wait_procs(engines, timeout=60)[1], "their GPUs would stay taken"
