"""The verifier: is every record, version, hash and file of a pipeline what was written?

    verifier.py    everything about one pipeline, in the one order in which it may be looked at: `tidegate doctor`
    checkpoint.py  one checkpoint, as going back to it would need it: `tidegate savepoint verify`
    recovery.py    what the next run rests on: `tidegate recover`

Commands render what these return, and check nothing themselves. Only `doctor --repair` removes anything, and only here.
"""
