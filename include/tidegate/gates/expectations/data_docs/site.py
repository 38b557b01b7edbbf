"""Write validation results in the layout of a file context, and build Data Docs from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate import seams
from tidegate.gates.expectations.data_docs import INDEX, PAGE, SITE
from tidegate.gates.expectations.library import import_modules, warm
from tidegate.gates.expectations.validation import RUN, Validation
from tidegate.records.records import Json

__all__ = ["DataDocs", "build_site", "write_results"]

RESULTS: Final = "uncommitted/validations"
SUITES: Final = "expectations"
TEMPLATES: Final = Path(__file__).with_name("templates")
_MARK: Final = "written_by"
_OURS: Final = "tidegate"


def write_results(folder: Path, validations: Iterable[Validation]) -> list[Path]:
    """Write results into a folder that is laid out like a file context, and their suites if it has none of these names.

    A suite that somebody else has written there is left alone. Return the files that were new or have changed.
    """
    folder = folder.resolve()
    written: list[Path] = []
    suites: dict[tuple[str, ...], Json] = {}
    for validation in validations:
        path = folder.joinpath(RESULTS, *validation.path)
        if _write(path, validation.document):
            written.append(path)
        suites[validation.path[:-3]] = validation.suite
    for name, suite in suites.items():
        path = folder.joinpath(SUITES, *name[:-1], f"{name[-1]}.json")
        if path.exists() and not _was_written_by_tidegate(path):
            continue
        if _write(path, {**suite, "meta": {**suite["meta"], _MARK: _OURS}}):
            written.append(path)
    return written


def _write(path: Path, document: Json) -> bool:
    """Write a document, so that readers find all of it or what was there. False: it is there already."""
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{seams.new_id()}")  # not .json: it is no result
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return True


def _was_written_by_tidegate(path: Path) -> bool:
    try:
        meta = json.loads(path.read_text(encoding="utf-8")).get("meta") or {}
    except (OSError, ValueError, AttributeError):
        return False
    return bool(meta.get(_MARK) == _OURS)


@dataclass(frozen=True)
class DataDocs:
    """Data Docs that were built."""

    pages: int
    missing: list[str]
    """Pages that Great Expectations could not draw: it only logs why."""


def build_site(folder: Path, name: str, changed: Iterable[Path], modules: Iterable[str] = ()) -> DataDocs:
    """Build the Data Docs of all results in the folder with Great Expectations.

    modules: those that define expectations of the user's own.
    changed: what `write_results` returned. The pages of other results are built only if they are missing.

    No context is opened in the folder: one that a user has made there may have stores and sites elsewhere.
    """
    warm()
    import_modules(modules)
    import great_expectations
    from great_expectations.data_context.types.base import DataContextConfig, FilesystemStoreBackendDefaults
    from great_expectations.render.renderer.site_builder import SiteBuilder

    root = folder.resolve()
    site = root / SITE
    stores = FilesystemStoreBackendDefaults(root_directory=root)
    context = great_expectations.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=stores)
    )
    builder: Any = SiteBuilder(
        data_context=context,
        store_backend={
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(site),
        },
        site_name=name,
        site_section_builders={"profiling": "None"},
        show_how_to_buttons=False,
    )
    sections = list(builder.site_section_builders.values())
    for drawn in (*sections, builder.site_index_builder):
        _install_page_templates(drawn.view_class)
    fresh = set(changed)
    pages: dict[Path, Any] = {}
    keys = []
    for store, folder_of_json, section in (
        (context.validation_results_store, RESULTS, "validations"),
        (context.expectations_store, SUITES, "expectations"),
    ):
        for key in store.list_keys():
            *folders, title = key.to_tuple()
            page = site.joinpath(section, *folders, f"{title}{PAGE}")
            pages[page] = key
            if root.joinpath(folder_of_json, *folders, f"{title}.json") in fresh or not page.exists():
                keys.append(key)
    if keys:  # Great Expectations takes an empty list for all
        for each in sections:
            each.build(resource_identifiers=keys)
    builder.target_store.copy_static_assets()
    builder.site_index_builder.build()
    built = [page.relative_to(site).as_posix() for page in pages if page.exists()]
    _write(root / INDEX, _index(name, built))
    missing = [str(page.relative_to(site)) for page in pages if not page.exists()]
    return DataDocs(len(pages), missing)


def _index(pipeline: str, pages: Iterable[str]) -> Json:
    """Return the pages of each checkpoint, by gate."""
    index: dict[str, dict[str, str]] = {}
    for page in pages:
        *_, run, _, name = page.split("/") if page.startswith("validations/") else ("", "", "")
        gate = name.removesuffix(PAGE).removeprefix(f"{pipeline}-")
        if run.startswith(RUN) and name.startswith(f"{pipeline}-"):
            index.setdefault(run.removeprefix(RUN), {})[gate] = page
    return index


def _install_page_templates(view: Any) -> None:
    """Draw Great Expectations' content in pages of ours.

    Its own pages load styles and scripts from five other sites, and a picture whose address tells the context's id.
    Without a network their list of runs is empty, since a script draws it. With these templates everything is in the
    page, and no script is needed.
    """
    from jinja2 import ChoiceLoader, FileSystemLoader

    view.env.loader = ChoiceLoader([FileSystemLoader(TEMPLATES), view.env.loader])
