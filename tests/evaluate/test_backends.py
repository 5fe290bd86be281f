"""Backends against an independent loop, TRL's own log-probs, and merged weights."""

import math
import types
from pathlib import Path

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from sage_rlvr.errors import UserError
from sage_rlvr.evaluate import backends, vllm_backend
from sage_rlvr.evaluate.sampling import Ask, Request, Sampling, Stops, draw, missing, truncated, uniforms
from sage_rlvr.evaluate.transformers_backend import TransformersBackend, eos_ids
from sage_rlvr.models import load_model, load_tokenizer, merge_adapter
from tests.models import tiny as model_tiny
from tests.train import tiny

SETTINGS = [
    Sampling(temperature=0, max_tokens=12),
    Sampling(temperature=1.0, min_p=0.0, max_tokens=12),
    Sampling(temperature=0.7, min_p=0.05, max_tokens=12),
    Sampling(temperature=1.3, min_p=0.01, top_p=0.8, max_tokens=12),
    Sampling(temperature=1.0, min_p=0.0, top_k=5, max_tokens=12),
]


@pytest.fixture(scope="module")
def model():
    return tiny.model(spread=0.5).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def requests(tokenizer, count=9, prompts=("1+2=", "30+4=", "7*abc+2=")):
    ids = [tuple(tokenizer(p)["input_ids"]) for p in prompts]
    return [Request("t", f"p{i % len(ids)}", 0, i, ids[i % len(ids)]) for i in range(count)]


def run(backend, rows):
    return [g for batch in backend.generate(iter(rows)) for g in batch]


# ---- an independent loop -----------------------------------------------------------------------------------------


def naive_draw(logits, how, u):
    """One row in plain Python: sort, cut, renormalise, walk up the cumulative sum."""
    if how.temperature == 0:
        top = max(range(len(logits)), key=lambda v: logits[v])
        return top, logits[top] - math.log(sum(math.exp(x) for x in logits))
    weights = [math.exp((x - max(logits)) / how.temperature) for x in logits]  # the largest is 1
    kept = {v: w for v, w in enumerate(weights) if w >= how.min_p}
    if how.top_k:
        kept = dict(sorted(kept.items(), key=lambda item: -item[1])[: how.top_k])
    if how.top_p < 1:
        total, mass, nucleus = sum(kept.values()), 0.0, {}
        for v, w in sorted(kept.items(), key=lambda item: -item[1]):
            if mass >= how.top_p * total:
                break
            nucleus[v] = w
            mass += w
        kept = nucleus
    total, walked = sum(kept.values()), 0.0
    for v in sorted(kept):
        walked += kept[v]
        if walked > u * total:
            return v, math.log(kept[v] / total)
    raise AssertionError("u is below 1")


@torch.no_grad()
def naive(model, request, how, eos):
    """The whole text through the model for every token: no cache, no batch, no padding."""
    ids, logprob = [], 0.0
    u = uniforms([request.key], how.max_tokens)[0].tolist()
    for step in range(how.max_tokens):
        logits = model(input_ids=torch.tensor([[*request.prompt, *ids]])).logits[0, -1].double().tolist()
        token, logp = naive_draw(logits, how, u[step])
        ids.append(token)
        logprob += logp
        if token in eos:
            break
    return ids, logprob


@pytest.mark.parametrize("how", SETTINGS, ids=lambda h: f"T{h.temperature}-min{h.min_p}-p{h.top_p}-k{h.top_k}")
@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_tokens_and_logprobs_equal_a_naive_loop(model, tokenizer, how, static):
    rows = requests(tokenizer)
    backend = TransformersBackend(model, tokenizer, how, batch_size=4, static=static)
    got = run(backend, rows)
    assert [g.request for g in got] == rows
    for g in got:
        ids, logprob = naive(model, g.request, how, {tokenizer.eos_token_id})
        assert g.token_ids == ids
        assert g.logprob == pytest.approx(logprob, abs=1e-4)
        assert g.finish == ("stop" if ids[-1] == tokenizer.eos_token_id else "length")
    if how.temperature:
        assert len({tuple(g.token_ids) for g in got}) > 6  # samples of one problem differ


