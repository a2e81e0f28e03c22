"""Which machine has which outputs at hand: those that it made, or has read, in this run. Pure.

    made or read on machine A --> in its page cache, as far as its memory goes --> read there again: nothing moves
                              '-> on the disk that all share --------------------> read on machine B: moved

Outputs are written once, to that disk, and nothing is copied beside it. Whether a machine still has what it read
long ago nobody tells, nor which one has what an earlier run made: what is counted as moved is the least that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.plan.graph import Plan

WORTH_BYTES = 64 << 20
"""From which size on it matters where an output is: what is smaller is read in a tenth of a second anywhere."""


class Whereabouts:
    """What is where, of a run whose machines have names; of all others nothing is known, and nothing counted.

    Attributes:
        nodes: The machines that have joined.
        read: Bytes of outputs that jobs have read; once for each machine of a job.
        moved: Those of them that another machine had made in this run, and this one had not read before.
    """

    def __init__(self, plan: Plan) -> None:
        """Begin with nothing anywhere."""
        self.nodes: set[str] = set()
        self.read = self.moved = 0
        self._plan = plan
        self._sizes: dict[str, int] = {}
        self._having: dict[str, set[str]] = {}
        """Output -> the machines that have it."""
        self._made: set[str] = set()
        """Outputs of this run."""
        self._weighty: dict[str, list[str]] = {}
        """Job -> those of its inputs that matter, once the sizes of all are known."""

    # -- what happens ------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A worker is up on a machine, whose name is "" where it is the only one."""
        if node:
            self.nodes.add(node)

    def weighs(self, sizes: Mapping[str, int]) -> None:
        """So large are outputs that no machine of the run has made."""
        self._sizes |= sizes

    def made(self, job_id: str, node: str, size: int) -> None:
        """A machine has made an output; others may have had an earlier one of the same job."""
        if node:
            self._sizes[job_id], self._having[job_id] = size, {node}
            self._made.add(job_id)

    def reads(self, job_id: str, nodes: Iterable[str]) -> tuple[int, int]:
        """A job begins.

        Args:
            job_id: The job.
            nodes: The machines of its workers.

        Returns:
            Bytes of its inputs that are read there, and those of them that count as moved.
        """
        read = moved = 0
        for node in {node for node in nodes if node}:
            for name in self._plan.inputs(job_id):
                size, having = self._sizes.get(name, 0), self._having.setdefault(name, set())
                read += size
                moved += size if name in self._made and node not in having else 0
                having.add(node)
        self.read += read
        self.moved += moved
        return read, moved

    # -- questions ---------------------------------------------------------------------------------------------

    def unknown(self, job_id: str) -> list[str]:
        """Inputs of a job of which nobody has told how large they are."""
        return [name for name in self._plan.inputs(job_id) if name not in self._sizes] if self.nodes else []

    def has_all(self, job_id: str, node: str) -> bool:
        """Whether a job reads something that matters, and a machine has all of it."""
        names = self._matter(job_id)
        return bool(names) and all(node in self._having.get(name, ()) for name in names)

    def near(self, job_id: str) -> Mapping[str, int]:
        """Bytes of the inputs of a job that each machine has, without those that are too small to matter."""
        found: dict[str, int] = {}
        for name in self._matter(job_id):
            for node in self._having.get(name, ()):
                found[node] = found.get(node, 0) + self._sizes[name]
        return found

    def _matter(self, job_id: str) -> list[str]:
        if (known := self._weighty.get(job_id)) is not None:
            return known
        if len(self.nodes) < 2:
            return []
        inputs = self._plan.inputs(job_id)
        found = [name for name in inputs if self._sizes.get(name, 0) >= WORTH_BYTES]
        if all(name in self._sizes for name in inputs):
            self._weighty[job_id] = found
        return found
