"""compose.yaml, as far as it can be told without Docker: it parses, waits for health, and holds no secret itself."""

import base64
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import yaml

from tidegate.config import KEYS
from tools import compose_secrets

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
CLUSTER = yaml.safe_load((ROOT / "compose.cluster.yaml").read_text())
ADDED = CLUSTER["services"]
ONE_SHOT = {"db-migrate"}
COMMANDED = [name for name in SERVICES if name not in ("postgres", "network")]


def text_of(value: object) -> str:
    """What compose makes of a value: `$$` is one dollar."""
    return str(value).replace("$$", "$")


def test_it_has_the_parts_of_a_small_deployment():
    wanted = {"postgres", "db-migrate", "api-server", "scheduler", "dag-processor", "triggerer", "network", "spark"}
    assert set(SERVICES) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVICES)
def test_each_service_tells_its_health_or_ends_by_itself(name):
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= set(service["healthcheck"])


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_to_a_version(name):
    assert re.fullmatch(r"[a-z]+:\d+\.\d+[\w.-]*", SERVICES[name]["image"])


@pytest.mark.parametrize("file", ["Dockerfile", "include/tidegate/cli/project/templates/project/Dockerfile"])
def test_the_image_is_built_in_stages_and_runs_as_nobody_special(file):
    text = (ROOT / file).read_text()
    base, build, final = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert (base, build, final) == ("${PYTHON}", "base", "base"), "what builds it is not in it"
    assert re.search(r"^ARG PYTHON=python:3\.\d+-slim-bookworm$", text, re.MULTILINE), "a digest may be given"
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\S+)", last, re.MULTILINE) == ["1000"]
    assert not re.search(r"^(ADD|COPY --chown)", text, re.MULTILINE), "the code is root's"


@pytest.mark.parametrize("file", ["Dockerfile", "include/tidegate/cli/project/templates/project/Dockerfile"])
def test_all_that_the_images_user_writes_lies_on_its_volume(file):
    text = (ROOT / file).read_text().rpartition("\nFROM ")[2]
    volume = re.search(r"^VOLUME (\S+)", text, re.MULTILINE)[1]
    variables = dict(re.findall(r"(\w+)=(\S+)", text))
    for name in ("TIDEGATE_ROOT", "TIDEGATE_DATA", "XDG_STATE_HOME", "AIRFLOW_HOME"):
        assert variables[name].startswith(f"{volume}/"), name


def test_the_image_has_nothing_that_only_developers_need():
    """tools/setup.sh installs the default groups but for these."""
    text = (ROOT / "Dockerfile").read_text()
    left_out = {"dev"} if "UV_NO_DEV=1" in text else set()
    left_out |= set(re.search(r"UV_NO_GROUP=(\w+)", text)[1].split())
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["default-groups"]
    assert set(groups) - left_out == {"build", "postgres", "run", "submit"}


def test_the_image_has_the_version_of_the_package():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert {s["image"] for n, s in SERVICES.items() if n != "postgres"} == {f"tidegate:{version}"}


def test_every_secret_is_a_file_that_is_not_committed():
    declared = COMPOSE["secrets"]
    assert set(declared) | set(CLUSTER["secrets"]) == set(compose_secrets.MAKE)
    assert all(secret == {"file": f"./secrets/{name}"} for name, secret in declared.items())
    for name, service in SERVICES.items():
        assert set(service.get("secrets", ())) <= set(declared), name
        used = set(re.findall(r"/run/secrets/(\w+)", str(service.get("command")) + str(service.get("environment"))))
        allowed = set(service.get("secrets", ()))
        assert used <= allowed or name == "spark", name
    ignored = subprocess.run(["git", "check-ignore", "-q", "secrets/jwt"], cwd=ROOT)
    assert ignored.returncode == 0
    assert "secrets" not in (ROOT / ".dockerignore").read_text().replace("!tools", "")


def test_no_value_in_the_environment_is_a_secret():
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            secret = re.search(r"password|secret|token|fernet|conn", key, re.IGNORECASE)
            assert not secret or key.endswith(("_CMD", "_FILE")), f"{name}: {key}={value}"


