"""Floor 3. SAGEConfig and SAGETrainer on TRL, the SFT stage, the two-stage run."""

from sage_rlvr.train.config import SAGEConfig
from sage_rlvr.train.trainer import SAGETrainer

__all__ = ["SAGEConfig", "SAGETrainer"]
