"""Registry of the contenders, in the order of the table."""

from __future__ import annotations

from bench.contenders import curator, data_designer, datatrove, docetl, fenic, litellm, ours, stock_beam
from bench.contenders.contender import Contender

CONTENDERS: tuple[Contender, ...] = (
    ours.CONTENDER,
    ours.SEPARATE_MACHINES,
    stock_beam.CONTENDER,
    stock_beam.WITH_DEFAULTS,
    data_designer.CONTENDER,
    datatrove.CONTENDER,
    docetl.CONTENDER,
    fenic.CONTENDER,
    litellm.CONTENDER,
    curator.CONTENDER,
)
