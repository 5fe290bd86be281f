"""What a study prints while it runs."""

from types import SimpleNamespace

import pytest

from sage_rlvr.study import console as page


@pytest.mark.parametrize("first", [0.0, 0.25, 0.9])  # a study that is run again has a share behind it already
@pytest.mark.parametrize("end", [7, 600, 36_000])
def test_at_a_constant_pace_the_time_left_is_the_end_less_now(monkeypatch, first, end):
    """The share grows in a line from ``first`` at 100, the first look, to 1 at 100 + ``end``. The clock was made at 0."""
    now = SimpleNamespace(monotonic=lambda: now.time, time=0.0)
    monkeypatch.setattr(page, "time", now)
    clock = page.Clock()
    now.time = 100.0
    assert clock.left(first) == "", "nothing has been gained yet"
    for passed in range(1, end + 1, max(1, end // 23)):
        now.time = 100 + passed
        minutes, seconds = divmod(end - passed, 60)
        assert clock.left(first + (1 - first) * passed / end) == f"about {minutes}:{seconds:02d} left"


def test_time_left_follows_the_pace_since_the_first_look(monkeypatch):
    now = SimpleNamespace(monotonic=lambda: now.time, time=0.0)
    monkeypatch.setattr(page, "time", now)
    clock = page.Clock()
    assert [clock.left(0.5), clock.left(0.4)] == ["", ""], "a share that fell says nothing"
    now.time = 30.0
    assert clock.left(0.6) == "about 2:00 left"  # a tenth in 30 s, four are left
    now.time = 60.0
    assert clock.left(0.6) == "about 4:00 left"  # the same tenth in 60 s
    now.time = 75.0
    assert clock.left(1.0) == "about 0:00 left"
