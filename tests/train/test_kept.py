"""Right answers of π_ref, kept: which ones, their loss and gradient in the real trainer, and every folder that is refused."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from sage_rlvr import cli
from sage_rlvr.errors import UserError
from sage_rlvr.launch import run
from sage_rlvr.models.fingerprints import of_weights
from sage_rlvr.store import SampleStore
from sage_rlvr.tasks import Problem
from sage_rlvr.train import SAGEConfig

from ..models.tiny import LTR_BASE
from ..slow import but_few
from . import keeping, tiny
from .run_pair import Recorded

QUIET = {"guide": "none", "beta": 0.0}  # DPH's own setting


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    return keeping.folder(tmp_path_factory.mktemp("kept") / "kept", model)


def nothing(completions, **kwargs):
    return [0.0] * len(completions)


def build(model, out, kept, reward=nothing, data=None, peft=None, **options):
    args = tiny.config(SAGEConfig, out, keep_from=kept, **(QUIET | options))
    return Recorded(model, reward, args, data or keeping.dataset(), rollout_func=tiny.given_rollouts, peft_config=peft)


def logps(model, prompt, completion, temperature=0.9):
    """Of each token of one completion, by the model's own logits, without padding."""
    ids = torch.tensor([prompt + completion])
    out = (model(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
    return out.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]


def texts(trainer, step):
    return [trainer.rehearsal.answers[i] for i in trainer.rehearsal.at(step)]


def apart(one, other):
    a, b = (torch.cat([g[name].flatten() for name in sorted(one)]) for g in (one, other))
    return float((a - b).norm() / a.norm())


# ---- which answers -------------------------------------------------------------------------------------------------------


def test_right_finished_and_the_first_ones_of_each_problem(model, tmp_path, capsys):
    rows = [keeping.sample("sums-0", i, verdict=v) for i, v in enumerate([0.0, 1.0, None, 1.0, 1.0, 1.0])]
    rows += [
        keeping.sample("sums-0", 0, seed=1),
        keeping.sample("sums-1", 0, finish="length"),
        keeping.sample("sums-2", 0),
    ]
    rows += [keeping.sample("sums-3", 0, token_ids=[5] * 17), keeping.sample("sums-3", 1, token_ids=[5] * 16)]
    rows += [keeping.sample("sums-40", 0)]  # a training problem, but not among this run's rows
    rows = [rows[5], *rows[:5], *rows[6:]]  # shards need not be in order
    folder = keeping.folder(tmp_path / "kept", model, rows, keeping.problems(50))
    made = build(model, tmp_path, folder, keep_per_problem=3)
    ids = tiny.tokenizer()
    wanted = [("0+0=", keeping.completion("sums-0", i)) for i in (1, 3, 4)]
    wanted += [("2+2=", keeping.completion("sums-2", 0)), ("3+3=", [5] * 16)]
    assert [(list(a.prompt), list(a.completion)) for a in made.rehearsal.answers] == [
        (ids(prompt)["input_ids"], completion) for prompt, completion in wanted
    ]
    said = capsys.readouterr().out
    assert "5 right answers to 3 problems are kept" in said
    assert "(1 of its problems have none, 1 others in the folder are not trained on)" in said
    assert made.rehearsal.batch == 1, "one prompt a step"


def test_a_walk_over_all_by_seed_and_step(model, kept, tmp_path):
    one, other = (build(model, tmp_path, kept, keep_batch=5, seed=seed) for seed in (7, 8))
    count = len(one.rehearsal.answers)
    assert count == 32  # 36 samples, four of them wrong
    drawn = [i for step in range(64) for i in one.rehearsal.at(step)]
    for epoch in range(10):
        assert sorted(drawn[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert drawn[:count] != drawn[count : 2 * count]
    assert drawn[:count] != [i for step in range(7) for i in other.rehearsal.at(step)][:count]
    assert [one.rehearsal.at(step) for step in (40, 3)] == [drawn[200:205], drawn[15:20]], "whatever was asked before"


# ---- loss and gradient -----------------------------------------------------------------------------------------------------


def test_forward_kl_by_hand(model, kept, tmp_path):
    """Rewards are all equal and there is no KL: the gradient is keep_coef times that of the mean of −log π over tokens."""
    made = build(model, tmp_path, kept, keep_coef=0.3, keep_batch=5, max_steps=1)
    net = tiny.model()
    found = torch.cat([logps(net, list(a.prompt), list(a.completion)) for a in texts(made, 0)])
    (-0.3 * found.mean()).backward()
    made.train()
    assert apart({n: p.grad for n, p in net.named_parameters()}, made.grads[0]) < 1e-5
    assert made.losses[0] == pytest.approx(-0.3 * found.mean().item(), rel=1e-5)
    log = made.state.log_history[0]
    assert log["sage/kept_loss"] == pytest.approx(-found.mean().item(), rel=1e-5)
    assert log["sage/kept_logp"] == pytest.approx(found.mean().item(), rel=1e-5)


def test_each_step_has_its_own_answers(model, kept, tmp_path):
    """Measured alone, without a learning rate: the means over the answers of steps 0, 1 and 2."""
    made = build(model, tmp_path, kept, keep_coef=0.0, keep_batch=3, max_steps=3, learning_rate=0.0)
    made.train()
    net = tiny.model()
    for step, log in zip(range(3), made.state.log_history):
        found = torch.cat([logps(net, list(a.prompt), list(a.completion)) for a in texts(made, step)])
        assert log["sage/kept_logp"] == pytest.approx(found.mean().item(), rel=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_js_by_hand(model, kept, tmp_path, lora):
    """The policy away from the reference: a mixture's two KLs, term by term, at the tokens that π_ref drew."""
    peft = LoraConfig(r=4, target_modules=["q_proj", "up_proj"]) if lora else None
    beta = 0.0 if lora else 1e-12  # a reference without a pull
    made = build(
        model, tmp_path, kept, keep_coef=1.0, keep_divergence="js", keep_batch=5, max_steps=1, beta=beta, peft=peft
    )
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in made.model.parameters():
            if p.requires_grad:
                p += 0.2 * torch.randn(p.shape, generator=draw)
    total, count = 0.0, 0
    for a in texts(made, 0):
        p = logps(made.model, list(a.prompt), list(a.completion)).exp()
        ref = logps(tiny.model(), list(a.prompt), list(a.completion)).exp().detach()
        mixed = (p + ref) / 2
        total = total + (0.5 * (p / ref * (p / mixed).log() + (ref / mixed).log())).sum()
        count += len(a.completion)
    (total / count).backward()
    wanted = {n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None}
    made.model.zero_grad()
    made.train()
    assert made.state.log_history[0]["sage/kept_loss"] == pytest.approx(total.item() / count, rel=1e-4)
    assert total / count > 0.02
    assert apart(wanted, made.grads[0]) < 1e-4


@pytest.mark.parametrize("divergence", but_few(["forward", "js"], {1}))
def test_micro_batches_and_slices_change_nothing(model, kept, tmp_path, divergence):
    """Parts by rows, by a budget of tokens, one answer a part, a step in two slices: one gradient."""
    options = {
        "keep_batch": 9,
        "keep_coef": 0.5,
        "keep_divergence": divergence,
        "guide": "branch",
        "beta": 0.2,
        "max_steps": 2,
    }
    more = {
        "whole": {"per_device_train_batch_size": 16},
        "budget": {"per_device_train_batch_size": 16, "tokens_per_microbatch": 40},
        "one by one": {"per_device_train_batch_size": 16, "tokens_per_microbatch": 1},
        "slices": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    }
    done = {}
    for name, case in more.items():
        made = build(model, tmp_path / name, kept, tiny.hash_reward, shuffle_dataset=False, **options, **case)
        sizes = [[len(part) for part in parts] for parts in made.rehearsal.parts(made.rehearsal.at(0))]
        made.train()
        done[name] = made.grads, [h["sage/kept_loss"] for h in made.state.log_history if "loss" in h], sizes
    assert done["whole"][2] == [[9]]
    assert done["one by one"][2] == [[1] * 9]
    assert len(done["budget"][2][0]) in range(2, 9)
    assert done["slices"][2] == [[8, 1]]
    for name in more:
        assert done[name][1] == pytest.approx(done["whole"][1], rel=1e-4), name
        assert max(apart(a, b) for a, b in zip(done["whole"][0], done[name][0], strict=True)) < 1e-4, name


def test_ranks_share_a_batch_and_run_as_many_passes(model, kept, tmp_path, monkeypatch):
    made = build(model, tmp_path, kept, keep_batch=7)
    monkeypatch.setattr(type(made.accelerator), "num_processes", 3)
    for budget, batch in ((None, 7), (40, 7), (1, 7), (None, 2), (1, 1)):
        made.args.tokens_per_microbatch, made.rehearsal.batch = budget, batch
        for step in range(6):
            rows = made.rehearsal.at(step)
            ranks = made.rehearsal.parts(rows)
            assert len({len(parts) for parts in ranks}) == 1
            assert all(parts and all(parts) for parts in ranks)
            assert sorted(i for parts in ranks for part in parts for i in part if i >= 0) == list(range(batch))


def test_keeping_keeps(model, kept, tmp_path):
    """The same seed and rollouts: kept answers gain with a large coefficient, and with 0 they are measured alone."""
    runs = {}
    for coef in (0.0, 5.0):
        made = build(model, tmp_path / str(coef), kept, tiny.hash_reward, keep_coef=coef, keep_batch=32, max_steps=6)
        made.train()
        runs[coef] = [h["sage/kept_logp"] for h in made.state.log_history if "loss" in h]
        if not coef:
            plain = tiny.build(model, tmp_path / "plain", data=keeping.dataset(), max_steps=6, **QUIET)
            plain.train()
            for name, p in plain.model.named_parameters():
                assert torch.equal(p, made.model.get_parameter(name)), "measuring changes nothing"
    assert runs[0.0][0] == runs[5.0][0]
    assert runs[5.0][-1] > runs[0.0][-1] + 0.5
    assert runs[5.0][-1] > runs[5.0][0]


def test_the_card_and_the_exact_case_say_so(model, kept, tmp_path):
    made = build(model, tmp_path, kept, keep_divergence="js", beta=0.1, max_steps=1, keep_coef=0.1)
    made.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert (
        "Kept: Jensen–Shannon divergence on right answers of the model before RL, drawn beforehand (`kept`, at most 4"
        in card
    )
    assert "weight 0.1" in card
    assert any("keep_from" in said for said in made.args.departures())


# ---- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep_divergence": "reverse"}, "keep_divergence='reverse' is unknown; choose one of forward, js"),
        ({"keep_coef": -0.1}, "keep_coef must be 0 or more, and is -0.1"),
        ({"keep_coef": float("nan")}, "keep_coef must be a finite number"),
        ({"keep_batch": 0}, "keep_batch must be 1 or more, and is 0"),
        ({"keep_per_problem": 0}, "keep_per_problem must be 1 or more, and is 0"),
        (
            {"keep_divergence": "js", "sync_ref_model": True, "beta": 0.1},
            "'js' with sync_ref_model: it compares with the model",
        ),
        ({"keep_from": None, "keep_coef": 0.1}, "keep_coef is set but keep_from is not"),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        tiny.config(SAGEConfig, tmp_path, **({"keep_from": "x"} | QUIET | options))


def test_js_without_a_reference(model, kept, tmp_path):
    with pytest.raises(UserError, match="with beta=0 and no adapter there is none: take keep_divergence='forward'"):
        build(model, tmp_path, kept, keep_divergence="js")


OTHER = {
    "another model": ({"model": "other/model", "model_weights": "0" * 16}, "samples of other/model and training starts from"),
    "another model on the Hub": ({"model": "other/model", "model_weights": "absent"}, "samples of other/model and training"),
    "an adapter on it": ({"adapter": "runs/lora"}, "with the adapter runs/lora and training starts without one"),
    "a sharper one": (
        {"temperature": 0.3, "min_p": 0.01}, "drawn with temperature=0.3, min_p=0.01, .* --temperature 0.9 --min_p 0 ",
    ),
    "another format": ({"fmt": "boxed"}, "drawn with prompt format 'boxed', and the prompt of sums-0 is another one in"),
    "another template": ({"inputs": {"chat template": "x"}}, "was drawn with another chat template than this run has"),
    "a format since changed": ({"inputs": {"prompt format": "x"}}, "was drawn with another prompt format than this run has"),
    "another tokenizer": ({"inputs": {"tokenizer": "x"}}, "was drawn with another tokenizer than"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
def test_a_folder_of_another_run(model, tmp_path, case):
    options, sentence = OTHER[case]
    with pytest.raises(UserError, match=sentence):
        build(model, tmp_path, keeping.folder(tmp_path / "kept", model, **options))


def test_the_same_weights_elsewhere_are_the_same_model(model, tmp_path):
    copy = tiny.folder(tmp_path / "copy")
    assert of_weights(copy) == of_weights(model)
    assert build(copy, tmp_path, keeping.folder(tmp_path / "kept", model)).rehearsal.answers


def test_weights_that_were_replaced_are_not(tmp_path):
    place = tiny.folder(tmp_path / "model")
    folder = keeping.folder(tmp_path / "kept", place)
    tiny.folder(tmp_path / "model", seed=1)
    with pytest.raises(UserError, match="whose weights are others"):
        build(place, tmp_path, folder)


def test_held_out_problems_are_never_learnt(model, tmp_path):
    """Also where most of the folder is training problems, and where what is held out was not even solved."""
    strange = [keeping.sample("sums-1", 0), keeping.sample("aime-7", 0, task="aime24", verdict=0.0)]
    folder = keeping.folder(tmp_path / "kept", model, strange, split="absent")
    with pytest.raises(UserError, match=r"holds held-out problems \(1 of split 'test'.* such as aime-7 of aime24\)"):
        build(model, tmp_path, folder)


def test_nothing_to_keep(model, tmp_path):
    other = keeping.folder(tmp_path / "other", model, [keeping.sample("sums-77", 0)], keeping.problems(80))
    with pytest.raises(UserError, match=r"samples of sums\) has none of the 32 problems that are trained on"):
        build(model, tmp_path, other)
    wrong = [keeping.sample("sums-1", 0, verdict=0.0), keeping.sample("sums-1", 1, finish="length")]
    with pytest.raises(UserError, match="has no right answer to keep: of 1 problems that are trained on none has"):
        build(model, tmp_path, keeping.folder(tmp_path / "wrong", model, wrong))
    with pytest.raises(UserError, match="holds no sample store"):
        build(model, tmp_path, str(tmp_path))


def test_a_training_set_without_names_for_its_problems(model, kept, tmp_path):
    with pytest.raises(UserError, match="it has no 'task': make its rows with sage_rlvr"):
        build(model, tmp_path, kept, data=tiny.dataset())


def test_an_id_that_stood_for_another_problem(model, tmp_path):
    moved = [Problem(p.id, p.task, p.question.replace("+", "*"), p.answer) for p in keeping.problems()]
    with pytest.raises(UserError, match="the prompt of sums-0 is another one in training"):
        build(model, tmp_path, keeping.folder(tmp_path / "moved", model, asked=moved))
    judged = [Problem(p.id, p.task, p.question, "0") for p in keeping.problems()]
    with pytest.raises(UserError, match="judged sums-1 by another answer than training has"):
        build(model, tmp_path, keeping.folder(tmp_path / "judged", model, asked=judged))
    (tmp_path / "judged" / "problems.json").unlink()
    with pytest.raises(UserError, match=r"problems.json is not there"):
        build(model, tmp_path, str(tmp_path / "judged"))


# ---- the whole way -------------------------------------------------------------------------------------------------------------


def test_the_two_commands(tmp_path, monkeypatch, capsys):
    """Evaluate the start model on training problems, train: a format that names more than the question, a chat template."""
    monkeypatch.chdir(tmp_path)
    base = str(LTR_BASE)
    drawn = "--limit 16 --n 8 --seeds 1 --temperature 1 --min_p 0 --max_tokens 12 --prompt_format symbols"
    command = ["eval", "--model", base, "--tasks", "countdown-ltr", "--out", "kept", *drawn.split()]
    assert cli.main([*command, "--split", "train"]) == 0
    rows = [row for batch in SampleStore("kept", readonly=True).scan() for row in batch.to_pylist()]
    right = [r["token_ids"] for r in rows if r["verdict"] == 1 and r["finish"] == "stop"]
    assert len(right) > 3
    flags = "--task countdown-ltr --rows 16 --decontaminate false --prompt_format symbols --guide none --beta 0"
    batch = "--per_device_train_batch_size 8 --num_generations 8 --max_steps 1 --max_completion_length 12"
    here = "--report_to none --use_cpu --bf16 false"
    train = [
        "--model_name_or_path",
        base,
        *f"{flags} {batch} {here}".split(),
        "--keep_per_problem",
        "99",
        "--keep_from",
    ]
    made = run.build(*run.parse([*train, "kept"]), base)
    assert sorted(list(a.completion) for a in made.rehearsal.answers) == sorted(right)
    assert all(len(a.prompt) > 4 for a in made.rehearsal.answers)
    names = sorted({r["problem"] for r in rows})
    counts = {name: (1 if name == names[0] else 2, 2) for name in names}
    Path("reach.json").write_text(json.dumps({"task": "countdown-ltr", "problems": counts}))
    part = run.build(*run.parse([*train, "kept", "--within_reach", "reach.json"]), base)
    assert part.train_dataset["problem"] == [names[0]]
    assert part.rehearsal.answers == made.rehearsal.answers, (
        "what is always solved is kept, though it is not trained on"
    )
    capsys.readouterr()
    assert cli.main(["train", *train, "kept", "--output_dir", "run", "--logging_steps", "1"]) == 0
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[0]["sage/kept_logp"] < 0
    assert cli.main([*command, "--out", "test"]) == 0
    assert cli.main(["train", *train, "test", "--output_dir", "other"]) == 2
    assert "holds held-out problems" in capsys.readouterr().err


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_adapter_that_is_trained_further(model, tmp_path, capsys, beta):
    """π_ref has it on: its samples must, and js asks the copy that TRL keeps of it."""

    def start(seed=0):
        net = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=4, target_modules=["q_proj"]))
        draw = torch.Generator().manual_seed(seed)
        for name, p in net.named_parameters():
            if "lora_B" in name:
                p.data = 0.3 * torch.randn(p.shape, generator=draw)
        return net

    def trainer(folder, **options):
        args = tiny.config(SAGEConfig, tmp_path, keep_from=folder, guide="none", beta=beta, max_steps=1, **options)
        return Recorded(
            start(),
            nothing,
            args,
            keeping.dataset(),
            processing_class=tiny.tokenizer(),
            rollout_func=tiny.given_rollouts,
        )

    with pytest.raises(UserError, match="without an adapter and training starts from an adapter"):
        trainer(keeping.folder(tmp_path / "base", model))
    folder = keeping.folder(tmp_path / "kept", model, adapter="runs/sft/adapter")
    assert trainer(folder).rehearsal.answers
    assert "says that training starts from runs/sft/adapter; this cannot be checked" in capsys.readouterr().out
    if beta == 0:
        with pytest.raises(UserError, match="'js' with beta=0 on an adapter that is trained further"):
            trainer(folder, keep_divergence="js")
        return
    made = trainer(folder, keep_divergence="js")
    made.train()
    assert abs(made.state.log_history[0]["sage/kept_loss"]) < 1e-6, "the policy is still the reference"
