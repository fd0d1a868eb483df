"""Whole processes: exit codes, daemon threads, what the end prints, the import of torch."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

from tests.fidelity.child import Leaving
from tests.fidelity.table import program


def _compile(backend="eager", n=2):
    import torch

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    return compiled(torch.ones(n)).tolist()


def _raise():
    raise KeyError("at the end")


def _error_of_a_compile():
    def fails(gm, inputs):
        raise ValueError("at the end")

    try:
        _compile(fails)
    except Exception as error:
        raise SystemExit(f"{type(error).__name__}: {str(error).splitlines()[0]}") from None


WAYS = {
    "0": lambda: sys.exit(0),
    "3": lambda: sys.exit(3),
    "text": lambda: sys.exit("a text"),
    "none": lambda: sys.exit(),
    "_exit": lambda: os._exit(5),
    "error": _raise,
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt),
    "of a compile": _error_of_a_compile,
    "terminated": lambda: os.kill(os.getpid(), 15),
    "atexit": lambda: atexit.register(lambda: print("at exit", _compile())),
    "atexit raises": lambda: atexit.register(_raise),
    "falls off": lambda: None,
}


@program(WAYS, ends=True, quick=("3",))
def left(how):
    """The status, and what is said at the end."""
    return Leaving(_compile(), how)


def _daemon(work):
    begun = threading.Event()
    threading.Thread(target=work, args=(begun.set,), daemon=True).start()
    begun.wait(30)


def _sleeping(begun):
    _compile()
    begun()
    time.sleep(1e6)


def _compiling(begun):
    def backend(gm, inputs):
        begun()
        time.sleep(1e6)

    _compile(backend)


def _waiting(begun):
    import torch

    inside = threading.Event()

    def backend(gm, inputs):
        inside.set()
        time.sleep(1e6)

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True).start()
    inside.wait(30)
    threading.Thread(target=compiled, args=(torch.ones(2),), daemon=True).start()
    time.sleep(0.3)
    begun()


DAEMONS = {"sleeping": _sleeping, "compiling": _compiling, "waiting": _waiting}


@program(DAEMONS, ends=True, quick=("sleeping",))
def left_with_a_daemon(work):
    """A daemon thread sleeps, calls, compiles, or waits for a compile, when the main thread ends."""
    _compile()
    return Leaving("compiled", lambda: _daemon(work))


@program({"3": 3}, ends=True)
def left_by_a_thread(status):
    """A thread of its own ends the process."""
    _compile()
    return Leaving("begun", lambda: threading.Thread(target=os._exit, args=(status,)).start())


@program(ends=True)
def left_with_an_object_that_compiles_at_the_end():
    """A global object's __del__ calls compiled code while the interpreter ends."""
    import torch

    compiled = torch.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))

    class Ends:
        def __del__(self, call=compiled, argument=torch.ones(2)):
            print("del", call(argument).tolist())

    sys.modules["kept for the end"] = Ends()  # type: ignore[assignment]
    return "made"
