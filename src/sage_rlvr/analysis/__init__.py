"""Floor 4, below report/. What runs leave behind: patterns, perplexity, support, training
dynamics, the τ×ρ grid, token traces."""

from sage_rlvr.analysis.patterns import PATTERNS, register_pattern

__all__ = ["PATTERNS", "register_pattern"]
