"""The frames of all threads: no garbage collection while the interpreter's lock over its threads is held."""

from __future__ import annotations

import gc
import sys

import pytest

from safecompile._common import thread_frames
from tests.helpers.threads import Hung, in_fresh_process

#: Garbage whose finalizer loses the GIL, while another thread begins threads; collected at every place in turn.
PROGRAM = """
    import _thread, gc, sys, threading, time
    from safecompile._common import thread_frames

    frames = FRAMES

    class Garbage:
        def __init__(self):
            self.me = self

        def __del__(self):
            collected.set()
            time.sleep(0.05)

    def begins_threads():
        while True:
            collected.wait()
            _thread.start_new_thread(len, ((),))
            collected.clear()

    collected = threading.Event()
    threading.Thread(target=begins_threads, daemon=True).start()
    def naps():
        while True:
            nap()

    def nap():  # a frame object is made for each frame that is seen for the first time
        time.sleep(0.01)

    for _ in range(8):
        threading.Thread(target=naps, daemon=True).start()
    time.sleep(0.2)
    for number in range(200):
        gc.collect()
        Garbage()
        gc.set_threshold(number % 20 + gc.get_count()[0], 1, 1)
        frames()
        gc.set_threshold(100000)
        time.sleep(0.01)
    print("none hung", flush=True)
    import os; os._exit(0)
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Python 3.11 alone collects there")
def test_red_twin_with_the_interpreters_own_function():
    """The lock is held by the thread whose finalizer waits for the GIL, and wanted by the one that has it."""
    with pytest.raises(Hung):
        in_fresh_process(PROGRAM.replace("FRAMES", "sys._current_frames"), timeout_s=15)


def test_a_collection_at_every_place():
    """None hangs."""
    done = in_fresh_process(PROGRAM.replace("FRAMES", "thread_frames.of_all_threads"), timeout_s=60)
    assert done.stdout == "none hung\n", done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool):
    """On or off."""
    gc.enable() if enabled else gc.disable()
    try:
        assert set(thread_frames.of_all_threads()) == set(sys._current_frames())
        assert [set(one) for one in thread_frames.once()] == [set(sys._current_frames())]
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
