"""Prints how easily the code reads, beside five projects of this kind. These are readings: no test sets a limit.

    make readability                          this repository
    make readability ALL=1                    with every vague name and every avoided word, and its place
    python -m tools.readability FOLDER ...    other folders, such as a checkout of one of the five

A low reading is worth having only if better code has brought it about, not longer words.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


# -- vague names ---------------------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# They say that something has been done, but neither what nor to what.
PARTICIPLES = _words(
    "asked became begun brought came done felt found gave given gone held kept known lain left let made meant met"
    " seen shown stood taken told took wanted went"
)
# Verbs of every day, in place of emit, report, look up, become, continue.
EVERYDAY_VERBS = _words(
    "bring come comes give gives go goes going let lets look looked looks say says stand stands tell tells turn turned"
)
PREPOSITIONS = _words("as at by for from in of off on over through together under upon via with without")
ADVERBS = _words("ahead along anew apart aside away back behind beside beyond near here there then thus")
PRONOUNS = _words(
    "anything both everybody few it its many mine more most nobody nothing one ones other others ours own rest same"
    " something stuff such that theirs these thing things this those what whatever which who whole whom whose"
)

# They leave a reader asking "what?" when they are all of a name: `for known in …`, `def told(self)`, `by=`.
# With this list, the five projects have the shares that the second readability review found.
VAGUE_NAMES = PARTICIPLES | EVERYDAY_VERBS | PREPOSITIONS | ADVERBS | PRONOUNS

# They make a function's name vague wherever they stand in it: `goes_by`, `keeps_for_ever`, `is_taken`. Most
# prepositions are plain English in a longer name (`columns_of`), but `at` and `by` stand for a noun there.
PLAIN_IN_LONG_NAMES = (PREPOSITIONS - {"at", "by"}) | _words(
    "away its many more most one ones same such that this which whole"
)
VAGUE_WORDS = (VAGUE_NAMES - PLAIN_IN_LONG_NAMES) | _words(
    "again ever hold holds keep keeps leave leaves take takes taking way"
)


# -- English -------------------------------------------------------------------------------------------------------

# Habits of a translated text, from section 5 of the review. Each is right now and then. All together, they tire.
HABITS: dict[str, str] = {
    "there is": r"\bthere (?:is|are|was|were)\b",
    "What … as a noun": r"(?:^|[.:;,] )what (?!is |are |if |to |does |do |did |happens )\w+",
    "come for arrive": r"\b(?:come|comes|came|coming)\b(?! (?:first|last|from))",
    "give for emit or return": r"\b(?:give|gives|gave|given)\b(?! up)",
    "tell for report": r"\b(?:tell|tells|told)\b",
    "others": r"\bothers\b",
    "of its own": r"\bof (?:its|their|his) own\b",
    "whoever, whatever": r"\b(?:whoever|whatever|whichever)\b",
    "nobody, somebody": r"\b(?:nobody|somebody|anybody|everybody)\b",
    "behind for after": r"\bbehind\b",
    "beside for next to": r"\bbeside\b",
    "anew, once more": r"\b(?:anew|once more)\b",
    "stands, lies": r"\b(?:stand|stands|stood|lie|lies|lay|lain)\b",
    "meanwhile, by then": r"\b(?:meanwhile|by then)\b",
    "Of … in front": r"(?:^|[.:;] )Of (?!course)",
    "let go": r"\b(?:let|lets) go\b",
    "so many": r"\bso (?:many|much|long|few)\b(?! as)",
    "goes by": r"\b(?:go|goes|went) by\b",
}
HABIT = re.compile("|".join(f"(?:{pattern})" for pattern in HABITS.values()), re.IGNORECASE)


# -- the five ------------------------------------------------------------------------------------------------------

READINGS = (
    "lines",
    "vague function names, %",
    "vague variables and parameters, %",
    "vague attributes, %",
    "comprehensions per 1,000 lines",
    "conditional expressions per 1,000 lines",
    "habits in docstrings and comments, per 1,000 lines",
    "habits in docstrings and comments, per 1,000 words",
    "lines of a function: median",
    "lines of a function: 95th percentile",
    "lines of a function: longest",
)

# As this tool reads them: tidegate as the review read it, at 090f51f1, then bytewax at 9fce5b6e (pysrc), httpx at
# ae1b9f66, astronomer-cosmos at d2c90b4b, dlt at 58d66fce and sqlmesh at 0f192c93.
ANCHORS: dict[str, tuple[float, ...]] = {
    "before": (85870, 11.99, 4.6, 6.52, 39.15, 26.33, 24.46, 16.73, 7, 27, 82),
    "bytewax": (9881, 2.25, 0.98, 1.53, 5.16, 1.82, 4.86, 2.78, 9, 65, 166),
    "httpx": (8827, 0.32, 0.56, 0.0, 6.34, 9.29, 2.27, 2.44, 9, 47, 133),
    "cosmos": (21270, 1.05, 0.02, 0.15, 4.42, 4.47, 3.29, 2.07, 11, 53, 205),
    "dlt": (111068, 1.02, 0.15, 0.02, 6.17, 5.11, 2.44, 2.06, 9, 52, 434),
    "sqlmesh": (82389, 1.25, 0.45, 0.04, 11.91, 9.03, 3.41, 4.0, 8, 59, 531),
}


# -- reading -------------------------------------------------------------------------------------------------------


@dataclass
class Readings:
    """What was counted in some Python files."""

    lines: int = 0
    functions: int = 0
    variables: int = 0
    attributes: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    words: int = 0
    habits: Counter[str] = field(default_factory=Counter)
    density: Counter[str] = field(default_factory=Counter)
    """How many comprehensions and conditional expressions each file has."""
    function_lengths: list[tuple[int, str]] = field(default_factory=list)
    vague_functions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    vague_variables: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    vague_attributes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add_file(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8")
        self.lines += source.count("\n")
        for node in ast.walk(ast.parse(source)):
            self._add_node(node, path)
        for line in source.splitlines():
            comment = re.match(r"(?:.*? )? *# (.*)", line) if "# " in line else None
            if comment:
                self._add_prose(comment[1])

    def _add_node(self, node: ast.AST, path: Path) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                self._add_variable(name, path, node.lineno)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                self._add_attribute(name, path, node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._add_function(node, path)
            case ast.ClassDef(body=body):
                for statement in body:
                    # To Python, a declared field is a variable of the class's body: it is counted as both.
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        self._add_attribute(statement.target.id, path, statement.lineno)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.comprehensions += 1
                self.density[str(path)] += 1
            case ast.IfExp():
                self.conditionals += 1
                self.density[str(path)] += 1
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                self._add_prose(docstring)

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> None:
        place = f"{path}:{node.lineno}"
        self.function_lengths.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{node.name} {place}"))
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter]
        for parameter in parameters:
            if parameter.arg not in ("self", "cls"):
                self._add_variable(parameter.arg, path, parameter.lineno)
        # Python chose the names with double underscores, and the name of a test is a sentence.
        if node.name.startswith(("__", "test_")):
            return
        self.functions += 1
        if is_vague_function(node.name):
            self.vague_functions[node.name].append(place)

    def _add_variable(self, name: str, path: Path, line: int) -> None:
        self.variables += 1
        if name.strip("_") in VAGUE_NAMES:
            self.vague_variables[name].append(f"{path}:{line}")

    def _add_attribute(self, name: str, path: Path, line: int) -> None:
        self.attributes += 1
        if name.strip("_") in VAGUE_NAMES:
            self.vague_attributes[name].append(f"{path}:{line}")

    def _add_prose(self, prose: str) -> None:
        text = " ".join(prose.split())
        self.words += text.count(" ") + 1
        if HABIT.search(text):
            for habit, pattern in HABITS.items():
                self.habits[habit] += len(re.findall(pattern, text, re.IGNORECASE))

    def figures(self) -> tuple[float, ...]:
        """In the order of READINGS."""
        lengths = sorted(length for length, _ in self.function_lengths)
        habits = self.habits.total()
        return (
            self.lines,
            percent(self.vague_functions, self.functions),
            percent(self.vague_variables, self.variables),
            percent(self.vague_attributes, self.attributes),
            per_thousand(self.comprehensions, self.lines),
            per_thousand(self.conditionals, self.lines),
            per_thousand(habits, self.lines),
            per_thousand(habits, self.words),
            statistics.median_low(lengths) if lengths else 0,
            lengths[len(lengths) * 95 // 100] if lengths else 0,
            lengths[-1] if lengths else 0,
        )


def is_vague_function(name: str) -> bool:
    bare = name.strip("_")
    return bare in VAGUE_NAMES or not VAGUE_WORDS.isdisjoint(bare.split("_"))


def percent(vague: dict[str, list[str]], total: int) -> float:
    return 100 * sum(len(places) for places in vague.values()) / total if total else 0


def per_thousand(count: int, total: int) -> float:
    return 1000 * count / total if total else 0


def read_folder(folder: Path) -> Readings:
    readings = Readings()
    for path in sorted(folder.rglob("*.py")):
        readings.add_file(path)
    return readings


# -- words that the glossary avoids --------------------------------------------------------------------------------

# Where a reader meets them, and in which files.
TEXTS: dict[str, tuple[str, ...]] = {
    "commands": ("include/tidegate/cli/**/*.py",),
    "Airflow's tasks": ("include/tidegate/dag/**/*.py",),
    "other code": ("include/tidegate/**/*.py", "jobs/**/*.py", "dags/**/*.py", "plugins/**/*.py", "tools/**/*.py"),
    "pages": ("include/tidegate/ui/static/**/*.js", "include/tidegate/ui/static/**/*.html"),
    "documents": ("docs/**/*.md", "*.md"),
    "tests": ("tests/**/*.py",),
}


def avoided_words(glossary: str) -> list[str]:
    """Return the left column of the glossary's last table."""
    rows = re.findall(r"^\| (?!not |---)(.+?) \| .+ \|$", glossary.partition("## Words we avoid")[2], re.MULTILINE)
    return ", ".join(rows).split(", ")


