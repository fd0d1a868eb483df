"""What a compile puts back is decided by who changed it: an idle thread changes nothing, a working one loses nothing.

Each program runs in a process of its own, since pytest has threads. Its red twin runs without one of the guards, or in
plain torch, and must see the fault.
"""

from __future__ import annotations

import pytest

from safecompile._torch import threads as host
from tests.helpers.nursery import in_forked_process
from tests.helpers.threads import in_fresh_process

SAFE = "import safecompile.patch_all"

#: What makes company of each kind, which is there while the rest of a program runs.
COMPANY = {
    "nobody": "pass",
    "one that sleeps": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "one that sleeps and threading does not know": "_thread.start_new_thread(threading.Event().wait, ())",
    "one that polls": """
def poll(event=threading.Event()):
    while not event.wait(0.005): pass
threading.Thread(target=poll, daemon=True).start()""",
}

PRELUDE = """
import _thread, ctypes, functools, gc, random, sys, threading, time, weakref
import torch, torch._dynamo
{prepare}
{company}
time.sleep(0.05)

def cold(body, **names):
    space = {{"torch": torch, "random": random, **names}}
    exec("def f(x):" + body, space)
    return space["f"]
"""


def run(program: str, *, prepare: str = SAFE, company: str = "nobody") -> str | None:
    """Runs a program; returns the last line of what it says if it fails."""
    code = PRELUDE.format(prepare=prepare, company=COMPANY[company]) + program
    done = in_forked_process(code, timeout_s=120.0)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


everybody = pytest.mark.parametrize("company", COMPANY)

SEEDED = """
def numbers(call):
    random.seed(7)
    torch.manual_seed(7)
    drawn = [(call(torch.ones(2)).tolist(), random.random(), torch.rand(1).item()) for _ in range(2)]
    return drawn

f = cold("a = random.random(); b = random.randint(0, 9); print(end=''); return x * a + b * random.uniform(0, 1)")
assert numbers(torch.compile(f, backend="eager")) == numbers(f)
"""


@everybody
def test_seeded_functions_draw_what_eager_draws(company):
    """What the trace of a function draws, for an example, is not missing afterwards, whoever is alive."""
    assert run(SEEDED, company=company) is None


def test_red_a_trace_that_draws_from_the_shared_generator_is_noticed_beside_work():
    """The copy is needed: beside a thread that works, what was drawn is not put back."""
    without = f"""
from safecompile._isolation import random_state
random_state._copy_of = lambda tx, function: function
from safecompile._torch import threads
threads.have_worked = lambda since: True
{SAFE}
"""
    assert "AssertionError" in str(run(SEEDED, prepare=without))


DRAWING_BACKEND = """
def draws(graph, _):
    random.random(), torch.rand(3)
    return graph.forward

torch.manual_seed(1), random.seed(1)
wanted = torch.rand(1).item(), random.random()
torch.manual_seed(1), random.seed(1)
torch.compile(cold("return x + 1"), backend=draws)(torch.ones(2))
assert (torch.rand(1).item(), random.random()) == wanted
"""


@pytest.mark.parametrize("company", [one for one in COMPANY if one != "one that polls"])
def test_what_a_backend_draws_is_put_back_beside_threads_that_sleep(company):
    """A thread that has used no CPU time since has drawn nothing."""
    assert run(DRAWING_BACKEND, company=company) is None


def test_red_with_the_number_of_threads_an_idle_one_would_change_seeds():
    """The rule by who is alive fails."""
    alive = (
        f"{SAFE}\nfrom safecompile._torch import threads\nthreads.have_worked = lambda _: threads.others_are_alive()"
    )
    assert run(DRAWING_BACKEND, prepare=alive) is None
    assert run(DRAWING_BACKEND, prepare=alive, company="one that sleeps") is not None


def test_torchs_own_parallel_loops_are_nobody():
    """The threads of OpenMP work in a backend, and draw nothing."""
    program = DRAWING_BACKEND.replace("random.random(), torch.rand(3)", "torch.rand(900, 900) @ torch.rand(900, 900)")
    program = program.replace("random.random()) == wanted", "random.random()) == wanted, torch.get_num_threads()")
    assert run(program, prepare=f"{SAFE}\ntorch.set_num_threads(2)") is None


BESIDE = """
inside, go = threading.Event(), threading.Event()
drawn = []

def backend(graph, _):
    random.random(), torch.rand(2)
    inside.set()
    assert go.wait(30)
    return graph.forward

def beside(*_):
    assert inside.wait(30)
    drawn.append((torch.rand(1).item(), random.random()))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.float64)
    go.set()

torch.manual_seed(1), random.seed(1)
START
torch.compile(cold("return x + 1"), backend=backend)(torch.ones(2))
after = {(torch.rand(1).item(), random.random()) for _ in range(9)}
assert not {a for a, _ in drawn} & {a for a, _ in after}, "torch's numbers are drawn twice"
assert not {b for _, b in drawn} & {b for _, b in after}, "random's numbers are drawn twice"
assert torch.is_deterministic_algorithms_warn_only_enabled(), "deterministic mode is lost"
assert torch.get_default_dtype() == torch.float64, "the default dtype is lost"
"""

