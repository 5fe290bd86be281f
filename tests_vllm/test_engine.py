"""The engine that evaluates, against transformers: tokens, log-probs, adapters, seeds, stop strings, a run that ends early."""

import os
import shutil
import signal
import time
from copy import copy
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm.config import CompilationConfig
from vllm.v1.engine.core_client import SyncMPClient

from sage_rlvr.errors import Failed, UserError
from sage_rlvr.evaluate import vllm_backend
from sage_rlvr.evaluate.backends import choose, make_backend
from sage_rlvr.evaluate.sampling import Request, Sampling
from sage_rlvr.evaluate.transformers_backend import TransformersBackend
from sage_rlvr.evaluate.vllm_backend import VllmBackend
from sage_rlvr.models import load_model, load_tokenizer, vllm_logprobs
from tests.models import tiny

from .small import PROMPTS, blocks, logprob, requests, run

EOS, CACHE_GIB = 1, 0.25
HOW = Sampling(max_tokens=40)  # which the engines are made for; a test sets its own


def wearing(latest, base, adapter):
    """As an evaluation of that adapter asks for an engine, once there is a latest one."""
    more = {"dtype": "float32", "kv_cache_gib": CACHE_GIB, "latest": latest}
    return make_backend("vllm", base, adapter, load_tokenizer(base), HOW, 32, **more)


@pytest.fixture(scope="module")
def engines(base, adapter):
    """adapted → how → a backend; two engines in all, a start takes a while."""
    made = {adapted: wearing(None, base, own) for adapted, own in ((False, None), (True, adapter))}
    for backend in made.values():  # as on a GPU: what our scheduler sends crosses from process to process
        assert isinstance(backend.engine.llm.llm_engine.engine_core, SyncMPClient)

    def asked(adapted, how):
        made[adapted].engine.settings = replace(made[adapted].engine.settings, how=how)
        return made[adapted]

    yield asked
    for backend in made.values():
        backend.close()


def test_a_cpu_build_runs_where_it_is_asked_for():
    assert choose("vllm") == "vllm"
    assert choose("auto") == "transformers"


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "adapter"])
def test_greedy_tokens_and_their_log_probs_are_transformers(engines, base, adapter, adapted):
    how, own = Sampling(temperature=0, min_p=0.0, max_tokens=24), adapter if adapted else None
    rows = requests(base, len(PROMPTS))
    got = run(engines(adapted, how), rows)
    model = load_model(base, own, dtype="float32")
    wanted = run(TransformersBackend(model, load_tokenizer(base), how, 4, static=False), rows)
    for row in rows:
        assert got[row].token_ids == wanted[row].token_ids
        assert (got[row].text, got[row].finish) == (wanted[row].text, wanted[row].finish)
        assert got[row].logprob == pytest.approx(wanted[row].logprob, abs=1e-3)
    if adapted:
        plain = run(TransformersBackend(load_model(base), load_tokenizer(base), how, 4, static=False), rows)
        assert any(plain[row].token_ids != got[row].token_ids for row in rows), "the adapter counts"


def test_one_engine_samples_several_adapters(engines, base, adapter, tmp_path):
    """Each as transformers does, whatever was worn before, the first one again included: prefixes are cached by adapter. Another
    length or model is another engine's work."""
    how, rows, tokenizer = Sampling(temperature=0, max_tokens=24), requests(base, len(PROMPTS)), load_tokenizer(base)
    other = str(tiny.save_adapter(tmp_path / "other", base, seed=2))
    first, said = engines(True, how), []
    for own in (adapter, other, adapter):
        assert wearing(first, base, own) is first
        got = run(first, rows)
        wanted = run(TransformersBackend(load_model(base, own, dtype="float32"), tokenizer, how, 4, static=False), rows)
        assert [got[row].token_ids for row in rows] == [wanted[row].token_ids for row in rows]
        said.append([got[row].text for row in rows])
    assert said[0] == said[2] != said[1]
    settings = first.settings
    for different in (replace(settings, context=1), replace(settings, model="m"), replace(settings, adapter=None)):
        assert not first.takes(different, first.gpus)


