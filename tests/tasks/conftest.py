"""No test here touches the network; real problems come from the shared folder beside the project, where there is one."""

from pathlib import Path

import pytest

from sage_rlvr.tasks import loading

_SHARED = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(loading, "_resolves", lambda endpoint: False)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "SAGE_RLVR_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared():
    if not _SHARED.is_dir():
        pytest.skip("the shared data folder is not beside the project")
    return _SHARED
