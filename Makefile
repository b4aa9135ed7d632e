# Every target sets up what it needs in .venv (benchmarks in .venv-bench). The one thing beside them: where it may, the
# set-up of the tests installs Debian's Chromium, which opens a report as its readers do.

PYTHON ?= python3.11
VENV ?= .venv
BENCH_VENV ?= .venv-bench
# What is compiled when the project is installed.
COMPILED = $(wildcard hatch_build.py src/gem_ood/gaussians/native/*.[ch])
INSTALL = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

# One BLAS thread a worker: several with two threads each would fight for two cores. Three of them, as tests of commands,
# clusters and browsers mostly wait.
TEST_ENV = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
WORKERS ?= 3

.PHONY: demo test lint docs bench bench-record bench-quick figures screenshots tables golden peers clean

demo: $(VENV)/.demo
	@mkdir -p build
	@$(VENV)/bin/gem-ood demo --out build/demo.safetensors --report build/demo.html

test: $(VENV)/.test
	$(TEST_ENV) $(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --quiet

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Without --quiet, which drops warnings before --strict can count them.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --site-dir build/site

# Everything, beside the peers, in an environment of their own.
bench: $(BENCH_VENV)/.ready
	@mkdir -p build
	$(BENCH_VENV)/bin/python benchmarks/run.py --json build/benchmark.json --markdown build/benchmark.md \
		--chart build/benchmark.svg $(BENCH_FLAGS)

# The same, kept: the pages of the comparison and their chart are written from it.
bench-record: bench
	$(BENCH_VENV)/bin/python benchmarks/page.py build/benchmark.json
	cp build/benchmark.json benchmarks/recorded.json

# Without peers and in a few minutes, beside the recorded run.
bench-quick: $(VENV)/.demo
	$(VENV)/bin/python benchmarks/run.py --quick --compare benchmarks/recorded.json

figures: $(VENV)/.test
	$(VENV)/bin/gem-ood figures --out build/figures
	cp build/figures/in-and-out.svg build/figures/scores-in-one-dimension.svg build/figures/simulations.svg docs/images
	$(VENV)/bin/python docs/figures.py docs/images

# The pictures of the report in the documentation. Those of an earlier run go first: without a browser the tests skip.
screenshots: $(VENV)/.test
	rm -f build/screenshots/report.png build/screenshots/report-scores.png
	$(VENV)/bin/python -m pytest --quiet tests/reports/test_report_in_browser.py
	@test -f build/screenshots/report.png && test -f build/screenshots/report-scores.png || \
		{ echo "no pictures were taken: Chromium is not there, or playwright is not"; exit 1; }
	cp build/screenshots/report.png build/screenshots/report-scores.png docs/images

# The recorded tables of docs/reproduce-the-paper.md, where the real data is there.
tables: $(VENV)/.test
	$(VENV)/bin/python tests/test_recorded_tables.py

golden: $(VENV)/.test
	$(VENV)/bin/python tests/golden/make.py
	$(VENV)/bin/python tests/golden/make_guards.py

# The scores of other libraries that tests/peers compares with.
peers: $(BENCH_VENV)/.ready
	$(BENCH_VENV)/bin/python tests/peers/make_expected.py

clean:
	rm -rf $(VENV) $(BENCH_VENV) build

$(VENV)/.demo: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) --editable ".[data,report]"
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(INSTALL) --editable ".[data,report,torch,onnx,ray]" --group test
	@sh tests/install_chromium.sh
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) --group lint
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	$(INSTALL) --group docs
	@touch $@

# The peers come without their dependencies: their pins contradict each other (benchmarks/README.md).
$(BENCH_VENV)/.ready: pyproject.toml constraints.txt $(COMPILED) benchmarks/requirements.txt benchmarks/requirements-peers.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BENCH_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable . --requirement benchmarks/requirements.txt
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-deps --requirement benchmarks/requirements-peers.txt
	@touch $@
