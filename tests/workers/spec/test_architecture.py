"""What the name of an architecture says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autofit_workers.spec.architecture import Architecture, of_capability, of_device
from autofit_workers.spec.vendors import Vendor


@pytest.mark.parametrize(("name", "capability"), [("sm_70", 70), ("sm_89", 89), ("sm_120", 120)])
def test_an_architecture_of_nvidia_s_has_a_compute_capability(name, capability):
    found = Architecture.of(name)
    assert (found.vendor, found.capability, found.name) == (Vendor.NVIDIA, capability, name)


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx1201"])
def test_one_of_amd_s_has_none(name):
    found = Architecture.of(name)
    assert found.vendor is Vendor.AMD
    with pytest.raises(ValueError, match=f"{name} has no compute capability"):
        found.capability  # noqa: B018 - what is asked for is the error


@pytest.mark.parametrize("name", ["", "cpu", "sm_", "sm_8", "80", "gfx", "gfx94x", "gfx942:xnack-", "SM_80"])
def test_what_is_no_architecture_is_refused(name):
    with pytest.raises(ValueError, match="expected a name such as sm_86 or gfx942"):
        Architecture.of(name)


def test_they_are_ordered_by_age_and_nvidia_s_come_first():
    names = ["gfx950", "sm_100", "gfx90a", "sm_90", "gfx942", "sm_75"]
    ordered = sorted(names, key=lambda name: Architecture.of(name).age)
    assert ordered == ["sm_75", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950"]


def test_a_device_has_the_architecture_that_its_build_of_pytorch_tells():
    """HIP has a major and a minor number too, which are no compute capability: 9.4 of an MI300X."""
    device = SimpleNamespace(major=9, minor=4, gcnArchName="gfx942:sramecc+:xnack-")
    assert of_device(device, "7.0.51831") == "gfx942"
    cuda = SimpleNamespace(major=8, minor=6, gcnArchName="NVIDIA GeForce RTX 3090")
    assert of_device(cuda, None) == of_capability(8, 6) == "sm_86"
