"""Exact counts of distinct values: `count(distinct x)` in `aggregate`.

They cost more than other aggregates. A sum has one row per key in the state. A distinct count has, besides, one per key
and *value*, because only the value itself shows whether it is new. So a batch looks up as many rows as it has different
values, and the state grows with them. Counts of one argument share these rows, also if they have conditions.

    kernel.py            finds the values of a batch that are new, in a worker
    new_values.py        runs the kernel: one query for all counts whose values have the same types
    pre_aggregation.py   removes repeated values in Spark first, while that pays off
    key_lives.py         values of keys that have expired and come back
"""
