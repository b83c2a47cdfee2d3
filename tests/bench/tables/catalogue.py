"""The tables that the bench knows."""

from __future__ import annotations

from tests.bench.tables import gpumemnet_timm, synthetic_cnn, timm_brackets, xmem
from tests.bench.tables.rows import Table

TABLES = {
    table.name: table
    for table in (
        Table(name="xmem", file=xmem.FILE, read=xmem.read, has_constant=True),
        Table(name="timm", file=gpumemnet_timm.FILE, read=gpumemnet_timm.read, has_constant=True),
        Table(name="timm-train", file=timm_brackets.TRAIN_FILE, read=timm_brackets.read_train),
        Table(name="timm-infer", file=timm_brackets.INFER_FILE, read=timm_brackets.read_infer),
        Table(name="synthetic", file=synthetic_cnn.FILE, read=synthetic_cnn.read, has_constant=True),
    )
}
