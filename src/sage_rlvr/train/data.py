"""What a run trains on and what it is paid for: a task's problems and reward, or a user's own (``--dataset``, ``--reward``).

A user's data becomes a task of this process before anything is loaded, so that everything after reads it as it reads any task.
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sage_rlvr.errors import UserError
from sage_rlvr.extensions import load_function
from sage_rlvr.tasks import (
    Problem,
    decontaminate,
    evaluation_problems,
    get_task,
    keep_verifiable,
    load_task,
    make_scorer,
)
from sage_rlvr.tasks.own import OwnData, own_task, read_data
from sage_rlvr.tasks.registry import TASKS
from sage_rlvr.tasks.scorers import Extract, reader, reads_unmarked, task_reward
from sage_rlvr.train import launch
from sage_rlvr.train.random_reward import RandomReward
from sage_rlvr.train.reach import within_reach

DEFAULT = "dapo-math-17k"  # the task where neither --task nor --dataset is given
DATA_FLAGS = ("dataset_config", "split", "prompt_column", "answer_column")  # which say something of --dataset alone
# what TRL, and SAGETrainer (truncated), hand a reward function beside the columns
HANDED = {
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
    "truncated",
}
_OWN: dict[str, OwnData] = {}  # task → the data it was made of


def check(run: Any) -> None:
    """Flags that contradict each other, and the defaults that hang on them."""
    if isinstance(run.reward, str):  # from YAML
        run.reward = [run.reward]
    if run.dataset and run.task:
        raise UserError(f"--task {run.task} and --dataset {run.dataset} both say what to train on: keep one of them.")
    lonely = next((name for name in DATA_FLAGS if getattr(run, name) and not run.dataset), None)
    if lonely:
        raise UserError(f"--{lonely} says something of --dataset, and there is none: add --dataset, or leave it out.")
    run.task = run.task or ("" if run.dataset else DEFAULT)
    if not run.prompt_format:
        run.prompt_format = "paper" if not run.dataset else "as_is" if run.reward else "boxed"


def prepare(run: Any) -> None:
    """Reads the user's data and code, and says what is wrong with it before a model is loaded."""
    if run.dataset:
        data = read_data(run.dataset, run.dataset_config, run.split)
        task = own_task(data, not run.reward, run.prompt_column, run.answer_column)
        run.task, _OWN[task.name] = task.name, data
    _extract(run)
    columns = {"answer", "task", "problem"} | set(_OWN[run.task].columns if run.dataset else ())
    for name in run.reward or []:
        _check_signature(load_function(name, "--reward"), name, columns, run.task)


def _check_signature(func: Callable[..., Any], name: str, columns: set[str], task: str) -> None:
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # written in C: it will show
        return
    kinds = inspect.Parameter
    if not any(p.kind is kinds.VAR_KEYWORD for p in parameters.values()):
        raise UserError(
            f"--reward {name} must take every column that TRL hands it: write "
            f"def {getattr(func, '__name__', 'reward')}({', '.join([*parameters, '**kwargs'])})."
        )
    given = columns | HANDED
    needed = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    for wanted in (n for n in needed if n not in given):
        own = ", ".join(sorted(columns - {"task", "problem"} | (columns & {"answer"})))
        raise UserError(f"--reward {name} asks for {wanted!r}, which is no column of {task}; it has {own}.")


# ---- rewards -----------------------------------------------------------------------------------------------------


def rewards(run: Any, args: Any) -> Any:
    """What SAGETrainer takes: the task's own reward, or the user's functions."""
    if not run.reward:
        found: Any = task_reward(run.task, run.prompt_format, extract=_extract(run))
    else:
        found = [load_function(name, "--reward") for name in run.reward]
        if args.reward_weights is not None and len(args.reward_weights) != len(found):
            raise UserError(
                f"--reward_weights has {len(args.reward_weights)} numbers and there are {len(found)} rewards: give one each."
            )
        if run.extract:
            found[0].extract = reader(_extract(run))
        _check_answers(run, args, found[0])
    if run.random_reward is not None:
        if isinstance(found, list) and (len(found) > 1 or inspect.iscoroutinefunction(found[0])):
            raise UserError("--random_reward takes the place of one reward that is not async: give a single --reward.")
        found = RandomReward(found[0] if isinstance(found, list) else found, run.random_reward, args.seed)
        if args.process_index == 0:
            print(f"sage: a control: training is paid 1 with chance {run.random_reward:g}, whatever is answered")
    return found