def find_avoided_words(root: Path) -> dict[str, list[str]]:
    """Return the places of each kind of text, as `path:line word`, where it has a word that the glossary avoids."""
    glossary = root / "docs/glossary.md"
    phrases = [r"[\s_]+".join(word.split()) for word in avoided_words(glossary.read_text(encoding="utf-8"))]
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(phrases)})(?![a-z])", re.IGNORECASE)
    found: dict[str, list[str]] = {}
    searched = {glossary, Path(__file__).resolve()}
    for kind, globs in TEXTS.items():
        found[kind] = []
        for path in files_under(root, globs):
            if path in searched:
                continue
            searched.add(path)
            text = path.read_text(encoding="utf-8")
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                found[kind].append(f"{path.relative_to(root)}:{line} {' '.join(match[0].split())}")
    return found


def files_under(root: Path, globs: Sequence[str]) -> Iterator[Path]:
    for pattern in globs:
        yield from sorted(root.glob(pattern))


# -- printing ------------------------------------------------------------------------------------------------------


def table(columns: dict[str, tuple[float, ...]]) -> Iterator[str]:
    """Yield a row per reading, with a column for each of these and for each of ANCHORS."""
    columns = columns | ANCHORS
    label = max(len(name) for name in READINGS)
    widths = {name: max(len(name), 7) for name in columns}
    yield "  ".join([" " * label, *(f"{name:>{width}}" for name, width in widths.items())])
    for index, reading in enumerate(READINGS):
        cells = [f"{figure(columns[name][index]):>{width}}" for name, width in widths.items()]
        yield "  ".join([f"{reading:{label}}", *cells])


