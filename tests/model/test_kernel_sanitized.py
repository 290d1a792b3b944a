"""The kernel under the compiler's address and undefined-behaviour sanitizers, and without a warning."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from edge_client.kernel import library

KERNEL = Path(library.__file__).parent
DRIVER = Path(__file__).with_name("kernel_driver.c")
COMPILER = shutil.which(os.environ.get("CC", "cc"))

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def test_no_access_out_of_bounds_no_undefined_behaviour_and_no_leak(tmp_path):
    program = tmp_path / "driver"
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    warn = ["-Wall", "-Wextra", "-Werror"]
    sources = [*sorted(KERNEL.glob("*.c")), DRIVER]
    subprocess.run([COMPILER, "-O1", "-g", *sanitize, *warn, f"-I{KERNEL}", "-o", program, *sources, "-lm"], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{20 * len(library.paths())} runs\n"