def test_the_secrets_are_made_once_and_private(tmp_path):
    folder = tmp_path / "secrets"
    compose_secrets.main(folder)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(before) == set(compose_secrets.MAKE)
    assert len(set(before.values())) == len(before)
    assert len(base64.urlsafe_b64decode(before["fernet"])) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    compose_secrets.main(folder)
    assert before == {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.slow
def test_airflow_gets_its_secrets_from_the_files(tmp_path):
    """By Airflow itself, with the environment that compose gives it and the folder of secrets moved."""
    compose_secrets.main(tmp_path / "secrets")
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    environment = {
        name: text_of(value).replace("/run/secrets", str(tmp_path / "secrets"))
        for name, value in SERVICES["scheduler"]["environment"].items()
    }
    asked = [
        ("core", "fernet_key"),
        ("api", "secret_key"),
        ("api_auth", "jwt_secret"),
        ("database", "sql_alchemy_conn"),
    ]
    code = f"from airflow.configuration import conf\nfor s, k in {asked!r}: print('>', conf.get(s, k))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | environment | {"AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    url = f"postgresql+psycopg2://airflow:{made['postgres_password']}@postgres/airflow"
    told = [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]
    assert told == [made["fernet"], made["session"], made["jwt"], url]


AIRFLOW_HELP = """
import contextlib, io, json, sys
from airflow.cli.cli_parser import get_parser
told = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        get_parser().parse_args([*words, "--help"])
    told[" ".join(words)] = out.getvalue()
print(json.dumps(told))
"""


def command_of(name):
    """The last program of the service's command line: its module and its words."""
    command = [text_of(word) for word in SERVICES[name]["command"]]
    if command[:2] == ["sh", "-c"]:
        assert subprocess.run(["sh", "-n", "-c", command[2]]).returncode == 0
        command = shlex.split(command[2].rpartition("exec ")[2])
    return command


def words_of(command):
    """Its subcommands, without options and their values."""
    words = [word for word in command[1:] if not word.startswith(("-", "/")) and not word.isdigit()]
    return [word for word in words if word != "0.0.0.0"]


@pytest.fixture(scope="module")
def airflow_help():
    """What `airflow … --help` says of each command: from one process, because each takes seconds to start."""
    commands = [command_of(name) for name in COMMANDED]
    asked = [words_of(command) for command in commands if command[0] == "airflow"]
    done = subprocess.run([sys.executable, "-c", AIRFLOW_HELP, json.dumps(asked)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDED)
def test_every_command_is_one_that_there_is(name, airflow_help):
    """Of airflow or of tidegate, with options that it knows."""
    command = command_of(name)
    words = words_of(command)
    if command[0] == "airflow":
        told = airflow_help[" ".join(words)]
    else:
        asked = [sys.executable, "-m", command[0], *words, "--help"]
        told = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT).stdout
    assert f"{' '.join(words)} " in told, f"the help is not that of {words}"
    options = [word for word in command if word.startswith("--")]
    assert [option for option in options if option not in told] == []


def test_nobody_hangs_on_the_network_of_what_may_be_restarted():
    """Who shares the network of a container is cut off as soon as that one is started again."""
    shared = {name: each["network_mode"] for name, each in SERVICES.items() if "network_mode" in each}
    assert shared == {"scheduler": "service:network", "spark": "service:network"}
    assert SERVICES["network"]["command"] == ["sleep", "infinity"]
    assert SERVICES["network"]["depends_on"] == {}
    assert "15002" in str(SERVICES["scheduler"]["healthcheck"]["test"]), "asked where the tasks are"
    for name in shared:
        assert SERVICES[name]["depends_on"]["network"]["restart"] is True


def test_the_example_runs_as_soon_as_it_is_fed():
    for name in ("scheduler", "dag-processor"):
        assert SERVICES[name]["environment"]["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "False"
    made = set(re.findall(r"landing/\w+", text_of(SERVICES["db-migrate"]["command"])))
    assert made == set(re.findall(r"landing/\w+", (ROOT / "jobs" / "orders.py").read_text().partition("pipeline =")[2]))
    head = (ROOT / "compose.yaml").read_text().partition("name:")[0]
    assert "python -m jobs.orders_feed" in head


def test_health_checks_are_python_that_compiles():
    for name, service in SERVICES.items():
        test = service.get("healthcheck", {}).get("test", [])
        if "-c" in test:
            compile(text_of(test[test.index("-c") + 1]), name, "exec")


# -- compose.cluster.yaml: what it adds ------------------------------------------------------------------


def test_the_cluster_adds_a_store_a_master_and_two_workers_that_share_nothing():
    assert ADDED.keys() - SERVICES.keys() == {"store", "bucket", "spark-master", "spark-worker-1", "spark-worker-2"}
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        assert ADDED[name]["image"] == SERVICES["spark"]["image"]
        assert "volumes" not in ADDED[name], "a worker has no disk of anybody's"
        assert "secrets" not in ADDED[name], "the driver tells tasks how to log in"
        assert ADDED[name]["healthcheck"]["test"][0] == "CMD"
    assert ADDED["spark-worker-1"] == ADDED["spark-worker-2"]
    assert re.fullmatch(r"[a-z/]+:RELEASE[\w.-]+", ADDED["store"]["image"])
    assert ADDED["bucket"]["image"] == ADDED["store"]["image"]


def test_everybody_who_opens_a_pipeline_logs_in_to_the_store(tmp_path):
    """As the entry point does it, with the folder of secrets moved; then the settings are those of a cluster."""
    compose_secrets.main(tmp_path / "secrets")
    password = (tmp_path / "secrets" / "store_password").read_text()
    for name in ("api-server", "scheduler", "dag-processor", "triggerer", "spark"):
        service = ADDED[name]
        assert "store_password" in service["secrets"]
        shell, option, script, own_name = map(text_of, service["entrypoint"])
        script = script.replace("/run/secrets", str(tmp_path / "secrets"))
        environment = {key: text_of(value) for key, value in service["environment"].items()}
        asked = (
            "from tidegate.config import load_settings as l; s = l(); print(s.root, s.data, dict(s.storage_options))"
        )
        done = subprocess.run(
            [
                shell,
                option,
                script,
                own_name,
                sys.executable,
                "-c",
                asked + "; print(s.spark.master, dict(s.spark.conf))",
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")} | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        places, spark = done.stdout.splitlines()
        assert places.startswith("s3://tidegate/ledger s3://tidegate/data {")
        assert password in places
        assert "'aws_endpoint': 'http://store:9000'" in places
    assert spark.startswith("spark://spark-master:7077 {'spark.driver.host': 'network'")


def test_master_and_workers_are_started_by_a_command_that_there_is():
    home = subprocess.run([sys.executable, "-c", "import pyspark; print(pyspark.__path__[0])"], capture_output=True)
    for name in ("spark-master", "spark-worker-1"):
        shell, option, script = map(text_of, ADDED[name]["command"])
        assert subprocess.run([shell, "-n", option, script]).returncode == 0
        assert "import pyspark; print(pyspark.__path__[0])" in script
    assert Path(home.stdout.decode().strip(), "bin", "spark-class").is_file()


# -- Kubernetes ------------------------------------------------------------------------------------


def test_the_pod_template_is_one_that_airflow_takes_and_holds_no_secret():
    pod = yaml.safe_load((ROOT / "docs/guides/pod.yaml").read_text())
    assert (pod["apiVersion"], pod["kind"], pod["spec"]["restartPolicy"]) == ("v1", "Pod", "Never")
    (container,) = pod["spec"]["containers"]
    assert container["name"] == "base", "Airflow puts the task's command there"
    assert "command" not in container
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    api_server = variables.pop("AIRFLOW__CORE__EXECUTION_API_SERVER_URL")
    assert re.fullmatch(r"http://[\w-]+:8080/execution/", api_server), "without it, a task asks its own pod"
    assert set(variables) <= {key.variable for key in KEYS.values()}
    assert variables["TIDEGATE_SPARK_REMOTE"] == "", "its token comes from a secret"
