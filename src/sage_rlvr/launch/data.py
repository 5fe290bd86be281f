"""What a run trains on and what it is paid for: a task's problems and reward, or a user's own (``--dataset``, ``--reward``).

A user's data becomes a task of this process before anything is loaded, so that everything after reads it as it reads any task.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.extensions import load_function
from sage_rlvr.launch.random_reward import RandomReward
from sage_rlvr.launch.reach import within_reach
from sage_rlvr.runs import writer
from sage_rlvr.tasks import Problem, decontaminate, evaluation_problems, keep_verifiable, load_task, make_scorer, own
from sage_rlvr.tasks.registry import TASKS, get_task
from sage_rlvr.tasks.rewards import OwnReward, check_weights
from sage_rlvr.tasks.scorers import reader, task_reward

DEFAULT = "dapo-math-17k"  # the task where neither --task nor --dataset is given
DATA_FLAGS = (*own.FLAGS, "split")  # which say something of --dataset alone


def check(run: Any) -> None:
    """Flags that contradict each other, and the defaults that hang on them."""
    own.check_flags(run, run.task, "to train on", DATA_FLAGS)
    if run.eval_dataset and run.holdout:
        raise UserError("--eval_dataset and --holdout both say which rows are held out: keep one of them.")
    run.task = run.task or ("" if run.dataset else DEFAULT)


def prepare(run: Any) -> None:
    """Reads the user's data and code, and says what is wrong with it before a model is loaded."""
    run.task = own.prepare(run, run.task)
    if run.eval_dataset:
        run.eval_dataset = _eval_task(run)


def _eval_task(run: Any) -> str:
    config = None if Path(run.eval_dataset).is_file() else run.dataset_config
    try:
        held = own.read_data(run.eval_dataset, config, None, "test")
    except UserError as e:
        raise UserError(str(e).replace("--dataset ", "--eval_dataset ")) from e
    if own.digests(run, run.task).get("dataset_digest") == held.digest():
        raise UserError(
            f"--eval_dataset {run.eval_dataset} is what the run trains on: give other rows, or --holdout 100."
        )
    if held.name == run.task:  # two files of one name in two folders
        held = replace(held, name=run.eval_dataset)
    task = own.own_task(held, not run.reward, run.prompt_column, run.answer_column).name
    own.check_rewards(run, task)
    return task


# ---- rewards -----------------------------------------------------------------------------------------------------


def rewards(run: Any, args: Any) -> Any:
    """What SAGETrainer takes: the task's own reward, or the user's functions."""
    if not run.reward:
        reward: Any = task_reward(run.task, run.prompt_format, extract=own.extract_of(run))
    else:
        reward = [load_function(name, "--reward") for name in run.reward]
        check_weights(args.reward_weights, reward)
        if run.extract:
            reward[0].extract = reader(own.extract_of(run))
        _check_answers(run, args, reward[0])
    if run.random_reward is not None:
        if isinstance(reward, list) and (len(reward) > 1 or inspect.iscoroutinefunction(reward[0])):
            raise UserError("--random_reward takes the place of one reward that is not async: give a single --reward.")
        reward = RandomReward(reward[0] if isinstance(reward, list) else reward, run.random_reward, args.seed)
        if args.process_index == 0:
            print(f"sage: a control: training is paid 1 with chance {run.random_reward:g}, whatever is answered")
    return reward


def _check_answers(run: Any, args: Any, first: Any) -> None:
    """Some advantages count different right answers: a reward alone does not say which two are the same."""
    needs = getattr(args.make_advantage(), "needs", ())
    if "answers" in needs and not (hasattr(first, "extract") or hasattr(first, "key")):
        raise UserError(
            f"advantage={args.advantage!r} counts different answers, and --reward {run.reward[0]} does not say what an answer "
            "is: add --extract marked, --extract any or --extract file.py:function."
        )


# ---- held-out rows -----------------------------------------------------------------------------------------------


def held_out(run: Any, args: Any, trained: list[Problem]) -> Iterator[tuple[str, list[Problem], Any]]:
    """(label, problems, judge) of each measurement: tasks by name, and the user's own rows by the user's own reward."""
    for name in run.held_out or []:
        yield name, load_task(name, run.data_dir, run.held_out_rows, split="test"), task_reward(name, run.prompt_format)
    name = run.eval_dataset or (run.task if run.holdout else None)
    if not name:
        return
    held = load_task(name, limit=None if run.holdout else run.held_out_rows, split="test")
    if run.reward:
        judge: Any = OwnReward(run.reward, args.reward_weights, run.correct_at)
    else:
        judge = task_reward(name, run.prompt_format, extract=own.extract_of(run))
        with make_scorer(name) as scorer:
            held = writer.same_everywhere(keep_verifiable(held, scorer)[0])
    if args.process_index == 0:
        print(_held_out_line(run, name, held, trained))
    yield name, held, judge


