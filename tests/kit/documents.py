"""README and docs as tests read them: blocks of code with their headers, statements of shells, code in the prose.

The comment right above a block is its header. It says how the block is tested if not in the usual way:

    <!-- test: spark -->       needs Spark, or is a step of a walk: tests/spark/test_docs.py runs it
    <!-- test: skip: WHY -->   nothing runs it; tests/test_docs.py lists the reason
    <!-- test: setup           Python that the block needs and does not show; runs first, in the same module
    pipeline = …
    -->
"""

from __future__ import annotations

import linecache
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "include/expectations/README.md"])
BLOCK = re.compile(
    r"^(?:<!-- test: (?P<header>(?:(?!-->).)*?)\s*-->\n+)?"
    r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]*)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n+)+")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    document: str
    line: int
    language: str
    title: str
    header: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def reason_to_skip(self) -> str:
        return self.header.removeprefix("skip: ") if self.header.startswith("skip: ") else ""

    @property
    def needs_spark(self) -> bool:
        return self.header.split("\n")[0] == "spark" or self.header.startswith("spark ")

    @property
    def setup(self) -> str:
        """Python that the block needs and does not show."""
        first, _, rest = self.header.partition("\n")
        return rest if first in ("setup", "spark") else ""


@cache
def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


@cache
def blocks(language: str) -> tuple[Block, ...]:
    """All blocks of a language, in the order of the documents; pages made from the code are tested as such."""
    return tuple(block for block in all_blocks() if block.language == language)


@cache
def all_blocks() -> tuple[Block, ...]:
    found = []
    for document in DOCUMENTS:
        name = document.relative_to(ROOT).as_posix()
        if not name.startswith("docs/reference/"):
            for match in BLOCK.finditer(text(document)):
                line = text(document).count("\n", 0, match.start("code"))
                header = (match["header"] or "").strip()
                found.append(Block(name, line, match["language"], match["title"] or "", header, match["code"]))
    return tuple(found)


def code_of(title: str) -> str:
    """The block that the documents show as the file of this name."""
    (code,) = (block.code for block in blocks("python") if block.title == title)
    return code


def prose(document: Path) -> str:
    """Without blocks of code and comments."""
    return COMMENT.sub("", INDENTED.sub("", FENCED.sub("", text(document))))


def inline_code(document: Path) -> list[str]:
    """What stands between backticks in the prose."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(document))]


# -- Python ----------------------------------------------------------------------------------------


def run_python(block: Block, folder: Path, given: dict[str, object] | None = None) -> types.ModuleType:
    """Run a block as a module, and leave it where other blocks of its document can import it."""
    titled = block.title.endswith(".py")
    name = block.title.removesuffix(".py").replace("/", ".") if titled else f"block_{block.line}"
    module = types.ModuleType(name)
    sys.modules[name] = module  # operators look up the source of users' functions
    file = str(folder / block.title if titled else folder / f"{name}.py")
    code = block.setup + "\n" + block.code
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module.__file__ = file
    vars(module).update(given or {})
    exec(compile(code, file, "exec"), vars(module))
    return module


# -- shell -----------------------------------------------------------------------------------------


def statements(code: str) -> Iterator[str]:
    """The statements of a shell block: lines, of which those that continue or hold a here-document are one."""
    lines = iter(code.splitlines())
    for line in lines:
        statement = line
        while statement.endswith("\\"):
            statement = statement[:-1] + next(lines).lstrip()
        if end := re.search(r"<<'?(\w+)'?", statement):
            body = []
            for each in lines:
                body.append(each)
                if each == end[1]:
                    break
            statement = "\n".join([statement, *body])
        if statement.strip() and not statement.lstrip().startswith("#"):
            yield statement


def commands(statement: str) -> Iterator[list[str]]:
    """The simple commands of a statement, as words; what a here-document holds and redirections are left out."""
    lexer = shlex.shlex(statement.split("\n")[0], posix=True, punctuation_chars="|&;<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            if words:
                yield words
            words, redirected = [], False
        elif set(word) <= set("<>"):
            redirected = True
        elif not redirected:
            words.append(word)
