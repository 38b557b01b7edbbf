"""Provenance: which input records, corrections and states led to a row of a table.

question.py     the row in question, and the checkpoint since which the table has it
lineage.py      which source columns a row's columns come from, as a first guess at its records
records.py      the records of recorded ranges, with the places where the input has them
replays.py      replays recorded checkpoints with some of their records, in a folder that is thrown away
minimal.py      the smallest choice that is enough, by leaving things out
explanation.py  all of it, as the answer of `tidegate why`
words.py        the answer for people
"""