def _check_answers(run: Any, args: Any, first: Any) -> None:
    """Some advantages count different right answers: a reward alone does not say which two are the same."""
    needs = getattr(args.make_advantage(), "needs", ())
    if "answers" in needs and not (hasattr(first, "extract") or hasattr(first, "key")):
        raise UserError(
            f"advantage={args.advantage!r} counts different answers, and --reward {run.reward[0]} does not say what an answer "
            "is: add --extract marked, --extract any or --extract file.py:function."
        )


def _extract(run: Any) -> Extract:
    if run.extract and ":" in run.extract:
        return load_function(run.extract, "--extract")
    if run.extract:
        reads_unmarked(run.extract)
    return run.extract


# ---- problems ----------------------------------------------------------------------------------------------------


def candidates(run: Any) -> list[Problem]:
    """The task's first rows, without those that repeat an evaluation problem."""
    task = get_task(run.task)
    split = "train" if "train" in task.splits else None  # else the task's first
    made_here = task.generate is not None  # as many as are asked for
    found = load_task(run.task, run.data_dir, limit=run.rows if made_here else None, split=split)
    return _decontaminated(run, found)[: run.rows]


def _decontaminated(run: Any, found: list[Problem]) -> list[Problem]:
    """On request, and by default where the task is a neighbour of evaluation tasks: those of its scorer. Then it is compared with
    what is on this machine, and nothing is fetched."""
    if run.decontaminate is False:
        return found
    if run.decontaminate is None and run.dataset:
        print("decontamination: off for your own data; --decontaminate true fetches the benchmarks and compares")
        return found
    neighbours = [name for name in _neighbours(run.task) if name != run.task]
    if run.decontaminate is None and not neighbours:
        return found
    wanted = [name for name in TASKS if name != run.task] if run.decontaminate else neighbours
    against, missing = evaluation_problems(run.data_dir, wanted, fetch=bool(run.decontaminate))
    report = decontaminate(found, against, missing=missing)
    print(report.line())
    return report.kept


def _neighbours(name: str) -> list[str]:
    task = get_task(name)
    return [] if task.generate else [t.name for t in TASKS.values() if t.scorer == task.scorer]


def problems(run: Any, found: list[Problem] | None = None) -> list[Problem]:
    """The training problems: the candidates that are within reach, where that is asked for, with a gold that can be judged."""
    found = candidates(run) if found is None else found
    if run.within_reach and found:
        found = within_reach(found, run.within_reach)
    if not (run.dataset and run.reward):  # else there is no gold
        with make_scorer(run.task) as scorer:
            found = keep_verifiable(found, scorer)[0]
    found = launch.same_everywhere(found)
    if not found:
        where = "the answers" if run.dataset else "data_dir"
        raise UserError(f"no problem of task {run.task!r} is left to train on: check rows, {where} and decontaminate.")
    return found


def told(run: Any, rows: int, text: bool, has_template: bool) -> str:
    """One line before the run: what it trains on and what it is paid for."""
    how = f"in prompt format {run.prompt_format}" if run.prompt_format != "as_is" else "as they are"
    if text and has_template:
        how += " (text: no chat template; write messages, or add --prompt_format plain, to use it)"
    paid = ", ".join(run.reward or []) or f"{get_task(run.task).answer!r} judged by Math-Verify"
    return f"data: {run.task}, {rows:,} rows; prompts {how}; reward: {paid}"


# ---- the record --------------------------------------------------------------------------------------------------


def digests(run: Any) -> dict[str, Any]:
    """What the user's data and code were, for a run that goes on with them."""
    out: dict[str, Any] = {}
    if run.task in _OWN:
        out["dataset_digest"] = _OWN[run.task].digest()
    if run.reward:
        out["reward_digest"] = {name: _code(load_function(name, "--reward")) for name in run.reward}
    return out


def _code(func: Any) -> str | None:
    try:
        file = inspect.getsourcefile(func if inspect.isroutine(func) or inspect.isclass(func) else type(func))
    except TypeError:
        return None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else None


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
    found = digests(run)
    paid = [f"`{name}` (sha256 {digest})" for name, digest in found.get("reward_digest", {}).items()]
    data = f"`{run.task}`, {rows:,} rows" + (f" (sha256 {found['dataset_digest']})" if run.dataset else "")
    reward = ", ".join(paid) or "its answer column, judged by Math-Verify"
    return f"\n## Data and reward\n\n- Data: {data}\n- Reward: {reward}\n- Prompt format: `{run.prompt_format}`\n"
