"""How far an evaluation is."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressLine:
    """Samples, tokens a second, accuracy so far, time left; where there is no terminal, a line every half minute."""

    def __init__(self, total: int, present: int, console: Console | None = None, every_s: float = 30.0):
        self.console, self.total, self.done, self.every_s = console or Console(), total, present, every_s
        self.new = self.tokens = self.right = 0
        self.start = self.said = time.monotonic()
        columns = (TextColumn("sampling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[now]}"), console=self.console)
        self.task = self.bar.add_task("samples", total=total, completed=present, now="")

    def __enter__(self) -> "ProgressLine":
        if self.console.is_terminal:
            self.bar.start()
        return self

    def advance(self, samples: int, tokens: int, right: int) -> None:
        self.done, self.new, self.tokens, self.right = (
            self.done + samples, self.new + samples, self.tokens + tokens, self.right + right,
        )  # fmt: skip
        self.bar.update(self.task, completed=self.done, now=self._now())
        if not self.console.is_terminal and time.monotonic() - self.said >= self.every_s:
            self._say()

    def _now(self) -> str:
        took = max(time.monotonic() - self.start, 1e-9)
        return f"{self.tokens / took:,.0f} tokens/s  {self.right / max(self.new, 1):.1%} right"

    def _say(self) -> None:
        self.said = time.monotonic()
        left = (self.said - self.start) / max(self.new, 1) * (self.total - self.done)
        self.say(f"sampling {self.done:,}/{self.total:,}  {self._now()}  {left:,.0f} s left")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()
        elif self.new:
            self._say()
