"""completion and help: what could follow on a line, as the parser and the ledger tell; and a real bash that asks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.shop import Shop
from tidegate.cli.completion import SCRIPTS
from tidegate.cli.completion_candidates import complete
from tidegate.cli.main import COMMANDS
from tidegate.config import KEYS
from tidegate.history.health import REASONS, STATES


@pytest.fixture
def shop(folder, tidegate):
    shop = Shop(folder)
    shop.checkpoint()
    shop.checkpoint()
    return shop


def words(line):
    return [word for word, _ in complete(line)]


def test_commands_and_options_are_those_of_the_parser(folder):
    assert complete("tidegate ") == [
        *COMMANDS.items(),
        ("--help", "the commands of tidegate"),
        ("--version", "the installed version"),
    ]
    assert words("tidegate re") == ["read", "recover", "resume", "reject"]
    assert words("tidegate diff --") == ["--help", "--limit", "--json", "--debug"]
    assert words("tidegate diff orders 1 2 --limit 3 --json --") == ["--help", "--debug"]
    assert words("tidegate list orders --state ro") == ["rollback", "rolled back"]
    assert words("tidegate list orders --sort state_b") == ["state_bytes"]
    assert words("tidegate quarantine re") == ["release", "rejudge"]
    assert words("tidegate completion ") == ["bash", "zsh", "fish", "--help", "--line", "--json", "-D", "--debug"]
    assert words("tidegate help rea") == ["reasons", "read"]


def test_pipelines_are_found_by_name_and_by_their_code_without_importing_it(shop, folder):
    (folder / "jobs").mkdir()
    (folder / "jobs" / "daily.py").write_text('flow: Pipeline = Pipeline("daily")\nraise SystemExit("imported")\n')
    assert words("tidegate explain ") == ["orders", "jobs.daily:flow", "shop:pipeline"]
    assert words("tidegate run ") == ["jobs.daily:flow", "shop:pipeline"]
    assert words("tidegate run jobs.daily:f") == ["jobs.daily:flow"]
    assert words("tidegate list -D root=elsewhere o") == []


@pytest.mark.parametrize("line", ["show orders ", "explain shop:pipeline ", "rollback shop:pipeline --to "])
def test_checkpoints_newest_first_and_savepoints(shop, tidegate, line):
    assert tidegate("savepoint", "create", "orders", "good-one").code == 0
    assert complete(f"tidegate {line}")[:3] == [
        ("2", "completed"),
        ("1", "completed"),
        ("good-one", "savepoint of checkpoint 2"),
    ]
    assert words(f"tidegate {line}1") == ["1"]


def test_sinks_settings_and_savepoints(shop, tidegate):
    assert words("tidegate read orders g") == ["good"]
    assert words("tidegate state orders x") == []
    assert words("tidegate list -D num") == ["num_retained="]
    assert len([word for word in words("tidegate list -D ") if word.endswith("=")]) == len(KEYS)
    assert tidegate("savepoint", "create", "orders", "first").code == 0
    assert words("tidegate savepoint dispose orders ")[:1] == ["first"]


@pytest.mark.parametrize(
    "line",
    ["tidegate nope ", "tidegate show nope ", "tidegate show 'ope", "tidegate list -D timeout=0 ", "", "tidegate"],
)
def test_what_cannot_be_told_is_no_error(shop, line):
    assert [word for word in words(line) if word[0].isdigit()] == []


def test_a_damaged_ledger_is_no_error(shop, folder):
    (folder / "ledger" / "orders" / "checkpoints" / "00000002" / "decision.json").write_text("{")
    assert words("tidegate show orders ") == []


def test_names_in_folders_are_written_out(shop, folder, tidegate):
    """A suite's name is a file's, and may hold anything."""
    (folder / "include" / "expectations").mkdir(parents=True)
    (folder / "include" / "expectations" / "a\x1b[31m.yaml").write_text("")
    assert "a\\x1b[31m\ta suite" in tidegate("completion", "--line", "tidegate suite check ").out


def test_it_needs_no_spark_no_airflow_and_no_users_code(shop):
    code = (
        "import sys, json; from tidegate.cli.completion_candidates import complete;"
        "found = complete('tidegate show orders ');"
        "print(json.dumps([found[0][0], sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    first, modules = json.loads(said.stdout)
    assert first == "2"
    assert {"pyspark", "airflow", "deltalake", "great_expectations", "shop"}.isdisjoint(modules)


# -- shells ------------------------------------------------------------------------------------------------


def test_every_script_asks_for_the_line(folder, tidegate):
    for shell, script in SCRIPTS.items():
        said = tidegate("completion", shell)
        assert (said.code, said.out) == (0, script)
        assert "completion --line" in script
    assert tidegate("completion").code == 2
    assert tidegate("completion", "tcsh").code == 2


@pytest.fixture
def program(folder):
    """`tidegate`, as a shell calls it."""
    program = folder / "bin" / "tidegate"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidegate "$@"\n')
    program.chmod(0o755)
    return program


def asked(program, *command):
    path = f"{program.parent}:{os.environ['PATH']}"
    env = os.environ | {"LC_ALL": "C", "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        ("expl", ["explain"]),
        ("explain ord", ["orders"]),
        ("explain orders ", ["2", "1"]),
        ("run shop:p", ["pipeline"]),  # bash has split it at the colon
    ],
)
def test_a_real_bash_gets_its_words(shop, program, typed, replies):
    script = (
        f"{SCRIPTS['bash']}\n"
        f"COMP_LINE='{program} {typed}' COMP_POINT=${{#COMP_LINE}}\n"
        f"COMP_WORDS=('{program}' x) COMP_CWORD=1\n"
        "_tidegate 2>/dev/null; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert asked(program, "bash", "-c", script).split()[: len(replies)] == replies


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        ("expl", ["explain:a pipeline's state and what to do; or what happened in a checkpoint"]),
        ("explain orders ", ["2:completed", "1:completed"]),
        ("list orders --state ", ["completed", "aborted"]),
        ("run shop:p", ["shop\\:pipeline:a pipeline's code"]),
    ],
)
def test_a_real_zsh_gets_its_words(shop, program, typed, replies):
    """All but the menu, which needs a terminal: what it is given is printed instead."""
    *before, last = typed.split(" ")
    words = " ".join(f"'{word}'" for word in ("tidegate", *before, last))
    script = (
        'compdef() {}\n_describe() { print -rl -- "${(@P)3}" }\n'
        f"{SCRIPTS['zsh']}\n"
        f"words=({words}) CURRENT=$#words PREFIX='{last}'\n_tidegate"
    )
    found = asked(program, "zsh", "-f", "-c", script).splitlines()
    assert found[: len(replies)] == replies


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
@pytest.mark.parametrize(
    ("typed", "replies"),
    [("expl", ["explain"]), ("explain orders ", ["2", "1"]), ("list orders --state ", ["completed", "aborted"])],
)
def test_a_real_fish_gets_its_words(shop, program, typed, replies):
    script = f"{SCRIPTS['fish']}\ncomplete -C 'tidegate {typed}'"
    found = [line.partition("\t")[0] for line in asked(program, "fish", "--no-config", "-c", script).splitlines()]
    assert found[: len(replies)] == replies


# -- help --------------------------------------------------------------------------------------------------


def test_help_with_every_topic_is_made_of_what_counts(folder, tidegate):
    for topic, parts in {
        "tasks": ["tidegate explain orders"],
        "states": STATES,
        "reasons": REASONS,
        "settings": KEYS,
        "records": ["plan.json", "trouble.json"],
        "codes": ["3  unavailable"],
    }.items():
        said = tidegate("help", topic)
        assert said.code == 0
        assert [part for part in parts if part not in said.out] == []
    assert tidegate("help").out == tidegate("help", "tasks").out


def test_tasks_name_commands_that_exist(folder, tidegate):
    lines = [line.split() for line in tidegate("help", "tasks").out.splitlines() if line.startswith("    tidegate ")]
    assert len(lines) > 10
    assert {line[1] for line in lines} <= set(COMMANDS)


def test_help_names_the_fields_of_an_error_as_they_are(folder, tidegate):
    refused = tidegate("show", "nothing", "1", "--json")
    fields = json.loads(refused.out)["error"]
    assert ", ".join(f'"{name}"' for name in fields) in tidegate("help", "codes").out


def test_help_with_a_command_is_its_own(folder, tidegate):
    assert tidegate("help", "explain").out.strip() == tidegate("explain", "--help").out.strip()
    said = tidegate("help", "nope")
    assert (said.code, "reasons" in said.err) == (2, True)
