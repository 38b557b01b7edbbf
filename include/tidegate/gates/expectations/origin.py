"""Where a gate's suite comes from: a YAML file of the project, a file context of Great Expectations, or an object."""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import Invalid
from tidegate.gates.declared_files import local_path
from tidegate.gates.expectations.suite import Suite, read_suite, read_text
from tidegate.records.place import Place
from tidegate.records.records import Json

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.data_context.data_context.file_data_context import FileDataContext

__all__ = ["FOLDER", "ContextSuite", "FileSuite", "ObjectSuite", "SuiteOrigin", "origin_of", "suites_of_context"]

FOLDER = "include/expectations"
"""The folder of the project's own suites."""
_CONFIG: Final = "great_expectations.yml"
_CONFIG_VERSIONS: Final = (3, 4)
"""The versions of that file that Great Expectations 1.x reads."""


class SuiteOrigin(ABC):
    """Where a suite comes from."""

    name: str
    """What the declaration calls the suite."""
    modules: tuple[str, ...] = ()
    """The modules that define expectations of the user's own."""

    def problems(self) -> list[str]:
        """Return the problems of the declaration, each as a sentence."""
        return []

    def describe(self) -> Json:
        """Return what the gate's description says about the suite."""
        return {"suite": self.name}

    @abstractmethod
    def read(self, place: Place) -> str:
        """Return the suite's current text. Raise Invalid if there is none."""

    @abstractmethod
    def parse(self, text: str, place: Place) -> Suite:
        """Return the suite of a text that `read` returned, now or earlier. Raise Invalid with all problems of it."""

    def load(self, place: Place) -> Suite:
        """Return the suite as it is now."""
        return self.parse(self.read(place), place)


class FileSuite(SuiteOrigin):
    """A YAML file: include/expectations/<name>.yaml, or a path that ends in .yaml."""

    def __init__(self, name: str) -> None:
        self.name = name

    def problems(self) -> list[str]:
        return [] if self.name.strip() else [f"suite {self.name!r} is not a suite's name"]

    def path(self, place: Place) -> Path:
        """Return the path of the file."""
        name = self.name if self.name.endswith((".yaml", ".yml")) else f"{FOLDER}/{self.name}.yaml"
        return local_path(place, name, f"suite {self.name!r}", "BAD_SUITE")

    def read(self, place: Place) -> str:
        return read_text(self.path(place))

    def parse(self, text: str, place: Place) -> Suite:
        path = self.path(place)
        return read_suite(text, str(path), path.stem, modules=self.modules)


class ContextSuite(SuiteOrigin):
    """A suite of a file context, as Great Expectations has written it: gx/expectations/<name>.json.

    The context's own file says where its suites are. Nothing else of the context is used, so it needs no network and
    no import of Great Expectations.
    """

    def __init__(self, name: str, context: str | FileDataContext) -> None:
        self.name = name
        self._problem = ""
        if isinstance(context, str):
            self.context = context
            return
        self.context = ""
        mode = _mode_of(context)
        if mode == "file":
            self.context = str(context.root_directory)
        elif mode == "ephemeral":
            self._problem = (
                "an ephemeral context keeps its suites in this process's memory only: pass the suite itself, "
                f"Expectations(context.suites.get({name!r}))"
            )
        elif mode == "cloud":
            self._problem = "a cloud context asks the network for its suites: name the folder of a file context"
        else:
            self._problem = f'{context!r} is not a context: name the folder of a file context, such as context="gx"'

    def problems(self) -> list[str]:
        problems = FileSuite(self.name).problems()
        if self._problem:
            problems.append(f"context: {self._problem}")
        elif not self.context.strip():
            problems.append(f'context is {self.context!r}: name the folder of a file context, such as context="gx"')
        return problems

    def describe(self) -> Json:
        return {"suite": self.name, "context": self.context}

    def path(self, place: Place) -> Path:
        """Return the path of the suite's file. Raise Invalid if the context keeps its suites elsewhere."""
        folder = _store_folder(place, self.context)
        return folder.joinpath(*self.name.split(".")).with_name(f"{self.name.split('.')[-1]}.json")

    def read(self, place: Place) -> str:
        path = self.path(place)
        if not path.is_file():
            names = suites_of_context(place, self.context)
            raise Invalid(
                f"the context {self.context} has no suite {self.name!r}: there is no {path}",
                expected=f"one of {', '.join(names[:20])}" if names else "a suite that its commands have saved",
                help="correct the name, or save the suite: context.suites.add(suite)",
                reason="BAD_SUITE",
            )
        return read_text(path)

    def parse(self, text: str, place: Place) -> Suite:
        usual_path = "/".join([self.context.rstrip("/"), "expectations", *self.name.split(".")])
        return read_suite(text, f"{usual_path}.json", self.name, is_json=True, modules=self.modules)


class ObjectSuite(SuiteOrigin):
    """A suite that the pipeline's code has made with Great Expectations."""

    def __init__(self, suite: ExpectationSuite) -> None:
        self.name = str(suite.name)
        self._text = json.dumps(suite.to_json_dict(), indent=2, sort_keys=True)

    def read(self, place: Place) -> str:
        return self._text

    def parse(self, text: str, place: Place) -> Suite:
        return read_suite(
            text, f"ExpectationSuite {self.name!r} as JSON", self.name, is_json=True, modules=self.modules
        )