STARTS = {
    "threading": "threading.Thread(target=beside).start()",
    "_thread": "_thread.start_new_thread(beside, ())",
    "C": """
callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: beside() or 0)
number = ctypes.c_ulong()
assert not ctypes.CDLL(None).pthread_create(ctypes.byref(number), None, callback, None)""",
}


@pytest.mark.parametrize("start", STARTS)
def test_what_a_thread_draws_and_sets_beside_a_compile_is_kept(start):
    """Whoever started it: no number is drawn twice, no setting is lost."""
    assert run(BESIDE.replace("START", STARTS[start])) is None


@pytest.mark.parametrize("start", STARTS)
def test_red_in_plain_torch_it_is_lost(start):
    """The same scene in plain torch."""
    assert run(BESIDE.replace("START", STARTS[start]), prepare="") is not None


COMES_AND_GOES = """
def backend(graph, _):
    torch.rand(2)
    thread = threading.Thread(target=lambda: drawn.append(torch.rand(1).item()))
    thread.start(), thread.join()
    return graph.forward

drawn = []
torch.manual_seed(1)
torch.compile(cold("return x + 1"), backend=backend)(torch.ones(2))
assert drawn[0] not in [torch.rand(1).item() for _ in range(9)], "drawn twice"
"""


def test_a_thread_that_comes_and_goes_within_a_compile_is_seen():
    """It is in no list, neither at the begin nor at the end."""
    assert run(COMES_AND_GOES) is None
    blind = f"{SAFE}\nfrom safecompile._torch import threads\nthreads._newest_state = lambda: 0"
    assert "drawn twice" in str(run(COMES_AND_GOES, prepare=blind)), "red"


NOT_YET_BEGUN = """
import os

def backend(graph, _):
    torch.rand(2)
    while len(os.listdir("/proc/self/task")) > threads_before:
        time.sleep(0.01)
    return graph.forward

drawn, threads_before = [], len(os.listdir("/proc/self/task"))
f = torch.compile(cold("return x + 1"), backend=backend)
torch.manual_seed(1)
sys.setswitchinterval(5.0)  # it is there, and gets no turn before the backend sleeps
_thread.start_new_thread(lambda: drawn.append(torch.rand(1).item()), ())
f(torch.ones(2))
assert drawn[0] not in [torch.rand(1).item() for _ in range(9)], "drawn twice"
"""


def test_a_thread_that_was_made_but_had_not_begun_is_seen():
    """It runs no Python code yet where the compile begins, and is gone where it ends."""
    assert run(NOT_YET_BEGUN) is None


FOR_A_WHILE = """
f = cold('''
    a = torch.ones(2) + x
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    b = torch.zeros(3); print(end="")
    torch.set_default_dtype(before)
    return a.dtype, b.dtype''')
g = cold('''
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True); y = x + 1; print(end="")
    torch.use_deterministic_algorithms(before)
    return before''')
compiled_f, compiled_g = torch.compile(f, backend="eager"), torch.compile(g, backend="eager")
for _ in range(2):
    assert compiled_f(torch.ones(2)) == (torch.float32, torch.float64) and torch.get_default_dtype() == torch.float32
    assert compiled_g(torch.ones(2)) is False and not torch.are_deterministic_algorithms_enabled()

def fails(graph, _):
    raise ValueError

SETS = "set_default_dtype(torch.float64)", "use_deterministic_algorithms(True)", "set_deterministic_debug_mode(1)"
for body in SETS:
    try:
        torch.compile(cold(f"torch.{body}; return x + 1"), backend=fails)(torch.ones(2))
    except Exception:
        pass
    assert torch.get_default_dtype() == torch.float32 and torch.get_deterministic_debug_mode() == 0, body
"""


@everybody
def test_a_function_that_changes_a_setting_for_a_while_runs_as_in_eager(company):
    """What a trace sets is undone at its end, whoever is alive, and whatever becomes of the compile."""
    assert run(FOR_A_WHILE, company=company) is None


