"""Loads a pipeline in a process that is started for it: Spark's driver of a submitted job, or a watcher of sources."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.errors import Invalid, TidegateError
from tidegate.pipeline import Pipeline

__all__ = ["declaring_files", "find_pipeline"]


def declaring_files(pipeline: Pipeline, dag_file: str) -> list[tuple[str, str]]:
    """Return where another process can find the pipeline: names of modules and their files, the best one first."""
    places = dict.fromkeys([pipeline.declared_in, ("", dag_file)])
    return [(module, file) for module, file in places if file]


def find_pipeline(name: str, declared_in: Sequence[tuple[str, str]], process: str) -> Pipeline:
    """Return the pipeline: a variable of the module or the DAG file that declares it. process: who looks for it."""
    for module, file in declared_in:
        for value in list(_variables(module, file, process).values()):
            if isinstance(value, Pipeline) and value.name == name:
                return value
    raise Invalid(
        f"{process} cannot find pipeline {name!r}: no variable of {' or '.join(file for _, file in declared_in)}"
        " holds it",
        expected="a Pipeline in a variable of the module that declares it, or of the DAG file",
        help="write `pipeline = Pipeline(…)` at module level: a process that is started anew looks for it",
        reason="NO_SUCH_PIPELINE",
    )


def _variables(module: str, file: str, process: str) -> Mapping[str, Any]:
    """Import a module by its name, so that Python workers can import it too. A DAG file is run by its path, because
    Airflow's name for it exists in Airflow only."""
    try:
        if _is_module(module, file):
            return vars(importlib.import_module(module))
        return runpy.run_path(file)
    except TidegateError:
        raise
    except Exception as error:
        raise Invalid(
            f"{file} cannot be loaded in {process}: {type(error).__name__}: {error}",
            expected="a file that can be loaded wherever the project's folder is on PYTHONPATH",
            help="correct it; what it needs must be installed where that process runs",
            reason="BAD_PIPELINE_MODULE",
        ) from error


def _is_module(module: str, file: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)
