#!/bin/sh
# Finds a Python 3.11 and runs setup.py with it. PYTHON=/path/to/python chooses one.
is_right() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

for python in ${PYTHON:+"$PYTHON"} python3.11 python3 python; do
    if is_right "$python"; then
        exec "$python" "$(dirname "$0")/setup.py" "$@"
    fi
done

found=$("${PYTHON:-python3}" --version 2>&1 | head -n 1)
cat >&2 <<END
setup: No Python 3.11 on this machine (${PYTHON:-python3} is: ${found:-not there}).
  Expected: Python 3.11 on PATH as python3.11, or named by PYTHON=/path/to/python3.11
  Help: Debian, Ubuntu: sudo apt-get install python3.11 python3.11-venv · macOS: brew install python@3.11 · then \`make setup\` again.
END
exit 3
