"""Who solves what within a budget: problems preserved, gained, lost and out of reach against the base (METHOD section 3)."""

from dataclasses import dataclass
from pathlib import Path

from sage_rlvr.analysis.verdicts import RunVerdicts, TaskVerdicts, read_verdicts
from sage_rlvr.errors import UserError
from sage_rlvr.stats.pass_at_k import Support, support_metrics


@dataclass
class TaskSupport:
    """Solved = a right one among the first ``budget`` samples, by seed and then by index: a count, no estimate."""

    task: str
    budget: int
    metrics: Support
    P: list[str]  # solved by both
    E: list[str]  # by the trained model only
    S: list[str]  # by the base only
    O: list[str]  # by neither  # noqa: E741
    left_out: list[str]  # not in both with that many samples, or unverifiable in one


def support(
    base: str | Path | RunVerdicts, trained: str | Path | RunVerdicts, budget: int | None = None
) -> dict[str, TaskSupport]:
    """Task → support at ``budget`` (default: the smaller n of the two)."""
    a, b = (x if isinstance(x, RunVerdicts) else read_verdicts(x) for x in (base, trained))
    if budget is not None and budget < 1:
        raise UserError(f"budget={budget} must be at least 1 sample per problem.")
    names = [t for t in a.tasks if t in b.tasks]
    if not names:
        raise UserError(f"{a.folder} and {b.folder} share no task; evaluate both on the same tasks.")
    out = {name: s for name in names if (s := _task(a.tasks[name], b.tasks[name], budget))}
    if not out:
        k = budget or min(min(a.tasks[t].n, b.tasks[t].n) for t in names)
        raise UserError(
            f"support: no problem has {k} samples in both {a.folder} and {b.folder}; choose a smaller budget, or let eval end."
        )
    return out


def _task(a: TaskVerdicts, b: TaskVerdicts, budget: int | None) -> TaskSupport | None:
    k = budget or min(a.n, b.n)
    every = list(dict.fromkeys([*a.right, *a.left_out, *b.right, *b.left_out]))
    both = [p for p in every if p in a.right and p in b.right and min(a.right[p].size, b.right[p].size) >= k]
    if not both:
        return None
    by_base, by_trained = ({p: bool(t.right[p][:k].any()) for p in both} for t in (a, b))

    def where(x: bool, y: bool) -> list[str]:
        return [p for p in both if by_base[p] is x and by_trained[p] is y]

    metrics = support_metrics(list(by_base.values()), list(by_trained.values()))
    left_out = [p for p in every if p not in set(both)]
    return TaskSupport(
        a.task, k, metrics, where(True, True), where(False, True), where(True, False), where(False, False), left_out
    )
