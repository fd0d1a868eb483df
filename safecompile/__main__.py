"""``python -m safecompile``: parses arguments, nothing else."""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import NoReturn, TypeAlias

_DEMO = """\
Runs three pieces of real work with plain torch.compile and with safe_compile, each in a process
of its own that is watched, and prints a table of what came of them:

  tracing    one thread symbolically traces while others make compiled and eager calls
  server     a thread pool shares one compiled model, all threads start cold, mixed batch sizes
  drafters   threads compile flex_attention with a new block mask each step, beside eager forwards

It takes about two minutes on two cores that are free, and longer on a busy machine; how much there
is to do is decided by a first measurement. A process counts as hung only if nothing gets done in it
and it uses no CPU time. The exit code is 0 only if the safe side was right in every workload: each
call came back, with the right numbers, from compiled code. server and drafters need what
torch.compile needs: a C++ compiler on the CPU, Triton on CUDA."""

_EXAMPLES = """\
examples:
  python -m safecompile demo
  python -m safecompile demo --workload tracing --device cpu
  python -m safecompile demo --workload drafters --device cuda:1 --time-limit 120 --json"""


_REPORT = """\
Puts the patches in, compiles one small function, and prints versions, devices, and which patches fit this torch. In a
process of yours, print(safecompile.report()) tells who compiles and waits, too."""

_TIMELINE = """\
Draws the trace in FILE as SVG: a row for each thread, its compiles and waits. With --with, writes one trace of it and a
file of torch.profiler's instead, for Perfetto or chrome://tracing."""

_WATCH = """\
Runs a script as python does, in plain torch, and tells at its end, on stderr, what went wrong: who set FX's tracing
flag while others called, what was compiled twice, what ran eagerly. The exit code is 1 if something was found."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See --help.\n")


def _threads(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 256:
        msg = f"must be a whole number from 1 to 256, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 86_400:
        msg = f"must be a positive number of seconds, less than a day, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return seconds


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _parser() -> _Parser:
    parser = _Parser(prog="python -m safecompile", description="Tools around safecompile.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_demo, _add_report, _add_timeline, _add_watch):
        add(commands)
    return parser


def _add_demo(commands: _Commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="run the same work with plain torch.compile and with safe_compile",
        description=_DEMO,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--workload", choices=["tracing", "server", "drafters", "all"], default="all", help="which (default: all)"
    )
    demo.add_argument("--side", choices=["both", "plain", "safe"], default="both", help="which (default: both)")
    demo.add_argument("--device", help="cpu, cuda or cuda:N (default: every CUDA device there is, else cpu)")
    demo.add_argument(
        "--threads", type=_threads, default=12, metavar="N", help="threads that call at once (default: 12)"
    )
    demo.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="S",
        help="seconds for each workload and side; one that still works then is ended as too slow (default: 600)",
    )
    demo.add_argument("--json", action="store_true", help="print JSON in place of the table")


def _add_report(commands: _Commands) -> None:
    text = "print versions and the state of the patches, for a bug report"
    report = commands.add_parser("report", help=text, description=_REPORT)
    report.add_argument("--json", action="store_true", help="print JSON")


def _add_timeline(commands: _Commands) -> None:
    text = "draw what 'with safecompile.timeline(FILE)' has recorded"
    timeline = commands.add_parser("timeline", help=text, description=_TIMELINE)
    timeline.add_argument("file", metavar="FILE", help="what safecompile.timeline has written")
    timeline.add_argument("-o", "--output", metavar="PATH", help="where to (default: beside FILE)")
    timeline.add_argument("--with", dest="profile", metavar="PROFILE", help="a trace of torch.profiler's")


def _add_watch(commands: _Commands) -> None:
    text = "run a script in plain torch, and tell what its threads do to each other"
    watch = commands.add_parser("watch", help=text, description=_WATCH)
    watch.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    watch.add_argument("--provoke", action="store_true", help="make traces longer, so that what may collide does")
    watch.add_argument("-o", "--output", metavar="PATH", help="write the findings as JSON, too")
    watch.add_argument("script", metavar="SCRIPT")
    watch.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "report":
        from .tools import report

        return report.run(as_json=options.json)
    if options.command == "timeline":
        return _timeline(parser, options)
    if options.command == "watch":
        return _watch(parser, options, sys.argv[1:] if arguments is None else arguments)
    return _demo(parser, options)


def _timeline(parser: _Parser, options: argparse.Namespace) -> int:
    from .tools import _stdout, timeline

    try:
        written = timeline.run(options.file, options.output, options.profile)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    _stdout.say(written)
    return 0


def _watch(parser: _Parser, options: argparse.Namespace, given: list[str]) -> int:
    from .tools import _files
    from .tools.watch import script

    if not options.is_module and not os.path.exists(options.script):  # noqa: PTH110
        parser.error(f"there is no script {options.script}")
    try:
        _files.check_writable(options.output)
    except OSError as error:
        parser.error(str(error))
    # argparse drops a "--" behind the script, which is the script's own.
    dropped = given[: len(given) - len(options.arguments)][-1:] == ["--"]
    return script.run(
        options.script,
        ["--"] * dropped + options.arguments,
        is_module=options.is_module,
        provoke=options.provoke,
        output=options.output,
    )


def _demo(parser: _Parser, options: argparse.Namespace) -> int:
    from .tools import demo

    if sys.stderr is not None and sys.stderr.isatty():
        print("loading torch ...", end="\r", file=sys.stderr, flush=True)
    try:
        demo.devices_for(options.device)
    except ValueError as error:
        parser.error(str(error))
    try:
        return demo.run(
            workload=options.workload,
            side=options.side,
            device=options.device,
            threads=options.threads,
            time_limit_s=options.time_limit,
            as_json=options.json,
        )
    except KeyboardInterrupt:
        print("\ninterrupted; the demo's processes are ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
