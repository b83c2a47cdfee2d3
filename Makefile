# The words of the house; CONTRIBUTING.md says when to use which.
.PHONY: test test-all coverage lint bench bench-smoke docs versions

# What starts no processes of its own: minutes.
test:
	pytest

test-all:
	pytest -m ""

# Takes twice the time of the tests, which is why it is no part of `.ci/run`.
coverage:
	pytest --cov --cov-report=
	coverage report --include='autofit/*' --format=total --fail-under=90
	coverage report --include='workers/autofit_workers/*' --format=total --fail-under=90

lint:
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	python tests/licences.py

# Speed and memory as ratios against something measured in the same run.
bench:
	python tests/bench/allocator_speed.py
	python tests/bench/estimate_speed.py
	python tests/bench/profile_speed.py

# Every bench in its smallest form, also those of ten seconds or more: after a change of what benches import.
bench-smoke:
	pytest -m process tests/bench

# Other releases of PyTorch against the one that is installed: downloads a gigabyte for each, and takes minutes.
versions:
	python -m tests.versions.table

# The site of docs/, in build/site. An error where a link leads nowhere, or a page has not what the code says.
docs:
	python docs/generate.py
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict -f docs/mkdocs.yml
	pytest -n 0 tests/docs
