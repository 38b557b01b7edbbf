# syntax=docker/dockerfile:1
# tidegate with its pipelines, Airflow, Spark and Delta, as one image: `docker build -t tidegate .`

# To be built on exactly what it was built on before, name it by its digest: --build-arg PYTHON=python@sha256:…
ARG PYTHON=python:3.11-slim-bookworm
FROM ${PYTHON} AS base
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

# The same set-up as on a developer's machine, from only the files that it needs: a code change installs nothing.
FROM base AS build
WORKDIR /opt/tidegate
ENV UV_NO_DEV=1 UV_NO_GROUP=docs UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy
COPY LICENSE README.md pyproject.toml uv.lock ./
COPY tools tools
COPY include/tidegate/spark/jars.toml include/tidegate/spark/jars-s3.toml include/tidegate/spark/fetching.py include/tidegate/spark/
# S3=1: also the jars for s3://.
ARG S3=
RUN S3=$S3 tools/setup.sh && rm -rf .cache/uv .cache/setup.lock

FROM base
RUN useradd --create-home --uid 1000 tidegate \
    && install --directory --owner tidegate --mode 700 /var/lib/tidegate
WORKDIR /opt/tidegate
COPY --from=build /opt/tidegate ./
COPY include include
COPY jobs jobs
COPY dags dags
COPY plugins plugins
ENV PATH=/opt/tidegate/.venv/bin:$PATH \
    PYSPARK_PYTHON=/opt/tidegate/.venv/bin/python \
    PYTHONPATH=/opt/tidegate \
    PYTHONUNBUFFERED=1 \
    TZ=UTC \
    TIDEGATE_ROOT=/var/lib/tidegate/ledger \
    TIDEGATE_DATA=/var/lib/tidegate/data \
    XDG_STATE_HOME=/var/lib/tidegate/state \
    AIRFLOW_HOME=/var/lib/tidegate/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/tidegate/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/tidegate/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False
# The code is root's and read-only; records, tables, the folder of Spark's server, logs and Airflow's files go to the
# volume, which only the user can read.
USER 1000
VOLUME /var/lib/tidegate
ENTRYPOINT ["/bin/sh", "-c", "umask 077 && exec \"$@\"", "tidegate"]
CMD ["tidegate", "--help"]
