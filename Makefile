# Everything a person or CI does with this repository. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv/bin/python
UV := .venv/share/uv/bin/uv

# What `make` lists; proofs and benchmarks are targets of their own, listed by `make prove` and `make bench NAME=list`.
.PHONY: help setup demo up down test test-all test-gcs test-s3 prove bench record lint types lock lock-jars clean ci

# NAME of a proof and its target; the targets have variables of their own.
PROOFS := ring upgrade complete decoder fuzz fuzz-java kill-shipper kill-batch kill interleavings pressure bootstrap orders airflow engines
TARGET_OF_decoder := test-decoder
TARGET_OF_bootstrap := bootstrap-proof
TARGET_OF_airflow := test-airflow
BENCHES := judge decode whole batch state growth plan refused page paint upload freshness schedule publish archive commits nodes
.PHONY: $(foreach name,$(PROOFS),$(or $(TARGET_OF_$(name)),$(name))) $(addprefix bench-,$(BENCHES))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## install what is needed into .venv and jars, compile the kernel; a moment if all is there
	@tools/setup.sh

demo: setup ## recorded segments of three nodes become Kafka events and Iceberg rows; ends by itself; MASTER=standalone: on a cluster, all in S3
	@$(if $(filter standalone,$(MASTER)),$(PYTHON) -m tools.s3_server)
	@$(PYTHON) -m tools.demo $(if $(MASTER),--master $(MASTER))

up: setup ## the same as demo, and leave Kafka and Airflow running
	@$(PYTHON) -m tools.demo up

down: ## stop what `make up` left running
	@$(PYTHON) -m tools.demo down

test: setup ## the quick suite: every main path once on real parts, in about ten minutes
	@$(PYTHON) -m tools.tests $(ARGS)

test-all: setup ## all tests that need nothing but set-up; REST=1 only those that `make test` leaves out
	@$(PYTHON) -m tools.tests $(if $(REST),--rest,--all) $(ARGS)

test-gcs: setup ## tests against a GCS test server; needs Go, fetches it if there is none
	@$(PYTHON) -m tools.gcs_server
	@$(PYTHON) -m tools.environment gsutil
	@$(PYTHON) -m pytest -m gcs $(ARGS)

test-s3: setup ## tests against an S3 test server; needs Go, fetches it if there is none
	@$(PYTHON) -m tools.s3_server
	@$(PYTHON) -m pytest -m s3 $(ARGS)

prove: ## run the proof NAME=ring, kill-batch, …, with its variables (SEED=7 OPS=2000); without a NAME list them
	@case " $(PROOFS) " in \
	    *" $(or $(NAME),none) "*) $(MAKE) $(or $(TARGET_OF_$(NAME)),$(NAME)) ;; \
	    *) $(call list,prove,$(foreach name,$(PROOFS),$(name)=$(or $(TARGET_OF_$(name)),$(name)))) ;; \
	esac

bench: ## all figures with a goal, in an hour, into build/bench.html; a single benchmark by NAME=decode, …; their names: NAME=list
	@case " $(BENCHES) " in \
	    *" $(or $(NAME),judge) "*) $(MAKE) bench-$(or $(NAME),judge) ;; \
	    *) $(call list,bench,$(foreach name,$(BENCHES),$(name)=bench-$(name))) ;; \
	esac

# $(call list,command,name=target …): each with its line of help. Exit code 2 for a name that is none, but for `list`.
define list
for pair in $(2); do \
    awk -F ':.*#: ' -v name="$${pair%%=*}" -v target="$${pair#*=}" \
        '$$1 == target {printf "  make $(1) NAME=%-13s %s\n", name, $$2}' $(firstword $(MAKEFILE_LIST)); \
done; \
$(if $(filter-out list,$(NAME)),echo "make $(1): there is no $(NAME)" >&2; exit 2)
endef

# --- proofs ---------------------------------------------------------------------------------------------------------

test-airflow: setup #: a live node, Airflow on its schedule, a session, and a person at a browser; needs Chromium, fetches it if there is none; some minutes
	@$(PYTHON) -m tools.chromium
	@$(PYTHON) -m pytest -m "browser or airflow and thorough" $(ARGS)

test-decoder: setup #: boot Cassandra 4.0, 4.1, 5.0 and 6.0, or VERSION=6.0, with every codec, read what they log as their own readers do; some minutes
	@$(PYTHON) -m proof.decoder.compare $(if $(VERSION),--version $(VERSION)) $(ARGS)

fuzz: setup #: damage segments in CASES=1000000 ways by SEED=1 and see that nothing false passes as good
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=var/fuzz/numba $(PYTHON) -m proof.fuzz --cases $(or $(CASES),1000000) --seed $(or $(SEED),1) $(ARGS)

fuzz-java: setup #: CASES=5000 damaged segments by SEED=1, read by Cassandra's own reader too: it delivers nothing else
	@$(PYTHON) -m proof.fuzz.against_java --cases $(or $(CASES),5000) --seed $(or $(SEED),1) $(ARGS)

