"""Runs SQL on a Flink cluster, in the Python that has PyFlink: a line of JSON in, a line of JSON out.

{"config": {…}, "statements": ["CREATE TABLE …", …, "INSERT INTO …"]}   starts a job
{"began": 1767225600.1, "job": "…"}   or {"error": "…"}
"""

import json
import os
import sys
import time


def main():
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Java prints is no answer
    Configuration()  # starts its Java
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            config = Configuration()
            for key, value in asked["config"].items():
                config.set_string(key, value)
            settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(config).build()
            environment = TableEnvironment.create(settings)
            *declarations, insert = asked["statements"]
            for statement in declarations:
                environment.execute_sql(statement)
            began = time.time()
            job = environment.execute_sql(insert).get_job_client().get_job_id()
            answer = {"began": began, "job": str(job)}
        except Exception as error:
            answer = {"error": str(error)[:4000]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
