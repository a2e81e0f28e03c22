"""How the end of an actor is told."""

from __future__ import annotations

import pytest

from pipeline.engine.workers.ray.lost_workers import loss_of


class ActorDiedError(Exception):
    """As Ray's, of which this needs the name and what is said."""

    def __init__(self, text: str, *, preempted: bool = False, actor_init_failed: bool = False) -> None:
        super().__init__(text)
        self.preempted, self.actor_init_failed = preempted, actor_init_failed


class OutOfMemoryError(Exception): ...


class RayActorError(Exception): ...


@pytest.mark.parametrize(
    ("error", "how", "elsewhere"),
    [
        (
            ActorDiedError("The actor's node has died.", preempted=True),
            "its node was taken away (preempted)",
            True,
        ),
        (ActorDiedError("it died because its node has died.\nNode Id: 1"), "its node was lost", True),
        (
            OutOfMemoryError("Task was killed"),
            "Ray's memory monitor killed it, as its node was out of memory",
            False,
        ),
        (
            ActorDiedError(
                "The actor died in its creation task, Host.__init__()\npipeline.errors.WorkerError: no disk",
                actor_init_failed=True,
            ),
            "its node cannot serve: no disk",
            False,
        ),
        (RayActorError("Worker exits unexpectedly"), "its actor died", False),
        (ConnectionError("gone"), "Ray: ConnectionError: gone", False),
    ],
)
def test_an_end_is_told_in_a_few_words(error: Exception, how: str, elsewhere: bool) -> None:
    loss = loss_of(error)
    assert (loss.how, loss.elsewhere) == (how, elsewhere)
    assert str(error).splitlines()[-1] in loss.details
