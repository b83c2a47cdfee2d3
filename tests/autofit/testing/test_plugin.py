"""The plugin's hooks, in the process of the tests: what needs no prediction."""

from __future__ import annotations

import pytest

import autofit.testing.forked
import autofit.testing.marked  # noqa: F401 - imported here, so that no inner pytest takes it away again
from tests.autofit.testing.projects import PLUGIN, alone  # noqa: F401 - a fixture

pytest_plugins = "pytester"
pytestmark = pytest.mark.usefixtures("alone")


def failure(pytester: pytest.Pytester, source: str, *arguments: str) -> str:
    """Text of a run in which the one test fails or errs, without the test's own source."""
    pytester.makepyfile(source)
    result = pytester.runpytest_inprocess(*PLUGIN, "-q", *arguments)
    counts = result.parseoutcomes()
    assert counts.get("failed", 0) + counts.get("errors", 0) == 1, counts
    return result.stdout.str()


def test_mark_and_option_are_known_and_other_tests_are_left_to_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(tmp_path):\n    assert tmp_path.exists()\n")
    result = pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", "--memory-update")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*predicted GPU memory*")
    assert not list(pytester.path.glob("*.toml"))
    marks = pytester.runpytest_inprocess(*PLUGIN, "--markers")
    marks.stdout.fnmatch_lines(["@pytest.mark.memory(gpu='t4', batch_size=64, *"])


def test_settings_are_those_of_the_plugin(pytester: pytest.Pytester) -> None:
    helped = pytester.runpytest_inprocess(*PLUGIN, "--help").stdout.str()
    assert all(word in helped for word in ("--memory-update", "memory_lock_file", "memory_tolerance"))
    assert "2% unless" in helped


@pytest.mark.parametrize("mark", ["", "()", "('much')", "(limit='4GB')"])
def test_marks_and_fixtures_of_a_project_with_these_names_stay_its_own(
    pytester: pytest.Pytester, mark: str
) -> None:
    """As a project has that had a mark `memory` before autofit was installed."""
    pytester.makepyfile(
        "import os, pytest\n"
        "@pytest.fixture\ndef peak_memory():\n    return os.getpid()\n\n"
        f"@pytest.mark.memory{mark}\ndef test_marked():\n    pass\n\n"
        f"@pytest.mark.memory{mark}\ndef test_both(peak_memory):\n    assert peak_memory == os.getpid()\n"
    )
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*predicted GPU memory*")


@pytest.mark.parametrize(
    ("mark", "sentence"),
    [
        ("batch_size=8", "the mark memory names no card: add gpu='t4', say"),
        ("gpu='t4', batch_size=0", "batch_size of the mark memory is a whole number from 1 on, not 0"),
        ("gpu='t4', batch_size='8'", "batch_size of the mark memory is a whole number from 1 on, not '8'"),
        ("gpu='t4', batch_size=8, tolerance='lots'", "tolerance of the mark memory: "),
        ("gpu='t4', batch_size=8, max_peak='ten'", "max_peak of the mark memory: 'ten' is not a size"),
        ("gpu='t4', batch_size=8, max_peak=-1", "max_peak of the mark memory: '-1' is not a size"),
        ("gpu='t44', batch_size=8", "no card named 't44' in the catalogue (Did you mean t4?)"),
        ("gpu='t4', batch_size=8, colour='red'", "colour"),
        ("'t4', batch_size=8", "the mark memory takes named arguments alone"),
        ("gpu='t4'", "the mark memory says no batch size: add batch_size=64, say"),
    ],
)
def test_a_wrong_mark_fails_by_one_sentence(pytester: pytest.Pytester, mark: str, sentence: str) -> None:
    said = failure(
        pytester, f"import pytest\n@pytest.mark.memory({mark})\ndef test_it():\n    return 'davenet'\n"
    )
    assert sentence in said
    assert "During handling" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("returned", "what"), [("None", "nothing"), ("7", "int")])
def test_a_test_that_returns_no_workload_says_what_to_return(
    pytester: pytest.Pytester, returned: str, what: str
) -> None:
    said = failure(
        pytester,
        "import pytest\n@pytest.mark.memory(gpu='t4', batch_size=8)\n"
        f"def test_it():\n    return {returned}\n",
    )
    assert f"this one returned {what}: return an autofit.Workload" in said


def test_a_test_that_fails_before_it_returns_fails_as_any_other(pytester: pytest.Pytester) -> None:
    said = failure(
        pytester,
        "import pytest\n@pytest.mark.memory(gpu='t4', batch_size=8)\ndef test_it():\n    assert 1 + 1 == 3\n",
    )
    assert "assert (1 + 1) == 3" in said
    assert "marked.py" not in said


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def test_it(peak_memory):\n    pass", "has the mark memory or the fixture peak_memory, not both"),
        ("async def test_it():\n    pass", "cannot be async: write it with def"),
        (
            "class TestIt(unittest.TestCase):\n    def test_it(self):\n        pass",
            "the mark memory is for functions and methods that pytest calls",
        ),
    ],
)
def test_a_test_that_cannot_have_the_mark_says_so(
    pytester: pytest.Pytester, source: str, sentence: str
) -> None:
    mark = "@pytest.mark.memory(gpu='t4', batch_size=8)"
    said = failure(pytester, f"import pytest\nimport unittest\n{mark}\n{source}\n")
    assert sentence in said


def test_a_block_in_a_fixture_is_refused(pytester: pytest.Pytester) -> None:
    said = failure(
        pytester,
        "import pytest\n@pytest.fixture\ndef peak(peak_memory):\n    with peak_memory() as peak:\n"
        "        return peak\ndef test_it(peak):\n    pass\n",
    )
    assert "peak_memory is for the test itself" in said


def test_a_lock_that_cannot_be_read_is_named_by_the_test(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", **{"memory.lock": 'schema = "autofit.lock/9"\n'})
    pytester.makefile(".ini", pytest="[pytest]\nmemory_tolerance = much\n")
    said = failure(
        pytester,
        "import pytest\n@pytest.mark.memory(gpu='t4', batch_size=8)\ndef test_it():\n    return 'davenet'\n",
    )
    assert "memory_tolerance of pytest's settings: 'much'" in said
