"""What set_stance returns, kept in many ways: the call itself sets the stance."""

from __future__ import annotations

from torch.compiler import set_stance

from tests.fidelity.table import program

from ._common import Probe, in_thread, named


class _Holder:
    stance = None


def _chained(stance):
    holder = _Holder()
    holder.stance = kept = set_stance(stance)
    return kept


def _tuple(stance):
    a, b = set_stance(stance), 1
    return a


def _walrus(stance):
    if (kept := set_stance(stance)) is not None:
        return kept


def _kept(stance):
    kept = set_stance(stance)
    return kept


def _in_a_list(stance):
    return [set_stance(stance)][0]


def _global(stance):
    global _STANCE
    _STANCE = set_stance(stance)
    return _STANCE


def _argument(stance):
    return (lambda a: a)(set_stance(stance))


def _unpacked(stance):
    (a,) = [set_stance(s) for s in (stance,)]
    return a


def _called_through(stance):
    return (lambda make: make(stance))(set_stance)


def _instance_attribute(stance):
    holder = _Holder()
    holder.stance = set_stance(stance)
    return holder.stance


WAYS = named(
    *(_chained, _tuple, _walrus, _kept, _in_a_list, _global, _argument, _unpacked, _called_through),
    _instance_attribute,
)


@program(WAYS, quick=("chained",))
def not_entered(make):
    """However its result is kept, the call itself sets the stance."""
    probe = Probe()
    kept = make("force_eager")
    seen = [probe(), in_thread(probe)]
    del kept
    seen.append(probe())
    set_stance("default")
    return seen, probe()


@program({name: WAYS[name] for name in ("kept", "chained", "global", "instance_attribute")})
def entered_later(make):
    """An object that is kept, and entered twice."""
    probe = Probe()
    kept = make("force_eager")
    seen = [probe()]
    for _ in range(2):
        with kept:
            seen.append(probe())
        seen.append(probe())
    set_stance("default")
    return seen, probe()
