"""Standing of a race: pairs that are settled, chains that end early, and what that saves; its file, and words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from pipeline.config.schema import Config
from pipeline.engine.run_folder import RunFolder
from pipeline.files import json_text, write_whole
from pipeline.foreign import ForeignDataError, read_json_file
from pipeline.plan.graph import Plan
from pipeline.runs.report.format import count

FILE = "race.json"
EVALUATE = "evaluate"
"""`plan.contents.EVALUATE`, which takes long to import."""
_LIMIT = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is known of a pair after some prompts: first minus second, and an interval.

    The intervals of all pairs, rounds and looks hold together.
    """

    prompts: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two chains after a round.

    Attributes:
        place: Dataset, model, reference and seed, as in names of chains.
        round: The round.
        first: An algorithm.
        second: Another.
        better: Which is shown better; "" while that is open.
        looks: All looks at both, in order.
        since: Prompts before those that count: they were seen before one of the two was added.
    """

    place: str
    round: int
    first: str
    second: str
    better: str
    looks: list[Look]
    since: int = 0

    @property
    def worse(self) -> str:
        """Return which is shown worse; "" while that is open."""
        return "" if not self.better else self.second if self.better == self.first else self.first

    def __str__(self) -> str:
        look, name = self.looks[-1], f"{self.place}: round {self.round}"
        difference, low, high = look.difference, look.low, look.high
        first, second = (self.better, self.worse) if self.better else (self.first, self.second)
        if first != self.first:
            difference, low, high = -difference, -high, -low
        order = f"{first} above {second}" if self.better else f"{first} and {second}"
        interval = f"{first} - {second} = {difference:.3f} [{low:.3f}, {high:.3f}]"
        prompts = (
            f"{look.prompts:,} prompts" if not self.since else f"prompts {self.since + 1:,} to {look.prompts:,}"
        )
        return f"{name}, {prompts}: {order}: {interval}"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Standing of a race.

    Attributes:
        settings: Metric, alpha and when a round is over, in words.
        num_prompts: Largest number of prompts.
        looks: Chain -> prompts wanted so far in each round.
        racing: Chain -> its first round that is not decided; empty once the race is over.
        grows: Chain -> its first round that chains which were added later may need on more prompts.
        awaited: Looks that are not judged yet, each as chain -> round of all that take part.
        stopped: Chain -> the last round of one that is shown worse then, and trained no further.
        pairs: All pairs of all rounds so far.
        added: Algorithm that was added -> prompts seen before, of which no claim on it is made.
        saved: ``prompts`` and ``rounds`` that are not evaluated and trained, and the ``seconds`` of a device that
            these would have taken, by estimates.
    """

    settings: str
    num_prompts: int
    looks: dict[str, list[int]] = field(default_factory=dict)
    racing: dict[str, int] = field(default_factory=dict)
    grows: dict[str, int] = field(default_factory=dict)
    awaited: list[dict[str, int]] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    added: dict[str, int] = field(default_factory=dict)
    saved: dict[str, float] = field(default_factory=dict)

    def applied(self, config: Config) -> Config:
        """Return the request with the settings that say what the race has decided."""
        last_rounds = config.experiment.last_rounds | self.stopped
        experiment = replace(config.experiment, looks=self.looks, last_rounds=last_rounds)
        return replace(config, experiment=experiment)

    def unsettled(self, config: Config) -> Config:
        """Return the request, without a race, of all that it carries out if no other pair settles."""
        # Rounds that are not named are evaluated on all prompts.
        decided = {
            name: looks[: self.open_from.get(name, len(looks) + 1) - 1] for name, looks in self.looks.items()
        }
        looks = {name: of for name, of in decided.items() if of}
        applied = self.applied(config).experiment
        return replace(config, experiment=replace(applied, race=None, looks=looks))

    @property
    def open_from(self) -> dict[str, int]:
        """Return chain -> its first round that may yet be evaluated on more prompts."""
        both = {*self.racing, *self.grows}
        return {name: min(of[name] for of in (self.racing, self.grows) if name in of) for name in both}

    def last_looks(self) -> dict[str, list[int]]:
        """Return chain -> prompts of each round, of one that is not decided those of the last look of all."""
        seen: dict[tuple[str, int], int] = {}
        for pair in self.pairs:
            for algo in (pair.first, pair.second):
                of = f"{pair.place}/{algo}", pair.round
                seen[of] = max(seen.get(of, 0), pair.looks[-1].prompts)
        found = dict(self.looks)
        for chain, first in self.open_from.items():
            wanted = self.looks.get(chain, [])
            found[chain] = wanted[: first - 1]
            for number, prompts in enumerate(wanted[first - 1 :], first):
                alone = prompts if number < self.racing.get(chain, number + 1) else 0
                if not (now := seen.get((chain, number), alone)):
                    break
                found[chain].append(now)
        return found

    def ended_here(self, config: Config) -> Config:
        """Return the request, without a race, of what `last_looks` has."""
        looks = self.last_looks()
        ends = config.experiment.last_rounds | self.stopped | {name: len(looks[name]) for name in self.open_from}
        own = {name: of for name, of in looks.items() if of}
        return replace(config, experiment=replace(config.experiment, race=None, looks=own, last_rounds=ends))

    def waits_for(self, plan: Plan) -> list[list[str]]:
        """Return the jobs of the looks that are not judged yet, one list for each."""
        evaluations = [job for job in plan.jobs.values() if job.stage == EVALUATE]
        return [[job.id for job in evaluations if of.get(job.chain) == job.round] for of in self.awaited]

    def since(self, before: Standing) -> str:
        """Say what was decided since an earlier standing."""
        known = {(pair.place, pair.round, pair.first, pair.second) for pair in before.pairs if pair.better}
        told = [
            str(pair)
            for pair in self.pairs
            if pair.better and (pair.place, pair.round, pair.first, pair.second) not in known
        ]
        told += [
            f"{chain} ends after round {last}"
            for chain, last in self.stopped.items()
            if before.stopped.get(chain) != last
        ]
        grown: dict[tuple[str, int, int], list[str]] = {}
        for chain, looks in self.looks.items():
            if looks and looks != before.looks.get(chain):
                place, _, algo = chain.rpartition("/")
                grown.setdefault((place, len(looks), looks[-1]), []).append(algo)
        told += [
            f"{place}: round {number}: evaluate {', '.join(algos)} on {prompts:,} prompts"
            for (place, number, prompts), algos in grown.items()
        ]
        return "; ".join(told) or "nothing more to look at"


