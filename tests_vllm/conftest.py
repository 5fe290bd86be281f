"""vLLM itself, its CPU build, in its own venv (make test-vllm): small models, in float32 and without compilation."""

import os
from functools import partial

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import pytest
import vllm
from vllm import _custom_ops
from vllm.distributed import cleanup_dist_env_and_memory

from tests.models import tiny

from .small import WIDTH


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return str(tiny.save_base(tmp_path_factory.mktemp("vllm") / "base", hidden=WIDTH))


@pytest.fixture(scope="session")
def adapter(tmp_path_factory, base):
    return str(tiny.save_adapter(tmp_path_factory.mktemp("vllm") / "adapter", base))


@pytest.fixture(autouse=True, scope="session")
def quick():
    """Engines start without compilation."""
    from trl.generation import vllm_generation

    with pytest.MonkeyPatch.context() as patch:
        eager = partial(vllm.LLM, enforce_eager=True)
        patch.setattr(vllm, "LLM", eager)
        patch.setattr(vllm_generation, "LLM", partial(eager, dtype="float32"))
        yield


def pytest_collection_modifyitems(items):
    """Training's engines live in its own process, and once vLLM has seen one it starts no other kind: they come last."""
    items.sort(key=lambda item: item.path.stem in ("test_colocate", "test_commands"))


@pytest.fixture
def in_process(monkeypatch):
    """For an engine inside training: what it and TRL leave in the environment goes again. On a CPU vLLM packs weights for
    oneDNN, and those could not be loaded again: here it multiplies with torch."""
    monkeypatch.setattr(_custom_ops, "_supports_onednn", False)
    before = set(os.environ)
    yield
    for name in set(os.environ) - before:
        del os.environ[name]
    cleanup_dist_env_and_memory()
