"""The command line as a whole: usage, exit codes, JSON, errors, untrusted text, what is imported."""

import argparse
import json
import subprocess
import sys

import pytest

from tidegate import __version__
from tidegate.cli import main as cli
from tidegate.cli.output import Output, clean
from tidegate.errors import Corrupt, Fenced, Invalid, Rejected, Unavailable

# Everything that can move a terminal, plus what Rich would take for markup.
EVIL = "[bold red]evil[/] \x1b[31m\x1b]0;title\x07 \u202eright-to-left \x9b2J {x} \r over"


# -- usage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help_with_an_example(tidegate, command):
    said = tidegate(command, "--help")
    assert said.code == 0
    assert "example" in said.out
    assert f"  tidegate {command} " in said.out
    assert said.err == ""


def verbs_of(parser, words=()):
    """Every command and verb that can be run, as words."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield words
    for action in nested:
        for word, below in action.choices.items():
            yield from verbs_of(below, (*words, word))


@pytest.mark.parametrize("words", list(verbs_of(cli.build_parser())), ids=" ".join)
def test_every_verb_has_help_with_an_example_of_its_own(tidegate, words):
    said = tidegate(*words, "--help")
    assert said.code == 0
    assert f"\n  tidegate {' '.join(words)}" in said.out.partition("example")[2]


@pytest.mark.parametrize(
    "command",
    [
        name
        for name in cli.COMMANDS
        if name not in ("new", "spark", "quarantine", "savepoint", "source", "suite", "contract", "docs")
    ],
)
def test_every_command_takes_the_shared_options(tidegate, command):
    text = tidegate(command, "--help").out
    assert "--json" in text
    assert "-D KEY=VALUE" in text
    assert "--debug" in text


def test_help_lists_every_command(tidegate):
    text = tidegate("--help").out
    for command, what in cli.COMMANDS.items():
        assert command in text
        assert what in " ".join(text.split())


def test_version(tidegate):
    assert tidegate("--version").out == f"tidegate {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["list", "a", "b"],
        ["list", "--limit"],
        ["list", "--limit", "0"],
        ["list", "--limit", "201"],
        ["list", "--lim", "3"],
        ["list", "--before", "x"],
        ["list", "-D", "timeout"],
        ["list", "-D", "=3"],
        ["show", "orders"],
        ["show", "orders", "one"],
        ["show", "orders", "-1"],
        ["show", "orders", "9" * 50],
        ["explain"],
        ["read"],
        ["read", "orders", "s", "--limit", "many"],
        ["run", "jobs.orders:pipeline"],
        ["run", "jobs.orders:pipeline", "--checkpoints", "0"],
        ["run", "jobs.orders:pipeline", "--checkpoints", "two"],
        ["run", "jobs.orders:pipeline", "--checkpoints", "1", "--forever"],
        ["run", "--until-idle"],
        ["config", "a", "b"],
        ["doctor", "--mend"],
    ],
)
def test_wrong_usage_is_told_with_the_usage(folder, tidegate, arguments):
    said = tidegate(*arguments)
    assert said.code == 2
    assert said.out == ""
    assert "usage: tidegate" in said.err
    assert "Help: `tidegate --help`" in said.err
    with_json = tidegate(*arguments, "--json")
    assert (with_json.code, with_json.json["error"]["kind"]) == (2, "usage")


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "-D", "timeout=0"],
        ["list", "-D", "nope=1"],
        ["list", "Orders"],
        ["list", "../etc"],
        ["list", "orders"],
        ["show", "orders", "1"],
        ["run", "orders", "--checkpoints", "1"],
        ["run", "no.such:pipeline", "--checkpoints", "1"],
        ["doctor", "--repair"],
        ["doctor", "orders", "--repair"],
        ["config", "jobs/orders.py:pipeline"],
    ],
)
def test_wrong_input_is_refused_and_writes_nothing(folder, tidegate, arguments):
    before = sorted(folder.rglob("*"))
    said = tidegate(*arguments)
    assert said.code == 2
    assert said.err.startswith("tidegate: ")
    assert "Traceback" not in said.err
    assert tidegate(*arguments, "--json").json["error"]["kind"] == "invalid"
    assert sorted(folder.rglob("*")) == before


# -- errors ----------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """Let `tidegate config` raise."""

    def fail_with(error):
        def run(args, out):
            raise error

        monkeypatch.setattr("tidegate.cli.settings.run", run)

    return fail_with


@pytest.mark.parametrize(("kind", "code"), [(Invalid, 2), (Unavailable, 3), (Fenced, 3), (Rejected, 1), (Corrupt, 3)])
def test_each_kind_of_error_has_its_exit_code_and_no_traceback(tidegate, failing, kind, code):
    failing(kind("it is so", expected="otherwise", help="do that", reason="SO"))
    said = tidegate("config")
    assert said.code == code
    assert said.err == "tidegate: it is so\n  Expected: otherwise\n  Help: do that\n"
    assert tidegate("config", "--json").json == {
        "error": {"kind": kind.kind, "reason": "SO", "message": "it is so", "expected": "otherwise", "help": "do that"}
    }


def test_debug_shows_the_traceback(tidegate, failing, monkeypatch):
    failing(Invalid("it is so"))
    assert "Traceback" in tidegate("config", "--debug").err
    monkeypatch.setenv("TIDEGATE_DEBUG", "1")
    assert "Traceback" in tidegate("config").err


def test_an_unexpected_error_is_one_line_and_a_file(tidegate, failing, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(ZeroDivisionError("by zero"))
    said = tidegate("config")
    assert said.code == 3
    assert said.err.splitlines()[0] == "tidegate: ZeroDivisionError: by zero"
    assert "--debug" in said.err
    [log] = tmp_path.glob("tidegate-error-*.log")
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o77 == 0
    assert tidegate("config", "--json").json["error"]["kind"] == "unexpected"
    assert "Traceback" in tidegate("config", "--debug").err


def test_stopped_by_hand(tidegate, failing):
    failing(KeyboardInterrupt())
    said = tidegate("config")
    assert (said.code, said.err) == (1, "tidegate: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(project):
    for id in range(1, 4):
        project.complete(id, id - 1 or None, publish=False, summary="x" * 60_000)
    command = f"{sys.executable} -m tidegate list orders --json | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=project.folder)
    assert done.stdout.endswith("0\n")
    assert done.stderr == ""


# -- JSON ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "orders"],
        ["show", "orders", "1"],
        ["explain", "orders", "1"],
        ["read", "orders"],
        ["read", "orders", "good"],
        ["config"],
        ["doctor"],
        ["doctor", "orders"],
    ],
)
def test_json_is_one_document_and_nothing_else(project, tidegate, arguments):
    project.complete(1, None, summary=EVIL)
    for words in ([*arguments, "--json"], [arguments[0], "--json", *arguments[1:]]):
        said = tidegate(*words)
        assert said.code == 0
        assert isinstance(json.loads(said.out), dict)
        assert said.out.isascii()
        assert said.err == ""


def test_what_a_module_prints_does_not_spoil_the_json(folder, tidegate):
    (folder / "shop.py").write_text(
        "print('hello')\nfrom tidegate import Pipeline\npipeline = Pipeline('shop', timeout='7 min')\n"
    )
    said = tidegate("config", "shop:pipeline", "--json")
    assert said.json["settings"]["timeout"] == {"value": "7 min", "origin": "code"}
    assert "hello" in said.err


# -- untrusted text --------------------------------------------------------------------------------


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return True


def harmless(text):
    """No control character but line ends, and none of the sequences that Rich itself would not write."""
    import re

    without_styles = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return all(c.isprintable() or c == "\n" for c in without_styles)


@pytest.mark.parametrize("terminal", [True, False])
def test_untrusted_text_neither_styles_nor_moves_anything(monkeypatch, terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    stream = Terminal()
    if not terminal:
        stream.isatty = lambda: False
    out = Output(stream, stream)
    out.line(EVIL)
    out.table([EVIL, "b"], [[EVIL, 1]], title=EVIL)
    out.problem(EVIL)
    out.error(Invalid(EVIL, expected=EVIL, help=EVIL))
    assert harmless(stream.text)
    assert "\x1b[31m" not in stream.text
    assert stream.text.count("[bold red]evil[/] \\x1b[31m\\x1b]0;title\\x07 \\u202eright") == 8


def test_clean_keeps_what_is_harmless():
    assert clean("äöü 漢字 ✓ [x]\nnext") == "äöü 漢字 ✓ [x]\nnext"
    assert clean(None) == ""
    assert clean(3) == "3"
    assert clean("a\tb\x00\u2028\ud800") == "a   b\\x00\\u2028\\ud800"


@pytest.mark.parametrize(
    "arguments",
    [["list", "orders"], ["show", "orders", "1"], ["explain", "orders", "1"], ["explain", "orders", "2"], ["list"]],
)
def test_evil_records_are_shown_harmlessly(project, tidegate, arguments):
    project.complete(1, None, publish=False, summary=EVIL, run=EVIL, config=project.config | {"timeout": EVIL})
    project.plan(2, 1)
    project.abort(2, detail=EVIL)
    said = tidegate(*arguments)
    assert said.code == 0
    assert harmless(said.out)
    assert "\x1b" not in said.out


def test_evil_arguments_are_shown_harmlessly(folder, tidegate):
    for words in (["list", EVIL], ["config", EVIL], [EVIL], ["list", "-D", f"timeout={EVIL}"], ["list", "-D", EVIL]):
        said = tidegate(*words)
        assert said.code == 2
        assert harmless(said.err)
        assert "\x1b" not in said.err


# -- MODULE:pipeline -------------------------------------------------------------------------------

MODULES = {
    "shop": "from tidegate import Pipeline\npipeline = Pipeline('shop')\nother = 3\n",
    "broken": "import tidegate\n\nraise RuntimeError('not today')\n",
    "flow/missing.py": "import no_such_library\n",
    "flow/syntax.py": "def f(:\n",
    "flow/leaves.py": "import sys\nsys.exit(3)\n",
}


@pytest.fixture
def modules(folder):
    (folder / "flow").mkdir()
    for name, text in MODULES.items():
        (folder / (name if name.endswith(".py") else f"{name}.py")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("shop:other", ["module 'shop' has a int, not a Pipeline, as 'other'", "shop:pipeline"]),
        ("shop:nothing", ["module 'shop' has no 'nothing'", "Expected: shop:pipeline"]),
        ("tidegate.errors:x", ["module 'tidegate.errors' has no 'x'", "a Pipeline at module level"]),
        ("nowhere:pipeline", ["there is no module 'nowhere'", "you are in "]),
        ("shop.deeper:pipeline", ["there is no module 'shop.deeper'"]),
        ("broken:pipeline", ["at broken.py line 3: RuntimeError: not today", "--debug"]),
        ("flow.missing:p", ["at flow/missing.py line 1", "No module named 'no_such_library'"]),
        ("flow.syntax:p", ["SyntaxError", "syntax.py, line 1"]),
        ("flow.leaves:p", ["SystemExit: 3"]),
        ("flow/leaves.py:p", ["is not of the form MODULE:pipeline", "did you mean flow.leaves:p?"]),
        ("shop:", ["is not of the form MODULE:pipeline"]),
        (":pipeline", ["is not of the form MODULE:pipeline"]),
        ("shop:a.b", ["is not of the form MODULE:pipeline"]),
        ("a b:c", ["is not of the form MODULE:pipeline"]),
    ],
)
def test_a_wrong_pipeline_argument_is_explained(modules, tidegate, argument, parts):
    said = tidegate("config", argument)
    assert said.code == 2
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.err


def test_debug_shows_why_a_module_fails(modules, tidegate):
    assert 'broken.py", line 3' in tidegate("config", "broken:pipeline", "--debug").err


def test_the_code_of_a_pipeline_says_where_its_ledger_is(project, tidegate):
    (project.folder / "shop.py").write_text(
        "from tidegate import Pipeline\npipeline = Pipeline('orders', root='ledger')\n"
    )
    (project.folder / "tidegate.toml").write_text('root = "elsewhere"\n')
    project.complete(1, None, publish=False)
    assert tidegate("list", "orders").code == 2
    said = tidegate("list", "shop:pipeline")
    assert said.code == 0
    assert "tidegate explain shop:pipeline 1" in said.out


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        ("{folder}/bin/tidegate", "", "bin/tidegate list orders"),
        ("{folder}/bin/tidegate", "{folder}/bin", "tidegate list orders"),
        ("{folder}/bin/tidegate", "{folder}/other", "bin/tidegate list orders"),
        ("/opt/tidegate", "", "/opt/tidegate list orders"),
        ("/x/__main__.py", "", "-m tidegate list orders"),
    ],
)
def test_commands_to_copy_are_written_as_this_one_was_called(project, monkeypatch, called, on_path, shown):
    from tidegate.cli.targets import open_target

    for place in ("bin", "other"):
        program = project.folder / place / "tidegate"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [called.format(folder=project.folder)])
    monkeypatch.setenv("PATH", on_path.format(folder=project.folder))
    assert open_target("orders", {}).command("list").endswith(shown)
    moved = open_target("orders", {"root": "ledger"}).command("show", 3)
    assert moved.endswith(f"show orders 3 -D root={project.folder}/ledger")


# -- config ----------------------------------------------------------------------------------------


def test_config_shows_each_value_with_its_origin(folder, tidegate, monkeypatch):
    monkeypatch.setenv("TIDEGATE_NUM_RETAINED", "4")
    found = tidegate("config", "-D", "timeout=5 min", "-D", "storage_options.key=canary", "--json").json
    assert found["project"] == str(folder)
    settings = found["settings"]
    assert settings["timeout"] == {"value": "5 min", "origin": "-D"}
    assert settings["num_retained"] == {"value": "4", "origin": "TIDEGATE_NUM_RETAINED"}
    assert settings["root"]["origin"] == f"{folder}/tidegate.toml line 1"
    assert settings["storage_options.key"] == {"value": "***", "origin": "-D"}
    assert "canary" not in tidegate("config", "-D", "storage_options.key=canary").out


def test_the_last_of_two_overrides_holds(folder, tidegate):
    found = tidegate("config", "-D", "timeout=1 min", "-D", "timeout=2 min", "--json").json
    assert found["settings"]["timeout"]["value"] == "2 min"


# -- what is imported ------------------------------------------------------------------------------

HEAVY = ("pyspark", "airflow", "great_expectations", "delta", "pandas", "grpc")
LOOK = """
import sys
from tidegate.cli.main import main
code = main(sys.argv[1:])
print(code, sorted(set(sys.modules) & set({heavy!r})), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        (["list"], ("deltalake", "pyarrow", "rich", "obstore")),
        (["list", "orders"], ("deltalake", "pyarrow", "rich", "obstore")),
        (["show", "orders", "1"], ("rich", "obstore")),
        (["explain", "orders", "1"], ("rich", "obstore")),
        (["config"], ("deltalake", "rich", "obstore")),
        (["read", "orders", "good"], ("rich",)),
        (["doctor"], ("rich",)),
        (["--help"], ()),
    ],
)
@pytest.mark.slow
def test_looking_imports_nothing_heavy(project, arguments, also):
    project.complete(1, None)
    heavy = set(HEAVY) | set(also)
    if arguments[0] in ("read", "doctor"):
        heavy.remove("pandas")  # pyarrow takes it for the values of a table
    look = LOOK.format(heavy=tuple(heavy))
    done = subprocess.run(
        [sys.executable, "-c", look, *arguments], capture_output=True, text=True, cwd=project.folder, check=True
    )
    assert done.stderr.splitlines()[-1] == "0 []"


def test_the_example_imports_neither_spark_nor_airflow():
    look = f"import sys, jobs.orders, jobs.orders_feed\nprint(sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_python_dash_m_is_the_command(folder):
    done = subprocess.run([sys.executable, "-m", "tidegate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tidegate {__version__}\n"
