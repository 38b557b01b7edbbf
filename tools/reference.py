"""Writes the pages below docs/reference from the code: `.venv/bin/python tools/reference.py`.

The pages are committed, so that they can be read anywhere; tests/test_reference.py fails if one is not current.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.forms import FORMS, RefusedForm
from tidegate.cli.main import build_parser
from tidegate.config import KEYS
from tidegate.gates.expectations.catalogue import table as catalogue_table
from tidegate.history.health import REASONS, STATES
from tidegate.history.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
WIDTH = "100"
"""The width of help texts, wherever they are generated."""


def pages() -> dict[str, str]:
    """Return each page's name and text."""
    lines_by_page = {
        "settings.md": settings(),
        "reasons.md": reasons(),
        "metrics.md": metrics(),
        "cli.md": commands(),
        "documents.md": documents(),
        "http-api.md": http_api(),
        "expectations.md": expectations(),
    }
    return {name: "\n".join(lines) + "\n" for name, lines in lines_by_page.items()}


def settings() -> Iterator[str]:
    yield from _head("Settings", "`tidegate.toml`, then `TIDEGATE_*` variables, then `Pipeline(…)`, then")
    yield "`-D key=value`; later wins. `tidegate config` shows the effective values and where each came from."
    for key in KEYS.values():
        default = "none" if key.default in (None, {}) else f"`{key.default}`"
        yield from ("", f"## {key.name}", "", key.description, "")
        yield from (f"- Accepts {key.expected}.", f"- Default: {default}.", f"- Variable: `{key.variable}`.")


def reasons() -> Iterator[str]:
    yield from _head("Reasons and states", "`tidegate explain PIPELINE` names the state, the cause and the remedy.")
    yield from _table(
        "Why a checkpoint is aborted", "reason", {f"`{name}`": meaning for name, meaning in REASONS.items()}
    )
    yield from _table("States of a pipeline", "state", STATES)


def metrics() -> Iterator[str]:
    yield from _head(
        "Metrics", "All are gauges with the prefix `tidegate.`; `tidegate metrics` prints them for Prometheus."
    )
    yield '"It" is the last completed checkpoint.'
    yield from _table("All metrics", "metric", {f"`{name}`": meaning for name, meaning in METRICS.items()})


def expectations() -> Iterator[str]:
    yield from _head("Expectations", "Every expectation of Great Expectations, and how a gate judges it.")
    yield from (
        "Compiled ones are read together, in the pass that stages the rows, by conditions and aggregates that are",
        "Great Expectations' own. The results are the same as its own, which a test compares. If the bad rows are",
        "known, all of them can be quarantined: Great Expectations' limit of 200 does not count here. Others abort,",
        "hold or warn.",
        "",
        *catalogue_table(),
    )


def commands() -> Iterator[str]:
    yield from _head("Command line", "The help text of every command. Exit codes: 0 done, 1 no, 2 usage error,")
    yield "3 unavailable or damaged. What they print with `--json`: [documents](documents.md)."
    yield from _helps(build_parser())


def _helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield from ("", f"## {parser.prog}", "", "```text", *map(str.rstrip, parser.format_help().splitlines()), "```")
    for action in nested:
        for subparser in action.choices.values():
            yield from _helps(subparser)


def documents() -> Iterator[str]:
    yield from _head("Documents", "What commands that look print with `--json`.")
    yield "Scripts may rely on these fields; later versions may add some. A command that is refused prints"
    yield "[RefusedForm](#refusedform), and ends with 1, 2 or 3."
    yield from ("", "| command | document |", "| --- | --- |")
    for command, forms in FORMS.items():
        for given, form in forms.items():
            words = f"tidegate {command} {given}".strip()
            yield f"| `{words}` | [{form.__name__}](#{form.__name__.lower()}) |"
    _, components = msgspec.json.schema_components(
        [RefusedForm, *(form for some in FORMS.values() for form in some.values())]
    )
    yield from ("", "## Forms")
    for name, schema in sorted(components.items()):
        yield from _shape(name, schema)


