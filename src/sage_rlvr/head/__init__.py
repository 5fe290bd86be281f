"""Floor 0. Log-probs and entropies straight from hidden states: no logits kept, two matrix passes where the head is frozen."""

from sage_rlvr.head.functions import logps_and_entropies
from sage_rlvr.head.plug import Head, covers, in_place

__all__ = ["Head", "covers", "in_place", "logps_and_entropies"]