SETTERS = """
import torch.backends.cuda
from safecompile._isolation import open_compiles
inside, go = threading.Event(), threading.Event()
SET = (
    lambda: torch.set_default_dtype(torch.float64),
    lambda: torch.set_default_tensor_type(torch.DoubleTensor),
    lambda: torch.use_deterministic_algorithms(True),
    lambda: torch.set_deterministic_debug_mode("warn"),
    lambda: torch.set_float32_matmul_precision("high"),
    lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    *([lambda: setattr(torch.backends, "fp32_precision", "tf32")] if hasattr(torch.backends, "fp32_precision") else []),
)

def values():
    new = getattr(torch._C, "_get_fp32_precision_getter", None)
    precision = torch._C._get_cublas_allow_tf32() if new is None else new("cuda", "matmul")
    return torch.get_default_dtype(), torch.get_deterministic_debug_mode(), precision

for setter in SET:
    before, seen, inside, go = values(), [], threading.Event(), threading.Event()

    def backend(graph, _):
        inside.set()
        assert go.wait(30)
        return graph.forward

    def beside():
        inside.wait(30)
        setter()
        seen.append(values())
        go.set()

    thread = threading.Thread(target=beside)
    thread.start()
    torch.compile(cold("return x + 1"), backend=backend)(torch.ones(2))
    thread.join()
    assert seen[0] != before, "nothing was set"
    assert values() == seen[0], (values(), seen)
    torch.set_default_dtype(torch.float32), torch.use_deterministic_algorithms(False)
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = "none"
    else:
        torch.set_float32_matmul_precision("highest")
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_public_setter_says_what_it_sets():
    """What another thread sets by it stays, and the compile beside it ends well."""
    assert run("import warnings; warnings.simplefilter('ignore')\n" + SETTERS) is None


def test_red_a_setter_that_says_nothing_is_lost():
    """Without the note each is put back."""
    silent = "from safecompile._torch import shared_state\nshared_state.public_setters = list\n" + SAFE
    silent += "\nshared_state.precision_setter_maker = lambda: None"
    assert "(torch.float32," in str(run(SETTERS, prepare=silent))


FREED = """
class Big: pass

def holding(refs):
    def backend(graph, _):
        big = Big()
        refs.append(weakref.ref(big))
        return lambda *args: (big, graph.forward(*args))[1]
    return backend

def gone(refs):
    time.sleep(0.9)
    gc.collect()
    return refs[0]() is None

by_reset, by_death = [], []
f = cold("return x - 1")
torch.compile(f, backend=holding(by_reset))(torch.ones(2))
torch._dynamo.reset()
assert gone(by_reset), "what a reset frees is kept"
factor = type("Factor", (), {"value": 2})()
f = cold("return x * factor.value", factor=factor)
torch.compile(f, backend=holding(by_death), dynamic=False)(torch.ones(2))
del factor
del f.__globals__["factor"]
gc.collect()
assert gone(by_death), "what a dead guard frees is kept"
assert threading.active_count() == COUNT
"""


@everybody
def test_what_a_reset_or_a_dead_guard_frees_is_freed_within_a_second(company):
    """Nobody needs to compile again for it."""
    count = {"nobody": 1, "one that sleeps and threading does not know": 1}.get(company, 2)
    assert run(FREED.replace("COUNT", str(count)), company=company) is None


def test_red_without_a_thread_of_its_own_it_is_kept_until_the_next_miss():
    """The red twin."""
    without = f"{SAFE}\nfrom safecompile._engine import later\nlater.soon = lambda: None"
    assert "is kept" in str(run(FREED.replace("COUNT", "2"), prepare=without, company="one that sleeps"))


def test_alone_with_helpers_all_is_freed_at_once():
    """Inductor's threads, and pools that it loads kernels in, run no code of the user's."""
    program = """
from torch._inductor.async_compile import AsyncCompile
AsyncCompile.pool().submit(time.sleep, 0).result()
from safecompile._torch import threads
assert threading.active_count() > 1 and not threads.others_are_alive()  # 2.7: one more, that reads
look = threads.look()
AsyncCompile.pool().submit(sum, range(100_000)).result()
assert not threads.have_worked(look)
refs = []
"""
    program += FREED[FREED.index("class Big") : FREED.index("by_reset, by_death")]
    program += """
torch.compile(cold("return x * 5"), backend=holding(refs))(torch.ones(2))
torch._dynamo.reset(); gc.collect()
assert refs[0]() is None
"""
    assert run(program, prepare=f"{SAFE}\nimport os\nos.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '2'") is None
    # A pool of the user's is somebody.
    program = program.replace("AsyncCompile.pool()", "pool").replace("from torch._inductor.async_compile import", "#")
    own = f"{SAFE}\nfrom concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)"
    assert run(program, prepare=own) is not None


def test_an_exit_beside_an_idle_thread_says_nothing():
    """What is kept for a moment is freed before torch's modules go."""
    program = f"""
    {SAFE}, threading, torch
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    @torch.compile(backend="eager")
    def f(x):
        y = x + 1
        print(end="")
        return y * 2
    f(torch.ones(2))
    """
    done = in_fresh_process(program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("started", ["before", "meanwhile"])
def test_a_helper_that_begins_late_hides_nobody(started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread has come and gone; a helper started before the first look, and excused since, is not that one."""
    me, helper = "1", "2"
    before = frozenset({me, helper} if started == "before" else {me})
    since = host.Look(10, {}, frozenset(), before, alone=True)
    excused = frozenset({host._clock(int(helper))})
    monkeypatch.setattr(host, "look", lambda: host.Look(11, {}, excused, frozenset({me, helper}), alone=True))
    assert host.have_worked(since) == (started == "before")
