# Every target sets up what it needs; `make` alone lists them.
#   PYTHON=python3.12  interpreter that creates the virtual environment    VENV=.venv312  where it lives
#   TORCH=0            leave torch out (its tests are then skipped)          SLIPRING_BUILD=debug|asan|tsan
#   TORCH_VERSION=2.14.1  another torch than the pinned one, in an environment of its own

PYTHON ?= python3
TORCH ?= 1
TORCH_VERSION ?=
VENV ?= .venv$(addprefix -torch,$(TORCH_VERSION))
SLIPRING_BUILD ?= release
export SLIPRING_BUILD
# Tests start thousands of interpreters: without compiled modules beside the sources each would compile the package.
unexport PYTHONDONTWRITEBYTECODE

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
REQUIREMENTS := $(if $(filter 0,$(TORCH)),requirements-core.txt,requirements-dev.txt)
WANTED := $(if $(TORCH_VERSION),$(VENV)/requirements.txt,$(REQUIREMENTS))

# One stamp per thing done, beside what it did: removing the environment, or build/, forgets it.
VENV_STAMP := $(VENV)/.stamp-created
DEPS_STAMP := $(VENV)/.stamp-$(REQUIREMENTS)
BENCH_STAMP := $(VENV)/.stamp-bench
BENCH_IMAGES_STAMP := $(VENV)/.stamp-bench-images
CLIENTS_STAMP := $(VENV)/.stamp-clients
RAY_STAMP := $(VENV)/.stamp-ray
DOCS_STAMP := $(VENV)/.stamp-docs
COVERAGE_STAMP := $(VENV)/.stamp-coverage
WHEEL_STAMP := build/wheel/tools/.stamp-created
BUILD_STAMPS := build/.stamp-$(subst /,_,$(VENV))
BUILD_STAMP := $(BUILD_STAMPS)-$(SLIPRING_BUILD)