def figure(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def most_frequent(vague: dict[str, list[str]], count: int = 12) -> str:
    names = sorted(vague, key=lambda name: (-len(vague[name]), name))[:count]
    return ", ".join(f"{name} {len(vague[name])}" for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print how easily the code reads. There are no limits.")
    parser.add_argument("folder", nargs="*", type=Path, help="other folders of Python files")
    parser.add_argument("--all", action="store_true", help="every vague name and every avoided word, with its place")
    args = parser.parse_args(arguments)
    if args.folder:
        print("\n".join(table({folder.name: read_folder(folder).figures() for folder in args.folder})))
        return 0
    with ProcessPoolExecutor(2) as processes:
        reading = [processes.submit(read_folder, ROOT / folder) for folder in ("include/tidegate", "tests")]
        avoided = find_avoided_words(ROOT)
        library, tests = (future.result() for future in reading)
    print("\n".join(table({"tidegate": library.figures(), "tests": tests.figures()})))
    vague = {
        "function names": library.vague_functions,
        "variables and parameters": library.vague_variables,
        "attributes": library.vague_attributes,
    }
    print()
    for kind, names in vague.items():
        print(f"Vague {kind}: {most_frequent(names)}")
    print("Habits:", ", ".join(f"{habit} {count}" for habit, count in library.habits.most_common()))
    print("Longest functions:")
    for length, place in sorted(library.function_lengths, reverse=True)[:5]:
        print(f"  {length} {place.replace(f'{ROOT}/', '')}")
    print("Most comprehensions and conditional expressions:")
    for path, count in library.density.most_common(10):
        print(f"  {count} {path.replace(f'{ROOT}/', '')}")
    print("Words that docs/glossary.md avoids:", ", ".join(f"{len(avoided[kind])} in {kind}" for kind in avoided))
    if args.all:
        print()
        for kind, names in vague.items():
            for name, places in sorted(names.items()):
                print(f"{kind}: {name}: {' '.join(places)}".replace(f"{ROOT}/", ""))
        for kind, places in avoided.items():
            for place in places:
                print(f"avoided in {kind}: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
