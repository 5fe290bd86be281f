"""The model that trainers are built over."""

import pytest

from . import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tiny.folder(tmp_path_factory.mktemp("tiny"))
