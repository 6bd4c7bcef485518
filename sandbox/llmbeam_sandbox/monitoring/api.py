"""Cloud Monitoring's REST API of time series: served requests, as late as the service shows them."""

from __future__ import annotations

import re

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.monitoring.catalog import CATALOG
from llmbeam_sandbox.monitoring.query import NO_COMBINATION, read_query
from llmbeam_sandbox.monitoring.responses import WORDING, page_of
from llmbeam_sandbox.monitoring.state import Monitoring
from llmbeam_sandbox.monitoring.time_series import aggregated

METHODS = Methods(names=("monitoring.timeSeries.list",))


def routes(backend: Backend, monitoring: Monitoring) -> list[web.RouteDef]:
    """Returns the route of Cloud Monitoring."""

    def time_series(call: RestCall) -> Reply:
        try:
            query = read_query(call.query, call.repeated)
        except ValueError as error:
            raise RestError(400, str(error)) from error
        selection = query.selection
        metric = CATALOG.get(selection.metric_type)
        if metric is None:
            raise RestError(
                404,
                f'Cannot find metric(s) that match type = "{selection.metric_type}". If a metric was created '
                "recently, it could take up to 10 minutes to become available. Please try again soon.",
            )
        if not query.fits(metric):
            raise RestError(400, NO_COMBINATION)
        table = monitoring.table(metric, call.names["project"], query)
        try:
            table = aggregated(table, query.aggregation, query.end)
            return json_reply(page_of(metric, table, query))
        except ValueError as error:
            raise RestError(400, str(error)) from error

    pattern = re.compile(r"/v3/projects/(?P<project>[^/]+)/timeSeries")
    route = Route(verb="GET", pattern=pattern, method="monitoring.timeSeries.list", work=time_series)
    service = Service(backend, WORDING, [route], is_slow=True)
    return [web.get("/v3/projects/{project}/timeSeries", service.serve)]
