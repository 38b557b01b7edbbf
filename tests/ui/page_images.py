"""Takes the images of pages in README and docs: `make images`.

It makes a new project, as the quickstart does, runs it under `tidegate up` until it has made some checkpoints, and
opens its pages in Chromium, 1400 pixels wide, with Airflow around them.

`make images EACH=FOLDER` takes every page instead, from top to bottom, as a desk and a phone show it, light and dark,
to be looked at before a release.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from tests.kit.waiting import eventually
from tests.ui.browser import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
PIPELINE = "visits"
CHECKPOINTS = 8
PATIENCE_S = 900
FRAME = "document.querySelector('iframe')?.contentDocument"
EVERY_PAGE = (
    "overview",
    "history",
    f"checkpoint/{CHECKPOINTS - 1}",
    "summary",
    "graph",
    f"graph?checkpoint={CHECKPOINTS - 1}",
    "plots",
    "compare",
    "proposals",
    "quarantine",
    "configuration",
    "audit",
)


def main() -> None:
    each = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="tidegate-images-") as folder:
        foreign = {name for name in os.environ if name.startswith(("AIRFLOW", "TIDEGATE_"))}
        env = {name: value for name, value in os.environ.items() if name not in foreign}
        subprocess.run([sys.executable, "-m", "tidegate", "init", "shop"], cwd=folder, env=env, check=True)
        project = Path(folder, "shop")
        up = [sys.executable, "-m", "tidegate", "up", "--beside", f"{sys.executable} -m jobs.visits_feed"]
        with (project / "up.log").open("w") as log:
            running = subprocess.Popen(up, cwd=project, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            eventually("there are checkpoints", lambda: completed(project, env) >= CHECKPOINTS, PATIENCE_S)
            address, token = log_in(project)
            if each is None:
                take(address, token)
            else:
                each.mkdir(parents=True, exist_ok=True)
                take_every_page(address, token, each)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(120)


def completed(project: Path, env: dict[str, str]) -> int:
    """Return how many checkpoints the pipeline has completed."""
    listing = [sys.executable, "-m", "tidegate", "list", PIPELINE, "--state", "completed", "--limit", "50", "--json"]
    done = subprocess.run(listing, cwd=project, env=env, capture_output=True, text=True)
    return len(json.loads(done.stdout)["checkpoints"]) if done.returncode == 0 else 0


def log_in(project: Path) -> tuple[str, str]:
    """Return Airflow's address, and a token of its admin."""
    home = project / ".tidegate" / "airflow"
    words = (project / "up.log").read_text().split()
    address = next(word for word in words if word.startswith("http://"))
    password = json.loads((home / "passwords.json").read_text())["admin"]
    body = json.dumps({"username": "admin", "password": password}).encode()
    request = urllib.request.Request(f"{address}/auth/token", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return address, json.load(answer)["access_token"]


def take(address: str, token: str) -> None:
    """Take the images of README and docs."""
    with Browser() as browser:
        page = browser.page(1400, 900)
        page.cookie(address, "_token", token)
        page.goto(f"{address}/dags/{PIPELINE}/plugin/checkpoints")
        page.here = FRAME
        page.has(PIPELINE, "main")
        show(page, f"checkpoint/{CHECKPOINTS - 1}", "Barriers", IMAGES / "checkpoint.png")
        show(page, "plots", "entries, ", IMAGES / "plots.png")


def show(page: Page, place: str, text: str, path: Path) -> None:
    """Take an image of one page, once it shows a text."""
    page.run(f"document.querySelector('iframe').contentWindow.location.hash = '#/{place}'")
    page.has(text, "main")
    eventually("nothing is loading", lambda: page.there("main:not([aria-busy])"))
    page.screenshot(path)


def take_every_page(address: str, token: str, folder: Path) -> None:
    """Take an image of all of each page, in both widths and themes."""
    for theme in ("light", "dark"):
        for width in (1400, 420):
            with Browser() as browser:
                page = browser.page(width, 900)
                page.cookie(address, "_token", token)
                page.call("Page.addScriptToEvaluateOnNewDocument", source=f"localStorage.setItem('theme', '{theme}')")
                take_page(page, f"{address}/tidegate/pipelines", folder / f"{theme}-{width}-pipelines.png", width)
                for place in EVERY_PAGE:
                    name = place.replace("/", "-").replace("?", "-")
                    path = folder / f"{theme}-{width}-{name}.png"
                    take_page(page, f"{address}/tidegate/dag/{PIPELINE}#/{place}", path, width)


def take_page(page: Page, address: str, path: Path, width: int) -> None:
    page.size(width, 900)
    page.goto("about:blank")
    page.goto(address)
    page.has(PIPELINE, "main", timeout=120)
    eventually("nothing is loading", lambda: page.there("main:not([aria-busy])"))
    page.size(width, int(page.run("document.documentElement.scrollHeight")))
    page.screenshot(path)


if __name__ == "__main__":
    main()
