"""A real Airflow in which roles matter: a user for each role of the Simple auth manager, who logs in by a password."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.dags.server import Airflow
from tests.kit.waiting import PATIENCE_S
from tests.ui.browser import Browser, Page

ROLES = ("viewer", "user", "op", "admin")
"""Also the names of their users."""
PLUGINS = str(Path(__file__).resolve().parents[2] / "plugins")


class AirflowWithRoles(Airflow):
    """Tests talk to its REST API as admin, and to everything else by the token of a role."""

    def __init__(self, home: Path, **settings: str) -> None:
        passwords = home / "passwords.json"
        passwords.write_text(json.dumps({role: f"{role}-pw" for role in ROLES}))
        super().__init__(
            home,
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False",
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=",".join(f"{role}:{role}" for role in ROLES),
            AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(passwords),
            AIRFLOW__CORE__PLUGINS_FOLDER=PLUGINS,
            **settings,
        )

    def __enter__(self) -> AirflowWithRoles:
        super().__enter__()
        self._token = self.token("admin")
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, role: str) -> str:
        """Log in as a user with this role."""
        body = json.dumps({"username": role, "password": f"{role}-pw"}).encode()
        request = urllib.request.Request(f"{self.url}/auth/token", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return str(json.load(answer)["access_token"])

    def page(self, browser: Browser, role: str, width: int = 1400, height: int = 900) -> Page:
        """Open an empty page of a browser in which a user with this role has logged in."""
        page = browser.page(width, height)
        page.cookie(self.url, "_token", self.token(role))
        return page
