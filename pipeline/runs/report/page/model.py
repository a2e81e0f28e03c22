"""What a page shows, as plain data: the JSON that its scripts draw from. Texts are whole, and not escaped yet.

Where there may be many of something it stands in columns, lists of equal length, which take a third of the room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.runs.looks import Looks

Numbers = list[float | None]


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of texts.

    Attributes:
        title: Stands above it.
        caption: Stands below it.
        headings: Of its columns.
        right: Of each column, whether its cells end at the right, as numbers do.
        rows: Cells.
        ends: Rows after which a section ends.
        marks: Row -> ``better`` or ``worse`` than the reference, where a test says so.
    """

    title: str = ""
    caption: str = ""
    headings: list[str]
    right: list[bool]
    rows: list[list[str]]
    ends: list[int] = field(default_factory=list)
    marks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of a method, or of one of its chains, round by round.

    Attributes:
        place: Dataset and model.
        algo: The method.
        chain: The reference and seed of the chain in words; "" for the mean over all chains.
        metric: For example ``pass@1``.
        rounds: Ascending.
        values: Of each round.
        lows: Lower ends of intervals.
        highs: Upper ends.
    """

    place: str
    algo: str
    chain: str = ""
    metric: str
    rounds: list[int]
    values: Numbers
    lows: Numbers
    highs: Numbers


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """A setting of a method in the plane of reward and divergence; fields as of `record.FrontRow`."""

    place: str
    front: str
    point: str
    metric: str
    kl: float
    kl_low: float | None
    kl_high: float | None
    value: float
    low: float | None
    high: float | None
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a method takes up to the end of a round, as `cost.CostRow`."""

    place: str
    algo: str
    round: int
    flops: float | None
    answer: float | None
    device_s: float | None


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What a stage of a method took, all rounds, references and seeds together; None where it is not known."""

    place: str
    algo: str
    stage: str
    device_s: float | None
    load_s: float | None
    flops: float | None
    tokens: float | None


@dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """What a training measured while it went on.

    Attributes:
        job: Id.
        place: Dataset and model.
        algo: The method.
        chain: The reference and seed in words.
        round: Of the chain.
        training: What is trained: ``policy``, ``value``, ``reward``.
        steps: Steps that are shown.
        tokens: Tokens until then.
        values: Quantity -> its numbers.
        recorded: Steps that were recorded.
    """

    job: str
    place: str
    algo: str
    chain: str
    round: int
    training: str
    steps: list[int]
    tokens: Numbers
    values: dict[str, Numbers]
    recorded: int


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Stretches of work on devices, in columns. Seconds count from the begin of the run.

    Attributes:
        lane: Index of the device.
        start: Begin.
        end: End.
        stage: What ran; ``several`` where that differs.
        outcome: ``done``, ``failed``, ``stopped``, ``running`` or ``lost``.
        jobs: How many attempts are folded into it.
        busy: Seconds between begin and end in which one ran.
        name: The job's id, or of several the first and the last.
    """

    lane: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    stage: list[str] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    name: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Who used which device when.

    Attributes:
        lanes: The devices.
        jobs: Of each device, attempts that ran there.
        busy: Of each device, seconds in which one did.
        seconds: Length of the run.
        attempts: All of them.
        bars: What is drawn.
    """

    lanes: list[str]
    jobs: list[int]
    busy: list[float]
    seconds: float
    attempts: int
    bars: Bars


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Rewards of the completions of a method after a round.

    Attributes:
        place: Dataset and model.
        algo: The method.
        round: Of the chains.
        counts: How many completions are in each bin of the place, see `Rewards.edges`.
        mean: Of the rewards.
    """

    place: str
    algo: str
    round: int
    counts: list[int]
    mean: float


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Histograms of rewards.

    Attributes:
        edges: Place -> ends of its bins, or, where `exact` has it, the rewards themselves.
        exact: Places whose rewards have few different values.
        histograms: All of them.
        about: What they are of.
    """

    edges: dict[str, list[float]] = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)
    histograms: list[Histogram] = field(default_factory=list)
    about: str = ""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Completions to be read. Lists of the second half are columns of completions.

    Attributes:
        about: How many of how many these are.
        places: Datasets and models.
        prompts: Texts.
        prompt_place: Of each prompt the index of its place.
        prompt_row: Of each prompt the id of its row.
        prompt_solution: Of each prompt the right answer, where one is known.
        algos: Methods.
        chains: References and seeds in words.
        prompt: Of each completion the index of its prompt.
        algo: Index of its method.
        chain: Index of its chain.
        round: Of the chain.
        text: The completion, its end cut off where it is very long.
        reward: None where there is none.
        correct: None where no reward can say so.
    """

    about: str = ""
    places: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    prompt_place: list[int] = field(default_factory=list)
    prompt_row: list[str] = field(default_factory=list)
    prompt_solution: list[str | None] = field(default_factory=list)
    algos: list[str] = field(default_factory=list)
    chains: list[str] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    algo: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    reward: Numbers = field(default_factory=list)
    correct: list[bool | None] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An attempt that failed, or was lost with its run.

    Attributes:
        job: Id.
        attempt: From 1.
        device: Where.
        kind: Class of the failure.
        reason: In words.
        outcome: ``tried again``, ``given up``, ...
        traceback: Of an exception, or "".
        log: Its log in the run's folder, or "".
    """

    job: str
    attempt: int
    device: str
    kind: str
    reason: str
    outcome: str
    traceback: str
    log: str


@dataclass(frozen=True, kw_only=True)
class Failures:
    """What went wrong.

    Attributes:
        rows: Attempts, in order of time; the first ones where there are very many.
        left_out: How many more there are.
        notes: Other things: devices that are used no more, jobs that are blocked, rewards that failed.
    """

    rows: list[Failure] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """One run.

    Attributes:
        name: What it is called: its experiment, and where others of it are on the page what tells them apart.
        stamp: Timestamp.
        state: In one word, see `RunView.state`.
        unfinished: What is missing of it, a line each; nothing of a finished run.
        best: Label and value of the method that reached most, for each dataset and model.
        facts: Likewise of when and where it ran, which with `best` stands at the top.
        places: Datasets and models.
        algos: Methods in the order of their looks, without the reference.
        metrics: Metrics in order, the one by which methods are judged first, with their headings.
        tables: The tables that the terminal shows.
        series: Of methods and chains.
        anchors: Place -> name of an anchor, such as ``optimum`` -> its metrics.
        fronts: Points of fronts.
        spent: By method and round.
        stages: By method and stage.
        training: Curves.
        training_about: How many of how many these are.
        timeline: None where nothing ran.
        rewards: Histograms.
        samples: Completions.
        failures: What went wrong.
        config: The configuration as YAML.
        given: Settings that were given.
        command: Repeats the run; "" where it was not recorded.
        environment: Label and value.
        versions: What outputs were made with.
    """

    name: str
    stamp: str
    state: str
    unfinished: list[str]
    best: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    places: list[str]
    algos: list[str]
    metrics: list[tuple[str, str]]
    tables: list[PageTable]
    series: list[Series]
    anchors: dict[str, dict[str, dict[str, float]]]
    fronts: list[FrontPoint]
    spent: list[Spent]
    stages: list[StageCost]
    training: list[TrainingCurve]
    training_about: str
    timeline: Timeline | None
    rewards: Rewards
    samples: Samples
    failures: Failures
    config: str
    given: list[str]
    command: str
    environment: list[tuple[str, str]]
    versions: PageTable | None


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of one run or several.

    Attributes:
        title: Of the page.
        made: When it was written, in words.
        version: Of this package.
        runs: The runs.
        comparison: Tables that set runs side by side.
        stages: Of all jobs, in the order of their looks.
        looks: What methods and stages are told apart by.
    """

    title: str
    made: str
    version: str
    runs: list[RunPage]
    comparison: list[PageTable] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    looks: Looks = field(default_factory=Looks)
