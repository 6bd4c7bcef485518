"""Remembers what Beam finds out again for each function of each graph, with the same result.

A small job in the process of a test takes half of the CPU time with it; most tests are small jobs.
"""

import bz2
import linecache
import sys
from argparse import HelpFormatter
from functools import cache, lru_cache
from types import MethodType, SimpleNamespace

from apache_beam.internal import cloudpickle_pickler
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, userstate
from apache_beam.typehints.decorators import IOTypeHints

_MAX_VIEWS = 1000
_MAX_PICKLES = 2000
_NO_SPECS = (frozenset(), frozenset())


def install() -> None:
    """Installs all in this process."""
    # It is not installed; Beam tries to import it for each transform, and searches the whole path.
    sys.modules.setdefault("IPython", None)
    # Beam keeps a traceback of each type hint, and each looks whether its files have changed.
    linecache.checkcache = lambda filename=None: None

    # Each of its 400 options is tried with a formatter of its own, which asks for the size of the terminal.
    formatter = HelpFormatter("")
    pipeline_options._BeamArgumentParser._get_formatter = lambda parser: formatter
    PipelineOptions.view_as = _remembering_views(PipelineOptions.view_as)
    for name in ("get_function_args_defaults", "_check_fn_use_yield_and_return"):
        setattr(core, name, _remembering(getattr(core, name)))
    IOTypeHints.from_callable = staticmethod(_remembering(IOTypeHints.from_callable))
    core.DoFn.infer_output_type = _remembering_types(core.DoFn.infer_output_type)
    # Each function is compressed for the smallest graph, most of them as in the graph before: 8 % of a job.
    compress = lru_cache(_MAX_PICKLES)(lambda content: bz2.compress(content, 1))
    cloudpickle_pickler.bz2 = SimpleNamespace(
        compress=lambda content, compresslevel: compress(content),
        decompress=lru_cache(_MAX_PICKLES)(bz2.decompress),
    )
    # All methods of each function are inspected five times a job: 10 % of it.
    userstate.get_dofn_specs = _remembering_stateless(userstate.get_dofn_specs)
    # To weigh a side input, the globals of all modules are listed: 4 % of a job.
    statecache.get_deep_size = lambda *values: 1024 * len(values)


def _remembering(ask):
    """Returns `ask` with a memory for methods: its value depends on the function of a method alone."""
    of_method = cache(lambda function: ask(MethodType(function, object())))
    return lambda f: of_method(f.__func__) if isinstance(f, MethodType) else ask(f)


def _remembering_types(infer):
    """Returns `infer` with a memory of what each `process` returns for a type of elements."""
    types = {}

    def remembered(dofn, input_type):
        known = type(dofn), getattr(dofn.process, "__code__", None), input_type
        if known not in types:
            types[known] = infer(dofn, input_type)
        return types[known]

    return remembered


def _remembering_stateless(get_dofn_specs):
    """Returns `get_dofn_specs` with a memory of the kinds of functions that have neither state nor timers."""
    stateless = set()

    def remembered(dofn):
        kind = type(dofn), getattr(dofn.process, "__code__", None)
        if kind in stateless:
            return _NO_SPECS
        specs = get_dofn_specs(dofn)
        if not any(specs):
            stateless.add(kind)
        return specs

    return remembered


def _remembering_views(view_as):
    """Returns `view_as` with a memory: each view makes a parser of its options, and all share one dictionary."""
    views = {}

    def remembered(options, kind):
        view = views.get((id(options._all_options), kind))
        if view is None or view._all_options is not options._all_options:
            if len(views) >= _MAX_VIEWS:
                views.clear()
            view = views[id(options._all_options), kind] = view_as(options, kind)
        return view

    return remembered


install()
