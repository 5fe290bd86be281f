"""The paper's tables, under the name they had before they moved to ``show``."""

from sage_rlvr.show.paper_tables import make, make_all

__all__ = ["make", "make_all"]
