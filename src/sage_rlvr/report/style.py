"""The style of every figure in a report (kept a floor below, where the analyses draw theirs)."""

from sage_rlvr.analysis.style import DASH, INK, MARK, PAPER, Figure, legend, line, log_scale, panels, save

__all__ = ["DASH", "INK", "MARK", "PAPER", "Figure", "legend", "line", "log_scale", "panels", "save"]
