"""`tidegate init` and `tidegate new`: what they write holds together, and nothing that is there is touched.

That a new project runs is in tests/spark/test_new_project.py, and under Airflow in `make matrix-versions`.
"""

import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kit.sampling import in_turn
from tidegate.cli.main import build_parser, main
from tools import compose_secrets

pytestmark = in_turn(seconds=60)

ROOT = Path(__file__).resolve().parents[3]


def tidegate(*arguments: str) -> int:
    return main(arguments)


def python(folder: Path, *arguments: str) -> str:
    """What a new process prints: modules of a project are called as this checkout's are."""
    environment = {"PYTHONPATH": str(ROOT / "include"), "PATH": "/bin", "HOME": str(folder)}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, on a machine without an Airflow that is configured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AIRFLOW__CORE__DAGS_FOLDER", raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "no-airflow"))
    return tmp_path


@pytest.fixture
def shop(here):
    assert tidegate("init", "shop") == 0
    return here / "shop"


def files(folder: Path) -> dict[str, str]:
    """What a person has written, or a command: all but input, and what Python keeps."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {n: p.read_text() for n, p in found.items() if "data/landing" not in n and "__pycache__" not in n}


def test_a_new_project_has_a_pipeline_that_can_be_declared_and_a_feed_of_now(shop):
    graph = json.loads(python(shop, "-m", "tidegate", "plan", "jobs.visits:pipeline", "--json"))
    assert "pages" in json.dumps(graph)
    python(shop, "-m", "tidegate", "suite", "check", "--quick")
    written = python(shop, "-m", "jobs.visits_feed", "--files", "2").split()
    lines = (shop / "data/landing/visits" / written[1]).read_text().splitlines()
    assert len(lines) == 210
    assert {"id", "page", "ms", "at"} == set(json.loads(lines[0]))
    again = python(shop, "-m", "jobs.visits_feed", "--files", "1").split()
    assert again[1] not in written
    assert len(list((shop / "data/landing/visits").iterdir())) == 12 + 2 + 1


def test_no_placeholder_is_left_and_every_file_is_named_for_the_project(shop):
    for name, text in files(shop).items():
        assert "{{" not in text.replace("{{.", ""), name
    assert "image: shop:latest" in (shop / "compose.yaml").read_text()


def test_its_deployment_is_the_one_of_this_repository(shop):
    """What the tests of compose.yaml prove of ours holds for a user's."""
    theirs, ours = (yaml.safe_load((folder / "compose.yaml").read_text()) for folder in (shop, ROOT))
    for name, service in ours["services"].items():
        other = theirs["services"][name]
        for each in (service, other):
            each.pop("image", None)
            each.pop("build", None)
        if name != "db-migrate":  # its landing folders are of other names
            assert other == service, name
    assert theirs["secrets"] == ours["secrets"]
    assert (shop / "tools/compose_secrets.py").read_text() == Path(compose_secrets.__file__).read_text()


def test_what_is_not_to_be_committed_is_ignored(shop):
    ignored = (shop / ".gitignore").read_text().split()
    assert {"/data/", "/secrets/", "/.tidegate/"} <= set(ignored)


def test_a_folder_with_something_in_it_is_refused(here, capsys):
    (here / "shop").mkdir()
    (here / "shop/mine.txt").write_text("mine")
    assert tidegate("init", "shop") == 1
    assert "init --into shop" in capsys.readouterr().err
    assert files(here / "shop") == {"mine.txt": "mine"}


@pytest.mark.parametrize("arguments", [(), ("shop", "--into", ".")])
def test_init_wants_a_name_or_a_folder(here, arguments, capsys):
    assert tidegate("init", *arguments) == 2
    assert "tidegate init --into ." in capsys.readouterr().err.replace("python -m ", "")
    assert files(here) == {}


@pytest.mark.parametrize("name", ["json", "airflow", "yaml", "jobs", "tidegate"])
def test_a_dag_file_that_hides_a_module_from_python_is_refused(here, name, capsys):
    """Airflow puts dags/ on Python's path."""
    assert tidegate("new", "pipeline", name) == 2
    assert f"such as my_{name}" in capsys.readouterr().err
    assert tidegate("init", "shop", "--pipeline", name) == 2
    assert files(here) == {}


