"""Training, held-out curves and evaluation judge a completion alike: closed, open or unmarked, cut or finished."""

import itertools
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from sage_rlvr.evaluate.run import EvalArguments, Judges, Scribe
from sage_rlvr.evaluate.sampling import Generation, Request
from sage_rlvr.tasks import Problem, get_format, task_reward
from sage_rlvr.train.callbacks import HeldOutPassAtK

from . import tiny
from .tiny import build

TEXTS = {  # what the gold 12 is met by, and whether that counts once the length limit has cut it
    "closed": ("<SOLUTION>12</SOLUTION>", True),
    "closed, and more": ("<SOLUTION>12</SOLUTION> so", True),
    "open": ("<SOLUTION>12", False),
    "half a tag": ("<SOLUTION>12</SOLU", False),
    "unmarked": ("so 12", False),
}
GRID = [(text, cut) for (text, _), cut in itertools.product(TEXTS.values(), (False, True))]
GOLD = {"math500": "12", "countdown-ltr": '{"numbers": [12], "target": 12}'}


def wanted(format):
    marked = ("closed", "closed, and more", "open", "half a tag")
    counts = [(name in marked or get_format(format).fallback, closed) for name, (_, closed) in TEXTS.items()]
    return [float(found and (closed or not cut)) for found, closed in counts for cut in (False, True)]


def rolled(prompts, trainer):
    """The grid's completions, each ended by EOS or by the limit."""
    tok = trainer.processing_class
    ids = [tok(text)["input_ids"] + [tok.eos_token_id] * (not cut) for text, cut in GRID]
    assert len(prompts) == len(ids)
    return {
        "prompt_ids": [tok(p)["input_ids"] for p in prompts],
        "completion_ids": ids,
        "logprobs": [[0.0] * len(i) for i in ids],
    }


def in_training(folder, tmp_path, reward, gold):
    from datasets import Dataset

    paid = []

    def spy(**told):
        paid.append(reward(**told))
        return paid[-1]

    data = Dataset.from_list([{"prompt": "7+5=", "answer": gold}] * 8)
    size = {"per_device_train_batch_size": len(GRID), "num_generations": len(GRID), "max_steps": 1}
    trainer = build(folder, tmp_path, given=rolled, reward=spy, data=data, **size)
    trainer.train()
    return trainer, paid[0]


def held_out(trainer, reward, gold):
    paid = []

    def spy(**told):
        paid.append(reward(**told))
        return paid[-1]

    HeldOutPassAtK(trainer, [{"prompt": "7+5=", "answer": gold}], spy, every=1, n=len(GRID))._evaluate(1)
    return paid[0]


def in_evaluation(task, format, gold, tmp_path):
    stored = []
    problem = Problem("p", task, "7+5=", gold)
    store, line = SimpleNamespace(append=stored.extend), SimpleNamespace(advance=lambda *_: None)
    args = EvalArguments(model="m", tasks=[task], out=str(tmp_path), verifier_workers=1, verifier_timeout_s=60)
    with ExitStack() as stack:
        scribe = Scribe(store, Judges(args, get_format(format), stack), {(task, "p"): problem}, "run", "m", line)
        requests = [Request(task, "p", 0, i, ()) for i in range(len(GRID))]
        ends = ["length" if cut else "stop" for _, cut in GRID]
        scribe._store([Generation(r, [1], text, end, 0.0) for r, (text, _), end in zip(requests, GRID, ends)])
    return [sample.verdict for sample in stored]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("task", GOLD)
@pytest.mark.parametrize("format", ["paper", "plain"])
def test_one_judgement(task, format, folder, tmp_path):
    reward = task_reward(task, format)
    trainer, trained = in_training(folder, tmp_path, reward, GOLD[task])
    curve = held_out(trainer, reward, GOLD[task])
    evaluated = in_evaluation(task, format, GOLD[task], tmp_path / "eval")
    assert trained == curve == evaluated
    if task == "math500":  # elsewhere the fallback is the task's own
        assert trained == wanted(format)
    assert trained[:2] == [1.0, 1.0]
    assert trained[4:6] == [1.0, 0.0]
    assert trainer.truncated() == [cut for _, cut in GRID]


def test_a_stop_string_at_the_limit_ends_a_completion(folder, tmp_path):
    """The last token completes it, so nothing was cut: evaluation's ``Stops.ends`` says the same."""
    trainer = build(folder, tmp_path, given=rolled, stop_strings=["</SOLUTION>"])
    trainer.num_generations = len(GRID)
    trainer._generate(["7+5="] * len(GRID))
    assert trainer._finished.dtype == torch.bool
    assert trainer.truncated() == [cut and "</SOLUTION>" not in text for text, cut in GRID]
