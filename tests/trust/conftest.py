import shutil
from pathlib import Path

import pytest
from trust.credentials import make_certificates


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `gca certs` makes it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH; certificates are made with it")
    return make_certificates(tmp_path_factory.mktemp("certs"))
