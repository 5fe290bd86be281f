"""Noise by address: distribution, independence, and nothing but the address deciding it."""

import torch

from sage_rlvr.anchor import noise

ROWS = torch.arange(4000)


def test_uniform_is_uniform():
    u = noise.uniform(12345, ROWS, 250, 0)
    assert u.min() > 0
    assert u.max() < 1
    counts = torch.histc(u, bins=100, min=0, max=1)
    expected = u.numel() / 100
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 99 + 5 * (2 * 99) ** 0.5, "chi-square, 99 degrees of freedom, five sigma"


def test_normal_moments_and_tail():
    z = noise.normal(999, ROWS, 250, 0).double()
    n = z.numel()
    for power, (moment, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((z**power).mean() - moment) < 5 * (variance / n) ** 0.5
    assert abs((z.abs() > 3).double().mean() - 0.0027) < 3e-4


def test_neighbours_are_uncorrelated():
    """Next row, next column, next stream, next key."""
    u = noise.uniform(5, ROWS, 250, 0)
    pairs = [
        (u[1:], u[:-1]),
        (u[:, 1:], u[:, :-1]),
        (u, noise.uniform(5, ROWS, 250, 1)),
        (u, noise.uniform(6, ROWS, 250, 0)),
    ]
    for a, b in pairs:
        r = float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])
        assert abs(r) < 5 / a.numel() ** 0.5


def test_an_address_has_one_number():
    whole = noise.normal(3, ROWS, 64, 0)
    assert torch.equal(noise.normal(3, ROWS[17:90], 40, 0), whole[17:90, :40])
    assert noise.uniform(3, ROWS, 250, 0).unique().numel() > 0.9 * 2**23 * (1 - 2.718281828 ** (-1e6 / 2**23))


def test_a_key_comes_from_the_generator():
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert noise.draw_key(a) == noise.draw_key(b)
    assert noise.draw_key(a) != noise.draw_key(torch.Generator().manual_seed(1)), "the generator moves on"


def test_no_two_batches_of_two_seeds_share_their_noise():
    """A run with the next seed is another run: not this one's noise, a batch later."""
    seeds = [noise.batch_seed(seed, batch) for seed in range(20) for batch in range(500)]
    assert len(set(seeds)) == len(seeds)