def with_saved(standing: Standing, everything: Plan, plan: Plan) -> Standing:
    """Return a standing with what a plan leaves out of everything."""
    gone = [job for job in everything.jobs.values() if job.id not in plan.jobs]
    rows = [job.determined_by["rows"] for job in gone if job.stage == EVALUATE and job.chain in standing.looks]
    saved = {
        "prompts": sum(stop - start for start, stop in rows),
        "rounds": len({(job.chain, job.round) for job in gone if job.stage == "train"}),
        "seconds": round(sum(job.seconds * job.devices for job in gone), 1),
    }
    return replace(standing, saved=saved)


def write_standing(run: RunFolder, standing: Standing) -> None:
    """Write the standing into the folder of a run.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(run.path / FILE, json_text(asdict(standing), indent=1) + "\n")


def read_standing(run: RunFolder) -> Standing | None:
    """Read the standing of a run; None if it has none that can be read."""
    try:
        return read_json_file(run.path / FILE, Standing, _LIMIT)
    except (OSError, ForeignDataError):
        return None


def headline(standing: Standing) -> str:
    """Return the rules of a race, and how many of its pairs are settled."""
    settled = sum(bool(pair.better) for pair in standing.pairs)
    of = f"{settled:,} of {len(standing.pairs):,} pairs settled"
    return f"race: {standing.settings}, at most {standing.num_prompts:,} prompts: {of}"


def outcome(standing: Standing) -> list[str]:
    """Say which chains a race has stopped, what is undecided, and what was saved."""
    lines = [
        f"stopped, not shown worse at the end: {chain}, shown worse after round {last}"
        for chain, last in standing.stopped.items()
    ]
    lines += [
        f"added later: {algo}: claims on it count prompts after the first {seen:,}"
        f"{', of which there are none' if seen >= standing.num_prompts else ''}"
        for algo, seen in standing.added.items()
    ]
    if standing.racing:
        lines.append(f"undecided: {', '.join(f'{name} from round {of}' for name, of in standing.racing.items())}")
    elif saved := standing.saved:
        lines.append(
            f"saved: {saved['prompts']:,.0f} prompts of evaluation, {count(int(saved['rounds']), 'round')} of "
            f"training; by estimates some {saved['seconds']:,.0f} s of a device"
        )
    return lines


def told(standing: Standing) -> list[str]:
    """Return the section of a race for people, line by line."""
    pairs = [f"  {pair}{'' if pair.better else ' (not told apart)'}" for pair in standing.pairs]
    holds = "  (settled pairs hold however often one looks; a p of the table assumes a single look)"
    return [headline(standing), *pairs, holds, *(f"  {line}" for line in outcome(standing))]
