"""Floor 2. The sample store: every completion ever drawn, on disk, once."""

from sage_rlvr.store.samples import Asked, Sample, SampleStore, StoreError

__all__ = ["Asked", "Sample", "SampleStore", "StoreError"]