def _held_out_line(run: Any, name: str, held: list[Problem], trained: list[Problem]) -> str:
    right = f"right: reward ≥ {run.correct_at:g}" if run.reward else "right: as the answer column says"
    if run.holdout:
        where = f"{len(held):,} rows of {name}, not trained on"
    else:
        asked = {p.question for p in trained}
        both = sum(p.question in asked for p in held)
        where = f"{len(held):,} rows of {name}" + (f", {both:,} of which are trained on" if both else "")
    return f"held out: {where}; pass@1 and pass@{run.held_out_n} every {run.held_out_every} steps; {right}"


# ---- problems ----------------------------------------------------------------------------------------------------


def candidates(run: Any) -> list[Problem]:
    """The task's first rows, without those that repeat an evaluation problem."""
    task = get_task(run.task)
    split = "train" if "train" in task.splits else None  # else the task's first
    made_here = task.generate is not None  # as many as are asked for
    loaded = load_task(run.task, run.data_dir, limit=run.rows if made_here else None, split=split)
    return _decontaminated(run, loaded)[: run.rows]


def _decontaminated(run: Any, loaded: list[Problem]) -> list[Problem]:
    """On request, and by default where the task is a neighbour of evaluation tasks: those of its scorer. Then it is compared with
    what is on this machine, and nothing is fetched."""
    if run.decontaminate is False:
        return loaded
    if run.decontaminate is None and run.dataset:
        print("decontamination: off for your own data; --decontaminate true fetches the benchmarks and compares")
        return loaded
    others = {name: task.scorer for name, task in TASKS.items() if name != run.task}
    task = get_task(run.task)
    neighbours = [name for name in others if others[name] == task.scorer and not task.generate]
    if run.decontaminate is None and not neighbours:
        return loaded
    wanted = list(others) if run.decontaminate else neighbours
    against, missing = evaluation_problems(run.data_dir, wanted, fetch=bool(run.decontaminate))
    report = decontaminate(loaded, against, missing=missing)
    print(report.line())
    return report.kept


def problems(run: Any, chosen: list[Problem]) -> list[Problem]:
    """The training problems: the candidates that are within reach, where that is asked for, with a gold that can be judged."""
    if run.within_reach and chosen:
        chosen = within_reach(chosen, run.within_reach)
    if not (run.dataset and run.reward):  # else there is no gold
        with make_scorer(run.task) as scorer:
            chosen = keep_verifiable(chosen, scorer)[0]
    chosen = writer.same_everywhere(chosen)
    if not chosen:
        where = "the answers" if run.dataset else "data_dir"
        raise UserError(f"no problem of task {run.task!r} is left to train on: check rows, {where} and decontaminate.")
    return chosen


def data_line(run: Any, rows: int, text: bool, has_template: bool) -> str:
    """One line before the run: what it trains on and what it is paid for."""
    how = f"in prompt format {run.prompt_format}" if run.prompt_format != "as_is" else "as they are"
    if text and has_template:
        how += " (text: no chat template; write messages, or add --prompt_format plain, to use it)"
    paid = ", ".join(run.reward or []) or f"{get_task(run.task).answer!r} judged by Math-Verify"
    return f"data: {run.task}, {rows:,} rows; prompts {how}; reward: {paid}"


# ---- the record --------------------------------------------------------------------------------------------------


def changed(folder: Path, name: str, was: Any, now: Any) -> bool:
    """Whether a setting of this file is one; other data are refused, other code is said: a reward that failed may be fixed."""
    if name == "dataset_digest":
        raise UserError(f"the data have changed since {folder} was begun: use another output_dir, or put them back.")
    if name == "reward_digest":
        odd = [reward for reward in now if was.get(reward) != now[reward]]
        print(f"sage: {', '.join(odd)} has changed since {folder} was begun; the run goes on with it as it is now")
    return name == "reward_digest"


def card(run: Any, rows: int) -> str:
    """A section of the model card."""
    if not (run.dataset or run.reward):
        return ""
    digests = own.digests(run, run.task)
    paid = [f"`{name}` (sha256 {digest})" for name, digest in digests.get("reward_digest", {}).items()]
    data = f"`{run.task}`, {rows:,} rows" + (f" (sha256 {digests['dataset_digest']})" if run.dataset else "")
    reward = ", ".join(paid) or "its answer column, judged by Math-Verify"
    return f"\n## Data and reward\n\n- Data: {data}\n- Reward: {reward}\n- Prompt format: `{run.prompt_format}`\n"
