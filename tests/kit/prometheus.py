"""Reads what a Prometheus server would scrape."""

from __future__ import annotations

import re

SAMPLE = re.compile(r'tidegate_(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (-?[0-9]+(?:\.[0-9]+)?)')


LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Prometheus' text format, read strictly: {(name, labels): value}."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    helped, typed = [], []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line.split()[3] == "gauge"
            typed.append(line.split()[2])
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            name, labels, value = sample.groups()
            assert typed[-1] == f"tidegate_{name}", "all samples of a metric are together, behind its type"
            told = {
                key: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)
                for key, text in LABEL.findall(labels)
            }
            labelled = name, tuple(sorted(told.items()))
            assert labelled not in found
            found[labelled] = float(value)
    assert helped == typed
    assert len(set(typed)) == len(typed)
    assert text == "" or text.endswith("\n")
    return found
