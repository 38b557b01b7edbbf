"""Airflow's processes: who is whose child. Only those that this test has started are ever touched."""

from __future__ import annotations

from pathlib import Path


def parent(pid: int) -> int | None:
    """None: it has gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields and fields[0] not in "ZX" else None


def alive(pid: int) -> bool:
    return parent(pid) is not None


def children(of: int) -> list[int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if parent(pid) == of]


def _stat(pid: int) -> list[str]:
    """state, ppid, pgrp, session …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