def test_keys_and_uniforms_are_the_samples_own():
    rows = [Request(t, p, s, i, ()) for t in "ab" for p in "xy" for s in (0, 1) for i in (0, 1)]
    assert len({r.key for r in rows}) == 16
    assert all(0 <= r.key < 2**62 for r in rows)
    u = uniforms([r.key for r in rows] * 60, 400)
    assert u[:16].equal(u[16:32])
    assert 0 < u.min() < 0.001 < 0.999 < u.max() < 1
    assert abs(float(u[:16].mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 6400)


def test_draws_follow_the_distribution():
    torch.manual_seed(0)
    logits = torch.randn(1, 12)
    how = Sampling(temperature=0.8, min_p=0.1)
    rows = 40_000
    u = uniforms(range(rows), 1)[:, 0]
    tokens, logps = draw(logits.expand(rows, -1), how, u)
    wanted = truncated(logits, how)[0].exp()
    seen = torch.bincount(tokens, minlength=12) / rows
    assert (seen[wanted == 0] == 0).all()
    assert (seen - wanted).abs().max() < 4.5 * math.sqrt(0.25 / rows)
    assert logps.exp().allclose(wanted[tokens])


def test_batch_size_does_not_change_the_samples(model, tokenizer):
    how = Sampling(temperature=1.0, max_tokens=16)
    alone = run(TransformersBackend(model, tokenizer, how, batch_size=1), requests(tokenizer))
    for size in (2, 5, 64):
        together = run(TransformersBackend(model, tokenizer, how, batch_size=size), requests(tokenizer))
        assert [g.token_ids for g in together] == [g.token_ids for g in alone]


def test_logprobs_are_trls(model, tokenizer, tmp_path):
    """Without truncation our sum is TRL's per-token log-probs at the same temperature, added up."""
    how = Sampling(temperature=0.7, min_p=0.0, max_tokens=12)
    got = run(TransformersBackend(model, tokenizer, how, batch_size=4), requests(tokenizer))
    args = tiny.config(GRPOConfig, tmp_path, temperature=0.7, max_completion_length=12)
    trainer = GRPOTrainer(
        tiny.folder(tmp_path / "m", spread=0.5), tiny.hash_reward, args, train_dataset=tiny.dataset(8)
    )
    assert all(a.equal(b) for a, b in zip(trainer.model.state_dict().values(), model.state_dict().values()))
    for g in got:
        ids = torch.tensor([[*g.request.prompt, *g.token_ids]])
        with torch.no_grad():
            logps, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.model, ids, torch.ones_like(ids), len(g.token_ids)
            )
        assert g.logprob == pytest.approx(float(logps.sum()), abs=1e-3)


# ---- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_a_stop_string_ends_its_row_and_no_other(model, tokenizer, static):
    free = Sampling(temperature=1.0, max_tokens=16)
    before = run(TransformersBackend(model, tokenizer, free, 4), requests(tokenizer))
    stop = before[0].text[4:6]  # two tokens, so it is completed by the second
    how = Sampling(temperature=1.0, max_tokens=16, stop=(stop,))
    # 9 rows: one that has ended stays a while before the others move up
    after = run(TransformersBackend(model, tokenizer, how, 9, static=static), requests(tokenizer))
    assert after[0].text.endswith(stop)
    assert after[0].finish == "stop"
    for was, now in zip(before, after):
        at = was.text.find(stop)
        assert now.text == (was.text[: at + len(stop)] if at >= 0 else was.text)
        assert now.token_ids == was.token_ids[: len(now.token_ids)]
        assert tokenizer.decode(now.token_ids, skip_special_tokens=True) == now.text
    assert sum(len(g.token_ids) for g in after) < sum(len(g.token_ids) for g in before)


def test_a_token_that_holds_more_than_the_stop_string():
    class Pieces:  # tokens are "x</", "S>\n", "S", ">"
        texts = ("x</", "S>\n", "S", ">")

        def __len__(self):
            return 4

        def decode(self, ids, **_):
            return "".join(self.texts[i] for i in ids)

        def batch_decode(self, rows):
            return [self.decode(row) for row in rows]

    stops = Stops(Pieces(), ["</S>"], eos=[9])
    assert stops.closing == {1, 3}
    assert [stops.ends(ids) for ids in ([0], [0, 1], [0, 2], [0, 2, 3], [3], [2, 9])] == [0, 1, 0, 1, 0, 1]
    assert stops.text([0, 1]) == "x</S>"


def test_every_eos_of_the_generation_config_counts(tokenizer):
    config = types.SimpleNamespace(eos_token_id=[5, 7])
    assert eos_ids(config, tokenizer) == [1, 5, 7]
    assert eos_ids(types.SimpleNamespace(eos_token_id=5), tokenizer) == [1, 5]
    assert eos_ids(None, tokenizer) == [1]


# ---- which samples are missing -----------------------------------------------------------------------------------

ASKS = [Ask("t", "short", (1, 2)), Ask("t", "long", (1, 2, 3)), Ask("u", "short", (4, 5))]


