"""The target of a command: a pipeline's code (MODULE:pipeline) or just its name, and its settings."""

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
from tidegate.errors import Invalid, TidegateError
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.ledger.refusals import no_checkpoint_error
from tidegate.ledger.store import LocalStore, Store
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol.view import Entry
from tidegate.records.names import NAME, check_name
from tidegate.records.place import is_url

__all__ = [
    "Target",
    "entry_of",
    "load_pipeline",
    "open_data",
    "open_root",
    "open_target",
    "override",
    "pipeline_names",
    "program",
    "refuse_unknown_jobs",
]


@dataclass(frozen=True)
class Target:
    """A pipeline that the command line names."""

    text: str
    """The argument as typed."""
    name: str
    settings: Settings
    ledger: Ledger
    pipeline: Pipeline | None
    """The pipeline's code, if the command line names MODULE:pipeline."""

    def graph(self) -> Graph | None:
        """Return the graph that the code declares, or None if the command line only has its name."""
        if self.pipeline is None:
            return None
        return self.pipeline.graph(self.settings.place(), self.settings.mode)

    def sound_graph(self) -> Graph | None:
        """Return the graph, or None if it is invalid: existing data can be read without valid code."""
        try:
            return self.graph()
        except Invalid:
            return None

    @property
    def argument(self) -> str:
        """The argument for other commands: the name, unless the code sets the ledger's place."""
        if self.settings.origins["root"] == "code":
            return self.text
        return self.name

    def command(self, verb: str, *words: object) -> str:
        """Return a command line about this pipeline, for users to copy."""
        return self._command(verb, self.argument, *words)

    def command_on_code(self, verb: str, *words: object) -> str:
        """Return the same for a command that needs the pipeline's code."""
        return self._command(verb, self.text if self.pipeline is not None else f"MODULE:{self.name}", *words)

    def _command(self, verb: str, argument: str, *words: object) -> str:
        if self.settings.origins["root"] == "-D":
            root_option = ["-D", f"root={self.settings.root}"]
        else:
            root_option = []
        return " ".join([program(), verb, *map(shlex.quote, [argument, *map(str, words), *root_option])])


def refuse_unknown_jobs(graph: Graph, settings: Settings) -> None:
    """Raise Invalid if -D sets something for a job that the pipeline does not have.

    tidegate.toml may: it is for all pipelines of a project.
    """
    jobs = set()
    for entry in settings.jobs:
        if settings.origins[f"jobs.{entry}"] == "-D":
            jobs.add(entry.partition(".")[0])
    unknown = sorted(jobs - {job.name for job in graph.jobs})
    if unknown:
        raise Invalid(
            f"-D sets something for job {', '.join(map(repr, unknown))}, which pipeline {graph.name!r} does not have",
            expected=" or ".join(job.name for job in graph.jobs),
            help="correct the name",
            reason="UNKNOWN_JOB",
        )


def open_target(text: str, overrides: Mapping[str, str], *, started: bool = True) -> Target:
    """Open the pipeline that `text` names: a name, or MODULE:pipeline if the code sets the ledger's place.

    started: refuse a pipeline that has never run.
    """
    pipeline = load_pipeline(text) if ":" in text else None
    name = check_name("pipeline", pipeline.name if pipeline else text)
    settings = load_settings(overrides, pipeline.settings if pipeline else None)
    ledger = open_ledger(settings.root, name, settings.storage_options)
    if started and ledger.identity() is None:
        raise Invalid(
            f"there is no pipeline {name!r} in {settings.root}",
            expected="a pipeline that has been run, by its name or as MODULE:pipeline",
            help="`tidegate list` shows all pipelines; `tidegate config` shows where `root` comes from",
            reason="NO_SUCH_PIPELINE",
        )
    return Target(text, name, settings, ledger, pipeline)


def open_root(settings: Settings) -> Store:
    """Open the folder with the ledgers of all pipelines."""
    return _open_store(settings, settings.root)


def open_data(settings: Settings) -> Store:
    """Open the folder to which paths of sources and sinks are relative, to check that it can be opened."""
    return _open_store(settings, settings.data)


def _open_store(settings: Settings, place: str) -> Store:
    if is_url(place):
        from tidegate.ledger.object_store import ObjectStore

        return ObjectStore(place, settings.storage_options)
    return LocalStore(place)


def pipeline_names(settings: Settings) -> list[str]:
    """List all pipelines that have a ledger below the root."""
    root = open_root(settings)
    names = [name for name in root.names("") if NAME.fullmatch(name)]
    records = root.read_all([f"{name}/pipeline.json" for name in names])
    return [name for name, record in zip(names, records, strict=True) if record is not None]


def program() -> str:
    """Return how this program was called, so that the commands that it prints work."""
    script = Path(sys.argv[0])
    if script.name != "tidegate":
        if shutil.which("tidegate"):
            return "tidegate"
        return f"{Path(sys.executable).name} -m tidegate"
    on_path = shutil.which("tidegate")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "tidegate"
    if script.is_relative_to(Path.cwd()):
        return os.path.relpath(script)
    return str(script)


def entry_of(ledger: Ledger, id: int) -> Entry:
    """Return the entry of checkpoint `id`. Raise Rejected, with the existing ids, if it does not exist."""
    entry = ledger.entry(id)
    if entry is not None:
        return entry
    raise no_checkpoint_error(ledger, id)


def override(text: str) -> tuple[str, str]:
    """Parse one `-D key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key.strip(), value


# -- MODULE:pipeline -----------------------------------------------------------------------------------


def load_pipeline(text: str) -> Pipeline:
    """Import MODULE and return its `pipeline`. The working directory comes first on the import path."""
    module_name, _, attribute = text.partition(":")
    _check_form(text, module_name, attribute)
    folder = str(Path.cwd())
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    module = _import(module_name)
    pipeline = getattr(module, attribute, None)
    if not isinstance(pipeline, Pipeline):
        declared = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        kind = type(pipeline).__name__
        if hasattr(module, attribute):
            problem = f"has a {kind}, not a Pipeline, as"
        else:
            problem = "has no"
        raise Invalid(
            f"module {module_name!r} {problem} {attribute!r}",
            expected=" or ".join(f"{module_name}:{name}" for name in declared) or "a Pipeline at module level",
            help="pipelines are module variables: pipeline = Pipeline('name')",
            reason="BAD_PIPELINE_ARGUMENT",
        )
    return pipeline


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


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except TidegateError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise Invalid(
                f"there is no module {error.name!r}",
                expected="a module below the working directory, or an installed one",
                help=f"run this in the folder that contains {name.split('.')[0]}/ (you are in {Path.cwd()})",
                reason="BAD_PIPELINE_ARGUMENT",
            ) from error
        raise _import_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> Invalid:
    """Return the error for a module that fails when it is imported, with the line of the user's own code."""
    folder = f"{Path.cwd()}/"
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = []
    for f in frames:
        if f.filename.startswith(folder) and f.filename != __file__:
            user_frames.append(f)
    if user_frames:
        line = f" at {user_frames[-1].filename.removeprefix(folder)} line {user_frames[-1].lineno}"
    else:
        line = ""
    return Invalid(
        f"module {name!r} cannot be imported{line}: {type(error).__name__}: {error}",
        expected="a module that declares its pipeline and does nothing else when it is imported",
        help="correct it; --debug shows the whole traceback",
        reason="BAD_PIPELINE_MODULE",
    )
