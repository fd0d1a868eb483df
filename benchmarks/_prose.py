"""The fixed text of the README of the benchmarks: how to reproduce, and what each section shows."""

from __future__ import annotations

HEAD = """# Benchmarks

This file is written by `python -m benchmarks._report` from the files in `results/`, each of which was written by the
script that the section names. Wall times are noisy: the rows "plain again" and "warmup again" tell how noisy. Counts
of instructions are less so: where a process has its objects in memory moves them by some tenths of a per cent, what
it has imported by up to three per cent.

## How to reproduce

```
pip install -e .[bench]                     # matplotlib, for the pictures; without it there are the tables alone
python -m benchmarks                        # everything, short: some minutes on two cores
python -m benchmarks --setting full         # everything, with at least the settings below: an hour or more
python -m benchmarks --only cold_start      # or call_overhead, contention, costs, drafters, hot, readers, serving
python -m benchmarks.overlap --runs 3       # an experiment: the compile lock given up while kernels compile
```

Counting instructions needs `valgrind`. Each module has settings of its own: `python -m benchmarks.drafters --help`.

The drafters on the GPUs that are there: on one; on two, or on eight with five targets and three drafters; hot steps.
A configuration may be named again with a number of runs, `safe:5x3*3`, so that the ways go in turns. `--out` names the
file; a result that was made with arguments of its own has the command beside its name, or its settings in the file.

```
python -m benchmarks.drafters --runs 5 --configs single:1x1,safe:1x4,safe:1x4:separate,warmup:1x4,plain:1x4
python -m benchmarks.drafters --runs 5 --steps 60 --configs single:5x1,warmup:5x3,safe:5x3,plain:5x3,safe:5x3:separate
python -m benchmarks.hot --drafters 2
```
"""


SUMMARY = """
## In short

What must hold, and what the results say of it; what falls short says **no**, and where the interval has the limit in
it, "open". First steps are judged by the median of their runs, the worst stands beside it; the limit for one drafter
a device is used for more drafters too. "Processes of their own" compares one way's processes with the other's: these
differ by up to a third among themselves, so that the extremes of the ratio stand beside it.

"""

#: For each benchmark its title, and what a reader must know before its tables.
SECTIONS: dict[str, tuple[str, str]] = {
    "call_overhead": (
        "The warm call",
        """\
Instructions are counted by callgrind. The patches may be compared with a plain process, with one that only imported
safecompile, and with the same process after all were taken out: what is imported moves a count by itself. Rows
`without x`: the patches of family x, and of those above it in the list, taken out again. Times are of blocks in
shuffled order in one process, each compared with plain torch's of the same round; "plain again" is plain torch once
more.
""",
    ),
    "cold_start": (
        "The cold start",
        """\
N threads call one function with K shapes at the same moment, with a fresh process and fresh caches each time. The
backend `staged` sleeps 5 s in each compile, and so shows the waits without the noise of a busy machine.
""",
    ),
    "contention": (
        "What a warm thread feels",
        """\
A thread calls a compiled function while two others are busy. Calls that fail are in the percentiles: beside `traces`,
a quarter of plain torch's fail, and quickly. With the library none fails, and each shares the interpreter with two
threads that trace. Beside `resets` p50 is of warm calls; p95 and above compile again.
""",
    ),
    "serving": (
        "A cold server",
        """\
32 threads answer requests of mixed batch sizes with one cold model (Inductor), each way in a process of its own. An
answer is everything from the request on: a wait, an uncompiled call. The thread that compiles pays for the compile in
each way: its answer is the longest. *Beside a compile*: in one process and in turns, 31 threads with `max_wait_s=0`
beside the one that compiles their function, and 31 eager ones beside one that makes the same compile.
""",
    ),
    "readers": (
        "What those pay who only read",
        """\
Nanoseconds of one call, and with a 95 % interval those added to plain torch's of the same round. The limits:
`is_compiling()` at most 100 ns slower, a module's call 0 ns slower while nobody traces or compiles, and at most 400
ns while somebody traces. Whose code a module's call runs is looked at after all the traces and compiles. Beside a
compile `is_compiling()` looks into a `threading.local`; on this slow CPU that takes longer than the limit.
""",
    ),
    "costs": (
        "What else is paid: compiling, stances, imports",
        """\
CPU time, in pairs of fresh processes: plain torch and safecompile, in turns. torch times the guards of each compile
once, and empties the processor's caches for it, which takes longer than all the rest of a small compile. The time of a
miss has that in it; the count of its instructions leaves it out.
""",
    ),
    "drafters": (
        "The training layout",
        """\
`mode:targets x drafters:compiled objects`; `single` is plain torch with one drafter, `warmup` plain torch after a
sequential warm-up on the main thread. First step: of the last drafter, cold, from the common start.
""",
    ),
    "hot": (
        "Hot steps, in turns in one process",
        """\
Runs of `drafters` differ by up to a third among themselves. Here one process has sets of models, warmed up on the
main thread with plain torch or compiled by the drafters with `safe_compile`, and they go in turns. "warmup again" is
the noise. Where plain torch compiles in a block, its look-up has overlooked an entry (`docs/thread-safety.md`). Four
drafters on one GPU gave no result in 140 s for 30 blocks; it was not run again, so that slow can't be told from stuck
there.
""",
    ),
    "overlap": (
        "An experiment: the lock given up while kernels compile",
        """\
The first step of D devices, as a model: one trace after the other, and the kernels of the first serve the others. On
two H200s (the phases of each compile, in the three files `drafters-2.11.0-h200-two-gpus-*.json`) the first forward
takes 3.6 s to 5.6 s, half of it waiting for kernels, and its backward 1.9 s to 3.6 s, nearly all of it waiting. Each
further device adds 0.6 s to 1.1 s for its forward and 0.2 s to 0.6 s for its backward, if it finds the kernels:

    T(D) = T(1) + c (D - 1), c from 0.8 s to 1.7 s

This is measured with D = 2 alone: there the last drafter had its first step 0.6 s to 1.8 s later than a lone one. It
finds them if both were compiled with the same `ptxas`, which the library sees to: in all 23 runs both devices end
within half a second. In 3 of 6 sequential warm-ups by plain torch the second device took 5 s instead of 1 s.

What could be gained is the waiting. The experiment below gives the compile lock up around it: another thread traces
meanwhile. "Given up" **fails**: Inductor keeps the state of one compile in classes, for the process, and asserts that
no other is open. "State put aside" takes that state away while a compile waits, and brings it back. On this machine
every compile then ends well and is right, and four functions are ready a quarter earlier. It is not part of the
library:

- it changes what callers may rely on, one compile at a time in a process, and with it who waits for whom;
- what must be put aside was found by reading torch 2.13.0, and by these forwards on a CPU alone: nothing is known of
  backwards, Triton's kernels, CUDA graphs, AOTAutograd's cache, or of other releases. Up to 2.11 a compile also changes
  settings of the process, which would have to be put aside too.

""",
    ),
}