kill-shipper: setup #: a shipper beside a writing node, killed KILLS=200 times by SEED=1: nothing lost or doubled; SABOTAGE=rule or all shows that it would
	@$(PYTHON) -m proof.kill_shipper --seed $(or $(SEED),1) --kills $(or $(KILLS),200) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

pressure: setup #: a node of VERSION=5.0.6 with little room for CDC, under load, and its store away for two minutes: nothing rejected, nothing lost
	@$(PYTHON) -m tools.s3_server
	@$(PYTHON) -m proof.pressure $(if $(VERSION),--version $(VERSION)) $(ARGS)

kill-batch: setup #: ingest and publish killed KILLS=100 times by SEED=1, Kafka away now and then: each event once; MODE=session by sessions of cdc_stream; STORE=s3 on an S3 server; ARGS=--switch to partition keys half-way; SABOTAGE=rule or all shows that it would
	@$(if $(filter s3,$(STORE)),$(PYTHON) -m tools.s3_server)
	@$(PYTHON) -m proof.kill_batch --seed $(or $(SEED),1) --kills $(or $(KILLS),100) $(if $(MODE),--mode $(MODE)) $(if $(STORE),--store $(STORE)) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

kill: #: as kill-batch; with MASTER=standalone, executors, machines and drivers of a cluster with nothing in common but S3 are killed KILLS=6 times by SEED=1
	@$(MAKE) $(if $(filter standalone,$(MASTER)),kill-cluster,kill-batch)

.PHONY: kill-cluster
kill-cluster: setup
	@$(PYTHON) -m tools.s3_server
	@$(PYTHON) -m proof.kill_cluster --seed $(or $(SEED),1) --kills $(or $(KILLS),6) $(ARGS)

interleavings: setup #: planner, archiver, ingest, publisher, rebuild and sessions as two or three drivers, SCHEDULES=10000 orders of their requests by SEED=1, who stalls and who is killed; SABOTAGE=rule or all leaves a fence out: some order has to notice
	@$(PYTHON) -m proof.interleavings --seed $(or $(SEED),1) --schedules $(or $(SCHEDULES),10000) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

ring: setup #: OPS=2000 by SEED=1 on a real ring, of VERSION=5.0.6, under chaos: tables and events equal it; DATACENTERS=2: two nodes in each, of which SHIPPING=1 or both ship; STORE=s3: bucket, state and tables on an S3 server; SABOTAGE=rule or all breaks the product, and shows
	@$(if $(filter s3,$(STORE)),$(PYTHON) -m tools.s3_server)
	@$(PYTHON) -m proof.ring --seed $(or $(SEED),1) $(if $(VERSION),--version $(VERSION)) $(if $(OPS),--ops $(OPS)) $(if $(DATACENTERS),--datacenters $(DATACENTERS)) $(if $(SHIPPING),--shipping $(SHIPPING)) $(if $(STORE),--store $(STORE)) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

upgrade: setup #: the same while each node is upgraded from VERSION=5.0 to TO=6.0, one after the other, in the middle of the run
	@$(if $(filter s3,$(STORE)),$(PYTHON) -m tools.s3_server)
	@$(PYTHON) -m proof.ring --seed $(or $(SEED),1) --version $(or $(VERSION),5.0) --upgrade-to $(or $(TO),6.0) $(if $(OPS),--ops $(OPS)) $(if $(STORE),--store $(STORE)) $(ARGS)

complete: setup #: every T said on a ring with a quiet, a dead and a joining node holds: no write before it is missing; DATACENTERS=2 and SHIPPING=1 as for ring; SABOTAGE=rule or all
	@$(PYTHON) -m proof.complete $(if $(DATACENTERS),--datacenters $(DATACENTERS)) $(if $(SHIPPING),--shipping $(SHIPPING)) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

bootstrap-proof: setup #: read tables of ROWS=3000 rows from a real ring of VERSION=5.0.6 while it is written to and its log is ingested; readers and sessions killed KILLS=20 times by SEED=1; tables and topics equal it; SABOTAGE=pinned-state shows that it would
	@$(PYTHON) -m proof.bootstrap --seed $(or $(SEED),1) --kills $(or $(KILLS),20) --rows $(or $(ROWS),3000) $(if $(VERSION),--version $(VERSION)) $(if $(SABOTAGE),--sabotage $(SABOTAGE)) $(ARGS)

orders: setup #: the recorded segments in ORDERS=20 random orders from SEED=1 on, in batches of any size, some again: the same tables and folded feeds
	@$(PYTHON) -m proof.orders --orders $(or $(ORDERS),20) --seed $(or $(SEED),1) $(ARGS)

engines: setup #: DuckDB, ClickHouse, Trino, polars and pyiceberg read current rows, delete files and changes as Spark does
	@$(PYTHON) -m tools.environment engines
	@$(PYTHON) -m pytest -m engines $(ARGS)

# --- benchmarks -----------------------------------------------------------------------------------------------------

bench-judge: setup #: what `make bench` runs: every figure that a goal is set for, and peers beside it; ARGS="--quick" to try it, ARGS="--only whole decode" for parts
	@$(PYTHON) -m benchmarks.judge $(ARGS)