def address(r):
    return r.task, r.problem, r.seed, r.index


def test_missing_gives_everything_once_longest_first():
    every = list(missing(ASKS, [0, 3], 2, lambda cell: set(), None))
    assert len({address(r) for r in every}) == len(every) == 12
    assert [len(r.prompt) for r in every] == sorted((len(r.prompt) for r in every), reverse=True)


def test_missing_keeps_the_composition_of_batches():
    whole = list(missing(ASKS, [0], 4, lambda cell: set(), 5))
    gap = {("t", "long", 0): {0, 1, 2, 3}, ("t", "short", 0): {1, 2, 3}, ("u", "short", 0): set()}
    rest = list(missing(ASKS, [0], 4, gap.__getitem__, 5))
    assert [address(r) for r in rest] == [address(r) for r in whole]  # the first batch holds ("t", "short", 0, 0)…
    assert [address(r) for r in rest if r.wanted] == [a for a in map(address, whole) if a[3] not in gap[a[:3]]]
    gap[("t", "short", 0)] = {0, 1, 2, 3}
    later = list(missing(ASKS, [0], 4, gap.__getitem__, 5))
    assert [address(r) for r in later] == [address(r) for r in whole][5:]  # …and is left out once it is complete


# ---- adapters ----------------------------------------------------------------------------------------------------


def test_an_adapter_samples_as_its_merged_model(tmp_path):
    base = model_tiny.save_base(tmp_path / "base")
    adapter = model_tiny.save_adapter(tmp_path / "adapter", base)
    merged = merge_adapter(adapter, tmp_path / "merged")
    tokenizer, how = load_tokenizer(base), Sampling(temperature=0, max_tokens=20)
    rows = requests(tokenizer, 6, ("one plus two", "3*3=", "a longer question than that"))
    texts = {}
    for name, source, more in (("base", base, None), ("adapter", base, adapter), ("merged", merged, None)):
        model_and_adapter = backends.sources(str(source), more and str(more))
        backend = backends.make_backend("transformers", *model_and_adapter, tokenizer, how, 32, batch_size=4)
        texts[name] = [g.token_ids for g in run(backend, rows)]
        if name == "adapter":
            assert "lora_A" in " ".join(n for n, _ in backend.model.named_parameters())  # not merged
    assert texts["adapter"] == texts["merged"] != texts["base"]


# ---- sentences ---------------------------------------------------------------------------------------------------


def test_what_cannot_start_says_why(tmp_path, monkeypatch):
    tokenizer, how = tiny.tokenizer(), Sampling(max_tokens=4)
    folder = Path(tiny.folder(tmp_path / "m"))
    other = model_tiny.save_adapter(tmp_path / "a", model_tiny.save_base(tmp_path / "b"))
    with pytest.raises(UserError, match="backend='tgi' is not one of"):
        backends.choose("tgi")
    with pytest.raises(UserError, match=r"'vllm' is not installed: pip install 'sage-rlvr\[vllm\]'"):
        backends.choose("vllm")
    monkeypatch.setattr(backends, "find_spec", lambda name: object())
    monkeypatch.setattr(backends, "_built_for_cpu", lambda: False)
    with pytest.raises(UserError, match="'vllm' needs a GPU and none is visible"):
        backends.choose("vllm")
    assert backends.choose("auto") == "transformers"
    with pytest.raises(UserError, match="does not fit"):
        backends.make_backend("transformers", str(folder), str(other), tokenizer, how, 4)
    with pytest.raises(UserError, match="does not fit"):  # the same words where vLLM would load it
        vllm_backend.check_files(str(folder), str(other), False)
    with pytest.raises(UserError, match="is no adapter"):
        backends.sources(str(folder), str(tmp_path))
    with pytest.raises(UserError, match=r"prompt \(p of t, 120 tokens\) and max_tokens=9 exceed .* 128"):
        backends.check_context(str(folder), [Ask("t", "p", (1,) * 120)], 9)
    assert backends.check_context(str(folder), [Ask("t", "p", (1,) * 120)], 8) == 120
    (folder / "model.safetensors").unlink()
    for check in (lambda: load_model(folder), lambda: vllm_backend.check_files(str(folder), None, False)):
        with pytest.raises(UserError, match="but no weights"):
            check()


@pytest.mark.parametrize("field", [{"temperature": -1}, {"top_p": 0}, {"min_p": 2}, {"top_k": -1}, {"max_tokens": 0}])
def test_settings_out_of_range_are_named(field):
    with pytest.raises(UserError, match=next(iter(field))):
        Sampling(**field)
