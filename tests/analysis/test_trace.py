"""Token traces against one text at a time through full logits, in float64."""

import json
import math

import pyarrow.parquet as pq
import pytest
import torch

from sage_rlvr.analysis.pieces import token_pieces
from sage_rlvr.analysis.scoring import ModelSource
from sage_rlvr.analysis.trace import expand, select, trace
from sage_rlvr.errors import UserError
from sage_rlvr.models import load_model, load_tokenizer
from sage_rlvr.store import SampleStore
from tests.analysis.models import full_logits, make_run, make_samples, prompt_ids
from tests.analysis.stores import make_store, words
from tests.models import tiny

FLAT = {"threshold": 2.0, "ratio": 0.4}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def trained(tmp_path, base):
    """A training folder: two adapter checkpoints, run.json, final adapter."""
    home = tmp_path / "branch"
    for name, seed in (("checkpoint-5", 1), ("checkpoint-10", 2), (".", 2)):
        tiny.save_adapter(home / name, base, seed)
    settings = {"guide": "branch", "guide_args": FLAT, "max_steps": 10, "model_name_or_path": str(base)}
    (home / "run.json").write_text(json.dumps({"settings": settings, "finished": True}))
    return home


def rows_of(folder):
    return pq.read_table(folder).to_pylist()


def test_equals_full_logits(tmp_path, base, trained):
    samples = make_samples(base)
    run = make_run(tmp_path / "eval", base, samples, trained)
    traced = trace(run, [trained], batch_tokens=400)
    assert traced.checkpoints == ["branch/checkpoint-5", "branch/checkpoint-10", "branch"]
    rows = rows_of(traced.folder)
    assert len(rows) == 12 * 3
    tokenizer = load_tokenizer(base)
    ref = tiny.model().eval()
    models = {
        label: load_model(trained / at).eval()
        for label, at in zip(traced.checkpoints, ("checkpoint-5", "checkpoint-10", "."))
    }
    by_key = {(s[1], s[3]): s for s in samples}
    for row in rows:
        _, problem, _, _, text, verdict, ids = by_key[row["problem"], row["index"]]
        prompt, at = prompt_ids(problem, tokenizer), torch.tensor(ids)[:, None]
        own, anchor = full_logits(models[row["checkpoint"]], prompt, ids), full_logits(ref, prompt, ids)
        logp, ref_logp = own.gather(1, at)[:, 0], anchor.gather(1, at)[:, 0]
        entropy = -(own.exp() * own).sum(1)
        q = (1 + 0.4 * (entropy - 2.0).clamp(min=0)).clamp(0.6, 1.4)
        rho = q * (ref_logp - logp).exp()
        for name, want in (("logps", logp), ("ref_logps", ref_logp), ("entropies", entropy), ("q", q)):
            assert row[name] == pytest.approx(want.tolist(), abs=2e-4), name
        assert row["penalty"] == pytest.approx((rho - rho.log() - 1).tolist(), abs=1e-3)
        assert "".join(row["tokens"]) == text
        assert len(row["tokens"]) == len(ids) == len(row["q"])
        assert row["right"] is (verdict == 1.0)
    assert {(r["checkpoint"], r["step"]) for r in rows} == {
        ("branch/checkpoint-5", 5), ("branch/checkpoint-10", 10), ("branch", 10)
    }  # fmt: skip
    assert any(q > 1.05 for r in rows for q in r["q"])


def test_a_second_call_adds_only_what_is_missing(tmp_path, base, trained):
    run = make_run(tmp_path / "eval", base, make_samples(base), trained)
    assert trace(run, [trained / "checkpoint-5"], limit=1, per_problem=2).written == 2
    assert trace(run, [trained / "checkpoint-5"], limit=1, per_problem=4).written == 2
    assert trace(run, [trained / "checkpoint-5"], limit=1, per_problem=4).written == 0
    assert trace(run, [trained], limit=1, per_problem=4).written == 8
    keys = [(r["problem"], r["index"], r["checkpoint"]) for r in rows_of(run / "trace")]
    assert len(keys) == len(set(keys)) == 12
    labels = [c["label"] for c in json.loads((run / "trace" / "_trace.json").read_text())["checkpoints"]]
    assert labels == ["branch/checkpoint-5", "branch/checkpoint-10", "branch"]


def test_another_guide_does_not_share_the_folder(tmp_path, base, trained):
    run = make_run(tmp_path / "eval", base, make_samples(base, 1), trained)
    trace(run, [trained], limit=1, per_problem=1)
    with pytest.raises(UserError, match=r"guide_args\.ratio=0.4"):
        trace(run, [trained], limit=1, per_problem=1, guide_args={"ratio": 0.9})
    other = trace(run, [trained], limit=1, per_problem=1, guide="none", out=tmp_path / "other")
    assert all(q == 1.0 for r in rows_of(other.folder) for q in r["q"])


