"""What many programs share: a backend that counts, and how values and errors are told."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch


class Counting:
    """A backend that runs the graph as it is; ``calls`` says how often it compiled."""

    def __init__(self, inside: Callable[[], Any] = lambda: None) -> None:
        self.__name__ = "counting"
        self.calls = 0
        self.inside = inside

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.calls += 1
        self.inside()
        return gm.forward


def named(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Returns functions by their names, without the underscores around them."""
    return {function.__name__.strip("_"): function for function in functions}


def plus(x: Any) -> Any:
    return x + 1


def fresh() -> Callable[..., Any]:
    """Returns a function that adds one, with code of its own: nothing of it is compiled yet."""
    space: dict[str, Any] = {}
    exec("def adds_one(x):\n    return x + 1", space)
    return space["adds_one"]


def ones(*shape: int) -> Any:
    return torch.ones(*(shape or (2,)))


def told(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.detach().tolist(), value.requires_grad]
    if isinstance(value, dict):
        return {str(k): told(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [type(value).__name__, *map(told, value)]
    if isinstance(value, BaseException):
        return error(value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def error(raised: BaseException) -> dict[str, Any]:
    """Returns an error with the user's frames, and the number of all."""
    frames = traceback.extract_tb(raised.__traceback__)
    users = [f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames]
    return {
        "type": f"{type(raised).__module__}.{type(raised).__qualname__}",
        "text": str(raised),
        "notes": getattr(raised, "__notes__", []),
        "cause": told(raised.__cause__),
        "context": told(raised.__context__) if raised.__context__ is not raised.__cause__ else "the cause",
        "frames of the user": [name for name in users if name.startswith(tuple(USERS))],
        "frames": len(frames),  # the comparison lets the library have two more
    }


#: Files of which the frames count as the user's.
USERS = {"_common.py"}


def user(file: str) -> None:
    """Says that a file of programs plays the user."""
    USERS.add(file.rpartition("/")[2])


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what a call returns, or the error that it raises."""
    try:
        return told(function(*args, **kwargs))
    except BaseException as raised:
        return error(raised)


class Probe:
    """A function that tells whether it was compiled: each call has a new shape."""

    def __init__(self):
        self.backend = Counting()
        self.compiled = torch.compile(lambda x: x + 1, backend=self.backend, dynamic=False)
        self.n = 0

    def __call__(self):
        before, self.n = self.backend.calls, self.n + 1
        result = attempt(self.compiled, ones(self.n))
        return (
            "compiled"
            if self.backend.calls > before
            else result.get("type", "?")
            if isinstance(result, dict)
            else "eager"
        )


def in_thread(function: Callable[[], Any]) -> Any:
    """Calls in another thread and waits for it: one of the two works at a time."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(attempt(function)))
    thread.start()
    thread.join()
    return result[0]


def same(eager: Callable[[], Any], compiled: Callable[[], Any]) -> dict[str, Any]:
    """Returns both, and whether they are equal."""
    a, b = attempt(eager), attempt(compiled)
    return {"eager": a, "compiled": b, "equal": a == b}
