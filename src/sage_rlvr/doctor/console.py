"""What ``sage-rlvr doctor`` and ``sage-rlvr plan`` print."""

import argparse
import difflib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sage_rlvr.doctor.cards import CARDS
from sage_rlvr.doctor.machine import GB, Check, machine_checks
from sage_rlvr.doctor.versions import library_checks
from sage_rlvr.errors import UserError
from sage_rlvr.names import near

if TYPE_CHECKING:  # a plan needs TRL, which takes seconds to import; a doctor without a config does not
    from sage_rlvr.doctor.plan import Plan

OWN = ("--gpu", "--prompt_tokens", "--json")
MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "[dim]–[/]"}


# ---- doctor --------------------------------------------------------------------------------------------------------


def show_doctor(config: str | None = None, verl: bool = False, as_json: bool = False) -> bool:
    """True if nothing fails."""
    checks = all_checks(config, verl)
    well = all(check.ok is not False for check in checks)
    if as_json:
        print(json.dumps({"ok": well, "checks": [asdict(check) for check in checks]}, indent=1, ensure_ascii=False))
    else:
        _print_checks(checks)
    return well


def all_checks(config: str | None = None, verl: bool = False) -> list[Check]:
    checks = machine_checks()
    if not verl:  # verl's environment has neither TRL nor Math-Verify, and needs neither
        checks += library_checks()
    if config:
        from sage_rlvr.doctor.recipe import config_checks

        checks += config_checks(config)
    if verl:
        from sage_rlvr.doctor.verl import check_verl

        checks += check_verl()
    return checks


def _print_checks(checks: list[Check]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        fix = f"\n[yellow]→ {escape(check.fix)}[/]" if check.fix and check.ok is not True else ""
        table.add_row(MARKS[check.ok], check.name, escape(check.found) + fix)
    console = Console()
    console.print(table)
    failed = [check.name for check in checks if check.ok is False]
    console.print(f"[bold red]{len(failed)} to fix:[/] {', '.join(failed)}" if failed else "[green]ready[/]")


# ---- plan ----------------------------------------------------------------------------------------------------------


def plan_flags(p: argparse.ArgumentParser) -> None:
    """The verb's own flags; every other goes to the run's settings, as train takes them."""
    p.add_argument("--gpu", metavar="CARD", help="plan for one of the cards below (default: this machine)")
    p.add_argument("--prompt_tokens", type=int, help="tokens of the longest prompt (default: counted where possible)")
    p.add_argument("--json", action="store_true", help="print JSON")


def show_plan(argv: list[str]) -> bool:
    """``argv``: --config RECIPE, overrides as train takes them, and plan's own flags. True if the run fits."""
    cards = [f"  {name:<10} {card.memory / GB:>5.0f} GB" for name, card in CARDS.items()]
    example = "sage-rlvr plan --config recipes/branch.yaml --gpu rtx4090"
    parser = argparse.ArgumentParser(
        prog="sage-rlvr plan",
        usage="sage-rlvr plan [--config RECIPE] [--model MODEL] [--gpu CARD] [--json]\n"
        "                      [--SETTING VALUE ...]",
        description="Estimated memory and disk of a run before it starts.\nEvery setting of train works here too.",
        epilog="\n".join(["cards and their memory:", *cards, "", f"example: {example}"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    plan_flags(parser)
    try:
        own, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as e:
        raise UserError(f"{e}; 'sage-rlvr plan --help' shows an example.") from e
    for word in (w.partition("=")[0] for w in rest if w.startswith("--")):
        if difflib.get_close_matches(word, OWN, n=1, cutoff=0.85):
            raise UserError(f"plan has no {word!r}: {near(word, OWN)}.")
    if not rest:
        raise UserError("nothing to plan: write sage-rlvr plan --config recipes/branch.yaml, or --model MODEL.")
    from sage_rlvr.doctor.plan import make_plan

    plan = make_plan(rest, own.gpu, own.prompt_tokens)
    if own.json:
        print(json.dumps(plan.as_dict(), indent=1, ensure_ascii=False))
    else:
        _print_plan(plan)
    return plan.fits


def _print_plan(plan: "Plan") -> None:
    console = Console()
    for table in _tables(plan):
        console.print(table)
        console.print()
    mark, verb = ("[green]✓[/]", "fits") if plan.fits else ("[bold red]✗[/]", "does not fit")
    console.print(f"{mark} {size(plan.memory.peak)} {verb} in {size(plan.device.free)} free on {plan.device.name}")
    for flags, peak in plan.fixes:
        inside = "[green]fits[/]" if peak <= plan.device.free else "not enough by itself"
        console.print(f"  [yellow]→[/] {flags}: {size(peak)}, {inside}", soft_wrap=True)
    if sum(p.bytes for p in plan.disk) > plan.disk_free:
        console.print(
            f"[bold red]✗[/] disk: {size(plan.disk_free)} free; set output_dir to a larger disk, or save_total_limit"
        )
    for note in plan.notes:
        console.print(f"[dim]{escape(note)}[/]")


def _tables(plan: "Plan") -> list[Table]:
    """The parts of the peak, the phases, and what the whole run generates and writes."""
    worst, peak = plan.memory.worst, plan.memory.peak
    parts = _table(f"memory at its peak: {worst}", "part", "size", "share", "of what")
    for p in sorted(plan.memory.phases[worst], key=lambda p: -p.bytes):
        parts.add_row(p.name, size(p.bytes), f"{p.bytes / peak:.0%}", escape(p.about))
    parts.add_section()
    parts.add_row("peak", size(peak))
    phases = _table("memory of each phase", "phase", "size")
    for name, alive in plan.memory.phases.items():
        phases.add_row(name, size(sum(p.bytes for p in alive)))
    disk = _table(
        f"{plan.demand.steps:,} steps, {plan.tokens / 1e6:,.1f}M tokens at most: disk", "part", "size", "of what"
    )
    for p in plan.disk:
        disk.add_row(p.name, size(p.bytes), escape(p.about))
    return [parts, phases, disk]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in ("size", "share") else "left")
    return table


def size(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.0f} MB"
