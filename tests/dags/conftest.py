"""Airflow for tests. Its environment is set before anything imports it; nothing is written until a test asks for it.

airflow_db: Airflow inside this process, for `dag.test()`. project: a folder with pipelines and their DAG files.
airflow: a real one, all its processes, one for all tests of a process that ask for it.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(tempfile.gettempdir()) / f"tidegate-airflow-{os.getpid()}"
os.environ.update(
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(HOME / "project" / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(Path(__file__).resolve().parents[2] / "plugins"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__EXECUTOR="LocalExecutor",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{HOME}/airflow.db",
    AIRFLOW__LOGGING__COLORED_CONSOLE_LOG="False",
)

from tests.dags.project import Project  # noqa: E402
from tests.dags.server import Airflow, migrate  # noqa: E402


def remove(home: Path, of: int) -> None:
    """Airflow makes its home as soon as it is imported, whoever asks for it."""
    if os.getpid() == of:  # not in a forked child
        shutil.rmtree(home, ignore_errors=True)


atexit.register(remove, HOME, os.getpid())


@pytest.fixture(scope="session")
def airflow_db() -> Path:
    HOME.mkdir(parents=True, exist_ok=True)
    migrate(dict(os.environ))
    return HOME


@pytest.fixture(scope="session")
def project(airflow_db: Path) -> Iterator[Project]:
    """Where `dag.test()` finds its DAG files."""
    made = Project(airflow_db / "project")
    yield made
    made.close()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A real Airflow with a project of its own."""
    with Airflow(tmp_path_factory.mktemp("airflow")) as started:
        yield started
