"""The paper's experiments: its datasets and settings. `benchmarks/agreement` compares results with its numbers."""

from dataclasses import dataclass, replace

from avare.experiments.base import RUNS, Request, Stage, Stages, Task, register
from avare.experiments.comparison import Compare
from avare.experiments.data import Data, obtain
from avare.experiments.sgd_runs import RULES, Setting, common_spec, descent_spec, optimum_task, problem_of

SAMPLERS = ("Uniform", "Mabs", "Vrb", "Avare")
L2, EPOCHS, QUICK_RUNS = 1.0, 100, 2


@dataclass(frozen=True, slots=True)
class PaperSetting(Setting):
    """How the paper uses a dataset; it draws with replacement."""

    tolerance: float = 0.0  # of the optimum, relative to the gradient at 0
    quick_epochs: int = 1


# The paper does not say what its L is. On CIFAR10, where images have much in common, steps of m / (2 N L) with ours are
# too long even for the full gradient, whatever the sampler; 3 L gives the paper's figures.
SETTINGS: dict[str, PaperSetting] = {
    "synthetic": PaperSetting("logistic", EPOCHS, 1, L2, tolerance=1e-13, quick_epochs=100),
    "mnist": PaperSetting("softmax", EPOCHS, 128, L2, tolerance=1e-8, quick_epochs=4),
    "ijcnn1": PaperSetting("softmax", EPOCHS, 128, L2, tolerance=1e-12, quick_epochs=20),
    "cifar10": PaperSetting("softmax", EPOCHS, 128, L2, caution=3.0, tolerance=1e-7),
}
PARTS = (*SETTINGS, "table")


class Paper(Compare):
    """The paper's datasets and its Table 1, or all."""

    name = "paper"
    kinds = ("reproduce", "table")
    words = (*PARTS, "all")

    def stages(self, request: Request) -> Stages:
        """Yield the search for the optima, then all runs; in each the longest first, so that workers end together."""
        parts = PARTS if "all" in request.words else request.words
        names = [name for name in reversed(SETTINGS) if name in parts or "table" in parts]
        data = {name: obtain(name, folder=request.folder, progress=request.progress)[0] for name in names}
        tables = yield Stage("optima", [paper_optimum(data[name]) for name in names])
        optima = {record["spec"]["dataset"]: record["facts"]["optimum"] for record in tables}
        tasks = [task for name in names if name in parts for task in descents(data[name], optima[name], request)]
        if tasks:
            yield Stage("runs", tasks)


register(Paper())


def paper_optimum(data: Data) -> Task:
    """Return the search for the optimum of one of the paper's datasets."""
    setting = SETTINGS[data.name]
    return optimum_task("table", data, setting.loss, L2, setting.tolerance)


def descents(data: Data, optimum: float, request: Request) -> list[Task]:
    """Return the runs on one of the paper's datasets, seed by seed."""
    paper = SETTINGS[data.name]
    epochs = request.epochs or (paper.quick_epochs if request.quick else paper.epochs)
    bound = float(problem_of(common_spec("reproduce", data, paper.loss, L2), data.X, data.y).lengths.max())
    setting = replace(paper, epochs=epochs, bound=bound)
    return [
        Task(descent_spec("reproduce", data, setting, sampler, rule, seed), data, optimum)
        for seed in range(request.runs or (QUICK_RUNS if request.quick else RUNS))
        for rule in RULES
        if rule in request.rules
        for sampler in request.samplers or SAMPLERS
    ]
