"""Little programs of operators on tensors, as traces for the tests of memory plans."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from autofit.explain.profile import Profile
from autofit_workers.spec.trace import Allocation, Call, Category
from tests.autofit.explain.profiles import allocation, profile_of


@dataclass
class Program:
    """A sequence of operators; a number stands for the tensor that an operator returned."""

    allocations: list[Allocation] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        self.marks.append((len(self.events), name))

    def make(
        self,
        num_elements: int,
        *inputs: int,
        name: str = "",
        elementwise: bool = False,
        category: Category = Category.ACTIVATION,
        dtype: str = "float64",
    ) -> int:
        """Appends an operator with a result of its own; returns the result's number."""
        number = len(self.allocations)
        self._call("aten.mul.Tensor" if elementwise else "aten.mm", inputs, (number,), elementwise, name)
        num_bytes = num_elements * {"float64": 8, "float32": 4}[dtype]
        self.allocations.append(allocation(num_bytes, category, dtype=dtype, shape=(num_elements,)))
        self.events.append(number)
        return number

    def change(self, target: int, *inputs: int, elementwise: bool = True) -> None:
        """Appends an operator that works in place on `target`."""
        self._call("aten.add_.Tensor", (target, *inputs), (target,), elementwise)

    def view(self, target: int) -> None:
        self._call("aten.view", (target,), (target,), elementwise=False)

    def free(self, *numbers: int) -> None:
        self.events += [~number for number in numbers]

    def profile(self) -> Profile:
        return profile_of(self.allocations, self.events, self.marks, self.calls)

    def _call(
        self,
        operator: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        elementwise: bool,
        name: str = "",
    ) -> None:
        self.calls.append(
            Call(
                position=len(self.events),
                operator=operator,
                module="",
                inputs=inputs,
                outputs=outputs,
                is_elementwise=elementwise,
                name=name,
            )
        )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Strategy of programs: one step of operators with results, in place and views, freed in any order."""
    program = Program()
    live = [program.make(draw(st.integers(1, 4)), category=Category.PARAMETER) for _ in range(2)]
    program.mark("step 1 forward")
    for _ in range(draw(st.integers(0, 14))):
        inputs = draw(st.lists(st.sampled_from(live), min_size=1, max_size=3, unique=True))
        kind = draw(st.sampled_from(["make", "make", "fold", "fold", "change", "view"]))
        if kind == "view":
            program.view(inputs[0])
        elif kind == "change":
            program.change(*inputs, elementwise=draw(st.booleans()))
        else:
            same = program.allocations[inputs[0]].shape[0]
            num_elements = same if kind == "fold" else draw(st.integers(1, 4))
            name = draw(st.sampled_from(["", "x"]))
            live.append(program.make(num_elements, *inputs, name=name, elementwise=kind == "fold"))
        done = draw(st.lists(st.sampled_from(live[2:]), max_size=2, unique=True)) if live[2:] else []
        program.free(*done)
        live = [number for number in live if number not in done]
    return program
