"""The GPUs that ``plan --gpu`` knows, and their memory. Nothing heavy is imported: ``plan --help`` lists them."""

import re
from typing import NamedTuple

from sage_rlvr.errors import UserError
from sage_rlvr.names import near


class Card(NamedTuple):
    title: str
    memory: float  # bytes


# H100, H200 and the A100 80GB have the memory that CUDA reports; the others the data sheet's GB as 1e9 bytes, a little less.
CARDS = {
    "rtx3090": Card("GeForce RTX 3090", 24e9),
    "rtx4090": Card("GeForce RTX 4090", 24e9),
    "rtx5090": Card("GeForce RTX 5090", 32e9),
    "l4": Card("NVIDIA L4", 24e9),
    "a10": Card("NVIDIA A10", 24e9),
    "l40s": Card("NVIDIA L40S", 48e9),
    "a100-40g": Card("NVIDIA A100 40GB", 40e9),
    "a100-80g": Card("NVIDIA A100 80GB", 85.1e9),
    "h100": Card("NVIDIA H100 80GB", 85.0e9),
    "h200": Card("NVIDIA H200", 150.1e9),
    "b200": Card("NVIDIA B200", 180e9),
}


def find_card(name: str) -> Card:
    """By name, however it is spelled: rtx4090, "RTX 4090", 4090, a100-80gb, "NVIDIA H100"."""
    plain = re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower()).removesuffix("b")
    known = {re.sub(r"\W", "", key): key for key in CARDS}
    known |= {"h10080g": "h100", "h200141g": "h200"} | {key[3:]: key for key in CARDS if key.startswith("rtx")}
    if plain in known:
        return CARDS[known[plain]]
    raise UserError(
        f"--gpu {name} is not known: {near(name, CARDS)} ('sage-rlvr plan --help' lists the cards); without --gpu, plan is for "
        "this machine."
    )
