"""The plan: jobs and what each waits for, as a networkx DAG that can be printed, drawn and saved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.errors import CycleError, PlanError
from pipeline.plan.job import Job
from pipeline.plan.keys import FORMAT, SharedConfigs

if TYPE_CHECKING:
    import networkx as nx  # where a plan is made or asked: it takes long to import, and `status` makes none


class Plan:
    """Jobs and their edges. Immutable once built; every query is derived from `graph`.

    Attributes:
        graph: Job ids as nodes, an edge from each job to those that read its output.
        jobs: Job id -> job, in the order in which they were planned.
    """

    def __init__(self, jobs: Iterable[Job], edges: Iterable[tuple[str, str]]) -> None:
        import networkx as nx

        self.jobs: dict[str, Job] = {}
        for job in jobs:
            if job.id in self.jobs:
                raise PlanError(f"two jobs have the id '{job.id}'")
            self.jobs[job.id] = job
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.graph.add_nodes_from(self.jobs)
        for upstream, downstream in edges:
            missing = next((name for name in (upstream, downstream) if name not in self.jobs), None)
            if missing is not None:
                raise PlanError(f"an edge names '{missing}', which is no job")
            self.graph.add_edge(upstream, downstream)
        if not nx.is_directed_acyclic_graph(self.graph):
            circle = " -> ".join(edge[0] for edge in nx.find_cycle(self.graph))
            raise CycleError(f"these jobs wait for each other: {circle}")

    @cached_property
    def path_s(self) -> dict[str, float]:
        """Estimated seconds of the longest path from each job to the end of the plan, itself included."""
        return longest_paths(self.graph, {job.id: job.seconds for job in self.jobs.values()})

    def up_to(self, job_ids: Iterable[str]) -> Plan:
        """The part of the plan that some jobs need, themselves included."""
        import networkx as nx

        kept = set(job_ids)
        for job_id in list(kept):
            kept |= nx.ancestors(self.graph, job_id)
        edges = [edge for edge in self.graph.edges if edge[1] in kept]
        return Plan([job for job in self.jobs.values() if job.id in kept], edges)

    def inputs(self, job_id: str) -> list[str]:
        """Ids of the jobs whose outputs a job reads."""
        return list(self.graph.predecessors(job_id))

    def readers(self, job_id: str) -> list[str]:
        """Ids of the jobs that read a job's output."""
        return list(self.graph.successors(job_id))

    def rounds(self) -> dict[int, list[Job]]:
        """Jobs by round, both in ascending order."""
        grouped: dict[int, list[Job]] = {}
        for job in self.jobs.values():
            grouped.setdefault(job.round, []).append(job)
        return dict(sorted(grouped.items()))

    def to_json(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """The plan as plain data, for ``plan.json``; `pipeline.plan.recorded` writes and reads it.

        Args:
            stored: Ids of the jobs that need not run.
        """
        configs, found = SharedConfigs(), set(stored)
        return {
            "key_format": FORMAT,
            "jobs": [_plain(job, configs) for job in self.jobs.values()],
            "edges": [list(edge) for edge in self.graph.edges],
            "stored": [job_id for job_id in self.jobs if job_id in found],
            "sections": configs.table,
        }


def longest_paths(graph: nx.DiGraph[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """Length of the longest path from each node to a sink, counting the node itself."""
    import networkx as nx

    paths: dict[str, float] = {}
    for node in reversed(list(nx.topological_sort(graph))):
        paths[node] = seconds[node] + max((paths[after] for after in graph.successors(node)), default=0.0)
    return paths


def _plain(job: Job, configs: SharedConfigs) -> dict[str, Any]:
    determined_by = configs.shorten(job.determined_by)
    payload = configs.shorten(job.payload)
    return {
        **vars(job),
        "inputs": {name: list(keys) for name, keys in job.inputs.items()},
        # Most of a payload is what determines the result; it is written once, under that name.
        "payload": {
            name: value
            for name, value in payload.items()
            if name not in determined_by or determined_by[name] != value
        },
        "determined_by": determined_by,
    }
