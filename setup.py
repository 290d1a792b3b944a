"""Builds the compiled kernel; everything else about the package is in pyproject.toml.

Without a C compiler the build goes on without it, and devices train with numpy (`gca doctor` says which it is).
"""

from setuptools import Extension, setup

kernel = Extension(
    "edge_client.kernel._kernel",
    sources=[f"edge_client/kernel/{name}.c" for name in ("dispatch", "avx512", "avx2", "baseline")],
    depends=[f"edge_client/kernel/{name}.h" for name in ("kernel", "products", "training")],
    # A square root need not set errno, and a product and a sum may share one rounding; nothing else is loosened.
    extra_compile_args=["-O3", "-fno-math-errno", "-ffp-contract=fast"],
    optional=True,
)

setup(ext_modules=[kernel])
