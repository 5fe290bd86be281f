"""Perplexity against transformers' own loss."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from sage_rlvr.analysis import perplexity as module
from sage_rlvr.analysis.perplexity import SCHEMA, perplexity, tails, thresholds
from sage_rlvr.analysis.scoring import ModelSource, source_of
from sage_rlvr.analysis.shards import read_shards
from sage_rlvr.errors import UserError
from sage_rlvr.models import load_model, load_tokenizer
from tests.analysis.models import TASK, make_run, make_samples, prompt_ids
from tests.models import tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.save_base(tmp_path_factory.mktemp("base"))


@torch.no_grad()
def by_transformers(model, prompt, completion):
    labels = torch.tensor([[-100] * len(prompt) + list(completion)])
    return model(input_ids=torch.tensor([[*prompt, *completion]]), labels=labels).loss.exp().item()


@pytest.mark.parametrize("batch_tokens", [1, 300])
def test_equals_transformers_loss(tmp_path, base, batch_tokens):
    samples = make_samples(base)
    run = make_run(tmp_path / "run", base, samples)
    found = perplexity(run, ModelSource(str(base)), batch_tokens=batch_tokens)[TASK]
    model, tokenizer = tiny.model().eval(), load_tokenizer(base)
    for problem in found:
        want = [by_transformers(model, prompt_ids(problem, tokenizer), s[6]) for s in samples if s[1] == problem]
        assert found[problem] == pytest.approx(want, rel=1e-4)


def test_under_an_adapter_too(tmp_path, base):
    adapter = tiny.save_adapter(tmp_path / "adapter", base)
    samples = make_samples(base, 1)
    run = make_run(tmp_path / "run", base, samples)
    found = perplexity(run, source_of(adapter))[TASK]
    model, tokenizer = load_model(adapter).eval(), load_tokenizer(base)
    want = [by_transformers(model, prompt_ids(s[1], tokenizer), s[6]) for s in samples]
    plain = [by_transformers(tiny.model(), prompt_ids(s[1], tokenizer), s[6]) for s in samples]
    (values,) = found.values()
    assert values == pytest.approx(want, rel=1e-4)
    assert values != pytest.approx(plain, rel=1e-2)


def test_what_is_there_is_not_computed_again(tmp_path, base, monkeypatch):
    run = make_run(tmp_path / "run", base, make_samples(base))
    scorer = ModelSource(str(base))
    first = perplexity(run, scorer, limit=2)
    rows = list(read_shards(run / "perplexity", SCHEMA))
    assert len(rows) == 6
    read = []

    def spy(model, texts, *rest):
        read.extend(texts)
        return real(model, texts, *rest)

    real = module.read_texts
    monkeypatch.setattr(module, "read_texts", spy)
    whole = perplexity(run, scorer)
    assert len(read) == 6  # the other half
    for problem, values in first[TASK].items():
        assert whole[TASK][problem][:2].tolist() == values.tolist()
    perplexity(run, scorer, load=lambda: pytest.fail("loaded for nothing"))
    assert len(list(read_shards(run / "perplexity", SCHEMA))) == 12


def test_a_store_sampled_anew_is_read_anew(tmp_path, base):
    one = make_run(tmp_path / "a", base, make_samples(base, 1, seed=0))
    two = make_run(tmp_path / "b", base, make_samples(base, 1, seed=1))
    scorer = ModelSource(str(base))
    perplexity(one, scorer)
    want = perplexity(two, scorer)
    (one / "perplexity").rename(tmp_path / "kept")
    for shard in (two / "perplexity").iterdir():
        shard.unlink()
    for shard in (tmp_path / "kept").iterdir():
        shard.rename(two / "perplexity" / shard.name)  # the same keys, other completions
    again = perplexity(two, scorer)
    for problem, values in want[TASK].items():
        assert again[TASK][problem].tolist() == values.tolist()


def changed_weights(folder):
    tiny.model(seed=5).save_pretrained(folder)


def changed_config(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rms_norm_eps"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))


def changed_template(folder):
    (folder / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}0")


@pytest.mark.parametrize("change", [changed_weights, changed_config, changed_template])
def test_another_model_under_the_same_path_is_read_anew(tmp_path, base, change):
    """The numbers of the first were once shown as the second's."""
    own = Path(shutil.copytree(base, tmp_path / "m"))
    run = make_run(tmp_path / "run", own, make_samples(base, 1))
    first = perplexity(run, ModelSource(str(own)))[TASK]
    change(own)
    second = perplexity(run, ModelSource(str(own)))[TASK]
    shutil.rmtree(run / "perplexity")
    fresh = perplexity(run, ModelSource(str(own)))[TASK]
    assert all((second[p] == fresh[p]).all() for p in fresh)
    assert all((second[p] != first[p]).all() for p in first)


def test_a_moved_model_is_the_same(tmp_path, base):
    run = make_run(tmp_path / "run", base, make_samples(base, 1))
    perplexity(run, ModelSource(str(base)))
    moved = shutil.copytree(base, tmp_path / "moved")
    perplexity(run, ModelSource(str(moved)), load=lambda: pytest.fail("loaded for nothing"))


def test_an_interrupted_read_keeps_what_it_had(tmp_path, base, monkeypatch):
    run = make_run(tmp_path / "run", base, make_samples(base))
    real = module.read_texts

    def dies(*args):
        for i, batch in enumerate(real(*args)):
            if i == 2:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(module, "read_texts", dies)
    with pytest.raises(KeyboardInterrupt):
        perplexity(run, ModelSource(str(base)), batch_tokens=1)
    assert len(list(read_shards(run / "perplexity", SCHEMA))) == 2


def test_another_vocabulary_is_refused(tmp_path, base):
    run = make_run(tmp_path / "run", base, [(*make_samples(base, 1)[0][:6], (5000,))])
    with pytest.raises(UserError, match="another tokenizer"):
        perplexity(run, ModelSource(str(base)))


def test_what_is_not_a_number_is_refused(tmp_path, base):
    run = make_run(tmp_path / "run", base, make_samples(base))
    with pytest.raises(UserError, match="log-probs that are not numbers"):
        perplexity(run, ModelSource(str(tiny.save_broken(tmp_path / "broken"))))
    assert not list((run / "perplexity").glob("*.parquet"))


def test_a_problem_that_is_gone_is_named(tmp_path, base):
    sample = make_samples(base, 1)[0]
    run = make_run(tmp_path / "run", base, [(sample[0], "gone", *sample[2:])])
    with pytest.raises(UserError, match="no problem 'gone'"):
        perplexity(run, ModelSource(str(base)))


def test_tails():
    base = np.arange(1, 101, dtype=float)
    marks = thresholds(base, values=(50,), quantiles=(0.95,))
    assert marks == {"base q0.95": pytest.approx(95.05), "50": 50.0}
    assert tails(base, marks)["above"] == {"base q0.95": pytest.approx(0.05), "50": pytest.approx(0.5)}
    assert tails(base * 2, marks)["above"]["50"] == pytest.approx(0.75)
    assert thresholds(None, (3.0,)) == {"3": 3.0}