@pytest.mark.parametrize("name", ["pages"])
def test_a_pipeline_may_be_called_like_a_part_of_it(here, name):
    assert tidegate("init", "shop", "--pipeline", name) == 0
    python(here / "shop", "-m", "tidegate", "plan", f"jobs.{name}:pipeline", "--json")


@pytest.mark.parametrize("name", ["Orders", "my-orders", "class", "1st", "../orders", "", "a" * 64])
def test_a_name_that_python_does_not_take_is_refused_with_one_that_it_takes(here, name, capsys):
    assert tidegate("new", "pipeline", name) == 2
    assert "such as" in capsys.readouterr().err
    assert files(here) == {}


# -- into a project that is there ------------------------------------------------------------------


def test_an_astro_project_gets_a_pipeline_and_is_told_what_else_to_add(here, capsys):
    mine = {
        "Dockerfile": "FROM astro-runtime:3.0\n",
        "requirements.txt": "pandas\n",
        "packages.txt": "",
        "dags/example.py": "mine = 1\n",
    }
    for name, text in mine.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    assert tidegate("init", "--into", ".", "--pipeline", "orders", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert files(here).items() >= mine.items()
    assert sorted(told["written"]) == sorted(set(files(here)) - set(mine))
    whats = " ".join(each["what"] for each in told["by_hand"])
    for wanted in (
        "requirements.txt: tidegate[spark,gates]",
        "packages.txt: default-jre-headless",
        "RUN tidegate spark jars",
        ".dockerignore: include/data/",
        "astro dev restart",
    ):
        assert wanted in whats
    # Of its folders containers share only dags, include, plugins and tests: others are gone with their container.
    assert len(list((here / "include/data/landing/orders").iterdir())) == 12
    assert not (here / "data").exists()
    assert f"{here}/include/data/ledger" in python(here, "-m", "tidegate", "config", "--json")


def test_what_is_done_by_hand_already_is_not_asked_for_again(here, capsys):
    for name, text in {
        "packages.txt": "openjdk-21-jdk\n",
        "requirements.txt": "tidegate[spark,gates]\n",
        "Dockerfile": "FROM runtime\nRUN tidegate spark jars\n",
        ".dockerignore": "include/data/\n",
        ".gitignore": "include/data/\n",
    }.items():
        (here / name).write_text(text)
    assert tidegate("init", "--into", ".", "--json") == 0
    (left,) = json.loads(capsys.readouterr().out)["by_hand"]
    assert "astro dev restart" in left["what"]


def test_a_plain_airflow_home_is_told_where_its_dags_are(here, capsys):
    (here / "airflow.cfg").write_text("[core]\ndags_folder = /elsewhere/dags\n")
    (here / "requirements.txt").write_text("tidegate[spark]\n")
    assert tidegate("init", "--into", str(here), "--json") == 0
    whats = [each["what"] for each in json.loads(capsys.readouterr().out)["by_hand"]]
    assert whats == ["Run once: tidegate spark jars", f"Run: ln -s {here / 'dags/visits.py'} /elsewhere/dags/"]


@pytest.mark.parametrize("by", ["a variable", "airflow.cfg"])
def test_an_airflow_whose_home_is_elsewhere_is_asked_too(here, monkeypatch, by, capsys):
    home = here / "airflow-home"
    home.mkdir()
    (home / "airflow.cfg").write_text(f"[core]\ndags_folder = {home}/dags\n")
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    if by == "a variable":
        monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/by/variable")
    (here / "mine").mkdir()
    assert tidegate("init", "--into", "mine", "--json") == 0
    whats = [each["what"] for each in json.loads(capsys.readouterr().out)["by_hand"]]
    place = "/by/variable/" if by == "a variable" else f"{home}/dags/"
    assert whats[-1] == f"Run: ln -s {here / 'mine/dags/visits.py'} {place}"


def test_tests_of_the_project_stay_and_the_new_one_runs_beside_them(here, capsys):
    (here / "tests").mkdir()
    (here / "tests/conftest.py").write_text("mine = 1\n")
    assert tidegate("init", "--into", ".") == 0
    assert "python -m pytest tests/test_visits.py" in capsys.readouterr().out
    assert (here / "tests/conftest.py").read_text() == "mine = 1\n"


def test_a_module_that_hides_the_folder_of_jobs_is_refused(here, capsys):
    (here / "jobs.py").write_text("mine = 1\n")
    assert tidegate("init", "--into", ".") == 1
    assert "rename that file" in capsys.readouterr().err
    assert files(here) == {"jobs.py": "mine = 1\n"}


def test_settings_that_are_there_stay(here):
    (here / "tidegate.toml").write_text('root = "records"\n')
    assert tidegate("init", "--into", ".") == 0
    assert (here / "tidegate.toml").read_text() == 'root = "records"\n'


def test_a_folder_that_is_not_there_is_refused(here, capsys):
    assert tidegate("init", "--into", "nowhere") == 2
    assert "is not a folder" in capsys.readouterr().err


# -- new -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("suite", {"include/expectations/orders.yaml"}),
        ("source", {"jobs/orders.py", "tests/test_orders.py"}),
        ("sink", {"jobs/orders.py", "tests/test_orders.py"}),
        (
            "ci",
            {".github/workflows/propose-orders.yml", ".github/workflows/accept-orders.yml"}
            | {".gitlab/propose-orders.yml"},
        ),
        (
            "pipeline",
            {"jobs/orders.py", "jobs/orders_feed.py", "dags/orders.py", "tests/test_orders.py"}
            | {"include/expectations/orders.yaml"},
        ),
    ],
)
def test_something_new_is_written_once_and_never_over_what_is_there(shop, monkeypatch, kind, written, capsys):
    monkeypatch.chdir(shop)
    before = files(shop)
    assert tidegate("new", kind, "orders") == 0
    after = files(shop)
    assert set(after) - set(before) == written
    assert tidegate("new", kind, "orders") == 1
    assert "already" in capsys.readouterr().err
    assert files(shop) == after
    for name in written:
        if name.endswith(".py"):
            compile(after[name], name, "exec")


