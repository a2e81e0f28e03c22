"""What a Slurm job asks for against what its program needs: a table of rules, each with its own message.

Slurm grants GPUs, CPUs and tasks; a launcher turns them into ranks. Which numbers are right depends on who starts
them:

    ranks started by                 tasks on each node    the program is started by
    itself (this engine, torchrun,   1                     python, or srun with one task a node
    `python -m pipeline launch`)
    Lightning, which looks for       as many as GPUs       srun
    SLURM_NTASKS
    Slurm (MPI, one rank a task)     as many as GPUs       srun

Most wrong combinations do not fail: they hang, or train on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.engine.devices.mask import NOTHING, VISIBLE, entries_of
from pipeline.slurm.job import SlurmJob, Starter, job_of_environment
from pipeline.slurm.request import widths
from pipeline.terminal.check import Check, Verdict, failed, passed, warned


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        name: What is wrong, in a word or two.
        verdict: How bad it is.
        applies: Whether a job is wrong in this way.
        seen: What the job has and what comes of it.
        remedy: What to ask for instead.
        by_starter: Whether it holds only if the starter is known, and is a warning where that is guessed.
    """

    name: str
    verdict: Verdict
    applies: Callable[[SlurmJob], bool]
    seen: Callable[[SlurmJob], str]
    remedy: Callable[[SlurmJob], str]
    by_starter: bool = False


def _one_task(job: SlurmJob) -> str:
    gpus = max(job.gpus or 1, job.here)
    return (
        f"#SBATCH --gres=gpu:{gpus} with --ntasks-per-node=1, and start it by `python -m pipeline launch -- ...`"
    )


def _task_per_gpu(job: SlurmJob) -> str:
    return f"#SBATCH --ntasks-per-node={job.gpus} with --gres=gpu:{job.gpus}, and `srun python ...`"


def _own_ranks(job: SlurmJob) -> bool:
    return job.starter is Starter.itself


