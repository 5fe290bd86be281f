"""Floor 3. What runs leave behind, looked at: patterns, perplexity, support, training dynamics, the τ×ρ grid, token traces."""

from sage_rlvr.analysis.patterns import PATTERNS, register_pattern

__all__ = ["PATTERNS", "register_pattern"]
