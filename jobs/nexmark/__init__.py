"""The 23 queries of Nexmark, a benchmark of streaming engines. Each is a function of at most twelve lines, which
`query.py` turns into a pipeline. A few share a helper.

    python -m jobs.nexmark.generator                              1 M events, cut in 10, in data/landing
    tidegate run jobs.nexmark.totals:q17 --until-idle             a checkpoint for each of the ten cuts
    tidegate read nexmark-q17 q17

`rows` has the stateless queries, `windows` those over event time, `totals` those with state per key, `pairs` those that
join. `make nexmark` compares all results with DuckDB's, with and without kills.
"""
