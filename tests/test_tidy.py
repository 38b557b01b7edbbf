"""What linters do not look at: hosts and paths, fault points, cited rules, heavy imports, reasons for skips."""

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tidegate.history.health import REASONS
from tidegate.seams import FAULT_POINTS

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "include/tidegate/"
PRODUCT = ("include/", "jobs/", "dags/", "plugins/", "tools/")

# Which rooms of the library may import a heavy module when they are imported themselves. Everywhere else
# it is imported where it is used, or for type checking only.
ROOMS: dict[str, tuple[str, ...]] = {
    "airflow": ("dag", "ui", "versions"),
    "confluent_kafka": (),
    "delta": (),
    "deltalake": ("delta",),
    "fastavro": (),
    "great_expectations": (),
    "obstore": ("ledger", "delta"),
    "pyspark": (),
}
# Airflow is imported by nothing else at all, not even in a function: Spark jobs run without it.
AIRFLOW_ROOMS = ("dag", "ui", "versions")


@cache
def repository() -> tuple[str, ...]:
    """Everything that is, or is about to be, committed."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(sorted(name for name in set(names) if name and (ROOT / name).is_file()))


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(text(name), name)


def python(*folders: str) -> list[str]:
    return [name for name in repository() if name.startswith(folders) and name.endswith(".py")]


def room(name: str) -> str:
    return name.removeprefix(LIBRARY).split("/")[0]


# -- hosts and paths -------------------------------------------------------------------------------

HOSTS = re.compile(
    r"pypi\.org|pythonhosted\.org|maven\.org|maven\.apache\.org|crates\.io|npmjs\.(org|com)|docker\.io|ghcr\.io"
    r"|quay\.io|(deb|security)\.debian\.org|archive\.ubuntu\.com|proxy\.golang\.org|conda\.anaconda\.org"
)
MACHINE_PATHS = re.compile(r"(?<![\w.$~])/(work|root|farm|home/\w+|Users/\w+)(/|\b(?=[\"'\s]))")


def lines_that_match(pattern: re.Pattern[str], *, but: tuple[str, ...]) -> list[str]:
    found = []
    for name in repository():
        try:
            lines = text(name).splitlines()
        except UnicodeDecodeError:
            continue
        hits = [(number, line) for number, line in enumerate(lines, 1) if pattern.search(line)]
        found += [f"{name}:{number}: {line.strip()}" for number, line in hits if name not in but]
    return found


def test_the_jar_registry_has_one_default_and_no_other_registry_is_named():
    found = lines_that_match(HOSTS, but=("uv.lock", "tests/test_tidy.py"))
    assert [line.partition(": ")[2].partition(" = ")[0] for line in found] == ["MAVEN_URL"], found


def test_no_path_of_one_machine():
    assert lines_that_match(MACHINE_PATHS, but=("uv.lock", "tests/test_tidy.py")) == []


# -- folders ---------------------------------------------------------------------------------------

MODULES = 15


def test_no_folder_of_the_library_is_too_wide_to_be_read_at_a_glance():
    folders = Counter(name.rpartition("/")[0] for name in python(LIBRARY) if not name.endswith("__init__.py"))
    assert {folder: count for folder, count in folders.items() if count > MODULES} == {}


def test_no_module_imports_one_that_imports_it():
    modules = {
        name.removeprefix("include/").removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in python(LIBRARY)
    }
    imports = {module: imported_by(name, modules) - {module} for module, name in modules.items()}
    assert circle_in(imports) == []


def test_no_two_classes_of_the_library_have_the_same_name():
    classes: dict[str, list[str]] = {}
    for name in python(LIBRARY):
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in classes.items() if len(modules) > 1} == {}


def test_no_test_module_imports_another():
    """What several of them need lies in tests/kit, or in a module of their folder that is no test."""
    found = [
        f"{name}: {node.module}"
        for name in python("tests/")
        for node in ast.walk(tree(name))
        if isinstance(node, ast.ImportFrom) and re.match(r"tests\.([\w.]+\.)?test_", node.module or "")
    ]
    assert found == []


def imported_by(name: str, modules: dict[str, str]) -> set[str]:
    """When it is imported itself, or for type checking: not what its functions import when they are called."""
    inner = {id(node) for each in ast.walk(tree(name)) if isinstance(each, ast.FunctionDef) for node in ast.walk(each)}
    found = set()
    for node in ast.walk(tree(name)):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys() or {node.module}
    return found & modules.keys()


def circle_in(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    left = dict(imports)
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


# -- fault points ----------------------------------------------------------------------------------


def literals(*folders: str, but: str = "") -> set[str]:
    nodes = (node for name in python(*folders) if not (but and name == but) for node in ast.walk(tree(name)))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_fault_point_is_in_the_product():
    used = literals(LIBRARY, but=LIBRARY + "seams.py")
    assert sorted(set(FAULT_POINTS) - used) == []


def test_every_fault_point_has_a_crash_test():
    assert sorted(set(FAULT_POINTS) - literals("tests/crash/")) == []


def test_every_fault_point_is_a_step_of_the_crash_matrix():
    steps = set(re.findall(r"^\| ([A-Z]\d+) ", text("docs/reliability.md"), re.MULTILINE))
    assert {point.split(".")[0] for point in FAULT_POINTS} <= steps


# -- the protocol's rules --------------------------------------------------------------------------

RULES = re.compile(r"\b[TJDPROGCWX]\d\b")
INVARIANTS = re.compile(r"\bI[1-9]\b")


@cache
def prose(name: str) -> str:
    """The comments and docstrings of a file, and what its asserts say; nothing if it cannot cite anything."""
    if not (RULES.search(text(name)) or INVARIANTS.search(text(name))):
        return ""
    tokens = tokenize.generate_tokens(io.StringIO(text(name)).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    nodes = list(ast.walk(tree(name)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    messages = [ast.unparse(node.msg) for node in nodes if isinstance(node, ast.Assert) and node.msg is not None]
    return "\n".join(comments + docstrings + messages)


def test_every_rule_that_the_code_cites_is_on_the_page_of_the_protocol():
    defined = set(re.findall(r"^- \*\*([A-Z]\d+)\*\*", text("docs/protocol.md"), re.MULTILINE))
    cited = {f"{name}: {code}" for name in python(LIBRARY, "tests/") for code in RULES.findall(prose(name))}
    assert len(defined) > 40
    assert len(cited) > 40
    assert sorted(each for each in cited if each.split(": ")[1] not in defined) == []


def test_every_invariant_that_a_test_cites_is_on_the_page_of_reliability():
    defined = set(re.findall(r"^- \*\*(I\d+)\*\*", text("docs/reliability.md"), re.MULTILINE))
    cited = {f"{name}: {code}" for name in python(LIBRARY, "tests/") for code in INVARIANTS.findall(prose(name))}
    assert sorted(each for each in cited if each.split(": ")[1] not in defined) == []


def test_no_file_refers_to_a_page_outside_the_repository():
    assert lines_that_match(re.compile(r"\bdesign(/|: ?)\d"), but=("tests/test_tidy.py",)) == []


# -- reasons of aborts -----------------------------------------------------------------------------


def named_reasons(name: str) -> Iterator[str]:
    """The reasons that a file writes into decisions that abort: given by word, or by the name of a constant."""
    constants = {
        target.id: node.value.value
        for each in python(LIBRARY)
        for node in tree(each).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }
    places = {"Abort": 1, "abort": 1, "_aborted": 1}
    for node in ast.walk(tree(name)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        given = [keyword.value for keyword in node.keywords if keyword.arg == "reason" and "ecision" in called]
        if called in places and len(node.args) > places[called]:
            given.append(node.args[places[called]])
        for each in given:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value
            elif isinstance(each, ast.Name) and each.id in constants:
                yield constants[each.id]


def test_explain_knows_every_reason_of_an_abort():
    found = {reason for name in python(LIBRARY) for reason in named_reasons(name)}
    assert {"CONTROL", "TOO_LATE", "ACK_VOID", "GATE_FAILED", "CANCELLED"} <= found
    assert sorted(found - set(REASONS)) == []


# -- imports ---------------------------------------------------------------------------------------


def imports(node: ast.AST) -> Iterator[str]:
    """The modules that a node imports, with full names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_at_import(node: ast.AST) -> Iterator[str]:
    """What is imported as soon as this module is: not inside functions, not under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from imports(child)
        yield from imports_at_import(child)


@pytest.mark.parametrize(("module", "rooms"), ROOMS.items())
def test_heavy_modules_are_imported_late(module, rooms):
    found = [
        name
        for name in python(LIBRARY, "jobs/")
        for imported in imports_at_import(tree(name))
        if imported.split(".")[0] == module and not (name.startswith(LIBRARY) and room(name) in rooms)
    ]
    assert found == []


def test_airflow_stays_in_its_rooms():
    found = [
        name
        for name in python(LIBRARY, "jobs/")
        if not (name.startswith(LIBRARY) and room(name) in AIRFLOW_ROOMS)
        for node in ast.walk(tree(name))
        if any(imported.split(".")[0] == "airflow" for imported in imports(node))
    ]
    assert found == []


def test_nobody_imports_the_library_by_its_folder_and_nobody_pickles():
    banned = {"include", "pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
    found = [
        f"{name}: {imported}"
        for name in python("")
        for node in ast.walk(tree(name))
        for imported in imports(node)
        if imported.split(".")[0] in banned
    ]
    assert found == []
    calls = ("to_pickle", "read_pickle", "saveAsPickleFile", "allow_pickle")
    assert [name for name in python(*PRODUCT) if any(call in text(name) for call in calls)] == []


def decodes_into_a_struct(node: ast.AST) -> bool:
    """msgspec.json.decode(…, type=…) of anything but a dict: what tidegate.records.typed is for."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "msgspec.json.decode"):
        return False
    return any(each.arg == "type" and not ast.unparse(each.value).startswith("dict[") for each in node.keywords)


