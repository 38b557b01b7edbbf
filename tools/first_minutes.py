"""Walks the first minutes of a user: from an empty folder, with only Python and Java, to the second completed
checkpoint of a new pipeline, and prints what was seen and when.

    make first-minutes            everything is fetched: packages from PyPI, jars from Maven Central, or their mirrors
    make first-minutes CACHED=1   packages and jars come from what an earlier call has fetched
    make first-minutes WRITE=1    and the transcript goes into docs/quickstart.md

Only tidegate itself is not fetched: it is the wheel of this checkout. Seconds are those of this machine, and of what
else it does: the transcript tells its load.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import tomllib

from tools.matrix_versions import PLACE, ROOT, build_wheel, environment

PAGE = ROOT / "docs/quickstart.md"
START, END = "<!-- first minutes -->", "<!-- end of first minutes -->"
CACHE = PLACE / "cache"
FIRST_S = 60.0
"""The first checkpoint is completed so soon after the start of `tidegate up`, on a machine that does nothing else."""

SHELL = (
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install 'tidegate[airflow,spark,gates]'",
    "tidegate init shop && cd shop",
    'tidegate up --checkpoints 2 --beside "python -m jobs.visits_feed"',
    "tidegate read visits pages",
)
"""What the user types. The next command begins where, and with what, the one before has left the shell."""
SHOWN = ("tidegate up", "tidegate read")
"""The commands whose output is a part of the transcript."""
_MARK = "-- the command has ended"


class Failed(Exception):
    """A command that failed, with the end of what it said."""


@dataclass
class Walked:
    """What was seen: each line with the seconds since the beginning."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    began: dict[str, float] = field(default_factory=dict)
    """When each command was typed."""

    def seconds_to(self, text: str) -> float:
        """Seconds from the start of `tidegate up` to the first line with this text."""
        up = next(when for command, when in self.began.items() if command.startswith("tidegate up"))
        return next(when for when, line in self.lines if when >= up and text in line) - up


def main() -> int:
    parser = argparse.ArgumentParser(prog="make first-minutes", description="Walk the first minutes of a user.")
    parser.add_argument("--cached", action="store_true", help="take packages and jars from an earlier call")
    parser.add_argument("--write", action="store_true", help="write the transcript into docs/quickstart.md")
    args = parser.parse_args()
    wheel = build_wheel()
    load = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-first-") as folder:
            cache = CACHE if args.cached else Path(folder, "cache")
            walked = walk(Path(folder, "empty"), wheel, cache)
    except Failed as error:
        print(f"first-minutes: {error}", file=sys.stderr)
        return 1
    first = walked.seconds_to("checkpoint 1 completed")
    text = transcript(walked, first, (load, os.getloadavg()[0]), cached=args.cached)
    print(text)
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        block = f"{START}\n{text}\n{END}"
        PAGE.write_text(re.sub(f"{START}.*{END}", lambda _: block, page, flags=re.DOTALL), encoding="utf-8")
    verdict = "within" if first <= FIRST_S else "over"
    print(f"first-minutes: the first checkpoint after {first:.0f} s, {verdict} {FIRST_S:.0f} s")
    return 0


def walk(folder: Path, wheel: Path, cache: Path) -> Walked:
    """Type the commands into one shell."""
    folder.mkdir(parents=True)
    env = environment(folder.parent) | {"XDG_CACHE_HOME": str(cache)}
    constraints = folder.parent / "constraints.txt"
    constraints.write_text(f"tidegate=={wheel.name.split('-')[1]}\n")
    env |= {"PIP_FIND_LINKS": str(wheel.parent), "PIP_CONSTRAINT": str(constraints), "PYTHONUNBUFFERED": "1"}
    env["PATH"] = f"{Path(sys.executable).resolve().parent}{os.pathsep}{env['PATH']}"
    shell = subprocess.Popen(
        ["/bin/sh"], cwd=folder, env=env, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    walked, start = Walked(), time.monotonic()
    try:
        for command in SHELL:
            walked.began[command] = time.monotonic() - start
            walked.lines.append((walked.began[command], f"$ {command}"))
            said = [(time.monotonic() - start, line) for line in typed(shell, command)]
            if said.pop()[1] != "0":
                raise Failed(f"`{command}` fails:\n" + "\n".join(line for _, line in said[-30:]))
            if command.startswith(SHOWN):
                walked.lines += [(when, as_a_user(line, folder, cache)) for when, line in said]
    finally:
        end(shell)
    return walked


def end(shell: subprocess.Popen[str]) -> None:
    """Let the shell end; if a command still runs, as after Ctrl-C."""
    assert shell.stdin is not None
    shell.stdin.close()
    for number in (None, signal.SIGINT, signal.SIGKILL):
        if number is not None:
            os.killpg(shell.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(60 if number else 1)
            return


def typed(shell: subprocess.Popen[str], command: str) -> Iterator[str]:
    """Yield what a command says, line by line, and last its exit code."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f'{{ {command}\n}} </dev/null\necho "{_MARK} $?"\n')
    shell.stdin.flush()
    for line in shell.stdout:
        if line.startswith(_MARK):
            yield line.removeprefix(_MARK).strip()
            return
        yield line.rstrip()
    yield "the shell has ended"


def as_a_user(line: str, folder: Path, cache: Path) -> str:
    """Hide the password, and name folders as they are called at a user's."""
    line = re.sub(r"(user \w+ +)(\w{4})\w+", r"\1\2…", line)
    return line.replace(str(cache), "~/.cache").replace(str(folder), "~")


def transcript(walked: Walked, first: float, load: tuple[float, float], *, cached: bool) -> str:
    """Return it as Markdown, with what it was measured on."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    lines = [f"{clock(when)}  {line}".rstrip() for when, line in walked.lines]
    packages = "Packages and jars came from a cache" if cached else "Packages and jars were fetched"
    busy = "" if max(load) < (os.cpu_count() or 1) else ", that is beside other work"
    return "\n".join(
        [
            "<!-- test: transcript -->",
            "```text",
            *lines,
            "```",
            "",
            f"The first checkpoint was completed {first:.0f} s after the start of `tidegate up`. Seen with tidegate "
            f"{version} ({commit})",
            f"on {datetime.now(timezone.utc):%Y-%m-%d}, on {os.cpu_count()} cores with a load of {load[0]:.1f} before "
            f"and {load[1]:.1f} after it{busy}. {packages}.",
        ]
    )


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:2}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
