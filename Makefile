# tidegate: every target sets up first what it needs; `make` alone tells what there is.

.DEFAULT_GOAL := help
.PHONY: help setup run run-kafka kafka test test-fast lint docs images readability bench scale fuzz soak corrections proposals cuts lives views mutants values replay world drift matrix connectors chaos nexmark release first-minutes existing-airflow matrix-versions matrix-parts image clean
export PYTHON S3 FOLDER
# Otherwise each of the many processes that a target starts compiles all of our modules again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
WORKERS ?= 2

help: ## print this
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from uv.lock, fetch the Delta jars; nothing to do the second time. S3=1: also the jars for s3://. PYTHON=/path/to/python3.11
	@tools/setup.sh

run: setup ## Airflow with the example pipeline, fed, until Ctrl-C; again: goes on. CHECKPOINTS=3 to end after three
	@$(BIN)/tidegate up --beside "$(BIN)/python -m jobs.orders_feed --live 12" $(if $(CHECKPOINTS),--checkpoints $(CHECKPOINTS))

run-kafka: setup ## the same with rides from a Kafka broker into a PostgreSQL, both started here and gone after Ctrl-C
	@$(BIN)/python -m tools.rides_example $(if $(CHECKPOINTS),--checkpoints $(CHECKPOINTS))

kafka: setup ## a Kafka broker to play with on 127.0.0.1:9092 until Ctrl-C; its jars are fetched the first time. PORT=9093
	@$(BIN)/python -m tests.kit.kafka --port $(or $(PORT),9092)

test: setup ## run the tests. T=tests/unit/test_x.py WORKERS=2, ARGS="-k name" for pytest; ALL=1: with all cases that resemble others, or take turns from commit to commit
	@$(if $(ALL),ALL_CASES=1) tools/with_test_folder.sh $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(T) $(ARGS)

FAST := tests/unit --ignore=tests/unit/cli tests/contract tests/test_bad_inputs.py
test-fast: setup ## run the tests of single modules in under a minute: no JVM, no Airflow, no commands. T=tests/unit/cli, ARGS="-k name" for pytest
	@tools/with_test_folder.sh $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(or $(T),$(FAST)) $(ARGS)

lint: setup ## ruff, mypy and import-linter, oxfmt and oxlint for JavaScript; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/oxfmt --check "include/tidegate/ui/static/*.js"
	$(BIN)/oxlint --deny-warnings include/tidegate/ui/static

docs: setup ## make a site of docs/, in .cache/site; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

images: setup ## take the images of pages in README and docs again, from a new project under `tidegate up`; minutes. EACH=folder: every page instead, in both widths and themes
	$(BIN)/python -m tests.ui.page_images $(EACH)

readability: setup ## print how easily the code reads, beside five projects of this kind; no limits. ALL=1: every vague name, with its place
	@$(BIN)/python -m tools.readability $(if $(ALL),--all)

bench: setup ## measure against the rivals. NAME=append, all without
	$(BIN)/python -m tests.bench $(NAME)

scale: setup ## count again what docs/operations/scale.md says of requests and of large states, and write it there
	$(BIN)/python -m tests.bench.requests && $(BIN)/python -m tests.bench.large_state

fuzz: setup ## simulate crashes and races from seeds. SEEDS=20000, or SEED=7 to replay one; KIND=years, events, busy, behind, hours, aside, refused, renamed, dropped, lines (backfills beside rollbacks) or watched (the same by event) for other days
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),20000) $(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind $(KIND))

soak: setup ## many checkpoints, and what they leave on disk against the retention formula. CHECKPOINTS=1000
	$(BIN)/python -m tests.soak --checkpoints $(or $(CHECKPOINTS),1000)

corrections: setup ## half a million quarantined rows are corrected by one SQL, and killed 20 times meanwhile. ORDERS=500000, KILLS=20
	$(BIN)/python -m tests.crash.corrected_orders --orders $(or $(ORDERS),500000) --kills $(or $(KILLS),20)

proposals: setup ## proposals are killed while production makes its checkpoints: it is as if nobody had proposed. KILLS=50, SEED=0
	$(BIN)/python -m tests.spark.killed_proposals --kills $(or $(KILLS),50) --seed $(or $(SEED),0)

cuts: setup ## operators on real Spark: random graphs, events, cuts and crashes, against plain Python. SEEDS=20, SEED=7 to replay one, GRAPH=keys for one graph
	$(BIN)/python -m tests.spark.random_cuts --seeds $(or $(SEEDS),20) $(if $(SEED),--seed $(SEED)) $(if $(GRAPH),--graph $(GRAPH))

lives: setup ## random lives of a pipeline on real Spark: crashes, rollbacks, forks, names, stops, code, releases, edits, backfills. SEEDS=50, SEED=7 to replay one
	$(BIN)/python -m tests.spark.random_histories --seeds $(or $(SEEDS),50) $(if $(SEED),--seed $(SEED))

views: setup ## random lives of a pipeline; after each act every command and route is looked at, remedies are carried out on a copy. SEEDS=5, SEED=7 to replay one
	$(BIN)/python -m tests.views --seeds $(or $(SEEDS),5) $(if $(SEED),--seed $(SEED))

