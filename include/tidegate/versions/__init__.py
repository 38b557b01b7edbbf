"""Differences between the supported versions of Python, Spark and Airflow, in a small module for each.

All other code is written for the newest version, and imports from here what older ones name differently or lack.
`ranges.py` has the supported versions.
"""
