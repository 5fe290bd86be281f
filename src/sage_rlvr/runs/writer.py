"""One writer per folder, and one answer for all processes of a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sage_rlvr import lock
from sage_rlvr.errors import UserError

# the underscore keeps it, and this machine's name, off the Hub: transformers uploads no such file
LOCK = "_writer.lock"


def same_everywhere(value: Any) -> Any:
    """Rank 0's: what a clock can decide (a judge that ran out of time) must not differ between ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@contextmanager
def only_writer(folder: str | Path) -> Iterator[None]:
    """No other training writes there meanwhile. All processes of this one are one owner: rank 0 holds the lock, and if it is
    refused all are told."""
    path, acquired, refused = Path(folder, LOCK), False, None
    if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        try:
            acquired = lock.acquire(path, again=True)
        except UserError as e:
            refused = str(e)
    if refused := same_everywhere(refused):
        raise UserError(refused)
    try:
        yield
    finally:
        if acquired:
            lock.release(path)