def test_a_bonus_as_strong_as_the_reward_is_told_in_numbers(tmp_path, base, trained):
    run = make_run(tmp_path / "eval", base, make_samples(base, 2), trained)
    strong = {"kappa": 83.0, "source": "policy"}
    rows = rows_of(trace(run, [trained], guide="verified", guide_args=strong).folder)
    told = [x for r in rows for name in ("q", "penalty") for x in r[name]]
    assert max(told) > 1e20, "some q is far beyond what a float holds"
    assert all(map(math.isfinite, told))


def test_other_samples_under_the_same_keys_are_refused(tmp_path, base, trained):
    run = make_run(tmp_path / "a", base, make_samples(base, 1, seed=0), trained)
    trace(run, [trained], per_problem=1)
    other = make_run(tmp_path / "b", base, make_samples(base, 1, seed=1), trained)
    with pytest.raises(UserError, match="other samples"):
        trace(other, [trained], per_problem=1, out=run / "trace")


def test_a_random_guide_does_not_depend_on_the_batch(tmp_path, base, trained):
    run = make_run(tmp_path / "eval", base, make_samples(base), trained)
    how = {"guide": "random", "guide_args": {"epsilon": 1.0}}
    all_of_them = {
        (r["problem"], r["index"]): r["q"]
        for r in rows_of(trace(run, [trained / "checkpoint-5"], **how, out=tmp_path / "x").folder)
    }
    few = rows_of(trace(run, [trained / "checkpoint-5"], **how, limit=1, per_problem=2, out=tmp_path / "y").folder)
    assert all(all_of_them[r["problem"], r["index"]] == r["q"] for r in few)
    assert len({tuple(q[:1]) for q in all_of_them.values()}) > 6


def test_a_schedule_stands_where_the_checkpoint_does(tmp_path, base, trained):
    run = make_run(tmp_path / "eval", base, make_samples(base, 1), trained)
    args = {"alpha": [0.4, 0.0], "sigma": 0.0, "periods": 1, "normalize": "rank"}
    (row,) = rows_of(trace(run, [trained / "checkpoint-5"], guide="token", guide_args=args, per_problem=1).folder)
    alpha = 0.2  # half way down the cosine: step 5 of 10
    ranks = torch.tensor(row["logps"]).neg().argsort().argsort() / max(len(row["logps"]) - 1, 1)
    assert row["q"] == pytest.approx((1 + alpha * ranks).tolist(), abs=1e-4)
    assert max(row["q"]) > 1.1


def test_the_reference_is_the_sft_stage_where_there_was_one(tmp_path, base, trained):
    record = json.loads((trained / "run.json").read_text())
    record["settings"]["sft"] = "sft.yaml"
    (trained / "run.json").write_text(json.dumps(record))
    run = make_run(tmp_path / "eval", base, make_samples(base, 1), trained)
    with pytest.raises(UserError, match="SFT stage"):
        trace(run, [trained])
    sft = tiny.save_base(tmp_path / "sft", seed=7)
    assert trace(run, [trained], per_problem=1).settings["reference"]["model"] == str(sft)


def test_a_checkpoint_without_weights_is_named(trained):
    (trained / "checkpoint-7").mkdir()
    found, notes = expand([trained])
    assert [c.step for c in found] == [5, 10, 10]
    assert "checkpoint-7 holds no weights" in notes[0]
    assert found[0].source == ModelSource(found[0].source.model, str(trained / "checkpoint-5"))


def test_select_takes_right_and_wrong(tmp_path):
    cells = {"a": "00001", "b": "11110", "c": "10101", "z": "11111"}
    store = SampleStore(make_store(tmp_path / "r", words("t", cells)), readonly=True)
    chosen = select(store, None, limit=3, per_problem=4)
    picked = {p: sorted(r["index"] for r in chosen if r["problem"] == p) for p in "abc"}
    assert picked == {"a": [0, 1, 2, 4], "b": [0, 1, 2, 4], "c": [0, 1, 2, 3]}
    assert not any(r["problem"] == "z" for r in chosen)


class Bytes:
    """A tokenizer whose tokens are bytes: characters are spread over tokens."""

    def decode(self, ids, skip_special_tokens=True, clean_up_tokenization_spaces=False):
        return bytes(i for i in ids if i < 256).decode(errors="replace")


@pytest.mark.parametrize("text", ["plain", "naïve ⟨x⟩ 漢字 👩‍👩‍👧", "‮abc​", "a\nb\t</SOLUTION>", ""])
def test_pieces_put_together_are_the_text(text):
    ids = [*text.encode(), 256]  # 256: EOS
    pieces = token_pieces(Bytes(), ids, text)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert not any("�" in p for p in pieces)


def test_pieces_of_a_text_cut_at_its_stop_string():
    assert token_pieces(Bytes(), list(b"ab>cd"), "ab>") == ["a", "b", ">", "", ""]


def test_pieces_of_broken_bytes():
    ids = [0xE6, 0xBC, 0x41, 0xFF]
    assert "".join(token_pieces(Bytes(), ids, Bytes().decode(ids))) == Bytes().decode(ids)