def test_samples_of_an_adapter(engines, base, adapter):
    """The log-probs are those of the truncated distribution, and a sample is its own seed's alone."""
    how = Sampling(temperature=0.8, top_p=0.9, min_p=0.02, top_k=20, max_tokens=20)
    backend, rows = engines(True, how), requests(base, 24)
    got = run(backend, rows)
    model = load_model(base, adapter, dtype="float32")
    for g in got.values():
        assert g.logprob == pytest.approx(logprob(model, g.request.prompt, g.token_ids, how), abs=2e-3)
        assert g.finish == ("stop" if g.token_ids[-1] == EOS else "length")
    assert len({tuple(g.token_ids) for g in got.values()}) > 20
    alone = run(backend, [rows[7]])
    assert alone[rows[7]].token_ids == got[rows[7]].token_ids
    others = run(backend, requests(base, 24, first=24))
    long, again = ({tuple(g.token_ids) for g in run.values() if len(g.token_ids) > 9} for run in (got, others))
    assert len(long) > 9
    assert not long & again


def test_log_probs_that_do_not_come_end_the_evaluation(engines, base, monkeypatch):
    """As from a vLLM that hands them on in another way: no sample is stored with the log-prob of nothing."""
    monkeypatch.setattr(vllm_logprobs, "LOGPROBS", "another name")
    with pytest.raises(Failed, match=r"gave 0 log-probs for \d+ tokens"):
        run(engines(False, Sampling(max_tokens=4)), requests(base, 1))
    monkeypatch.undo()
    assert run(engines(False, Sampling(max_tokens=4)), requests(base, 1))


def test_draws_follow_the_models_distribution(engines, base):
    how, count = Sampling(temperature=1.0, min_p=0.0, max_tokens=1), 3000
    prompt = requests(base, 1)[0].prompt
    got = run(engines(False, how), [Request("t", "p", 0, i, prompt) for i in range(count)])
    with torch.no_grad():
        wanted = torch.softmax(load_model(base)(input_ids=torch.tensor([prompt])).logits[0, -1], -1).double().numpy()
    seen = np.bincount([g.token_ids[0] for g in got.values()], minlength=len(wanted))
    often = wanted * count > 5
    chi2 = ((seen - count * wanted)[often] ** 2 / (count * wanted)[often]).sum()
    assert chi2 < often.sum() + 4 * (2 * often.sum()) ** 0.5, "beyond four standard deviations"


def test_a_stop_string_ends_a_completion_and_its_log_prob(engines, base):
    """Asynchronous scheduling has drawn a token more by then: it is neither kept nor counted."""
    model, free = load_model(base), Sampling(temperature=1.0, min_p=0.0, max_tokens=40)
    rows = requests(base, 12)
    long = run(engines(False, free), rows)
    stop = next(g.text[5:7] for g in long.values() if len(g.text) > 30 and g.text[5:7] not in g.text[:6])
    how = Sampling(temperature=1.0, min_p=0.0, max_tokens=40, stop=(stop,))
    got = run(engines(False, how), rows)
    cut = [g for g in got.values() if stop in g.text]
    assert cut
    for g in got.values():
        whole = long[g.request].text
        assert g.text == (whole[: whole.index(stop) + len(stop)] if stop in whole else whole)
        assert g.logprob == pytest.approx(logprob(model, g.request.prompt, g.token_ids), abs=2e-3)


def test_a_run_that_stops_early_leaves_the_engine_usable(engines, base, monkeypatch):
    monkeypatch.setattr(vllm_backend, "HANDED", 3)
    how = Sampling(temperature=1.0, min_p=0.0, max_tokens=16)
    backend = engines(False, how)
    assert backend.engine.room > backend.engine.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    monkeypatch.setattr(backend.engine, "room", 8)
    backend.engine.peak = 0
    batches = backend.generate(iter(requests(base, 40)))
    next(batches)
    batches.close()
    assert not backend.engine.flying
    assert not backend.engine.llm.llm_engine.has_unfinished_requests()
    rows, model = requests(base, 20), load_model(base)
    got = run(backend, rows)
    assert set(got) == set(rows)
    assert backend.engine.peak == 8
    for g in got.values():
        assert g.logprob == pytest.approx(logprob(model, g.request.prompt, g.token_ids, how), abs=2e-3)


def test_the_cache_has_the_size_asked_for(engines):
    cache = engines(False, Sampling()).engine.llm.llm_engine.vllm_config.cache_config
    assert cache.num_gpu_blocks == blocks(CACHE_GIB, cache)


