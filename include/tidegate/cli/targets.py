"""What a command is about: a pipeline's code (MODULE:pipeline) or just its name, and its settings."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tidegate.config import Settings, load_settings
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.store import LocalStore, Store
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry
from tidegate.records.names import NAME, check_name
from tidegate.records.place import is_url

__all__ = ["Target", "entry_of", "find", "load_pipeline", "open_root", "override", "pipeline_names", "program"]


@dataclass(frozen=True)
class Target:
    """A pipeline as the command line names it."""

    text: str
    """As it was given."""
    name: str
    settings: Settings
    ledger: Ledger
    pipeline: Pipeline | None
    """Its code, if MODULE:pipeline was given."""

    def graph(self) -> Graph | None:
        """What its code declares; None if only its name was given."""
        return self.pipeline.graph(self.settings.place(), self.settings.mode) if self.pipeline is not None else None

    def sound_graph(self) -> Graph | None:
        """The same, and None if something is wrong with it: to look at what was made takes no sound code."""
        try:
            return self.graph()
        except Invalid:
            return None

    @property
    def argument(self) -> str:
        """How other commands name it: by its name, unless its code says where the ledger is."""
        return self.text if self.settings.origins["root"] == "code" else self.name

    def command(self, verb: str, *words: object) -> str:
        """A command about this pipeline, for people to copy."""
        moved = ["-D", f"root={self.settings.root}"] if self.settings.origins["root"] == "-D" else []
        return " ".join([program(), verb, *map(shlex.quote, [self.argument, *map(str, words), *moved])])


def find(text: str, overrides: Mapping[str, str], *, started: bool = True) -> Target:
    """The pipeline that `text` names: its name, or MODULE:pipeline if its code says where the ledger is.

    started: it must have run before; otherwise the command would have nothing to tell.
    """
    pipeline = load_pipeline(text) if ":" in text else None
    name = check_name("pipeline", pipeline.name if pipeline else text)
    settings = load_settings(overrides, pipeline.settings if pipeline else None)
    ledger = open_ledger(settings.root, name, dict(settings.storage_options))
    if started and ledger.identity() is None:
        raise Invalid(
            f"there is no pipeline {name!r} in {settings.root}",
            expected="a pipeline that has been run, by its name or as MODULE:pipeline",
            help="`tidegate list` shows what is there; `tidegate config` shows where `root` comes from",
            reason="NO_SUCH_PIPELINE",
        )
    return Target(text, name, settings, ledger, pipeline)


def open_root(settings: Settings) -> Store:
    """The folder that holds all pipelines' ledgers."""
    if is_url(settings.root):
        from tidegate.ledger.object_store import ObjectStore

        return ObjectStore(settings.root, dict(settings.storage_options))
    return LocalStore(settings.root)


def pipeline_names(settings: Settings) -> list[str]:
    """All pipelines that have a ledger below the root."""
    root = open_root(settings)
    return [name for name in root.names("") if NAME.fullmatch(name) and root.read(f"{name}/pipeline.json") is not None]


def program() -> str:
    """How this program was called, so that what it prints can be called as well."""
    called = Path(sys.argv[0])
    if called.name != "tidegate":
        return "tidegate" if shutil.which("tidegate") else f"{Path(sys.executable).name} -m tidegate"
    found = shutil.which("tidegate")
    if found is not None and Path(found).resolve() == called.resolve():
        return "tidegate"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def entry_of(ledger: Ledger, id: int) -> Entry:
    """Checkpoint `id`, or a "no" that says what there is."""
    entry = ledger.entry(id)
    if entry is not None:
        return entry
    ids = ledger.ids()
    there = f"{ids[0]} to {ids[-1]}" if ids else "none yet"
    raise Rejected(
        f"pipeline {ledger.pipeline!r} has no checkpoint {id}",
        expected=f"one of those that it has: {there}",
        help="older ones were retired: the setting num_retained says how many completed ones are kept",
        reason="NO_SUCH_CHECKPOINT",
    )


def override(text: str) -> tuple[str, str]:
    """One `-D key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip(), value


# -- MODULE:pipeline -----------------------------------------------------------------------------------


def load_pipeline(text: str) -> Pipeline:
    """Import MODULE and take `pipeline` from it. The working directory comes first on the import path."""
    module_name, _, attribute = text.partition(":")
    _check_form(text, module_name, attribute)
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    module = _module(module_name)
    found = getattr(module, attribute, None)
    if not isinstance(found, Pipeline):
        others = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        is_what = "has no" if not hasattr(module, attribute) else f"has a {type(found).__name__}, not a Pipeline, as"
        raise Invalid(
            f"module {module_name!r} {is_what} {attribute!r}",
            expected=" or ".join(f"{module_name}:{name}" for name in others) or "a Pipeline at module level",
            help="pipelines are module variables: pipeline = Pipeline('name')",
            reason="BAD_PIPELINE_ARGUMENT",
        )
    return found


def _check_form(text: str, module: str, attribute: str) -> None:
    parts = module.split(".")
    if all(part.isidentifier() for part in parts) and attribute.isidentifier():
        return
    dotted = module.removesuffix(".py").strip("./").replace("/", ".")
    looks_like_file = module != dotted and all(part.isidentifier() for part in dotted.split("."))
    raise Invalid(
        f"{text!r} is not of the form MODULE:pipeline",
        expected="a module's dotted name, a colon, and the name of a Pipeline in it, such as jobs.orders:pipeline",
        help=f"did you mean {dotted}:{attribute or 'pipeline'}?" if looks_like_file else "",
        reason="BAD_PIPELINE_ARGUMENT",
    )


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except TidegateError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise Invalid(
                f"there is no module {error.name!r}",
                expected="a module below the working directory, or an installed one",
                help=f"run this in the folder that holds {name.split('.')[0]}/ (you are in {Path.cwd()})",
                reason="BAD_PIPELINE_ARGUMENT",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Invalid:
    """The module exists and fails: say where, in the user's own code."""
    here = f"{Path.cwd()}/"
    own = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here) and f.filename != __file__
    ]
    where = f" at {own[-1].filename.removeprefix(here)} line {own[-1].lineno}" if own else ""
    return Invalid(
        f"module {name!r} cannot be imported{where}: {type(error).__name__}: {error}",
        expected="a module that declares its pipeline and does nothing else when it is imported",
        help="correct it; --debug shows the whole traceback",
        reason="BAD_PIPELINE_MODULE",
    )
