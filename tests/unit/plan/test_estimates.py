from pipeline.learning.algos.base import Stage
from pipeline.plan.estimates import Scale, guess_seconds

GENERATE = Stage("generate", shards="train", config=("generation", "data_collection"), seconds=0.5)
TRAIN = Stage("train", config=("training", "model"), seconds=15.0)
METRICS = Stage("metrics", loads_models=False, seconds=0.5)
SMOLLM2 = Scale(weights=135_000_000, tokens=24, prompts=512)


def test_the_embedded_model_takes_what_its_stages_say() -> None:
    assert guess_seconds(GENERATE, 2000, Scale()) == 1.0
    assert guess_seconds(TRAIN, 0, Scale(prompts=20)) == 15.0


def test_a_model_of_135_million_weights_takes_minutes_where_the_embedded_one_takes_a_second() -> None:
    # Each of the four methods of experiment=sentiment took some 20 minutes of a core.
    whole = guess_seconds(GENERATE, 512, SMOLLM2) + guess_seconds(TRAIN, 0, SMOLLM2)
    assert 600 < whole < 2400


def test_a_gpu_and_shorter_completions_make_it_shorter() -> None:
    on_gpu = Scale(weights=8_000_000_000, tokens=600, prompts=512, gpu=True)
    shorter = Scale(weights=8_000_000_000, tokens=60, prompts=512, gpu=True)
    on_cpu = Scale(weights=8_000_000_000, tokens=600, prompts=512)
    assert guess_seconds(GENERATE, 512, shorter) < guess_seconds(GENERATE, 512, on_gpu)
    assert guess_seconds(GENERATE, 512, on_gpu) < guess_seconds(GENERATE, 512, on_cpu)


def test_work_on_files_does_not_depend_on_the_model() -> None:
    assert guess_seconds(METRICS, 0, SMOLLM2) == 0.5
