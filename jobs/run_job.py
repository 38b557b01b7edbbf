"""What spark-submit runs with `spark.mode = "submit"`: one job of one checkpoint, in a Spark application of its own.

Airflow's job task calls it; there is nothing to pass by hand. A project that has no such file gets one that does the
same; write it only to set something up in Spark's driver first.
"""

from tidegate.execution.submitted import main

if __name__ == "__main__":
    main()