CYTHON := $(foreach kind,pyx pxd,$(wildcard pkg/slipring/*/*.$(kind) pkg/slipring/*/*/*.$(kind)))
BUILD_INPUTS := setup.py $(wildcard csrc/*.[ch] csrc/*/*.[ch]) $(CYTHON)
PY_DIRS := $(wildcard pkg tests bench examples tools setup.py docs/conf.py)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help python-free-threaded venv libraries build quick lint types test test-sample test-all pytest slow test-cuda ctest
.PHONY: test-arm64 test-arm64-python .arm64-tools tsan asan tsan-pytest asan-pytest model mutants fuzz fault steps soak
.PHONY: coverage bench bench-device bench-adapters bench-queue bench-broadcast bench-clips bench-ranks bench-recipes bench-training
.PHONY: docs wheels check-wheel check-sdist release clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-17s %s\n", $$1, $$2 }'

$(VENV_STAMP):
	$(PYTHON) -m venv $(VENV)
	@echo '*' > $(VENV)/.gitignore
	@touch $@

# The .pth file puts the source tree on this environment's path: modules are imported from where they are edited.
$(DEPS_STAMP): $(VENV_STAMP) requirements-core.txt $(REQUIREMENTS)
	@echo "installing $(REQUIREMENTS) into $(VENV) (minutes the first time)"
	$(if $(TORCH_VERSION),@sed 's|^torch==.*|torch==$(TORCH_VERSION)|; s|^-r |&$(CURDIR)/|' $(REQUIREMENTS) >$(WANTED))
	@$(PIP_INSTALL) -r $(WANTED)
	@echo "$(CURDIR)/pkg" > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slipring-dev.pth"
	@touch $@

$(BENCH_STAMP): $(DEPS_STAMP) $(wildcard bench/requirements.txt)
	@$(PIP_INSTALL) -r bench/requirements.txt
	@touch $@

# Baselines of workload (f) and bench.recipes. A package that cannot be installed is a row with the reason. The packages
# of the second file want a torch of their choice: without dependencies they take the pinned one. They lie in a folder of
# their own, because clients of the tests would import a torchvision that only loads with bench/baselines/_torchvision.py.
BENCH_IMAGES := bench/requirements-images.txt bench/requirements-images-no-deps.txt
$(BENCH_IMAGES_STAMP): $(BENCH_STAMP) $(wildcard $(BENCH_IMAGES))
	@if $(PIP_INSTALL) -r $(word 1,$(BENCH_IMAGES)) && \
	    $(PIP_INSTALL) --no-deps --upgrade --target build/bench/no-deps -r $(word 2,$(BENCH_IMAGES)); then \
	    touch $@; \
	else echo "$(BENCH_IMAGES) cannot be installed: some baselines of workload (f) and recipes will be missing"; fi

$(DOCS_STAMP): $(DEPS_STAMP) requirements-docs.txt
	@$(PIP_INSTALL) -r requirements-docs.txt
	@touch $@

$(COVERAGE_STAMP): $(DEPS_STAMP) requirements-coverage.txt
	@$(PIP_INSTALL) -r requirements-coverage.txt
	@touch $@

# The training libraries whose loops tests/clients runs. Where they cannot be had, those tests are skipped. Python
# compiles a module at its first import, because tests import few of them.
$(CLIENTS_STAMP): $(DEPS_STAMP) requirements-clients.txt
	@if $(PIP_INSTALL) --no-compile -r requirements-clients.txt; then touch $@; \
	else echo "requirements-clients.txt cannot be installed: tests/clients will be skipped"; fi

# Large, and slow to start: only the slow tests have it.
$(RAY_STAMP): $(DEPS_STAMP) requirements-ray.txt
	@if $(PIP_INSTALL) --no-compile -r requirements-ray.txt; then touch $@; \
	else echo "requirements-ray.txt cannot be installed: the tests of Ray will be skipped"; fi

# With a compiler of its own, for an old glibc: neither the environment nor the compiler of `make build` is used.
$(WHEEL_STAMP): requirements-wheel.txt
	$(PYTHON) -m venv build/wheel/tools
	build/wheel/tools/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-wheel.txt
	@touch $@

# The kinds of build share the place of the finished modules, hence at most one build stamp at a time.
$(BUILD_STAMP): $(DEPS_STAMP) $(BUILD_INPUTS)
	@rm -f $(BUILD_STAMPS)-*
	$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# Debian has none to install. The tests in such a Python: make pytest TORCH=0 VENV=.venv314t PYTHON=build/pythons/...
FREE_THREADED ?= 3.14t
python-free-threaded: ## compile a free-threaded CPython in build/pythons, on Debian (minutes); FREE_THREADED=3.13t, SUITE=
	nice sh tools/debian_python.sh build/pythons/$(shell uname -m)-$(FREE_THREADED) $(shell uname -m) $(FREE_THREADED)

venv: $(DEPS_STAMP) ## create the environment and install the pinned requirements

build: $(BUILD_STAMP) ## build the extensions in place

# Each linter is a target of its own: all of them run, two at a time, and the last lines name those that failed.
LINTERS := lint-pages lint-ruff lint-format lint-c lint-cython lint-mutants $(if $(filter 0,$(TORCH)),,types-stubs \
    types-complete types-mypy types-pyright)
.PHONY: $(LINTERS)
lint: $(DEPS_STAMP) $(if $(filter 0,$(TORCH)),,build) ## pages, ruff, cython-lint, gcc's warnings as errors, mutants that apply, and the types
	@$(PY) tools/checks.py --jobs 2 $(LINTERS)

# A line has at most 120 characters, also on a page and in C. A row of a table may have more.
lint-pages:
	@! LC_ALL=C.UTF-8 grep -nE '^.{121}' *.md $$(find docs -name '*.md') $$(find csrc tests -name '*.[ch]') | grep -vE '^[^:]+:[0-9]+: *\|' || \
	    { echo "divide these lines: a line has at most 120 characters"; exit 1; }

lint-ruff: $(DEPS_STAMP)
	$(VENV)/bin/ruff check $(PY_DIRS)

lint-format: $(DEPS_STAMP)
	$(VENV)/bin/ruff format --check $(PY_DIRS)

lint-cython: $(DEPS_STAMP)
	PATH="$(abspath $(VENV))/bin:$$PATH" cython-lint --max-line-length 120 $(CYTHON)

# Find a mutant that no longer applies before `make mutants` runs.
lint-mutants:
	@for patch in tests/mutants/*.patch tests/mutants/*/*.patch; do \
	    git apply --check -C1 $$patch || { echo "$$patch does not apply any more"; failed=1; }; \
	done; exit $${failed:-0}

lint-c:
	gcc -std=gnu11 -pthread -fsyntax-only -Wall -Wextra -Werror -Icsrc $(wildcard csrc/*.c csrc/*/*.c)
	gcc -std=gnu11 -pthread -fsyntax-only -Wall -Wextra -Werror -DSR_STEPS=1 -Icsrc -Itests/steps \
	    $(wildcard csrc/*.c tests/steps/*.c)

# Public names have types that hold, and tests/typing has programs that must, and must not, agree with them. stubtest
# compares the .pyi with what they stand for, hence the build.
STUBS = $(subst /,.,$(patsubst pkg/%.pyi,%,$(wildcard $(addprefix pkg/slipring/,*.pyi */*.pyi */*/*.pyi))))
types: build ## mypy, pyright and stubtest over what is public
	@$(PY) tools/checks.py --jobs 2 types-stubs types-complete types-mypy types-pyright

types-mypy: build
	$(VENV)/bin/mypy --python-executable $(PY)

types-pyright: build
	$(VENV)/bin/basedpyright --pythonpath $(PY)

types-complete: build
	$(PY) -m tests.typing.completeness

types-stubs: build
	$(VENV)/bin/stubtest --mypy-config-file pyproject.toml --concise --ignore-disjoint-bases \
	    --allowlist tests/typing/stubtest-allowlist.txt $(STUBS)

# Before the rules that want them: what they need is looked at as they are read.
CLIENTS := $(if $(filter 0,$(TORCH)),,$(CLIENTS_STAMP))
RAY := $(if $(filter 0,$(TORCH)),,$(RAY_STAMP))
DOCS := $(if $(filter 0,$(TORCH)),,$(DOCS_STAMP))

# Installed one after another, because they share packages. The build runs concurrently: each keeps one CPU busy.
libraries: $(DEPS_STAMP)
	@for stamp in $(CLIENTS) $(RAY) $(DOCS); do $(MAKE) --no-print-directory $$stamp || exit 1; done

# To be run before each commit.
test: ## the tests in C, then pytest without what is marked slow: minutes
	@$(MAKE) --no-print-directory -j2 build $(CLIENTS)
	@$(PY) tools/checks.py ctest pytest-fast
	@echo "left out: slow tests, sanitizers, the model, mutants, fuzzing, documentation: make test-all"

# For the inner loop: what the working tree changed since the last commit, and a fixed set of smoke tests.
quick: $(DEPS_STAMP) ## lint and tests of what the working tree changed, and smoke tests; at most 90 seconds
	@JOBS=$(JOBS) $(PY) tools/quick.py

# Everything that `test` leaves out; no check runs in both.
test-all: ## all that `make test` leaves out: docs, sanitizers, model, mutants, fuzz, slow tests, clients
	@$(MAKE) --no-print-directory -j2 build libraries
	@$(PY) tools/checks.py $(if $(filter 0,$(TORCH)),,docs) tsan asan "model FULL=1" mutants fuzz slow

# The checks of test-all with smaller bounds, for .ci/run. SAMPLE_SEED selects the slow tests.
SAMPLE_SEED ?= 1
test-sample: ## the checks of test-all with smaller bounds, and one in twelve slow tests; SAMPLE_SEED=1
	@$(MAKE) --no-print-directory -j2 build libraries
	@$(PY) tools/checks.py $(if $(filter 0,$(TORCH)),,docs) tsan asan model mutants \
	    "fuzz FUZZ_SECONDS=5 FUZZ_SEED=$(SAMPLE_SEED)" "slow SAMPLE=12"

# As many tests at once as there are processors. A test forks several workers, and what a fork costs grows with the
# process: with torch and all modules of tests imported it costs four times as much. So the files that never mention
# torch run by themselves, and those that do afterwards.
# Tests that are marked `alone` run before both, one after another. tests/clients is slow as a whole.
JOBS ?= $(shell nproc)
FIND_TESTS := grep -r --include 'test_*.py' --exclude-dir clients
WITHOUT_TORCH = $(shell $(FIND_TESTS) -L torch tests)
WITH_TORCH = $(shell $(FIND_TESTS) -l torch tests)
ALONE = $(shell grep -rlwE 'mark.alone|clients.rays' tests --include 'test_*.py')
MARKS_SLOW := grep -rlE 'mark\.slow|support\.parts' tests --include
SLOW = $(shell $(MARKS_SLOW) 'test_*.py') $(dir $(shell $(MARKS_SLOW) conftest.py))
PARALLEL := -q -n $(JOBS) --dist worksteal
.PHONY: pytest-fast pytest-without-torch pytest-with-torch pytest-alone pytest-slow pytest-slow-alone
pytest-fast: build ## what `make test` runs of pytest
	@$(PY) tools/checks.py pytest-alone pytest-without-torch pytest-with-torch

pytest-without-torch: build
	$(PY) -m pytest $(PARALLEL) -m "not slow and not alone" $(WITHOUT_TORCH)

pytest-with-torch: build
	$(PY) -m pytest $(PARALLEL) -m "not slow and not alone" $(WITH_TORCH)

pytest-alone: build
	$(PY) -m pytest -q -m "not slow and alone" $(ALONE)

# One in SAMPLE of the tests of each file, at least one.
SAMPLED = $(if $(SAMPLE),--sample $(SAMPLE) --sample-seed $(SAMPLE_SEED))
slow: build $(CLIENTS) $(RAY) ## the tests that are marked slow; SAMPLE=12 for one in twelve of each file
	@$(PY) tools/checks.py pytest-slow pytest-slow-alone

pytest-slow: build
	$(PY) -m pytest $(PARALLEL) -m "slow and not alone" $(SAMPLED) $(SLOW)

pytest-slow-alone: build
	$(PY) -m pytest -q -m "slow and alone" $(SAMPLED) $(ALONE)

pytest: build ## pytest alone, all of it or what ARGS names; ARGS='tests/ring -k lease', ARGS='-n 4'
	$(PY) -m pytest $(ARGS)

KILLS ?= 10000
fault: build ## workers killed at random instants in every mode, deliveries counted; KILLS=10000, SEED=1
	$(PY) -W ignore -m tests.fault.kills --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Each access of csrc to shared bytes has a point before it, and one behind it: tests/steps.
steps: build ## deaths at every step of the ring, in every mode and way (minutes); QUICK=1, SEED=1
	$(PY) -W ignore -m tests.fault.steps $(if $(filter-out 0,$(QUICK)),--quick) $(if $(SEED),--seed $(SEED)) $(ARGS)

MINUTES ?= 20
soak: build ## loaders of all sorts in one process, which must not grow; MINUTES=20, SEED=1
	$(PY) -W ignore -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

ctest: ## the ring's tests in C
	$(MAKE) --no-print-directory -C tests/c run

# Another processor's programs under an emulator: slow, hence no part of test-all. Emulators before qemu 8 keep a
# record of every page of the addresses that a segment reserves, gigabytes of them. The model's states are more there,
# for what calls leave on the stacks, and ten times as slow: these scenarios take minutes.
ARM64_CC ?= aarch64-linux-gnu-gcc
QEMU ?= $(firstword $(wildcard $(CURDIR)/build/pythons/qemu-aarch64) qemu-aarch64)
ARM64_LIBC ?= /usr/aarch64-linux-gnu
ARM64_MODEL ?= any pressure pin early finisher queue-close incarnations records records-loader cache-grows cache-numbers
test-arm64: export QEMU_LD_PREFIX := $(ARM64_LIBC)
test-arm64: .arm64-tools ## tests in C and some of the model on arm64, under qemu-user; QEMU=qemu-aarch64, ONLY=test_participants
	$(MAKE) --no-print-directory -C tests/c run OUT=$(CURDIR)/build/arm64/c CC=$(ARM64_CC) RUNNER=$(QEMU) ONLY=$(ONLY)
	$(if $(ONLY),,$(MAKE) --no-print-directory -C tests/model run OUT=$(CURDIR)/build/arm64/model CC=$(ARM64_CC) \
	    RUNNER=$(QEMU) ARGS='$(ARM64_MODEL)')

# With an emulator and a Python of Debian's, unpacked in build/pythons, and the wheel that is built for them.
ARM64_TESTS := $(addprefix tests/,ring codec collate cache images loader queue)
test-arm64-python: export PYTHONS := $(PYTHON)
test-arm64-python: $(WHEEL_STAMP) ## some in Python, on Debian; ARGS='tests/ring -k lease'
	build/wheel/tools/bin/python -m tools.wheels build aarch64
	build/wheel/tools/bin/python -m tools.wheels test aarch64 $(or $(ARGS),$(ARM64_TESTS))

.arm64-tools:
	@for tool in "$(ARM64_CC)" "$(QEMU)"; do command -v "$$tool" >/dev/null || \
	    { echo "there is no $$tool: apt install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"; exit 1; }; done
	@"$(QEMU)" --version | awk 'NR == 1 && $$3 + 0 < 8 { print $$0 ": version 8 or later is needed"; exit 1 }'

tsan: ## the ring's tests in C under the thread sanitizer
	$(MAKE) --no-print-directory -C tests/c run-tsan

# Needs gcc and make alone. The shipped C code, every interleaving and death within the bounds of tests/model/scenarios.c.
model: ## every interleaving of a few participants, with deaths; FULL=1 takes minutes and gigabytes, SCENARIO=finisher
	$(MAKE) --no-print-directory -C tests/model run ARGS="$(if $(filter-out 0,$(FULL)),full) $(SCENARIO)"

# The test of these tests: the ring broken on purpose, patch by patch.
mutants: build ## break the ring and the loaders in known ways: each must be noticed; ONLY=rewind, ONLY=loader/
	$(PY) tests/mutants/run.py $(ONLY)

# Sanitizer builds lie beside the package, so that the release build stays. These run a program with one of them.
LIB = build/$(1)/lib-$(subst /,_,$(VENV))
UNDER_ASAN = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) $(1)" \
	    ASAN_OPTIONS=detect_leaks=0$(2) UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1$(2) PYTHONMALLOC=malloc
UNDER_TSAN = LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" \
	    TSAN_OPTIONS=die_after_fork=0:detect_deadlocks=0:report_signal_unsafe=0:suppressions=$(CURDIR)/tests/sanitizers/tsan.supp

# The codec under the sanitizers, and what it decodes mutated for FUZZ_SECONDS; what takes new edges once more.
FUZZ_SECONDS ?= 20
fuzz: $(DEPS_STAMP) ## malformed batches and images, under the address sanitizer; FUZZ_SECONDS=20, ARGS='--seed 1', ARGS=--grow
	SLIPRING_BUILD=fuzz $(PY) setup.py --quiet build --build-lib $(call LIB,fuzz)
	gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o build/fuzz/edges.so tests/fuzz/edges.c
	@$(MAKE) --no-print-directory -j2 --output-sync=target fuzz-codec fuzz-images fuzz-operations

# Each keeps one CPU busy. ARGS is for the first.
.PHONY: fuzz-codec fuzz-images fuzz-operations
fuzz-codec fuzz-images fuzz-operations: fuzz-%:
	$(call UNDER_ASAN,$(CURDIR)/build/fuzz/edges.so) PYTHONPATH=$(call LIB,fuzz) timeout $$(($(FUZZ_SECONDS) + 300)) \
	    $(PY) -m tests.fuzz.$* --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED)) \
	    $(if $(filter codec,$*),$(ARGS))

# What Python does with the C and Cython code. Without torch's loader: torch is not instrumented, and takes minutes.
# Nor tests that measure a process's memory: the sanitizer has much of its own, and keeps back what is freed. Nor the
# programs of the documents, which import this checkout's release build, if there is one; nor tests/parity/test_iteration.py:
# threads of torch's loader end while a worker is forked, and a lock of the sanitizer's allocator stays closed in that.
# Reports go to files, because pytest would swallow them: they are shown at the end, and one is a failure.
SHOW_REPORTS = status=$$?; ! cat build/$(1)/report.* 2>/dev/null && exit $$status
ASAN_TESTS := $(addprefix tests/,ring codec collate cache loader queue arrow state torch project) \
	--ignore tests/codec/test_leaks.py --ignore tests/loader/test_memory.py --ignore tests/project/test_docs.py \
	--deselect tests/arrow/test_strings.py::test_reading_all_strings_in_a_worker_costs_no_memory_per_string
asan-pytest: $(DEPS_STAMP) ## the tests in Python under the address sanitizer (minutes); ARGS='tests/ring -k lease'
	SLIPRING_BUILD=asan $(PY) setup.py --quiet build --build-lib $(call LIB,asan)
	@rm -f build/asan/report.*
	$(call UNDER_ASAN,,:log_path=$(CURDIR)/build/asan/report) PYTHONPATH=$(call LIB,asan) \
	    $(PY) -m pytest -p no:cacheprovider $(or $(ARGS),$(ASAN_TESTS)); $(call SHOW_REPORTS,asan)

# Thread workers: both sides of the ring in one process, so that every order is seen. This sanitizer cannot follow
# threads that start in the fork of a process with threads.
TSAN_TESTS := $(addprefix tests/,ring codec collate cache loader queue torch) tests/fault/test_respawn.py -k "thread and not forked_child"
tsan-pytest: $(DEPS_STAMP) ## thread workers under the thread sanitizer (minutes); ARGS='tests/ring -k lease'
	SLIPRING_BUILD=tsan $(PY) setup.py --quiet build --build-lib $(call LIB,tsan)
	@rm -f build/tsan/report.*
	$(UNDER_TSAN):log_path=$(CURDIR)/build/tsan/report PYTHONPATH=$(call LIB,tsan) setarch -R \
	    $(PY) -m pytest -p no:cacheprovider $(or $(ARGS),$(TSAN_TESTS)); $(call SHOW_REPORTS,tsan)

# gcov counts the lines of csrc, in the C tests and in a build beside the package, and coverage.py those of the Python
# modules. Failed tests do not end it: their reports say what is missing from the figures. One test is left out, because
# its signal handler may raise an exception while coverage.py holds its lock, which then nobody releases.
COVERED := $(CURDIR)/build/coverage
COUNTED := -O1 --coverage -fprofile-filter-files=csrc/ -Wl,$(COVERED)/counters.o
COUNTING := LD_PRELOAD=$(COVERED)/exit.so
coverage: export COVERAGE_ROOT := $(CURDIR)
coverage: build $(CLIENTS) $(COVERAGE_STAMP) ## the lines of C and Python that `make test` reaches (half an hour); JOBS=2
	@rm -rf $(COVERED)/python && mkdir -p $(COVERED)/python && find $(COVERED) -name '*.gcda' -delete
	SLIPRING_BUILD=coverage $(PY) setup.py --quiet build --build-lib $(call LIB,coverage)
	gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o $(COVERED)/exit.so tools/line_coverage/exit.c
	gcc -O2 -Wall -Wextra -Werror -fPIC -c -o $(COVERED)/counters.o tools/line_coverage/counters.c
	-$(COUNTING) $(MAKE) --no-print-directory -C tests/c run OUT=$(COVERED)/c VARIANT_plain='$(COUNTED)'
	-$(COUNTING) COVERAGE_PROCESS_START=$(CURDIR)/tools/line_coverage/coverage.ini PYTHONPATH=$(CURDIR)/$(call LIB,coverage) \
	    $(MAKE) --no-print-directory pytest-fast
	$(PY) -m tools.line_coverage

asan: ## the ring's tests in C under the address and undefined behaviour sanitizers
	$(MAKE) --no-print-directory -C tests/c run-asan

bench: build $(BENCH_IMAGES_STAMP) ## the benchmarks; QUICK=1, DATA=/path/to/images, ARGS='...'
	$(PY) -m bench $(if $(filter-out 0,$(QUICK)),--quick) $(if $(DATA),--data "$(DATA)") $(ARGS)
	$(if $(ARGS),,$(PY) -m bench.recipes --only mixed --only ssd --rounds $(if $(filter-out 0,$(QUICK)),1 --seconds 3,3))

bench-queue: build $(BENCH_STAMP) ## slipring.Queue and other queues; ARGS='--rounds 9 arrays'
	$(PY) -m bench.queue $(ARGS)

bench-broadcast: build $(BENCH_STAMP) ## slipring.Broadcast and other ways to several readers; ARGS='--rounds 9'
	$(PY) -m bench.broadcast $(ARGS)

bench-clips: build $(BENCH_STAMP) ## clips of videos; QUICK=1, ARGS='--rounds 5'
	$(PY) -m bench.clips $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

bench-ranks: build $(BENCH_STAMP) ## ranks that need the same batches, and one pool of workers; ARGS='--ranks 2 8'
	$(PY) -m bench.ranks $(ARGS)
	$(if $(ARGS),,$(PY) -m bench.pool)

bench-recipes: build $(BENCH_IMAGES_STAMP) ## whole training recipes, by CPU time; ARGS='--only trivial --rounds 5'
	$(PY) -m bench.recipes $(if $(DATA),--data "$(DATA)") $(ARGS)

bench-training: build $(BENCH_IMAGES_STAMP) ## what a training gains: images/s, waiting, cores; QUICK=1, ARGS='--rounds 5'
	$(PY) -m bench.training $(if $(filter-out 0,$(QUICK)),--quick) $(if $(DATA),--data "$(DATA)") $(ARGS)

bench-device: build $(BENCH_STAMP) ## onto a device: copies, waiting, preload's cost; ARGS='--workers 8'
	$(PY) -m bench.device $(ARGS)

bench-adapters: build $(BENCH_STAMP) ## the adapters of slipring.adapters next to the originals that are installed; ARGS='paddle'
	$(PY) -m bench.adapters $(ARGS)

test-cuda: build ## the tests that need a CUDA device; skipped with the reason where there is none
	$(PY) -m pytest -m cuda tests/cuda $(ARGS)

docs: build $(DOCS_STAMP) ## the pages and an API reference from the docstrings, into build/docs; a warning is an error
	$(PY) -m bench.pages --check
	$(PY) -W ignore -m sphinx -W --keep-going -n -q -d build/docs-cache docs build/docs $(ARGS)
	@echo build/docs/index.html

check-sdist: SLIPRING_BUILD := release

wheels check-wheel: export PYTHONS := $(PYTHONS)
check-wheel: export README := $(README)

wheels: $(WHEEL_STAMP) ## sdist, and wheels for CPython 3.11 to 3.15 on x86_64 and aarch64, into dist/; ARCH=, PYTHONS=
	build/wheel/tools/bin/python -m tools.wheels build $(ARCH)

check-wheel: $(WHEEL_STAMP) ## install each wheel of dist/ where there is no compiler, and let it work; README=2.13.0: with torch
	build/wheel/tools/bin/python -m tools.wheels check $(ARCH)

release: $(WHEEL_STAMP) check-sdist ## everything before an upload, from a commit: all wheels, their checks, the same bytes again
	build/wheel/tools/bin/python -m tools.wheels release

check-sdist: $(DEPS_STAMP) ## build a wheel from the sdist in isolation, install it elsewhere, import it
	rm -rf build/sdist
	$(PY) -m build --sdist --outdir build/sdist
	$(PY) -m venv build/sdist/venv
	build/sdist/venv/bin/python -m pip install --quiet --disable-pip-version-check build/sdist/slipring-*.tar.gz
	cd build/sdist && venv/bin/python -c 'import slipring; print(slipring.__version__, slipring.__file__)'

clean: ## remove what was built (keeps the environment)
	rm -rf build dist pkg/*.egg-info
	find pkg -name '*.so' -delete
	find pkg tests bench -name __pycache__ -prune -exec rm -rf {} +
	if [ -f tests/c/Makefile ]; then $(MAKE) --no-print-directory -C tests/c clean; fi
