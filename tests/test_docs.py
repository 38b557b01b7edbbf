"""README and the documents hold what they say: code runs, commands parse, links lead somewhere, names exist.

`tests/kit/documents.py` reads them. Blocks that need Spark are run by `tests/spark/test_docs.py`.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.bench.__main__ import BENCHES
from tests.kit.documents import (
    DOCUMENTS,
    ROOT,
    Block,
    all_blocks,
    blocks,
    commands,
    inline_code,
    prose,
    run_python,
    statements,
    text,
)
from tidegate import Pipeline
from tidegate.cli.inspect.schema import print_timelines
from tidegate.cli.main import build_parser
from tidegate.cli.output import Output
from tidegate.cli.up.screen import LiveScreen
from tidegate.config import KEYS, load_settings
from tidegate.errors import Invalid
from tidegate.history.schemas.timeline import ChangedColumn, PlannedSchema, SourceTimeline
from tidegate.provenance import words
from tidegate.provenance.explanation import CauseCheckpoint, Explanation, NamedRecord, Step
from tidegate.sources import Files
from tools import first_minutes

LIBRARY = ROOT / "include/tidegate"
CURRENT = [each for each in DOCUMENTS if each.name != "CHANGELOG.md" and each.parent.name != "reference"]
"""What speaks of today's code. What was is CHANGELOG's; pages made from the code are tested as such."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def each_document(documents: list[Path] = CURRENT):
    return pytest.mark.parametrize("document", documents, ids=lambda document: str(document.relative_to(ROOT)))


def each_block(language: str):
    return pytest.mark.parametrize("block", blocks(language), ids=lambda block: block.where)


# -- what is tested --------------------------------------------------------------------------------

LANGUAGES = {"diff", "python", "sh", "sql", "text", "toml", "yaml"}
SKIPPED: dict[str, set[str]] = {}
"""Why blocks of code are run by nothing, and in which documents."""


def test_every_block_names_a_language_that_a_test_knows():
    assert [block.where for block in all_blocks() if block.language not in LANGUAGES] == []


@each_block("diff")
def test_a_change_applies_to_the_file_that_it_names(block):
    first, *changed = block.code.splitlines()
    assert first.startswith("+++ "), "a change begins with the file that it is for"
    lines = (ROOT / first.removeprefix("+++ ")).read_text().splitlines()
    unchanged = [line.removeprefix(" ") for line in changed if not line.startswith(("+", "@"))]
    assert [line for line in unchanged if line not in lines] == []


def test_no_block_is_skipped_but_for_these_reasons():
    found: dict[str, set[str]] = {}
    for block in all_blocks():
        if block.reason_to_skip:
            found.setdefault(block.reason_to_skip, set()).add(block.document)
    assert found == SKIPPED


# -- links -----------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document(DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(document):
    dead = []
    for link in LINK.findall(prose(document)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_in_the_navigation_of_the_site():
    named = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {document.relative_to(ROOT / "docs").as_posix() for document in ROOT.glob("docs/**/*.md")} == named


# -- Python ----------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a project's settings and suites, as the documents take it for given."""
    (tmp_path / "tidegate.toml").write_text('root = "data/ledger"\ndata = "data"\n')
    suites = tmp_path / "include/expectations"
    suites.mkdir(parents=True)
    for name in ("orders", "orders_table", "views"):
        suite = (ROOT / "include/expectations/orders.yaml").read_text(encoding="utf-8")
        (suites / f"{name}.yaml").write_text(suite.replace("name: orders", f"name: {name}"))
    monkeypatch.chdir(tmp_path)
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        if name.startswith(("block_", "jobs.")):
            del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if name.startswith("jobs")})


@each_block("python")
def test_every_block_of_python_runs(block, project):
    """Pipelines are declared, and the graphs of those that have sinks built; tests without fixtures are called."""
    if block.reason_to_skip or block.needs_spark:
        compile(block.code, block.where, "exec")
        return
    for earlier in earlier_modules(block):
        run_python(earlier, project)
    module = run_python(block, project)
    for name, value in list(vars(module).items()):
        if isinstance(value, Pipeline) and ".sink(" in block.code:
            value.graph()
        elif name.startswith("test_") and not inspect.signature(value).parameters:
            value()


