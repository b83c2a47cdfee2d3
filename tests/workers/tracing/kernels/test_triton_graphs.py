"""Which tensors a kernel of Triton writes, read from its source."""

from __future__ import annotations

from typing import Any

from autofit_workers.tracing.kernels.stand_ins.triton_graphs import written_by

tl: Any = None  # no kernel is run
_helper: Any = None


def test_a_pointer_that_is_stored_to_is_written():
    def kernel(x_ptr, out_ptr, n, block):
        offsets = tl.program_id(0) * block + tl.arange(0, block)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        pointers = out_ptr + offsets
        tl.store(pointers, x * 2, mask=offsets < n)

    assert "out_ptr" in written_by(kernel)
    assert "x_ptr" not in written_by(kernel)


def test_an_index_that_is_loaded_is_read():
    def kernel(index_ptr, table_ptr, block):
        row = tl.load(index_ptr + tl.program_id(0))
        table_ptr += row * block
        tl.atomic_add(table_ptr, 1.0)

    assert written_by(kernel) >= {"table_ptr"}
    assert "index_ptr" not in written_by(kernel)


def test_a_descriptor_that_is_stored_to_is_written():
    def kernel(a_desc, c_desc, pid):
        a = a_desc.load([pid, 0])
        c_desc.store([pid, 0], a)

    assert "c_desc" in written_by(kernel)
    assert "a_desc" not in written_by(kernel)


def test_what_another_function_is_given_may_be_written():
    def kernel(x_ptr, out_ptr):
        _helper(out_ptr, tl.load(x_ptr))

    assert written_by(kernel) == {"out_ptr"}


def test_without_source_all_may_be_written():
    made = {}
    exec("def kernel(a, b): pass", made)
    assert written_by(made["kernel"]) == {"a", "b"}