def test_types_are_decoded_into_where_threads_wait_for_each_other():
    found = [
        f"{name}:{node.lineno}"
        for name in python(*PRODUCT)
        if name != f"{LIBRARY}records/typed.py"
        for node in ast.walk(tree(name))
        if decodes_into_a_struct(node)
    ]
    assert not found, "use tidegate.records.typed.decode: " + ", ".join(found)


# -- tests -----------------------------------------------------------------------------------------


def without_reason(node: ast.AST) -> bool:
    """pytest.skip() or pytest.mark.skip, .skipif, .xfail, of which nobody says why."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called in ("pytest.skip", "pytest.xfail"):
            return not (node.args or node.keywords)
        marks = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail", "pytest.importorskip")
        return called in marks and not any(keyword.arg == "reason" for keyword in node.keywords)
    return False


def test_nothing_is_skipped_without_a_reason():
    found = [
        f"{name}:{node.lineno}" for name in python("tests/") for node in ast.walk(tree(name)) if without_reason(node)
    ]
    bare = re.compile(r"@pytest\.mark\.(skip|xfail)\s*$", re.MULTILINE)
    assert found + [name for name in python("tests/") if bare.search(text(name))] == []


def test_no_test_folder_shadows_airflow_or_spark():
    assert [
        name for name in repository() if re.fullmatch(r"tests/(.*/)?(airflow|pyspark|spark|delta)/__init__\.py", name)
    ] == []


def test_the_map_of_tests_names_every_folder_and_every_shared_module():
    folders = {name.split("/")[1] for name in python("tests/") if name.count("/") > 1}
    assert {folder for folder in folders if f"`tests/{folder}`" not in text("CONTRIBUTING.md")} == set()
    shared = {Path(name).name for name in repository() if re.fullmatch(r"tests/kit/[^/]+\.(py|toml)", name)}
    named = set(re.findall(r"`([a-z0-9_]+\.(?:py|toml))`", text("tests/kit/README.md")))
    assert named >= shared
    assert named - shared == {"seams.py"}


def test_the_table_of_folders_names_every_room_of_the_library():
    rooms = {Path(name).parts[2].removesuffix(".py") for name in python(LIBRARY)} - {"__init__", "__main__"}
    table = text("ARCHITECTURE.md").partition("### Folders")[2]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall("`([a-z_]+)`", " ".join(first_cells))) == rooms