bench-decode: setup #: segments to Arrow cells against Cassandra's own reader; boots a node for the segments the first time
	@$(PYTHON) -m benchmarks.decode $(ARGS)

bench-batch: setup #: three replicas' segments through a batch without sinks: MB/s a core, and where the time goes
	@$(PYTHON) -m benchmarks.batch $(ARGS)

bench-whole: setup #: the whole path, from three replicas' segments to tables, state and Kafka: MB/s a core, cold start, small batches; SCALING=1: on one core too; MASTER=standalone: on a cluster of two workers
	@$(if $(filter standalone,$(MASTER)),$(PYTHON) -m tools.s3_server)
	@$(PYTHON) -m benchmarks.whole $(if $(filter standalone,$(MASTER)),--workers 2) $(if $(SCALING),--scaling) $(ARGS)

bench-state: setup #: look up and write 100,000 keys in state shards of 1 and 10 million rows; needs 5 GB of disk the first time
	@$(PYTHON) -m benchmarks.state $(ARGS)

bench-growth: setup #: how a batch's cost grows with the table's size, tables, columns, row size, deletes, …, as curves in build/growth.html; needs 10 GB of disk
	@$(PYTHON) -m benchmarks.curves $(ARGS)

bench-plan: setup #: the planner before a million objects: time, memory, requests; and a ring of 1,000 nodes on paper
	@$(PYTHON) -m benchmarks.plan $(ARGS)

bench-refused: setup #: a batch with a million frames that cannot be used (ARGS="--table captured": of a known table): seconds, bytes of the seal; fails above 60 s or 1 MB
	@$(PYTHON) -m benchmarks.refused $(ARGS)

bench-page: setup #: the page over 100,000 ledger entries: how long each view takes, the first time and again
	@$(PYTHON) -m benchmarks.page $(ARGS)

bench-paint: setup #: the same in a browser, within a running Airflow: from asking for a view to its first paint; needs Chromium
	@$(PYTHON) -m tools.chromium
	@$(PYTHON) -m benchmarks.paint $(ARGS)

bench-upload: setup #: segments sent by the shipper's stores and by these stores' own libraries: MB/s side by side
	@$(PYTHON) -m tools.gcs_server
	@$(PYTHON) -m tools.s3_server
	@$(PYTHON) -m benchmarks.upload $(ARGS)

bench-freshness: setup #: from a write on a real node to the object that holds it: p50 and p95, with the tail and without; some minutes
	@$(PYTHON) -m benchmarks.freshness $(ARGS)

bench-schedule: setup #: Airflow at its default schedule: from a write in CQL to Kafka, p50 and p95, and what a run with nothing to do costs; 20 min
	@$(PYTHON) -m benchmarks.schedule $(ARGS)

bench-publish: setup #: events a second to Kafka, by our publishers and by Spark's own Kafka sink, side by side
	@$(PYTHON) -m benchmarks.publish $(ARGS)

bench-commits: setup #: many small commits to a changes and a current table: files, manifests, snapshots, and what commits and readers cost
	@$(PYTHON) -m benchmarks.commits $(ARGS)

bench-archive: setup #: what packing the archive saves and costs, by level of Zstandard, on a real node's segments
	@$(PYTHON) -m benchmarks.archive $(ARGS)

bench-nodes: setup #: planner, archiver, ledger and page of 1,000 nodes (ARGS="--nodes 100 300 1000" for a curve) over a simulated store: requests, seconds, money; and a million segments of backlog; some minutes
	@$(PYTHON) -m benchmarks.nodes $(ARGS)

# --- development ----------------------------------------------------------------------------------------------------

record: setup ## boot a three-node Cassandra ring, run the workload, write the recording anew
	@$(PYTHON) -m proof.recording.record

lint: setup ## ruff: rules and format
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

types: setup ## mypy, strict
	@$(PYTHON) -m mypy

lock: ## write requirements.txt, requirements-ship.txt, tools/{bootstrap,gsutil,engines}.txt; UPGRADE=1 moves to newer versions
	@$(UV) pip compile -q pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) -o requirements.txt
	@$(UV) pip compile -q pyproject.toml docker/shipper/build.in --extra ship --extra s3 --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --constraint requirements.txt --custom-compile-command "make lock" -o requirements-ship.txt
	@$(UV) pip compile -q tools/bootstrap.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --custom-compile-command "make lock" -o tools/bootstrap.txt
	@for name in gsutil engines; do \
	    $(UV) pip compile -q tools/$$name.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	        --custom-compile-command "make lock" -o tools/$$name.txt; \
	done

lock-jars: ## write jars.lock from tools/jars.py
	@$(PYTHON) -m tools.jars lock

clean: ## stop everything, remove what demo and tests made; .venv and jars stay
	@if [ -x $(PYTHON) ]; then $(PYTHON) -m tools.demo down; fi
	@rm -rf var .pytest_cache .mypy_cache .ruff_cache .hypothesis

ci: ## what CI runs
	@.ci/run
