"""What befalls a server of PostgreSQL, whatever reads from it or writes to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.kit.postgres import Server
from tests.world.other_side import Happening, OtherSide, act, happened

__all__ = ["PostgresSide"]


class PostgresSide(OtherSide):
    """One table of a server that lives share."""

    needs = "postgres"
    is_away = False

    @property
    def server(self) -> Server:
        return self.servers.postgres

    def connections(self, folder: Path) -> dict[str, dict[str, str]]:
        return {"shop": self.server.options}

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """By another client, which does not wait for long."""
        return self.server.run("SET lock_timeout = '5s'", *statements)

    def before_it_stops(self) -> None:
        """What must be done first."""

    def cold_copy(self) -> Path:
        self.before_it_stops()
        copy = self.server.cold_copy(self.servers.new_name("cold"))
        self.closing.callback(shutil.rmtree, copy, ignore_errors=True)
        return copy

    @act
    def server_is_restarted(self) -> Happening | None:
        self.before_it_stops()
        if self.dice.random() < 0.5:
            self.server.crash()
        else:
            self.server.stop()
        self.server.start()
        return self.happened_at_a_start()

    def happened_at_a_start(self, reasons: str = "", **more: Any) -> Happening:
        return happened(reasons, **more)

    @act
    def server_is_away(self) -> Happening | None:
        self.before_it_stops()
        self.server.stop()
        self.is_away = True

        def undo() -> None:
            if self.is_away:
                self.is_away = False
                self.server.start()

        self.closing.callback(undo)
        done = self.happened_at_a_start("DATABASE_AWAY", undo=undo)
        done.passing = True
        return done

    @act
    def database_is_read_only(self) -> Happening | None:
        undo = "ALTER DATABASE postgres RESET default_transaction_read_only"
        self.run("ALTER DATABASE postgres SET default_transaction_read_only = on")

        def reset() -> None:
            self.server.run("SET default_transaction_read_only = off", undo)

        self.closing.callback(reset)
        self.is_away = True  # nobody can write there

        def back() -> None:
            self.is_away = False
            reset()

        return happened("DATABASE_REFUSES READ_ONLY UNAVAILABLE", back, passing=True)
