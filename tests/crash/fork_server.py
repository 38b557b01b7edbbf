"""A process that has everything imported and forks a child per request, as Airflow's workers do.

Requests and answers are JSON lines. {"do": …} forks a child that runs `children.perform` and answers with its
pid at once; {"wait": pid} answers when the child has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from tidegate.gates.expectations.library import warm

WARM = ("pyspark.sql.connect.session", "deltalake", "pyarrow.parquet", "pyarrow.dataset", "tests.crash.children")


def main() -> None:
    for name in WARM:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
        else:
            if request["gated"]:
                warm()  # takes seconds: only for those that need it, and then once
            print(json.dumps({"pid": fork(request)}), flush=True)


def fork(request: dict[str, object]) -> int:
    """A child that does what is asked, says nothing on stdout, and ends without Python's clean-up."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        from tests.crash.children import perform

        Path(str(request["result"])).write_text(json.dumps(perform(request)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
