"""`tidegate config`: the effective settings and where each came from."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate.cli.output import Output
from tidegate.cli.targets import load_pipeline
from tidegate.config import KEYS, load_settings

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    keys = "\n".join(f"  {key.name}: {key.expected}\n      {key.description}" for key in KEYS.values())
    parser = subparsers.add_parser(
        "config",
        help="the effective settings and where each came from",
        description="Show the effective settings and where each came from: a default, tidegate.toml, a TIDEGATE_* "
        "variable, the pipeline's code, or -D. Secrets are masked.",
        epilog="examples:\n  tidegate config\n  tidegate config jobs.orders:pipeline -D timeout='5 min'\n\n"
        f"keys:\n{keys}",
    )
    parser.add_argument(
        "pipeline", nargs="?", metavar="MODULE:pipeline", help="include the settings of this pipeline's code"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    code = load_pipeline(args.pipeline).settings if args.pipeline else None
    settings = load_settings(args.settings, code)
    rows = settings.display_rows()
    out.document(
        {
            "project": str(settings.project),
            "settings": {row.key: {"value": row.value, "origin": row.origin} for row in rows},
        }
    )
    out.line(f"Project folder: {settings.project}")
    out.table(["setting", "value", "from"], [[row.key, row.value or "–", row.origin] for row in rows])
    return 0