class _NoSuite(SuiteOrigin):
    """A declaration that names no suite."""

    def __init__(self, problem: str) -> None:
        self.name = ""
        self._problem = problem

    def problems(self) -> list[str]:
        return [self._problem]

    def read(self, place: Place) -> str:
        raise Invalid(
            self._problem,
            expected="a suite's name, or an ExpectationSuite",
            help="correct the declaration",
            reason="BAD_SUITE",
        )

    def parse(self, text: str, place: Place) -> Suite:
        raise AssertionError("there is no text to parse")


def origin_of(
    suite: str | ExpectationSuite, context: str | FileDataContext | None, modules: Sequence[str] = ()
) -> SuiteOrigin:
    """Return where a declaration's suite comes from."""
    origin = _origin_of(suite, context)
    origin.modules = tuple(modules)
    return origin


def _origin_of(suite: str | ExpectationSuite, context: str | FileDataContext | None) -> SuiteOrigin:
    if isinstance(suite, str):
        return FileSuite(suite) if context is None else ContextSuite(suite, context)
    if not _is_of_library(suite, "ExpectationSuite"):
        return _NoSuite(f"suite {suite!r} is not a suite's name, and no ExpectationSuite")
    if context is not None:
        return _NoSuite("context says where to find a suite by its name, but the suite itself is given")
    return ObjectSuite(suite)


def suites_of_context(place: Place, context: str) -> list[str]:
    """Return the names of a file context's suites."""
    folder = _store_folder(place, context)
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.json"))
    return sorted(".".join(path.parts) for path in paths if not path.name.startswith("."))


def _is_of_library(value: object, name: str) -> bool:
    """Return whether a value is of a class of Great Expectations. If it is, the library has been imported already."""
    library = sys.modules.get("great_expectations")
    return library is not None and isinstance(value, getattr(library, name))


def _mode_of(context: object) -> str:
    """Return "file", "ephemeral" or "cloud". Empty: it is no context."""
    if not any(each.__name__ == "AbstractDataContext" for each in type(context).__mro__):
        return ""
    name = type(context).__name__.casefold()
    return next((mode for mode in ("ephemeral", "cloud", "file") if mode in name), "")


# -- a context's own file ---------------------------------------------------------------------------------


def _store_folder(place: Place, context: str) -> Path:
    """Return the folder in which a file context keeps its suites. Raise Invalid if that is not a folder."""
    root = local_path(place, context, f"context {context!r}", "BAD_SUITE")
    config = _read_config(root, context)
    version = config.get("config_version")
    if not isinstance(version, int | float) or int(version) not in _CONFIG_VERSIONS:
        raise _bad_context(
            f"{root / _CONFIG} has config_version {version!r}",
            f"{' or '.join(map(str, _CONFIG_VERSIONS))}, as Great Expectations 1.x writes it",
            "migrate the project with Great Expectations 1.x, or copy the suite to a YAML file",
        )
    name = str(config.get("expectations_store_name") or "expectations_store")
    stores = config.get("stores")
    store = stores.get(name) if isinstance(stores, Mapping) else None
    if store is None:  # as Great Expectations' default
        return root / "expectations"
    backend = store.get("store_backend") if isinstance(store, Mapping) else None
    backend = backend if isinstance(backend, Mapping) else {}
    kind = backend.get("class_name")
    if kind != "TupleFilesystemStoreBackend":
        raise _bad_context(
            f"the context {root} keeps its suites in a {kind}, which is not a folder of this project",
            "a TupleFilesystemStoreBackend: a gate asks no network for its suite",
            "keep the suites with the code, in a file context, or pass the suite itself: Expectations(suite)",
        )
    unknown = sorted(key for key in ("filepath_template", "filepath_prefix", "fixed_length_key") if backend.get(key))
    folder = backend.get("base_directory", "expectations/")
    if unknown or not isinstance(folder, str) or re.search(r"\$\{?\w", folder):
        what = f"{unknown[0]} {backend[unknown[0]]!r}" if unknown else f"base_directory {folder!r}"
        raise _bad_context(
            f"{root / _CONFIG} keeps suites under {what}",
            "a base_directory without variables, and no template of names",
            "write the folder plainly, or pass the suite itself: Expectations(suite)",
        )
    return root / folder


def _read_config(root: Path, context: str) -> dict[str, Any]:
    import yaml

    path = root / _CONFIG
    if not path.is_file():
        inner = [f"{context.rstrip('/')}/{name}" for name in ("gx", "great_expectations")]
        near = [name for name in inner if (root / Path(name).name / _CONFIG).is_file()]
        raise _bad_context(
            f"there is no context {root}: it has no {_CONFIG}",
            f'context="{near[0]}"' if near else "the folder that Great Expectations has made, usually gx",
            'name that folder, or make it: great_expectations.get_context(mode="file")',
        )
    try:
        config = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise _bad_context(f"{path} is not YAML: {error}", "a context's file", "correct it") from error
    if not isinstance(config, dict):
        raise _bad_context(f"{path} is not a mapping", "a context's file", "correct it")
    return config


def _bad_context(what: str, expected: str, help: str) -> Invalid:
    return Invalid(what, expected=expected, help=help, reason="BAD_SUITE")