RULES = (
    Rule(
        "fewer GPUs than tasks",
        Verdict.FAIL,
        lambda job: bool(job.gpus) and job.here > (job.gpus or 0),
        lambda job: (
            f"{job.here} tasks on a node with {job.gpus} GPU{'s' if job.gpus != 1 else ''}: each is a process "
            f"that waits for a GPU of its own, so they hang at 'MEMBER: 1/{job.here}'"
        ),
        _one_task,
    ),
    Rule(
        "several copies",
        Verdict.FAIL,
        lambda job: _own_ranks(job) and job.here > 1 and job.here <= (job.gpus or job.here),
        lambda job: (
            f"{job.here} tasks on a node, but the program starts its ranks itself: srun would start {job.here} "
            "copies of it, which fight for the same GPUs and port"
        ),
        _one_task,
    ),
    Rule(
        "one GPU of several",
        Verdict.FAIL,
        lambda job: job.starter is Starter.lightning and job.here == 1 and (job.gpus or 0) > 1,
        lambda job: (
            f"one task with {job.gpus} GPUs: Lightning sees SLURM_NTASKS, takes the task for the only rank that "
            "there is, and trains on one GPU without an error; so does a script that starts no ranks"
        ),
        lambda job: (
            f"start it by `python -m pipeline launch -- ...`, which hides SLURM_NTASKS; or {_task_per_gpu(job)}"
        ),
        by_starter=True,
    ),
    Rule(
        "tasks and GPUs differ",
        Verdict.FAIL,
        lambda job: not _own_ranks(job) and 1 < job.here < (job.gpus or 0),
        lambda job: (
            f"{job.here} tasks on a node with {job.gpus} GPUs: a rank a task leaves GPUs idle, or is refused"
        ),
        _task_per_gpu,
        by_starter=True,
    ),
    Rule(
        "tasks not placed",
        Verdict.WARN,
        lambda job: not _own_ranks(job) and (job.tasks or 1) > 1 and job.tasks_per_node is None,
        lambda job: (
            f"--ntasks={job.tasks} does not say how many run on each node: Slurm may place them unevenly, and "
            "Lightning refuses it"
        ),
        lambda job: f"#SBATCH --ntasks-per-node={job.gpus or job.here} instead of --ntasks",
    ),
    Rule(
        "fewer tasks than per node",
        Verdict.FAIL,
        lambda job: (job.tasks or job.here) < job.here,
        lambda job: f"--ntasks={job.tasks} contradicts --ntasks-per-node={job.tasks_per_node}: Slurm starts fewer",
        lambda _: "leave out --ntasks; --nodes and --ntasks-per-node say it all",
    ),
    Rule(
        "more tasks than places",
        Verdict.FAIL,
        lambda job: job.tasks_per_node is not None and (job.tasks or 0) > job.nodes * job.tasks_per_node,
        lambda job: (
            f"--ntasks={job.tasks} contradicts --nodes={job.nodes} with --ntasks-per-node={job.tasks_per_node}: "
            "Slurm refuses it, or drops one of them"
        ),
        lambda _: "leave out --ntasks; --nodes and --ntasks-per-node say it all",
    ),
    Rule(
        "no srun",
        Verdict.FAIL,
        lambda job: job.nodes > 1 and not job.in_step,
        lambda job: (
            f"{job.nodes} nodes, but the program is not started by srun: a batch script runs on the first node "
            f"alone, and its ranks wait for the others ('1/{job.nodes * (job.gpus or 1)} clients joined')"
        ),
        lambda job: (
            "srun --ntasks-per-node=1 python -m pipeline launch --nnodes $SLURM_NNODES --master-addr "
            "$(hostname) --master-port 29500 -- train.py"
            if _own_ranks(job)
            else "put `srun` before the program"
        ),
    ),
    Rule(
        "ranks need srun",
        Verdict.FAIL,
        lambda job: not _own_ranks(job) and job.nodes == 1 and job.here > 1 and not job.in_step,
        lambda job: (
            f"{job.here} tasks, but without srun only one process starts and waits for {job.here - 1} others"
        ),
        lambda _: "put `srun` before the program, or use one task and `python -m pipeline launch -- ...`",
    ),
    Rule(
        "srun is missing",
        Verdict.FAIL,
        lambda job: not job.srun and (not _own_ranks(job) or job.nodes > 1),
        lambda _: "srun is needed and not installed here",
        lambda _: "load Slurm's module, or mount its programs and /etc/slurm into the container",
    ),
    Rule(
        "bound GPUs",
        Verdict.WARN,
        lambda job: (
            job.here > 1
            and (
                job.gpus_per_task is not None
                or (job.gpu_bind or "none") not in ("none", "verbose", "verbose,none")
            )
        ),
        lambda job: (
            (f"--gpu-bind={job.gpu_bind}" if job.gpu_bind else f"--gpus-per-task={job.gpus_per_task}")
            + " shows each task its own GPU as cuda:0: `cuda:LOCAL_RANK` does not exist, and NCCL loses direct "
            "copies between GPUs"
        ),
        lambda job: f"#SBATCH --gres=gpu:{job.gpus or job.here} with --gpu-bind=none",
    ),
    Rule(
        "fewer GPUs in a task",
        Verdict.FAIL,
        lambda job: (
            _own_ranks(job) and job.here == 1 and 0 < (job.gpus_per_task or job.gpus or 1) < (job.gpus or 1)
        ),
        lambda job: f"one task with --gpus-per-task={job.gpus_per_task} of the {job.gpus} GPUs of the node",
        lambda job: f"#SBATCH --gres=gpu:{job.gpus} without --gpus-per-task",
    ),
    Rule(
        "few CPUs",
        Verdict.WARN,
        lambda job: job.cpus_per_task is not None and job.cpus_per_task < _cpus_needed(job),
        lambda job: (
            f"{job.cpus_per_task} CPUs for a task with {_ranks_of_task(job)} ranks"
            + (f" and {job.loaders} loader processes each" if job.loaders else "")
            + ": GPUs wait for data"
        ),
        lambda job: f"#SBATCH --cpus-per-task={_cpus_needed(job)} or more",
    ),
    Rule(
        "mask of its own",
        Verdict.FAIL,
        lambda job: bool(job.gpus) and len(_entries(job.mask)) > (job.gpus or 0),
        lambda job: (
            f"{VISIBLE}={job.mask} names {len(_entries(job.mask))} GPUs, but the job has {job.gpus}: CUDA drops "
            "the rest without a word, and ranks wait for them"
        ),
        lambda job: (
            f"leave {VISIBLE} to Slurm, which sets it; or ask for #SBATCH --gres=gpu:{len(_entries(job.mask))}"
        ),
    ),
    Rule(
        "GPUs hidden from the job",
        Verdict.WARN,
        lambda job: bool(job.gpus) and job.mask is not None and len(_entries(job.mask)) < (job.gpus or 0),
        lambda job: f"{VISIBLE}={job.mask!r} shows {len(_entries(job.mask))} of the {job.gpus} GPUs of the job",
        lambda _: f"leave {VISIBLE} to Slurm, unless you mean to use a part",
    ),
    Rule(
        "GPUs of others",
        Verdict.WARN,
        lambda job: (
            job.mask is None and job.visible is not None and job.gpus is not None and job.visible > job.gpus
        ),
        lambda job: f"the job has {job.gpus} GPUs, but all {job.visible} of the node can be used",
        lambda job: f"choose by distributed.num_gpus={job.gpus} or --num-gpus {job.gpus}; others may use the rest",
    ),
    Rule(
        "wider than a node",
        Verdict.FAIL,
        lambda job: 0 < (job.gpus or 0) < job.widest,
        lambda job: (
            f"a job of the run takes {job.widest} GPUs of {'nodes' if job.ray else 'one node'} "
            f"(training.gpus_per_job, generation.gpus_per_job), and no node has more than {job.gpus}: "
            + ("a job of more has all GPUs of several, or " if job.ray else "")
            + "the run is refused when it begins"
        ),
        lambda job: (
            f"{widths(job.gpus or 1, job.nodes)} GPUs in a job, or #SBATCH --gres=gpu:{job.widest}"
            if job.ray
            else f"#SBATCH --gres=gpu:{job.widest}, fewer GPUs in a job, or all of several nodes through Ray"
        ),
    ),
    Rule(
        "a cluster for each task",
        Verdict.FAIL,
        lambda job: job.clusters,
        lambda _: "each task of the array brings up a Ray cluster of its own, and all do the same work on them",
        lambda _: "leave out --array, and ask for more --nodes",
    ),
    Rule(
        "no GPU",
        Verdict.WARN,
        lambda job: not job.gpus and not job.visible and not job.on_cpu,
        lambda _: "the job has no GPU",
        lambda _: "#SBATCH --gres=gpu:N, unless you mean to run on the CPU",
    ),
)