replay: setup ## random lives of random pipelines on real Spark, and backfills of unchanged code that must change no row. SEEDS=10, SEED=7 to replay one, MINUTES=20
	$(BIN)/python -m tests.replay --seeds $(or $(SEEDS),10) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

values: setup ## every type and its edges, as key, value, order and time of operators, from each source to each sink and its readers, against Spark over all rows at once. SEEDS=100, MINUTES=20, SEED=7 to replay one
	$(BIN)/python -m tests.values --seeds $(or $(SEEDS),100) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

drift: setup ## random days of a producer whose records change, with kills and rollbacks, against plain Python. SEEDS=20, SEED=7 to replay one, DAYS=30 KILLS=100 with PostgreSQL and Kafka, too
	$(BIN)/python -m tests.spark.drifting_days --seeds $(or $(SEEDS),20) $(if $(SEED),--seed $(SEED)) $(if $(DAYS),--days $(DAYS)) $(if $(KILLS),--kills $(KILLS))

world: setup ## random lives of a connector while its other side is changed, dropped, restored, failed over, filled. SEEDS=50, SEED=7 to replay one; KINDS="files delta" for some
	$(BIN)/python -m tests.world --seeds $(or $(SEEDS),50) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS))

mutants: setup ## one line of the product is changed at a time, and the tests that reach it must notice. MUTANTS=100 SEED=0, ONLY="7 8" to replay some, LIMIT=300 seconds for each; PLANTED=1: those that an audit made
	@$(BIN)/python -m tests.mutants --mutants $(or $(MUTANTS),100) --seed $(or $(SEED),0) $(if $(ONLY),--only $(ONLY)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(PLANTED),--planted)

matrix: setup ## four jobs, up to three checkpoints at once: a crash at every point of every run, in every mode. PART=1/10 for a part, CLUSTER=1 on a Spark cluster, BACKFILL=1 for a backfill of thirty days
	$(BIN)/python -m $(if $(BACKFILL),tests.crash.thirty_days,$(if $(CLUSTER),tests.cluster.matrix,tests.crash.matrix)) $(if $(PART),--part $(PART)) $(if $(MODES),--modes $(MODES))

connectors: setup ## sources and sinks of brokers and databases under kills, in the long form. ROUNDS=200, T=tests/connectors/test_x.py for one
	ROUNDS=$(or $(ROUNDS),200) tools/with_test_folder.sh $(BIN)/python -m pytest -q -o faulthandler_timeout=7200 $(or $(T),tests/connectors) $(ARGS)

chaos: setup ## kill and stop all of a real deployment at random, then compare its tables. MINUTES=30, SEED=7 for other faults, ONLY="'kill JVM' clear" for some, EVERY=12 for the seconds between two, COLD=1 without a spare Spark server
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) $(if $(EVERY),--every $(EVERY)) $(if $(COLD),--cold)

nexmark: setup ## all queries of Nexmark on a million events cut in ten, and again with five kills each, against DuckDB. Q="q5 q7" for some; CONTINUE=1: not those that were equal
	@$(BIN)/python -m tests.nexmark $(Q) $(if $(CONTINUE),--continue)

release: setup ## build the sdist and the wheel in dist/, and check them in an empty environment. DRAFT=1: without asking for the changelog
	@$(BIN)/python -m tools.release $(if $(DRAFT),--draft)

first-minutes: setup ## the first minutes of a user, from an empty folder to two checkpoints, with the seconds. CACHED=1: fetch nothing again; WRITE=1: into docs/quickstart.md
	@$(BIN)/python -m tools.first_minutes $(if $(CACHED),--cached) $(if $(WRITE),--write)

existing-airflow: setup ## a pipeline added to an Airflow that is there. LAYOUT=airflow|astro EXECUTOR=local|celery DATABASE=sqlite|postgres|mysql
	@$(BIN)/python -m tools.existing_airflow $(if $(LAYOUT),--layout $(LAYOUT)) $(if $(EXECUTOR),--executor $(EXECUTOR)) $(if $(DATABASE),--database $(DATABASE))

matrix-versions: setup ## a new project at the corners of the supported versions of Python, Airflow and Spark. CORNER=1 for one; WRITE=1: into docs/reference/versions.md; FOLDER=/where/to
	@$(BIN)/python -m tools.matrix_versions $(if $(CORNER),--corner $(CORNER)) $(if $(WRITE),--write)

matrix-parts: setup ## each optional part alone in an environment of its own, and what is said without it. PARTS="sql sqs" for some; FOLDER=/where/to
	@$(BIN)/python -m tools.matrix_parts $(PARTS)

image: setup ## build the image with docker or buildah, enter it as its user, and make a checkpoint there. PYTHON_IMAGE=python@sha256:…; =debootstrap: made here, where none can be pulled
	@$(BIN)/python -m tools.image $(if $(PYTHON_IMAGE),--base $(PYTHON_IMAGE))

clean: ## remove .venv, the jars and what tools left; pipelines' data stays
	rm -rf .venv .cache build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
