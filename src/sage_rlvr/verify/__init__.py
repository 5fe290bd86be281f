"""Floor 1. Verdicts on answers: extraction, Math-Verify in killable processes, and the reward function on top of them."""

from sage_rlvr.verify.extract import extract_answer, judged_text
from sage_rlvr.verify.reward import verifiable_reward
from sage_rlvr.verify.verifier import Verdict, Verifier

__all__ = ["Verdict", "Verifier", "extract_answer", "judged_text", "verifiable_reward"]