def earlier_modules(block: Block) -> Iterator[Block]:
    """The modules that a document has shown above a block."""
    for other in blocks("python"):
        if other.document == block.document and other.line < block.line and other.title.endswith(".py"):
            yield other


# -- shell -----------------------------------------------------------------------------------------

PLACEHOLDERS = {"N": "7", "M": "8"}


@each_block("sh")
def test_every_block_of_shell_is_one_and_its_commands_exist(block):
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
    wrong = [
        problem
        for statement in statements(block.code)
        for words in commands(statement)
        if (problem := problem_of(words))
    ]
    assert wrong == []


@each_document()
def test_every_command_in_the_prose_exists(document):
    """Prose may leave out arguments, but names no command, option or target that does not exist."""
    wrong = []
    for code in inline_code(document):
        if re.match(r"(tidegate|make) \S", code):
            words = [word for word in code.split("#")[0].split() if word != "…"]
            problem = problem_of(words) if words[0] == "make" else problem_of_prose(words)
            if problem:
                wrong.append(problem)
    assert wrong == []


def problem_of(words: list[str]) -> str:
    """What is wrong with a command, if anything."""
    if words[0] == "tidegate":
        try:
            parser().parse_args([PLACEHOLDERS.get(word, word) for word in words[1:]])
        except SystemExit as done:
            return "" if not done.code else f"{' '.join(words)}: {done}"
        except Exception as error:
            return f"{' '.join(words)}: {error}"
        return ""
    if words[0] == "make":
        return problem_of_make(words)
    if words[:2] == ["python", "-m"]:
        there = (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
        return "" if there else f"there is no module {words[2]}"
    known = words[0] in KNOWN_COMMANDS or re.match(r"\w+=", words[0])
    return "" if known else f"{words[0]} is not known"


KNOWN_COMMANDS = {"airflow", "cat", "cd", "curl", "do", "done", "export", "for", "jq", "kill", "mkdir", "mv", "printf"}
KNOWN_COMMANDS |= {".", "pip", "pre-commit", "python3", "rm", "sleep"}


def problem_of_make(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^([a-z-]+):.*?## (.*)$", makefile, re.MULTILINE))
    target, *variables = words[1:]
    if target not in targets:
        return f"make {target}: no such target"
    recipe = re.search(rf"^{target}:.*?(?=^\S|\Z)", makefile, re.MULTILINE | re.DOTALL)
    known = set(re.findall(r"\b([A-Z][A-Z0-9]*)\b", targets[target] + (recipe[0] if recipe else "")))
    unknown = [variable for variable in variables if variable.split("=")[0] not in known]
    return f"make {target}: it takes no {', '.join(unknown)}" if unknown else ""


def problem_of_prose(words: list[str]) -> str:
    """Commands and options are there; arguments may be missing."""
    at = parser()
    rest = words[1:]
    while rest and not rest[0].startswith("-") and (choices := subcommands(at)):
        if rest[0] not in choices:
            return f"{' '.join(words)}: no command {rest[0]}"
        at, rest = choices[rest[0]], rest[1:]
    known = set(at._option_string_actions) | set(parser()._option_string_actions)
    unknown = [word for word in rest if word.startswith("-") and word.split("=")[0] not in known]
    return f"{' '.join(words)}: no option {', '.join(unknown)}" if unknown else ""


@cache
def parser() -> ArgumentParser:
    return build_parser()


def subcommands(at: ArgumentParser) -> dict[str, ArgumentParser]:
    found = (dict(action.choices) for action in at._actions if isinstance(action, _SubParsersAction))
    return next(found, {})


# -- benchmarks ------------------------------------------------------------------------------------


def test_every_bench_is_described():
    described = re.findall(r"^\| `(\w+)` \|", text(ROOT / "docs/benchmarks.md"), re.MULTILINE)
    assert described == [name for name in described if name in BENCHES]
    assert set(described) == set(BENCHES)


# -- glossary --------------------------------------------------------------------------------------

GLOSSARY = ROOT / "docs/glossary.md"


def test_each_word_of_the_glossary_has_one_meaning():
    defined = text(GLOSSARY).partition("## Words we avoid")[0]
    words = re.findall(r"^\| (?!word |---)(.+?) \| .+ \|$", defined, re.MULTILINE)
    assert len(words) > 50
    assert sorted({word for word in words if words.count(word) > 1}) == []


@each_document()
def test_no_word_is_used_that_the_glossary_avoids(document):
    avoided = text(GLOSSARY).partition("## Words we avoid")[2]
    words = ", ".join(re.findall(r"^\| (?!not |---)(.+?) \| .+ \|$", avoided, re.MULTILINE)).split(", ")
    written = text(document).partition("## Words we avoid")[0] if document == GLOSSARY else text(document)
    if document.name.startswith("upgrading-to-"):
        written = re.sub(r"`[^`]*`", "", written)  # names that something had before
    found = re.findall(rf"\b(?:{'|'.join(words)})\b", " ".join(written.split()), re.IGNORECASE)
    assert found == []


# -- settings --------------------------------------------------------------------------------------


@each_block("toml")
def test_every_block_of_toml_is_settings(block, tmp_path):
    (tmp_path / "tidegate.toml").write_text(block.code, encoding="utf-8")
    load_settings(env={}, start=tmp_path)


@each_document()
def test_every_setting_in_the_prose_exists_and_takes_that_value(document, tmp_path):
    settings = [code for code in inline_code(document) if re.match(r"[a-z_.]+ = (?!True|False)\S", code)]
    for number, code in enumerate(settings):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "tidegate.toml").write_text(f"{with_companions(code)}\n", encoding="utf-8")
        load_settings(env={}, start=folder)


def with_companions(code: str) -> str:
    """A setting that needs another one, with it."""
    if code.startswith("unaligned"):
        return f"{code}\nmax_concurrent_checkpoints = 2"
    return code


@each_document()
def test_every_setting_with_a_dot_exists(document):
    """`spark.mode`, `restart.strategy`: as settings they are written with their table."""
    tables = {name.split(".")[0] for name in KEYS if "." in name}
    named = [code for code in inline_code(document) if re.fullmatch(rf"({'|'.join(tables)})\.[a-z_]+", code)]
    assert [code for code in named if code not in KEYS] == []


# -- YAML ------------------------------------------------------------------------------------------


@each_block("yaml")
def test_every_block_of_yaml_is_a_suite_or_a_contract(block, tmp_path):
    from tidegate.gates.contracts.origin import read_for_table
    from tidegate.gates.expectations.suite import read_suite

    if block.title.endswith(".odcs.yaml"):
        read_for_table(block.code, block.where, None).suite("all")
        return
    read_suite(block.code, block.where, block.title.rpartition("/")[2].removesuffix(".yaml") or "orders")


# -- text ------------------------------------------------------------------------------------------


@each_block("text")
def test_every_block_of_text_is_as_its_header_says(block):
    """A diagram explains and is compared with nothing; a layout names files that the code writes; and output is what
    the product prints."""
    if block.header == "layout":
        source = "\n".join(python_files().values())
        files = re.findall(r"(\w+)(?:-…)?\.json", block.code)
        assert [name for name in files if name != "main" and not re.search(rf"\b{name}\b", source)] == []
    elif block.header == "transcript":
        typed = [command for line in block.code.splitlines() for _, mark, command in [line.partition("$ ")] if mark]
        assert tuple(typed) == first_minutes.SHELL, "make first-minutes WRITE=1"
    elif block.header == "refusal of SQL":
        pipeline = Pipeline("shop")
        pipeline.source("orders", Files("landing/*.json", schema="country string, amount double"))
        with pytest.raises(Invalid) as refused:
            pipeline.sql("SELECT country, sum(amount) AS spent\nFROM orders GROUP BY country\nORDER BY spent", name="s")
        assert [line for line in block.code.splitlines() if line not in str(refused.value).splitlines()] == []
    elif block.header == "output of tidegate up":
        assert block.code.splitlines() == shown_by_up(password="3f0c…")
    elif block.header == "output of tidegate why":
        assert block.code.splitlines() == list(words.lines(EXPLAINED))
    elif block.header == "output of tidegate schema":
        written = io.StringIO()
        print_timelines({"orders": VIP_ADDED}, Output(written, written, json=False))
        assert block.code.splitlines() == written.getvalue().splitlines()
    else:
        assert block.header == "diagram"


VIP_ADDED = SourceTimeline(
    changes=[
        PlannedSchema(
            checkpoint=1,
            planned="2026-11-03T09:10:02+00:00",
            schema="id bigint, amount decimal(12,2)",
            columns=[],
        ),
        PlannedSchema(
            checkpoint=42,
            planned="2026-11-30T10:15:00+00:00",
            schema="id bigint, amount decimal(12,2), vip boolean",
            columns=[ChangedColumn(name="vip", before=None, after="boolean", found_by=41, file="2026-11-30.json")],
        ),
    ],
    is_complete=True,
)


def shown_by_up(password: str) -> list[str]:
    """The head of the live screen at the first start."""
    written = io.StringIO()
    out = Output(written, written, json=False)
    screen = LiveScreen(out)
    screen.ready("http://127.0.0.1:8080", "admin", f"{password} (kept in .tidegate/airflow/passwords.json)")
    out.console.print(screen)
    return [line.rstrip() for line in written.getvalue().splitlines()[:3]]


def _bought(id: int, amount: float, checkpoint: int, place: str) -> NamedRecord:
    values = {"id": id, "country": "AT", "amount": amount}
    return NamedRecord(source="orders", checkpoint=checkpoint, place=place, values=values, is_proven=True)


def _then(id: int, time: str, n: int, total: float) -> CauseCheckpoint:
    row = {"country": "AT", "n": n, "total": total}
    return CauseCheckpoint(id=id, time=time, row=row, states={"totals": [row]})


EXPLAINED = Explanation(
    pipeline="sales",
    sink="totals",
    checkpoint=3,
    since=3,
    row={"country": "AT", "n": 3, "total": 110.0},
    copies=1,
    begins_after=0,
    needs_older_state=False,
    why_older="",
    records=[
        _bought(1, 10.0, 1, "record 1 of landing/sales/0001.json"),
        _bought(3, 30.0, 1, "record 3 of landing/sales/0001.json"),
        _bought(7, 70.0, 3, "record 1 of landing/sales/0003.json"),
    ],
    corrections=[],
    checkpoints=[
        _then(1, "2026-11-30T09:34:05.063+00:00", 2, 40.0),
        _then(3, "2026-11-30T09:34:27.522+00:00", 3, 110.0),
    ],
    path=[
        Step(name="orders", kind="source", inputs=[], does="files"),
        Step(name="good", kind="gate", inputs=["orders"], does="expectations"),
        Step(name="totals", kind="aggregate", inputs=["good"], does="country"),
        Step(name="totals", kind="sink", inputs=["totals"], does="delta-upsert"),
    ],
    manual_edits=[],
    other_code=False,
    candidates=3,
    replays=4,
)
"""What `tidegate why` says in the first story of tests/spark/test_why.py."""


# -- names of the code -----------------------------------------------------------------------------

FILE = re.compile(r"(?<![\w./<>…-])[\w.*-][\w./*-]*\.(?:py|js|toml|yaml|yml|md)\b(?!\w)")
OF_USERS = {"jobs/views.py", "jobs/visits.py", "dags/views.py", "1.json", "3.json"}
OF_USERS |= {"include/expectations/views.yaml", "include/expectations/visits.yaml", "contracts/orders.odcs.yaml"}


@cache
def python_files() -> dict[str, str]:
    return {path.relative_to(LIBRARY).as_posix(): path.read_text(encoding="utf-8") for path in LIBRARY.rglob("*.py")}


def files_of(named: str, document: Path) -> list[Path]:
    """The files that a document means by a path: from the root, from the library, or from beside it."""
    bases = [ROOT, LIBRARY, document.parent]
    return [path for base in bases for path in base.glob(named)]


@each_document()
def test_every_file_that_is_named_exists(document):
    named = {match for code in inline_code(document) for match in FILE.findall(code)} - OF_USERS
    known = titles(document)
    assert sorted(name for name in named if "/" in name and name not in known and not files_of(name, document)) == []


def titles(document: Path) -> set[str]:
    return {block.title for block in all_blocks() if ROOT / block.document == document}


@each_document()
def test_every_name_in_a_file_that_is_named_exists(document):
    """`protocol/rules.py: on_trigger`, `control.refuse_after_final_cancel`, `Ack.memory`, `delta/rewrite.py`."""
    wrong = []
    for code in inline_code(document):
        if match := re.fullmatch(r"([\w/]+\.py): (\w+)", code):
            for path in files_of(match[1], document):
                if match[2] not in names_of(path.read_text(encoding="utf-8")):
                    wrong.append(code)
        elif match := re.fullmatch(r"([a-z_]+)\.(?!(?:py|js|json|toml|yaml|md)$)([a-z_]\w*)(\(.*\))?", code):
            if match[1] in OBJECTS:
                continue
            modules = [source for name, source in python_files().items() if Path(name).stem == match[1]]
            if modules and not any(match[2] in names_of(source) for source in modules):
                wrong.append(code)
        elif (match := re.fullmatch(r"([A-Z][a-z]\w*)\.([a-z_]\w*)", code)) and match[1] in members():
            wrong += [] if match[2] in members()[match[1]] else [code]
    assert wrong == []


OBJECTS = {"changes", "clock", "context", "it", "publication", "restart", "retention", "spark", "state", "timers"}
"""Names of arguments and of tables of settings, which are those of modules, too."""


@cache
def names_of(source: str) -> frozenset[str]:
    """Everything that is defined or assigned in a module, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return frozenset(found)


@cache
def members() -> dict[str, set[str]]:
    """The fields and methods of each class, with those of its bases."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for source in python_files().values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(names_of(ast.unparse(node)))
                bases[node.name] = [ast.unparse(base).rpartition(".")[2].split("[")[0] for base in node.bases]
    return {name: set().union(*(own.get(each, set()) for each in lineage(name, bases))) for name in own}


def lineage(name: str, bases: dict[str, list[str]]) -> list[str]:
    return [name, *(each for base in bases.get(name, []) if base != name for each in lineage(base, bases))]


@each_document()
def test_every_class_that_is_named_exists(document):
    """Flink's names stand in the first column of docs/flink.md; Spark's, Airflow's and Delta's are listed here."""
    written = prose(document)
    if document.name == "flink.md":
        written = re.sub(r"^\| .*? \| ", "| ", written, flags=re.MULTILINE)
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]+)(?:\(|\.[a-z]|`)", written)) - OTHERS_CLASSES
    assert sorted(named - classes()) == []


OTHERS_CLASSES = {"Case", "CheckpointCoordinator", "False", "HadoopFsRelation", "InMemoryFileIndex", "None", "True"}
OTHERS_CLASSES |= {"Asset", "BaseExecutor", "DeadlineAlert", "LocalExecutor", "PartitionedAssetTimetable"}
OTHERS_CLASSES |= {"ExpectationSuiteValidationResult", "SiteBuilder", "UnexpectedRowsExpectation"}
OTHERS_CLASSES |= {"BatchExpectation", "ColumnAggregateExpectation", "ColumnMapExpectation"}
OTHERS_CLASSES |= {"ColumnPairMapExpectation", "MulticolumnMapExpectation"}


@cache
def classes() -> set[str]:
    """The classes and type aliases of the library, and the classes of the tests' kit."""
    kit = "\n".join(text(path) for path in sorted((ROOT / "tests/kit").glob("*.py")))
    found = set(members()) | set(re.findall(r"^class (\w+)", kit, re.MULTILINE))
    for source in python_files().values():
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found
