"""Prometheus metrics of one server. Base units, no per-worker labels."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from weightcast.contract.names import CONTRACT_VERSION, Role, VersionState, WorkerState

_REQUEST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_REFIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_STORE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


class Metrics:
    """The metrics of one server, in a registry of its own so that several servers may live in one process."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        # prometheus_client's labels() costs more than the observation: the children are kept.
        self._store_children: dict[str, Histogram] = {}
        self._request_children: dict[tuple[str, str, int], Histogram] = {}
        self._max_lag = 0.0
        build = Gauge(
            "weightcast_build_info",
            "Always 1; the labels say what runs.",
            ["version", "contract_version", "python"],
            registry=self.registry,
        )
        build.labels(version, str(CONTRACT_VERSION), platform.python_version()).set(1)
        self.request_seconds = Histogram(
            "http_server_request_duration_seconds",
            "Time to answer, requests that parked excluded.",
            ["method", "route", "status"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.parked = Gauge("weightcast_parked_requests", "Requests parked now.", registry=self.registry)
        self.versions = Gauge("weightcast_versions", "Versions by state.", ["state"], registry=self.registry)
        self.workers = Gauge(
            "weightcast_workers", "Workers by role and state.", ["role", "state"], registry=self.registry
        )
        self.lease_expirations = Counter(
            "weightcast_lease_expirations_total",
            "Workers lost because they fell silent.",
            ["role"],
            registry=self.registry,
        )
        self.stale_epochs = Counter(
            "weightcast_stale_epoch_rejections_total", "Calls of processes that were replaced.", registry=self.registry
        )
        self.refit_seconds = Histogram(
            "weightcast_version_applied_seconds",
            "From a version being READY to every live replica serving it.",
            buckets=_REFIT_BUCKETS,
            registry=self.registry,
        )
        self.pause_seconds = Histogram(
            "weightcast_pull_pause_seconds",
            "Time an engine could not generate, per applied pull.",
            buckets=_REFIT_BUCKETS,
            registry=self.registry,
        )
        self.fetch_seconds = Histogram(
            "weightcast_pull_fetch_seconds",
            "Time to read and verify one version, per pull.",
            buckets=_REFIT_BUCKETS,
            registry=self.registry,
        )
        self.pulled_bytes = Counter(
            "weightcast_pulled_bytes_total", "Bytes read and verified by rollouts.", registry=self.registry
        )
        self.failed_pulls = Counter(
            "weightcast_failed_pulls_total", "Pulls that failed, by reason.", ["failure"], registry=self.registry
        )
        self.store_seconds = Histogram(
            "weightcast_store_seconds",
            "Time of one store call as the API sees it, queueing included.",
            ["operation"],
            buckets=_STORE_BUCKETS,
            registry=self.registry,
        )
        self.store_errors = Counter(
            "weightcast_store_errors_total", "Store calls that could not be answered.", registry=self.registry
        )
        self.loop_lag = Gauge(
            "weightcast_event_loop_lag_seconds", "How late the last lease sweep woke up.", registry=self.registry
        )
        self.loop_lag_max = Gauge(
            "weightcast_event_loop_lag_max_seconds", "Latest sweep since the start.", registry=self.registry
        )

    def set_versions(self, counts: Mapping[VersionState, int]) -> None:
        """Set the gauge of versions; states without any count as zero."""
        for state in VersionState:
            self.versions.labels(state.value).set(counts.get(state, 0))

    def set_workers(self, counts: Mapping[tuple[Role, WorkerState], int]) -> None:
        """Set the gauge of workers; combinations without any count as zero."""
        for role in Role:
            for state in WorkerState:
                self.workers.labels(role.value, state.value).set(counts.get((role, state), 0))

    def observe_store(self, operation: str, seconds: float) -> None:
        """Record the duration of a store call."""
        child = self._store_children.get(operation)
        if child is None:
            child = self._store_children[operation] = self.store_seconds.labels(operation)
        child.observe(seconds)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record the duration of an answered request."""
        key = (method, route, status)
        child = self._request_children.get(key)
        if child is None:
            child = self._request_children[key] = self.request_seconds.labels(method, route, str(status))
        child.observe(seconds)

    def lag(self, seconds: float) -> None:
        """Record how late a periodic task woke up."""
        self.loop_lag.set(seconds)
        if seconds > self._max_lag:
            self._max_lag = seconds
            self.loop_lag_max.set(seconds)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
