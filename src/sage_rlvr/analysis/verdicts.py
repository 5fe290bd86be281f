"""Right or wrong, sample by sample: what the pattern counts and traces start from."""

from collections.abc import Iterator, Sequence
from typing import Any

from sage_rlvr.store import SampleStore
from sage_rlvr.store.samples import KEYS


def judged_rows(store: SampleStore, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Samples as dicts: their keys, verdict, finish, answer, the columns asked for, and ``right``. Right is a verdict of 1, but
    not where the text was cut off before an answer. Samples whose gold cannot be verified are left out."""
    for batch in store.scan([*KEYS, "verdict", "finish", "answer", *columns]):
        for row in batch.to_pylist():
            if row["verdict"] is not None:
                cut = row["finish"] == "length" and row["answer"] is None
                yield row | {"right": row["verdict"] >= 1 and not cut}
