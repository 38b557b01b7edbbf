#!/usr/bin/env bash
# Run pytest with a temporary folder in memory, if there is room for it: tests write and sync thousands of small files,
# and wait for the disk most of their time otherwise. The folder is removed when all tests passed.
# usage: tools/with_test_folder.sh COMMAND...
set -uo pipefail

needed_kib=$((8 * 1024 * 1024))
parent=${TMPDIR:-/tmp}
free_kib=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)
memory_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)
if [ "${free_kib:-0}" -ge "$needed_kib" ] && [ "${memory_kib:-0}" -ge $((2 * needed_kib)) ] && [ -w /dev/shm ]; then
  parent=/dev/shm
fi

folder=$(mktemp -d "$parent/tidegate-tests-XXXXXX") || exit 1
"$@" --basetemp="$folder/tests"
code=$?
if [ "$code" = 0 ]; then rm -rf "$folder"; else echo "What the tests wrote is in $folder" >&2; fi
exit "$code"