def test_vllm_takes_our_sizes_of_graphs_and_every_step_of_1024_sequences_has_one(engines):
    """As on a GPU: here, where there are no graphs, vLLM drops the sizes."""
    config = copy(engines(True, Sampling()).engine.llm.llm_engine.vllm_config)
    asked = engines(True, Sampling()).engine._engine_arguments()["compilation_config"]
    config.model_config, config.scheduler_config = copy(config.model_config), copy(config.scheduler_config)
    config.model_config.enforce_eager = False
    config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens = 1024, 16384
    config.compilation_config = CompilationConfig(**asked, cudagraph_mode="FULL_AND_PIECEWISE")
    config._set_cudagraph_sizes()
    taken = config.compilation_config.cudagraph_capture_sizes
    assert taken == asked["cudagraph_capture_sizes"]
    assert all(any(tokens <= size <= 2 * tokens for size in taken) for tokens in range(1, 1025))
    assert config.compilation_config.cudagraph_specialize_lora is False


def test_a_rank_that_vllm_has_no_kernel_for_is_refused(engines, base):
    settings = replace(engines(True, Sampling()).engine.settings, adapter_rank=1024)
    with pytest.raises(UserError, match="rank 1024, and vLLM serves up to 512: merge it first"):
        vllm_backend.Engine(settings)


def _engines(worker):
    """Its engine, once all of its processes bear vLLM's name."""
    found = worker.children(recursive=True)
    return found if {engine.name().split(":")[0] for engine in found} == {"VLLM"} else []


def test_two_engines_on_one_gpu_give_the_samples_of_one_and_one_that_is_killed_is_named(engines, base, monkeypatch):
    """A process each, with an engine in processes of vLLM's own, of which none stays behind."""
    made, eager, how = [], (("enforce_eager", True),), Sampling(temperature=1.0, min_p=0.0, max_tokens=12)
    monkeypatch.setattr(
        vllm_backend,
        "VllmBackend",
        lambda own, gpus: made.append(own) or VllmBackend(replace(own, more=own.more + eager), gpus),
    )
    memory = {"gpu_memory_utilization": 0.8, "kv_cache_gib": 0.125, "engines_per_gpu": 2}
    several = make_backend("vllm", base, None, load_tokenizer(base), how, 32, dtype="float32", **memory)
    try:
        workers = [psutil.Process(process.pid) for process in several.workers.processes]
        assert len(workers) == 2
        assert made[0].gpu_memory_utilization == 0.4
        monkeypatch.setattr(vllm_backend, "HANDED", 5)
        rows = requests(base, 40)
        wanted, got = run(engines(False, how), rows), {}
        sampled = several.generate(iter(requests(base, 40_000)))
        while not set(rows) <= got.keys():
            got |= {g.request: g for g in next(sampled)}
        for row in rows:
            assert got[row].token_ids == wanted[row].token_ids
            assert got[row].logprob == pytest.approx(wanted[row].logprob, abs=1e-3)
        give_up = time.monotonic() + 1200  # these samples may all be of one engine while the other is still starting
        while not all(up := [_engines(worker) for worker in workers]) and time.monotonic() < give_up:
            time.sleep(0.1)
        processes = up[0] + up[1]
        assert all(up), "both have an engine, a process of vLLM's own"
        os.kill(workers[1].pid, signal.SIGKILL)
        with pytest.raises(Failed, match=r"vllm-gpucpu died with exit code -9; what was sampled before stays"):
            for _ in sampled:
                pass
    finally:
        several.close()  # the other, in the middle of its work
    assert not psutil.wait_procs(processes, timeout=1200)[1], "their GPUs would stay taken"


def test_log_probs_that_are_not_numbers_come_back_as_such(engines, base, adapter, tmp_path):
    """Whoever stores samples then sees that something is broken: its tokens alone would only look wrong. The last that is asked
    of that engine, for what is not a number stays in an engine's cache."""
    broken = shutil.copytree(adapter, tmp_path / "broken")
    weights = load_file(broken / "adapter_model.safetensors")
    save_file(
        {name: torch.full_like(w, torch.nan) for name, w in weights.items()}, broken / "adapter_model.safetensors"
    )
    backend = engines(True, Sampling(max_tokens=8))
    assert wearing(backend, base, str(broken)) is backend
    assert all(np.isnan(g.logprob) for g in run(backend, requests(base, 4)).values())
