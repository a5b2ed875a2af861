"""Train one encoder on a mixture.

``python -m training_recipes.train RECIPE`` trains a recipe whose mixture has been built, also
under ``accelerate launch``. Checkpoints lie below ``checkpoints/`` of the run folder until the
training is done; killed at any moment and started again, it goes on from the last complete one
and ends with the same weights.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obliq_hf.errors import ObliqError
from obliq_hf.files import content_hash, hash_files, read_json
from training_recipes.tables import (
    column_prompts,
    plan_training,
    read_dev,
    read_tables,
    text_lengths,
    trained_mteb_tasks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from obliq_hf.task_data import TaskData
    from obliq_hf.tasks import ObliqTask
    from training_recipes.recipe import Recipe
    from training_recipes.sections import TrainingConfig

__all__ = ["TrainResult", "train", "train_recipe"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """A finished training.

    Attributes:
        model: Folder of the whole model; stock libraries load it.
        adapter: Folder of the adapter, where one was trained.
        report: Content of ``training.json``.
    """

    model: Path
    adapter: Path | None
    report: dict[str, Any]


def _hashed(config: TrainingConfig) -> dict[str, Any]:
    """The settings that decide the weights."""
    plain = asdict(config)
    return {f.name: plain[f.name] for f in fields(config) if f.metadata.get("hashed", True)}


def _base_identity(config: TrainingConfig) -> list[str | None]:
    from obliq_hf.encoder.sources import locate

    source = locate(config.base, revision=config.revision)
    if source.local:
        return [hash_files(source.location)]
    return [source.id, source.commit()]


def _dev_identity(data: TaskData) -> str:
    return content_hash(
        data.name,
        data.corpus.fingerprint,
        data.queries.ids,
        data.queries.texts,
        data.qrels,
        data.excluded,
    )


def train(
    config: TrainingConfig,
    mixture: str | Path,
    out: str | Path,
    *,
    tasks: Sequence[ObliqTask],
    dev: Mapping[str, TaskData] | None = None,
    seed: int = 13,
    resume: bool = True,
    recipe_hash: str | None = None,
    card: str | None = None,
    reload_check: bool = True,
    show_progress: bool | None = None,
    publish: Callable[[dict[str, Any]], Callable[[Any, str], Any]] | None = None,
) -> TrainResult:
    """Train an encoder on a mixture and save it; found again where it is already there.

    Writes ``adapter/`` where one is trained, ``training.json``, and last of all ``model/``, each
    whole or not at all. Of several processes the first one writes.

    Args:
        config: The settings.
        mixture: The mixture's folder.
        out: The run folder.
        tasks: The tasks the model is for; the mixture's datasets are each for one of them.
        dev: Task name -> development data, to keep the checkpoint of the best mean nDCG@10
            instead of the last; scored every ``save_steps``.
        seed: Seed of batches, new adapters and dropout.
        resume: Whether to go on from a checkpoint of the same training.
        recipe_hash: The recipe's fingerprint, for the report.
        card: Text of the model's README; by default a short one without any data.
        reload_check: Whether to load the result in a fresh process and compare.
        show_progress: Whether to show a bar; None asks the Hugging Face switches.
        publish: Given what ``training.json`` will say, returns what publishes the model under a
            commit message; called at every checkpoint.

    Returns:
        Where the result lies, and the report.

    Raises:
        ObliqError: A setting, a dataset or the device is not fit, before anything is trained; a
            model of another training is already there; the loss is not finite; or the saved
            model is not the trained one.
    """
    from accelerate.utils import broadcast_object_list

    from obliq_hf.prompts import prompts_for
    from training_recipes.devices import Precision, check_devices, process_state
    from training_recipes.output import probe_vectors, training_report, write_training
    from training_recipes.session import TrainingSession, dev_evaluator, progress_wanted

    check_devices()
    process = process_state()
    precision = Precision.of(config)
    place = Path(out)
    tables = read_tables(mixture)
    prompts = prompts_for(tasks, config.template)
    columns = column_prompts(tables, tasks, prompts)
    lengths = text_lengths(config, tables, [task.name for task in tasks])
    evaluator = dev_evaluator(dev, prompts)
    identity = {
        "settings": _hashed(config) | {"base": _base_identity(config)},
        "mixture": hash_files(mixture),
        "prompts": prompts,
        "dev": None if dev is None else [config.save_steps, *map(_dev_identity, dev.values())],
        "seed": seed,
    }
    fingerprint = content_hash(identity)
    finished = _finished(place, fingerprint, config)
    if finished is not None:
        return finished
    plan = plan_training(config, tables, seed=seed, world=process.num_processes)
    # short batches, and so the course of training, can depend on the number of processes
    course = content_hash(fingerprint, process.num_processes)[:12]
    checkpoints = place / "checkpoints" / course
    found = [_checkpoint(checkpoints, resume) if process.is_main_process else None]
    start = broadcast_object_list(found)[0]
    started = time.perf_counter()
    session = TrainingSession(
        config=config,
        tasks=tasks,
        tables=tables,
        plan=plan,
        columns=columns,
        lengths=lengths,
        evaluator=evaluator,
        seed=seed,
        precision=precision,
        checkpoints=checkpoints,
        show_progress=progress_wanted() if show_progress is None else show_progress,
    )
    model = session.build_encoder()
    probed = [*dict.fromkeys(table.task for table in tables), "query", "document"]
    before = probe_vectors(model, probed) if process.is_main_process else None
    known = {
        "fingerprint": fingerprint,
        "recipe": recipe_hash,
        "mixture": identity["mixture"],
        "seed": seed,
        "processes": process.num_processes,
        "device": process.device.type,
    }
    if publish is not None:
        session.publish = publish({**known, **training_report(config, model, plan, precision)})
    trained, history = session.run(model, start)
    if before is not None:
        report = {
            **known,
            "resumed_from": None if start is None else int(Path(start).name.split("-")[1]),
            **training_report(config, trained, plan, precision),
            "mteb_tasks": trained_mteb_tasks(tables, tasks, place / "corpus"),
            **history,
        }
        write_training(
            trained,
            place,
            config=config,
            probed=probed,
            before=before,
            report=report,
            card=card,
            reload_check=reload_check,
            started=started,
        )
        session.clean()
    process.wait_for_everyone()
    return TrainResult(
        place / "model",
        place / "adapter" if config.lora is not None else None,
        read_json(place / "training.json"),
    )


def train_recipe(
    recipe: Recipe,
    *,
    mixture: str | Path | None = None,
    resume: bool = True,
    card: str | None = None,
) -> TrainResult:
    """Train what a recipe says, on the mixture in its run folder.

    Args:
        recipe: The recipe; ``out`` is the run folder.
        mixture: Another mixture's folder.
        resume: Whether to go on from a checkpoint.
        card: Text of the model's README.

    Raises:
        ObliqError: The mixture has not been built; and as of :func:`train`.
    """
    from obliq_hf.tasks import load_tasks
    from training_recipes.publishing import checkpoint_publisher

    out = Path(recipe.out)
    place = out / "mixture" if mixture is None else Path(mixture)
    if not (place / "mixture.json").is_file():
        raise ObliqError(
            f"{place}: no mixture there; build it first ('obliq run' builds all stages), or name "
            "another with --mixture"
        )
    tasks = load_tasks(recipe.tasks)
    split = recipe.training.dev_split
    return train(
        recipe.training,
        place,
        out,
        tasks=tasks,
        dev=None if split is None else read_dev(out / "corpus", tasks, split),
        seed=recipe.seed,
        resume=resume,
        recipe_hash=recipe.hash(),
        card=card,
        publish=checkpoint_publisher(recipe),
    )


def _finished(place: Path, fingerprint: str, config: TrainingConfig) -> TrainResult | None:
    if not (place / "model").exists():
        return None
    record = place / "training.json"
    if not record.is_file() or read_json(record).get("fingerprint") != fingerprint:
        raise ObliqError(
            f"{place / 'model'} holds a model that was trained otherwise; give another --out, or "
            "remove it"
        )
    logger.info("%s: already trained", place / "model")
    adapter = place / "adapter" if config.lora is not None else None
    return TrainResult(place / "model", adapter, read_json(record))


def _checkpoint(checkpoints: Path, resume: bool) -> str | None:
    from training_recipes.checkpoint import last_complete
    from training_recipes.trainer import remove_checkpoints

    if not resume:
        remove_checkpoints(checkpoints)
    others = [p for p in checkpoints.parent.glob("*") if p != checkpoints]
    if others:
        logger.warning(
            "%s holds checkpoints of %d other trainings, left as they are",
            checkpoints.parent, len(others),
        )  # fmt: skip
    found = last_complete(checkpoints)
    if found is not None:
        logger.info("resuming from %s", found.name)
    return None if found is None else str(found)


if __name__ == "__main__":
    from training_recipes.cli import train_main

    sys.exit(train_main(sys.argv[1:]))
