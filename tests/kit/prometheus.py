"""Reads what a Prometheus server would scrape."""

from __future__ import annotations

import re

SAMPLE = re.compile(r'tidegate_(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (-?[0-9]+(?:\.[0-9]+)?)')


LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')


def parsed(text):
    """Prometheus' text format, read strictly: {(name, labels): value}."""
    found, helped, typed = {}, [], []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line.split()[3] == "gauge"
            typed.append(line.split()[2])
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert typed[-1] == f"tidegate_{name}", "all samples of a metric are together, behind its type"
            told = {
                key: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)
                for key, text in LABEL.findall(labels)
            }
            key = name, tuple(sorted(told.items()))
            assert key not in found
            found[key] = float(value)
    assert helped == typed
    assert len(set(typed)) == len(typed)
    assert text == "" or text.endswith("\n")
    return found
