"""A copy of the project in which `tidegate up` runs, and what must not be left running when it has ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.example import two_files_each_time
from tests.kit.jvm import INTERPRETED, toml
from tests.kit.waiting import eventually
from tidegate.cli.up.home import Home

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 400.0


@dataclass
class Project:
    """What a user has, with an Airflow and a Spark of its own."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @classmethod
    def copy(cls, folder: Path, **more: str) -> Project:
        for name in ("jobs", "dags", "plugins", "include/expectations"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        two_files_each_time(folder)
        settings = (ROOT / "tidegate.toml").read_text()
        (folder / "tidegate.toml").write_text(
            f'{settings}\n[spark]\nmemory = "1g"\nmaster = "local[2]"\n{toml(INTERPRETED)}'
        )
        foreign = {name for name in os.environ if name.startswith(("AIRFLOW", "TIDEGATE_"))}
        return cls(folder, {k: v for k, v in os.environ.items() if k not in foreign} | more)

    @property
    def home(self) -> Home:
        return Home(self.folder)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tidegate", *words]

    def tidegate(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def json(self, *words: str) -> Any:
        done = self.tidegate(*words, "--json")
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def up(self, *words: str) -> Iterator[Up]:
        """`tidegate up`, running."""
        log = self.folder / "up.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                self.command("up", *words), cwd=self.folder, env=self.env, stdout=file, stderr=file
            )
        try:
            yield Up(process, log)
        finally:
            process.kill()
            process.wait()

    def clean_up(self) -> None:
        """End whatever a test that failed has left."""
        from tidegate.cli.up.processes import end_leftover_processes

        end_leftover_processes(self.home)
        self.tidegate("spark", "stop", "--force")

    def left_running(self) -> list[str]:
        """Command lines of processes that belong to this project: they were given its folder, or work in it."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                told = (entry / "environ").read_bytes() + words
                if f"{self.folder}".encode() in told or (entry / "cwd").readlink().is_relative_to(self.folder):
                    found.append(words.replace(b"\0", b" ").decode())
        return found


@dataclass
class Up:
    """A `tidegate up` that runs."""

    process: subprocess.Popen[bytes]
    log: Path

    def says(self, text: str) -> None:
        """Wait until it has said this."""

        def there() -> bool:
            ended = self.process.poll() is not None
            said = self.log.read_text()
            assert text in said or not ended, said
            return text in said

        eventually(f"{text!r} in the output", there, PATIENCE_S)

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)
