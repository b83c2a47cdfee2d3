"""What a workload's exceptions say to its user."""

from __future__ import annotations

from autofit_workers.process.messages import told


def test_a_module_that_is_missing_is_named_with_what_to_do():
    try:
        import nobody_has_this.inside  # noqa: F401
    except ImportError as error:
        said = told(error)
    assert said.kind == "user"
    assert said.message.startswith("ModuleNotFoundError: No module named 'nobody_has_this' (")
    assert said.message.endswith("install nobody_has_this where trials run, or add its folder to PYTHONPATH")


def test_a_name_that_a_module_lacks_is_told_as_it_is():
    try:
        from pathlib import nobody_has_this  # noqa: F401
    except ImportError as error:
        said = told(error)
    assert "install" not in said.message
