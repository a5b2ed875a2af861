"""Publishing the folders of a run: the artefact, its card, its results, in one push."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cards.cards import CardOptions, dataset_card, model_card
from model_cards.facts import RunFacts, gather, policy_rows
from model_cards.licence_sources import (
    base_licence,
    checkpoint_licence,
    corpus_licence,
    data_licences,
)
from model_cards.licences import UNKNOWN, carried_over, parse_licence
from model_cards.results import (
    EvaluatedOn,
    eval_result_entries,
    evaluated_on,
    model_index_results,
)
from obliq_hf.errors import ObliqError
from obliq_hf.files import read_json
from obliq_hf.hub import Pushed, open_repository
from obliq_hf.hub.artefacts import read_artefact
from obliq_hf.hub.dataset_push import push_dataset
from obliq_hf.hub.model_files import BaseModel, collect_model
from obliq_hf.hub.model_push import prepare_push
from obliq_hf.hub.names import Destination, check_repo_id, check_tag
from obliq_hf.hub.repository import LocalFile

if TYPE_CHECKING:
    from obliq_hf.hub import Repository
    from obliq_hf.hub.dataset_push import StagedDataset
    from obliq_hf.hub.names import RepoType

__all__ = ["PublishOptions", "packaged_commit", "publish_dataset", "publish_model"]

_NOT_RECORDED = ("seconds", "resumed_from", "losses")


@dataclass(frozen=True)
class PublishOptions:
    """How to publish.

    Attributes:
        to: ``hub`` or ``folder:PATH``.
        token: The Hub's token; by default that of the environment.
        endpoint: The Hub's address, likewise.
        version: The version tag; by default one made from the content.
        private: Make a new repository private; refuse one that is public.
        create_pr: Open a pull request instead of committing.
        dry_run: Check and build everything, and write nothing.
        replace_card: Write the card's text anew although it was edited by hand.
        message: First line of the commit message.
        tagged: Whether a version tag is set.
        licence: The licence, as :func:`model_cards.licences.parse_licence` reads it.
        language: Language codes of the texts.
        title: Heading of the card.
    """

    to: str = "hub"
    token: str | None = None
    endpoint: str | None = None
    version: str | None = None
    private: bool | None = None
    create_pr: bool = False
    dry_run: bool = False
    replace_card: bool = False
    message: str | None = None
    tagged: bool = True
    licence: str | None = None
    language: tuple[str, ...] = ("en",)
    title: str = ""

    def checked(self) -> PublishOptions:
        """The same, after a check of what needs no file.

        Raises:
            ObliqError: The version cannot be a tag, the Hub knows no such licence, or ``to`` is no
            destination.
        """
        Destination.parse(self.to)
        if self.version is not None:
            check_tag(self.version)
        if self.licence is not None:
            parse_licence(self.licence)
        return self

    def repository(self, repo_id: str, repo_type: RepoType) -> Repository:
        """A repository at the destination.

        Raises:
            ObliqError: The name is none.
        """
        return open_repository(
            repo_id, repo_type, to=self.to, token=self.token, endpoint=self.endpoint
        )

    def pushing(self) -> dict[str, Any]:
        """The arguments that every push takes."""
        return {
            "version": self.version,
            "private": self.private,
            "create_pr": self.create_pr,
            "dry_run": self.dry_run,
            "replace_card": self.replace_card,
            "message": self.message,
        }


def publish_dataset(
    folder: str | Path,
    repo_id: str,
    options: PublishOptions | None = None,
    *,
    task: str | None = None,
    config: str | None = None,
    corpus: str | Path | None = None,
) -> Pushed:
    """Publish a corpus, graph, mixture or queries folder.

    Args:
        folder: The folder.
        repo_id: ``organisation/name``.
        options: How to publish.
        task: The task of a graph's pairs.
        config: Name of a graph's config, instead of ``<task>-k<k>``.
        corpus: The corpus that queries were written from.

    Raises:
        ObliqError: The folder, a name or the repository does not allow it.
    """
    given = (options or PublishOptions()).checked()
    repository = given.repository(repo_id, "dataset")
    repository.check_access(create_pr=given.create_pr, private=given.private)
    artefact = read_artefact(folder, task=task, config=config, corpus=corpus)
    beside = Path(corpus) if corpus else Path(folder).resolve().parent / "corpus"
    known = artefact.facts.get("corpus")
    if known is None and (beside / "corpus.json").is_file():
        known = read_json(beside / "corpus.json")
    stated = corpus_licence(known)
    chosen = parse_licence(given.licence) if given.licence else None
    licence = carried_over(None, [] if stated is None else [stated], chosen)

    def card(staged: StagedDataset) -> str:
        return dataset_card(
            artefact,
            staged,
            CardOptions(
                repo_id=repo_id,
                tag=given.version or staged.default_tag,
                licence=licence,
                language=given.language,
                title=given.title,
            ),
        )

    pushed = push_dataset(
        artefact.configs,
        repository,
        card=card,
        part=f"{artefact.kind}-{artefact.configs[0].name}",
        extra=artefact.extra,
        retired=artefact.retired,
        **given.pushing(),
    )
    if licence == UNKNOWN:
        pushed.notes.append("the card states no licence; give one with --licence")
    return pushed


def publish_model(
    folder: str | Path,
    repo_id: str,
    options: PublishOptions | None = None,
    *,
    adapter_repo: str | None = None,
    run: str | Path | None = None,
    base: str | None = None,
    datasets: tuple[str, ...] = (),
    corpus_repo: str | None = None,
    policy: str | Path | None = None,
    facts: RunFacts | None = None,
) -> list[Pushed]:
    """Publish a checkpoint, and where asked the adapter beside it.

    Args:
        folder: The saved model (or an adapter by itself).
        repo_id: ``organisation/name``.
        options: How to publish.
        adapter_repo: Repository of the adapter that lies as ``adapter`` beside the model.
        run: The run folder that says where it comes from; by default the one it lies in.
        base: ``organisation/name@revision`` of the base, where it is not recorded.
        datasets: ``organisation/name@revision`` of the published training data.
        corpus_repo: ``organisation/name@revision`` of the data that the results are for.
        policy: The file of the rerankers chosen for it; by default the run's ``policy.yaml``.
        facts: What is known of its run, instead of the files of the run folder.

    Returns:
        What was done, the model first.

    Raises:
        ObliqError: The checkpoint, a name, a licence or a repository does not allow it; nothing
            is published before both checkpoints are found fit.
    """
    given = (options or PublishOptions()).checked()
    root = Path(folder)
    place = Path(run) if run is not None else root.resolve().parent
    if facts is None:
        facts = gather(place if (place / "training.json").is_file() or run else None)
    if policy is not None:
        facts = replace(facts, policy=policy_rows(policy))
    named = BaseModel.parse(base) if base else None
    for name in datasets:
        check_repo_id(name.partition("@")[0])
    targets = [(root, repo_id)]
    if adapter_repo is not None:
        if adapter_repo == repo_id:
            raise ObliqError(f"the adapter needs a repository of its own, not {repo_id!r}")
        adapter = root.resolve().parent / "adapter"
        if not (adapter / "adapter_config.json").is_file():
            raise ObliqError(f"{adapter}: no adapter there; was the model trained with LoRA?")
        targets.append((adapter, adapter_repo))
    prepared = [
        (given.repository(name, "model"), collect_model(source, base=_pinned(source, named, given)))
        for source, name in targets
    ]
    data, unread = data_licences(facts, datasets, given.repository)
    organisation = repo_id.split("/")[0]
    on = EvaluatedOn.parse(corpus_repo) if corpus_repo else None
    if on is None and facts.report:
        on = evaluated_on(facts.report, organisation, given.repository)
    pushes = []
    for repository, model in prepared:
        merged = model.kind == "model"
        card_options = CardOptions(
            repo_id=repository.repo_id,
            tag=(given.version or model.default_tag) if given.tagged else "",
            licence=checkpoint_licence(
                model.base,
                base_licence(model.base, given.repository),
                data,
                parse_licence(given.licence) if given.licence else None,
            ),
            language=given.language,
            title=given.title if repository.repo_id == repo_id else "",
            adapter_repo=adapter_repo if merged else None,
            merged_repo=repo_id if not merged and adapter_repo is not None else None,
            datasets=datasets,
            evaluated_on=on,
        )
        report = facts.report if merged or adapter_repo is None else None
        scored = facts if report else replace(facts, report=None)
        push = prepare_push(
            model,
            repository,
            card=model_card(model, scored, card_options),
            extra=_record(facts),
            model_index=model_index_results(report, on) if report and on else (),
            eval_results=eval_result_entries(report, on) if report and on else None,
            tagged=given.tagged,
            **given.pushing(),
        )
        notes = [f"the licence of dataset {name} could not be read" for name in unread]
        if report and on is None:
            notes.append(
                "the results name no dataset repository, so only the card shows them; give it "
                "with --corpus-repo"
            )
        pushes.append((push, notes))
    done = []
    for push, notes in pushes:
        done.append(push())
        done[-1].notes.extend(notes)
    return done


def _record(facts: RunFacts) -> list[LocalFile]:
    """The record of the training, without times and losses."""
    if not facts.training:
        return []
    kept = {k: v for k, v in facts.training.items() if k not in _NOT_RECORDED}
    text = json.dumps(kept, ensure_ascii=False, indent=1) + "\n"
    return [LocalFile("obliq_training.json", text.encode())]


def _pinned(source: Path, named: BaseModel | None, given: PublishOptions) -> BaseModel | None:
    """The base with its commit: as named, as recorded, or found on the Hub by its weights."""
    if named is not None and named.revision:
        return named
    config = read_json(source / "config_sentence_transformers.json")
    recorded = config.get("base_model") or {}
    name = named.id if named else recorded.get("id")
    if not isinstance(name, str) or (named is None and recorded.get("revision")):
        return named
    known = recorded.get("revision") if recorded.get("id") == name else None
    revision = known or packaged_commit(name, given)
    if revision is None:
        return named
    return BaseModel(name, revision)


def packaged_commit(name: str, given: PublishOptions) -> str | None:
    """The commit on the Hub that holds the very weights of the packaged base, if it does."""
    from obliq_hf.encoder.sources import EMBEDDED_ID, embedded_model_path

    if Destination.parse(given.to).folder is not None or name != EMBEDDED_ID:
        return None
    now = given.repository(name, "model").snapshot()
    weights = LocalFile("model.safetensors", embedded_model_path() / "model.safetensors")
    held = now.files.get(weights.path) if now is not None else None
    return now.commit if now is not None and held is not None and held.same_as(weights) else None
