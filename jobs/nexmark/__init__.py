"""The 23 queries of Nexmark, which streaming engines are compared by. Each is a function of at most twelve
lines; `query.py` makes a pipeline of it, and a few share a helper.

    python -m jobs.nexmark.generator                              1 M events, cut in 10, in data/landing
    tidegate run jobs.nexmark.totals:q17 --until-idle             a checkpoint for each of the ten cuts
    tidegate read nexmark-q17 q17

`rows` has those that look at each row for itself, `windows` those of event time, `totals` those that keep something of
each key, `pairs` those that join. `make nexmark` compares all with DuckDB, with and without kills.
"""
