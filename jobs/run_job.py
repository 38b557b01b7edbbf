"""The program that spark-submit runs with `spark.mode = "submit"`: one job of one checkpoint, as its own application.

Airflow's job task starts it with its arguments. A project without this file gets one that does the same; write your own
only to set something up in Spark's driver first.
"""

from tidegate.execution.submitted import main

if __name__ == "__main__":
    main()
