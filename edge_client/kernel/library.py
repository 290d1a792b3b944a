"""The compiled kernel behind ctypes, which releases the interpreter lock for the length of a call.

setup.py builds the C files of this folder into a shared library beside this module. It needs a C compiler (gcc or
clang) and no Python headers. Nothing here checks values; `edge_client.model.compiled` has done it before.
"""

import ctypes
import threading
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

PATHS = ("avx512", "avx2", "baseline")
"""Instruction sets in order of preference and of kernel.h; the baseline is SSE2 on x86-64 and NEON on aarch64."""

RECONSTRUCTION, ALIGNMENT = 0, 1

BLOCK_ROWS = 100
"""BLOCK of training.h."""


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


def _integers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


class Model(ctypes.Structure):
    _fields_ = (*_integers("layers", "latent_layer"), *_pointers("widths"))


class Training(ctypes.Structure):
    _fields_ = (
        ("model", Model),
        *_pointers("parameters", "first_moment", "second_moment"),
        *_integers("encoder_steps", "decoder_steps"),
        *_pointers("samples", "orders"),
        *_integers("epochs", "records", "batch_size"),
        *_pointers("learning_rates", "losses"),
        *_integers("objective"),
        *_pointers("centroids", "weights"),
        *_integers("components"),
        *_pointers("anchor"),
        ("mu", ctypes.c_double),
    )


class Inference(ctypes.Structure):
    _fields_ = (
        ("model", Model),
        *_pointers("parameters", "samples"),
        *_integers("records"),
        *_pointers("codes", "scores"),
    )


@cache
def load() -> ctypes.CDLL | str:
    """Return the library, or why there is none."""
    here = Path(__file__).parent
    built = [path for suffix in EXTENSION_SUFFIXES if (path := here / f"_kernel{suffix}").exists()]
    if not built:
        return "not built: install a C compiler (gcc or clang), then this package anew"
    try:
        library = ctypes.CDLL(str(built[0]))
        for function in (library.gca_paths, library.gca_training_bytes, library.gca_inference_bytes):
            function.argtypes, function.restype = [], ctypes.c_int64
        sizes = library.gca_training_bytes(), library.gca_inference_bytes()
        for function, job in ((library.gca_train, Training), (library.gca_infer, Inference)):
            function.argtypes, function.restype = [ctypes.POINTER(job), ctypes.c_int64, ctypes.c_void_p], ctypes.c_int64
    except (OSError, AttributeError) as error:
        return f"does not load: {error}"
    if sizes != (ctypes.sizeof(Training), ctypes.sizeof(Inference)):
        return "built from other sources: install the package anew"
    return library


def paths() -> tuple[str, ...]:
    """Return the instruction sets that this machine can run, the best first; none without a library."""
    library = load()
    if isinstance(library, str):
        return ()
    supported = library.gca_paths()
    return tuple(path for bit, path in enumerate(PATHS) if supported >> bit & 1)


def train(job: Training, path: str) -> None:
    """Run a local phase, in place."""
    _run(_library().gca_train, job, path)


def infer(job: Inference, path: str) -> None:
    """Write codes or scores."""
    _run(_library().gca_infer, job, path)


KEPT_FLOATS = 2**22
"""A thread keeps its work area for the next call up to 16 MB: fresh memory costs the system's time in every call."""
_of_thread = threading.local()


def _run(function: Any, job: ctypes.Structure, path: str) -> None:
    number = PATHS.index(path)
    floats = function(ctypes.byref(job), number, None) + 16
    memory = getattr(_of_thread, "memory", None)
    if memory is None or len(memory) < floats:
        memory = np.empty(floats, np.float32)
        if floats <= KEPT_FLOATS:
            _of_thread.memory = memory
    function(ctypes.byref(job), number, -(-memory.ctypes.data // 64) * 64)


def _library() -> ctypes.CDLL:
    library = load()
    assert not isinstance(library, str), library
    return library
