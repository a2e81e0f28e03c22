"""The data behind figures: what is joined, what is left out, what is folded."""

from pipeline.outputs.formats import TrainingStep
from pipeline.plan.graph import Job
from pipeline.runs.figures import charts
from pipeline.runs.record import Results
from tests.doubles.pooled import pooled_row

PLACE = ("addition", "tiny")


def results() -> Results:
    rows = [
        pooled_row("reference", 0, 0.25),
        pooled_row("reference", 0, 0.0, metric="kl_per_sequence"),
        pooled_row("reference", 0, 1.0, metric="optimum/pass@1"),
        pooled_row("reference", 0, 2.0, metric="optimum/kl_per_sequence"),
        pooled_row("PITA", 1, 0.5),
        pooled_row("PITA", 2, 0.75),
        pooled_row("PITA", 2, 1.5, metric="kl_per_sequence"),
        pooled_row("DPO@beta=1", 2, 0.5),
    ]
    return Results(rows=[], pooled=rows)


def test_reward_against_divergence_is_of_the_last_round_with_the_optimum() -> None:
    found = {one.name: one.points for one in charts.reward_against_kl(results(), PLACE)}
    assert {name: [(point.x, point.y) for point in points] for name, points in found.items()} == {
        "reference": [(0.0, 0.25)],
        "PITA": [(1.5, 0.75)],
        "optimum": [(2.0, 1.0)],
    }
    assert (found["PITA"][0].x_low, found["PITA"][0].y_high) == (1.48, 0.77)


def test_losses_are_by_training_and_round_without_those_that_diverged() -> None:
    def step(at: int, loss: float | None) -> TrainingStep:
        return TrainingStep(
            training="value", step=at, steps=9, tokens=at, loss=loss, grad_norm=None, learning_rate=0.1
        )

    def job(number: int) -> Job:
        place = {"dataset": "addition", "model": "tiny", "algo": "PITA", "stage": "train"}
        return Job(id=f"x/{number}", key="k", entry="m:f", payload={}, round=number, **place)

    curves = [(job(1), [step(1, 2.0), step(2, None), step(3, 1.0)]), (job(2), [step(1, None)])]
    (panel,) = charts.trainings(curves, PLACE)
    assert (panel.title, panel.curves) == ("PITA: value", {1: [([1, 3], [2.0, 1.0])]})
    assert charts.trainings(curves, ("other", "tiny")) == []