def http_api() -> Iterator[str]:
    os.environ.setdefault("AIRFLOW_HOME", tempfile.gettempdir())  # Airflow makes its home when it is imported
    from tidegate.ui.app import make_app

    app = make_app()
    described = app.openapi()
    yield from _head("HTTP API", "The API behind the pages, below `/tidegate/api/v1` on Airflow's web server. Answers")
    yield "are JSON unless the route says otherwise. `openapi.json` there is the same description for machines, with"
    yield "an example of each answer."
    yield ""
    yield "Send Airflow's token as `Authorization: Bearer …`. Without it, a request that changes something must come"
    yield "from Airflow's own pages. Errors are answered with 400, 404, 409 or 503 and an [ErrorAnswer](#erroranswer);"
    yield "401 and 403 come from Airflow. New fields may be added to answers at any time."
    rights = {
        route.path_format: _rights({id(each.dependency) for each in route.dependencies})
        for route in app.routes
        if hasattr(route, "path_format") and hasattr(route, "dependencies")
    }
    for title, tag in (("Looking", "look"), ("Acting", "act")):
        yield from ("", f"## {title}")
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag]:
                    yield from _operation(method, path, operation, rights[path])
    yield from ("", "## Shapes")
    for name, schema in sorted(described["components"]["schemas"].items()):
        if name not in ("HTTPValidationError", "ValidationError"):
            yield from _shape(name, schema)


def _rights(dependencies: set[int]) -> str:
    """What a user needs for a route, by what the route depends on."""
    from tidegate.ui import access

    needed = {
        "trigger the DAG and `<dag_id>__backfill`, and edit the DAG": [*access.BACKFILL, *access.EDIT],
        "trigger the DAG and `<dag_id>__backfill`": access.BACKFILL,
        "trigger the DAG and edit it": [*access.TRIGGER, *access.EDIT],
        "trigger the DAG": access.TRIGGER,
        "edit the DAG": access.EDIT,
        "answer required actions of the DAG": access.ANSWER,
        "read the DAG's runs and XComs": access.VALUES,
        "read the DAG's runs": access.READ,
    }
    for right, of in needed.items():
        if {id(each.dependency) for each in of} <= dependencies:
            return f"The user may {right}."
    return "Any user who is logged in; the answer holds only what they may see."


def _operation(method: str, path: str, operation: dict[str, Any], rights: str) -> Iterator[str]:
    yield from ("", f"### {method.upper()} {path.removeprefix('/api/v1')}", "", operation["description"], "", rights)
    parameters = {
        f"`{each['name']}`": f"{each['in']} | {_type(each['schema'])} | {_meaning(each | each['schema'])}"
        for each in operation.get("parameters", [])
        if each["name"] != "dag_id"
    }
    if parameters:
        yield from ("", "| parameter | in | type | meaning |", "| --- | --- | --- | --- |")
        yield from (f"| {name} | {rest} |" for name, rest in parameters.items())
    if body := operation.get("requestBody"):
        yield from ("", f"Body: {_type(body['content']['application/json']['schema'])}.")
    answers = operation["responses"]["200"]["content"]
    if "application/json" in answers and (schema := answers["application/json"].get("schema")):
        yield from ("", f"Answers with {_type(schema)}.")
    else:
        yield from ("", f"Answers with {', '.join(f'`{kind}`' for kind in answers)}.")


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"### {name}", "", _words(schema.get("description", "")) or "An object.")
    if fields := schema.get("properties"):
        required = schema.get("required", [])
        yield from ("", "| field | type | meaning |", "| --- | --- | --- |")
        for field, of in fields.items():
            meaning = _meaning(of) if field in required else " ".join(["Optional.", _meaning(of)]).strip()
            yield f"| `{field}` | {_type(of)} | {meaning} |"
    elif "enum" not in schema:
        yield from ("", f"Type: {_type(schema)}.")


def _meaning(of: dict[str, Any]) -> str:
    default = of.get("default")
    plain = "" if default in (None, "", [], {}) else f"Default: `{default}`."
    return " ".join(each for each in (_words(of.get("description", "")), plain) if each)


def _words(text: str) -> str:
    """As a sentence in a cell."""
    text = " ".join(text.split()).replace("|", "\\|")
    return text if not text or text.endswith(".") else f"{text}."


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(of := schema.get("additionalProperties"), dict):
        return f"object of {_type(of)}"
    return str(kind)


def _head(title: str, first: str) -> Iterator[str]:
    yield from (f"# {title}", "", "<!-- Made by tools/reference.py from the code: do not edit. -->", "", first)


def _table(title: str, column: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {column} | meaning |", "| --- | --- |")
    yield from (f"| {name} | {meaning} |" for name, meaning in rows.items())


def main() -> None:
    """Write all pages."""
    os.environ["COLUMNS"] = WIDTH
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
