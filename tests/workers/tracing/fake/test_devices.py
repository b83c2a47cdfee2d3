"""The GPU under all its names; and copies to where a tensor already is."""

from __future__ import annotations


def test_every_way_of_naming_the_gpu_puts_a_tensor_there(steps_of):
    made = steps_of("names_the_gpu").allocations("forward")
    put = [a for a in made if a.shape == (70,) and a.operator != "aten.add.Tensor"]
    assert len(put) == 14
    assert {a.num_bytes for a in put} == {280}
    assert len({a.source for a in put}) == 14  # one from every line


def test_a_conversion_to_what_a_tensor_already_is_copies_nothing(steps_of):
    assert steps_of("without_copies").outputs("forward") == [
        ("addmm", 256),
        ("pow.Tensor_Scalar", 256),
        ("mean", 4),
    ]
