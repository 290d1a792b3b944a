"""Child processes of an emulation: started from a fork server, watched, and never left behind."""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from sim.emulation.pipe import Pipe

T = TypeVar("T")

PRELOAD = ["sim.emulation.device_process", "numpy.ma", "encodings.cp437", "encodings.idna"]
"""Imported once in the fork server; each child shares those pages. The last three would come later by themselves: with
NumPy's reading of an archive, and with the name of a host."""
WARM_TORCH = "sim.emulation.warm_torch"
TERMINATION_S = 5.0


def fork_server(*, images: bool = False) -> ForkServerContext:
    """Return the context that forks children from a server holding only what a device imports.

    With `images` that includes torch, warmed up. The first call of a process that starts a child decides: a fork
    server is never replaced, and one without torch leaves it to each child to import.

    One BLAS thread per process: N devices share few cores, and results do not depend on the number of threads.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *([WARM_TORCH] if images else [])])
    return context


class Child(Generic[T]):
    """One child process and the pipe to it. `receives` is the union of what it sends."""

    def __init__(self, context: ForkServerContext, name: str, target: Callable[..., None], spec: msgspec.Struct,
                 receives: object) -> None:  # fmt: skip
        self.name = name
        ours, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=target, args=(msgspec.msgpack.encode(spec), theirs), name=name, daemon=True
        )
        with _main_hidden():
            self.process.start()
        theirs.close()
        self.pipe: Pipe[T] = Pipe(ours, receives)

    async def ended(self) -> int | None:
        """Return the exit code once the process has ended, however long that takes after its end of the pipe."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.process.sentinel, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(self.process.sentinel)
        return self.process.exitcode


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Start children without the program that starts them: multiprocessing would import it, and all that it imports,
    once more in every child."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


def stop(children: Sequence[Child[Any]]) -> None:
    """End these processes: first by asking, then by force."""
    for child in children:
        child.process.terminate()
    for child in children:
        child.process.join(TERMINATION_S)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
