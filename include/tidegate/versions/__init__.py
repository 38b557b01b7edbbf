"""What differs between the versions that tidegate runs with: a small module for each of Python, Spark and Airflow.

All other code is written for the newest of them, and imports from here what an older one calls otherwise or lacks.
`ranges.py` says which versions these are.
"""