def test_workflows_are_yaml_whose_commands_exist(shop, monkeypatch):
    monkeypatch.chdir(shop)
    assert tidegate("new", "ci", "orders") == 0
    github = yaml.safe_load((shop / ".github/workflows/propose-orders.yml").read_text())
    gitlab = yaml.safe_load((shop / ".gitlab/propose-orders.yml").read_text())
    of_github = [step["run"] for step in github["jobs"]["propose"]["steps"] if "run" in step]
    of_gitlab = gitlab["propose orders"]["script"]
    for steps in (of_github, of_gitlab):
        typed = [shlex.split(step)[1:] for step in steps if step.startswith("tidegate ")]
        assert [words[0] for words in typed] == ["spark", "propose"]
        for words in typed:
            build_parser().parse_args(words)
        assert typed[-1][1] == "jobs.orders:pipeline"
    accept = yaml.safe_load((shop / ".github/workflows/accept-orders.yml").read_text())
    of_github = [step["run"] for step in accept["jobs"]["accept"]["steps"] if "run" in step]
    for steps in (of_github, gitlab["accept orders"]["script"]):
        arguments = build_parser().parse_args(shlex.split(steps[-1])[1:])
        assert arguments.words == ["accept", "jobs.orders:pipeline"]
        assert (arguments.if_proposed, arguments.yes) == (True, True)


def test_if_one_file_is_there_none_is_written(shop, monkeypatch):
    monkeypatch.chdir(shop)
    (shop / "dags/orders.py").write_text("mine = 1\n")
    before = files(shop)
    assert tidegate("new", "pipeline", "orders") == 1
    assert files(shop) == before


def test_a_folder_that_cannot_be_written_is_told_and_stays_empty(here, monkeypatch, capsys):
    real = Path.open

    def refuse(path, mode="r", *arguments, **options):
        if "x" in mode and path.suffix == ".yaml":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert tidegate("init", "shop") == 3
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "chown" in said
    assert list(here.iterdir()) == [], "or the next call would find a folder that is not empty"


def test_secrets_are_made_for_the_owner_alone(shop):
    python(shop, "tools/compose_secrets.py")
    assert stat.S_IMODE((shop / "secrets").stat().st_mode) == 0o700
    assert {path.name for path in (shop / "secrets").iterdir()} >= {"jwt", "fernet", "ui_password"}