def check_slurm(job: SlurmJob) -> list[Check]:
    """Apply every rule.

    Args:
        job: What a job asks for.

    Returns:
        One check for each rule that it breaks, or one that passed.
    """
    make = {Verdict.WARN: warned, Verdict.FAIL: failed}
    found = [
        make[Verdict.WARN if rule.by_starter and job.guessed else rule.verdict](
            f"Slurm: {rule.name}", rule.seen(job), rule.remedy(job)
        )
        for rule in RULES
        if rule.applies(job)
    ]
    return found or [passed("Slurm", describe(job))]


def describe(job: SlurmJob) -> str:
    """The numbers of a job that is right."""
    gpus = "no GPU" if not job.gpus else f"{job.gpus} GPUs" if job.gpus > 1 else "1 GPU"
    nodes = f"{job.nodes} nodes, each with " if job.nodes > 1 else ""
    if job.ray:
        return f"{nodes}{gpus}, as one Ray cluster: right for a run with execution.backend=ray"
    right = f"{nodes}{job.here} task{'s' if job.here != 1 else ''} and {gpus}: right for this engine"
    if _own_ranks(job) and job.here == 1 and (job.gpus or 0) > 1:
        # The same numbers are wrong for a program that counts tasks, so say it where they are right.
        right += " and `python -m pipeline launch`; Lightning by itself would train on one GPU"
    return right


def slurm_checks(environment: Mapping[str, str], *, srun: bool, visible: int) -> Iterator[Check]:
    """Check the job that this process runs in, as one that runs this engine; nothing outside of Slurm.

    Args:
        environment: Variables of this process.
        srun: Whether srun is installed.
        visible: GPUs that NVML lists.
    """
    job = job_of_environment(environment)
    if job is None:
        return
    yield from check_slurm(replace(job, srun=srun, visible=visible))


def _entries(mask: str | None) -> list[int] | list[str]:
    return [] if mask is None or mask.strip() in NOTHING else entries_of(mask)[0]


def _ranks_of_task(job: SlurmJob) -> int:
    return job.gpus or 1 if job.here == 1 else 1


def _cpus_needed(job: SlurmJob) -> int:
    return _ranks_of_task(job) * (1 + job.loaders)
