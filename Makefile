# The words of the house; CONTRIBUTING.md says when to use which.
.PHONY: test test-all coverage lint bench bench-smoke docs

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

# That the commands, options and links of the documentation are there.
docs:
	pytest -n 0 tests/docs
