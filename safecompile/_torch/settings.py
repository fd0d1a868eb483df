"""The private names of torch's settings (``torch._dynamo.config`` and the like). It only names and tells."""

from __future__ import annotations

import contextvars
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG_MODULE = "torch.utils._config_module"

#: The config modules whose settings a compile reads.
CONFIGS = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


def settings_are_per_context(module: Any) -> bool:
    """Tells whether settings are context variables (torch 2.12+)."""
    return hasattr(module, "ContextVar")


def config_module() -> Any:
    """Returns the module of torch that settings are made with; a small one, imported if it is not yet."""
    return importlib.import_module(CONFIG_MODULE)


def entry_class() -> Any:
    """Returns the class of torch's records of settings."""
    return config_module()._ConfigEntry


def has_entries() -> bool:
    """Tells whether torch's settings are imported."""
    return hasattr(sys.modules.get(CONFIG_MODULE), "_ConfigEntry")


def entry_of(config: Any, name: str) -> Any:
    """Returns torch's record of a setting, of another one if it is an alias."""
    entry = settings_of(config)[name]
    while entry.alias is not None:
        module, _, name = entry.alias.rpartition(".")
        entry = settings_of(sys.modules[module])[name]
    return entry


def process_value(config: Any, name: str) -> Any:
    """Returns a setting's value for the process, as torch up to 2.11 reads it."""
    entry = entry_of(config, name)
    unset = config_module()._UNSET_SENTINEL
    values = (entry.env_value_force, entry.__dict__.get("user_override", unset), entry.env_value_default)
    return next((value for value in values if value is not unset), entry.default)


def check_entries() -> None:
    """Raises LookupError unless a setting's override is a plain attribute of its record, with a class default."""
    if vars(entry_class()).get("user_override") is not config_module()._UNSET_SENTINEL:
        msg = f"{CONFIG_MODULE}._ConfigEntry.user_override"
        raise LookupError(msg)


def configs() -> list[Any]:
    """Returns those config modules that are imported."""
    return [sys.modules[name] for name in CONFIGS if name in sys.modules]


def settings_of(config: Any) -> dict[str, Any]:
    """Returns torch's records of the settings of a config module, by name."""
    found: dict[str, Any] = vars(config).get("_config", {})
    return found


def own_values() -> dict[tuple[str, str], tuple[Any, Any]]:
    """Returns the settings that have a value in this context: (config module's name, setting) -> (module, value)."""
    # A context holds the variables that were set in it: some dozen, and two more for each compile, which torch leaves
    # there (2.13); there are many hundred settings. So the shorter list is gone through.
    unset, places, context = (
        sys.modules[CONFIG_MODULE]._UNSET_SENTINEL,
        _settings_by_variable(),
        contextvars.copy_context(),
    )
    there = context if len(context) < len(places) else places
    return {
        (place[0].__name__, place[1]): (place[0], value)
        for variable in there
        if (place := places.get(variable)) is not None and (value := context.get(variable, unset)) is not unset
    }


#: The setting of each context variable; and the config modules that were gone through for it.
_places: dict[Any, tuple[Any, str]] = {}
_gone_through: set[str] = set()


def _settings_by_variable() -> dict[Any, tuple[Any, str]]:
    for config in configs():
        if config.__name__ not in _gone_through:
            _places.update({entry.user_override: (config, name) for name, entry in settings_of(config).items()})
            _gone_through.add(config.__name__)
    return _places


def own_value(config: Any, name: str) -> Any:
    """Returns the value of a setting that this context has, torch's mark for none, or None for an alias."""
    entry = settings_of(config).get(name)
    return None if entry is None or entry.alias is not None else entry.user_override.get()


def current_task() -> Any:
    """Returns the asyncio task that is running in this thread, or None. Imports nothing."""
    asyncio: Any = sys.modules.get("asyncio.tasks")
    running = None if asyncio is None else asyncio.events._get_running_loop()
    return None if running is None else asyncio.current_task(running)


def has_no_value(config: Any, name: str) -> bool:
    """Tells whether a setting has no value of this context's own: none, or torch's copy of a mutable default."""
    entry = settings_of(config).get(name)
    if entry is None or entry.alias is not None:
        return False
    module: Any = sys.modules[CONFIG_MODULE]
    value = entry.user_override.get()
    return value is module._UNSET_SENTINEL or (isinstance(value, (list, set, dict)) and value == entry.default)


def set_settings(config: Any, **values: Any) -> Callable[[], None]:
    """Sets settings in this context; returns what puts back what was there."""
    revert: Callable[[], None] = config._make_closure_patcher(**values)()
    return revert


@functools.cache
def torch_folder() -> str:
    """Returns the folder of torch's own files, with a separator at its end."""
    return str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep


#: How torch's own code names Dynamo's settings where it changes one for a while.
OWN_CONFIG = ("config", "torch._dynamo.config")


def unset() -> Any:
    """Returns what stands where a setting has no value."""
    return config_module()._UNSET_SENTINEL


def touch(config: Any) -> None:
    """Has torch ask anew for the hash of the settings."""
    config._is_dirty = True


def warning(config: Any) -> Callable[[str, Any], None]:
    """Returns the method that warns, once, of a deprecated setting at the line that called its caller (2.13+)."""
    found: Callable[[str, Any], None] | None = getattr(type(config), "_warn_if_deprecated", None)
    return (lambda *_: None) if found is None else functools.partial(found, config)
