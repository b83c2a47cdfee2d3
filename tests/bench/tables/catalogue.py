"""The tables that the bench knows."""

from __future__ import annotations

from tests.bench.tables import gpumemnet_timm, xmem
from tests.bench.tables.rows import Table

TABLES = {
    table.name: table
    for table in (
        Table(name="xmem", file=xmem.FILE, read=xmem.read),
        Table(name="timm", file=gpumemnet_timm.FILE, read=gpumemnet_timm.read, has_constant=True),
    )
}
