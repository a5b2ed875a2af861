"""Publishing a checkpoint: one commit that loads by itself, with its card and its results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

import yaml

from obliq_hf.errors import ObliqError
from obliq_hf.hub.card_header import CardHeader, split_card
from obliq_hf.hub.cards import merge_card, published_header
from obliq_hf.hub.names import check_repo_path, check_tag
from obliq_hf.hub.push import check_public, check_push, push_change, read_text
from obliq_hf.hub.repository import Change, HubError, LocalFile, Pushed, Repository, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from obliq_hf.hub.model_files import ModelFiles

__all__ = ["check_target", "prepare_push", "push_model"]

_OWNED = (
    "license", "license_name", "license_link", "base_model", "base_model_relation",
    "library_name", "pipeline_tag",
)  # fmt: skip
_OLD_WEIGHTS = re.compile(
    r"(?:\d+_[A-Z]\w*/)?(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+)?"
    r"\.(?:safetensors|bin)(?:\.index\.json)?|(?:\d+_[A-Z]\w*)/config\.json"
)


def push_model(model: ModelFiles, repository: Repository, *, card: str, **more: Any) -> Pushed:
    """Publish a checkpoint in one commit.

    Args:
        model: The checkpoint's files, from :func:`obliq_hf.hub.model_files.collect_model`.
        repository: Where to.
        card: The finished card.
        more: See :func:`prepare_push`.

    Raises:
        HubError: See :func:`prepare_push`; or the repository does not hold afterwards what was
            written.
    """
    return prepare_push(model, repository, card=card, **more)()


def check_target(
    repository: Repository,
    kind: Literal["model", "adapter"],
    *,
    private: bool | None = None,
    create_pr: bool = False,
    replace_card: bool = False,
) -> Snapshot | None:
    """Check that a repository can take a checkpoint, before there is one.

    Args:
        repository: Where to.
        kind: Whether it will hold whole weights or an adapter.
        private: Whether the repository must be private.
        create_pr: Whether a pull request is asked for.
        replace_card: Whether its card may be written anew.

    Returns:
        Its present state; None where it does not exist.

    Raises:
        HubError: The repository refuses, holds the other kind of checkpoint, or its card cannot
            be read.
    """
    repository.check_access(create_pr=create_pr, private=private)
    now = repository.snapshot()
    _check_kind(repository, now, kind)
    old = read_text(repository, "README.md", now)
    published_header(old, f"{repository.place}: README.md", broken_is_empty=replace_card)
    return now


def prepare_push(
    model: ModelFiles,
    repository: Repository,
    *,
    card: str,
    extra: Sequence[LocalFile] = (),
    model_index: Sequence[Mapping[str, Any]] = (),
    eval_results: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    version: str | None = None,
    private: bool | None = None,
    create_pr: bool = False,
    dry_run: bool = False,
    replace_card: bool = False,
    message: str | None = None,
    tagged: bool = True,
) -> Callable[[], Pushed]:
    """Check a push in everything that can be checked, and give what makes it.

    The push is one commit. Weights of an earlier push that are no longer part of the model are
    removed; everything else in the repository stays. The same content again makes no commit.

    Args:
        model: The checkpoint's files, from :func:`obliq_hf.hub.model_files.collect_model`.
        repository: Where to.
        card: The finished card.
        extra: Further small files, such as the record of the training.
        model_index: Results for the card's ``model-index``; those of other data sets and metrics
            that stand there are kept.
        eval_results: Task -> entries of ``.eval_results/<task>.yaml``; other entries of the file
            and files of other tasks are kept.
        version: The version tag; by default one made from the content.
        private: Make a new repository private; refuse one that is public.
        create_pr: Open a pull request instead of committing.
        dry_run: Check everything, and write nothing.
        replace_card: Write the card's text anew although it was edited by hand.
        message: First line of the commit message.
        tagged: Whether the commit gets a version tag.

    Returns:
        The push, to be called once.

    Raises:
        HubError: The repository refuses, holds the other kind of checkpoint or other content
            under the version, or a file holds what must not be public.
    """
    for file in extra:
        check_repo_path(file.path)
    if version is not None:
        check_tag(version)
    before = check_target(
        repository, model.kind, private=private, create_pr=create_pr, replace_card=replace_card
    )
    check_public(
        repository, [LocalFile("README.md", card.encode()), *extra, *_texts_of(model.files)]
    )
    check_push(repository, before, create_pr=create_pr, version=version, data=model.files)
    tag = version or model.default_tag
    notes = list(model.notes)
    where = f"{repository.place}: README.md"

    def plan(now: Snapshot | None) -> Change:
        old = read_text(repository, "README.md", now)
        merged = merge_card(
            old, card, part="model", where=where, owned=_OWNED, replace=replace_card
        )
        notes[len(model.notes) :] = merged.notes
        text = _with_model_index(merged.text, model_index, where)
        files = [*model.files, *extra, LocalFile("README.md", text.encode())]
        for task, entries in (eval_results or {}).items():
            files.append(_results_file(repository, now, task, entries))
        held = now.files if now is not None else {}
        paths = {file.path for file in files}
        return Change(
            message or f"Publish {model.kind} {tag}",
            [f for f in files if f.path not in held or not held[f.path].same_as(f)],
            sorted(p for p in held if _OLD_WEIGHTS.fullmatch(p) and p not in paths),
        )

    plan(before)  # what cannot be merged is refused here

    def push() -> Pushed:
        pushed = push_change(
            repository,
            plan,
            before=before,
            verify=lambda revision: _verify(repository, [*model.files, *extra], revision),
            version=tag if tagged else None,
            private=private,
            create_pr=create_pr,
            dry_run=dry_run,
        )
        pushed.notes.extend(notes)
        return pushed

    return push


def _texts_of(files: Sequence[LocalFile]) -> list[LocalFile]:
    return [file for file in files if file.path.endswith((".json", ".jinja"))]


def _check_kind(repository: Repository, now: Snapshot | None, kind: str) -> None:
    if now is None:
        return
    holds_adapter = "adapter_config.json" in now.files
    holds_model = any(path.endswith("model.safetensors") for path in now.files) or any(
        path.endswith("model.safetensors.index.json") for path in now.files
    )
    if kind == "adapter" and holds_model and not holds_adapter:
        raise HubError(f"{repository.place} holds whole weights; an adapter needs its own name")
    if kind == "model" and holds_adapter:
        raise HubError(f"{repository.place} holds an adapter; whole weights need their own name")


def _results_file(
    repository: Repository, now: Snapshot | None, task: str, entries: Sequence[Mapping[str, Any]]
) -> LocalFile:
    path = check_repo_path(f".eval_results/{task}.yaml")
    old = read_text(repository, path, now)
    kept: list[Any] = []
    if old is not None:
        try:
            value = yaml.safe_load(old)
        except yaml.YAMLError as error:
            raise HubError(f"{repository.place}: {path} is not YAML: {error}") from error
        if value is not None and not isinstance(value, list):
            raise HubError(f"{repository.place}: {path} holds no list of results")
        mine = [(e["dataset"]["id"], e["dataset"]["task_id"]) for e in entries]
        kept = [e for e in value or [] if _result_key(e) not in mine]
        if kept + list(entries) == value:
            return LocalFile(path, old.encode())
    text = yaml.safe_dump([*kept, *map(dict, entries)], sort_keys=False, allow_unicode=True)
    return LocalFile(path, text.encode())


def _result_key(entry: Any) -> tuple[Any, Any]:
    dataset = entry.get("dataset") if isinstance(entry, dict) else None
    if not isinstance(dataset, dict):
        return None, None
    return dataset.get("id"), dataset.get("task_id")


def _with_model_index(text: str, results: Sequence[Mapping[str, Any]], where: str) -> str:
    """Put results into the header, in the place of older ones of the same data and metric."""
    if not results:
        return text
    opening, head, closing, body = split_card(text)
    header = CardHeader(head, where)
    index = header.data.get("model-index")
    entry = index[0] if isinstance(index, list) and index and isinstance(index[0], dict) else {}
    old = entry.get("results")
    mine = {_index_key(result) for result in results}
    kept = [r for r in old or [] if isinstance(r, dict) and _index_key(r) not in mine]
    name = entry.get("name") or "model"
    rest = index[1:] if isinstance(index, list) else []
    header.set("model-index", [{"name": name, "results": [*kept, *map(dict, results)]}, *rest])
    return f"{opening}{header.text}{closing}{body}"


def _index_key(result: Mapping[str, Any]) -> tuple[Any, ...]:
    dataset = result.get("dataset") or {}
    return tuple(dataset.get(key) for key in ("type", "config", "split", "name"))


def _verify(repository: Repository, files: Sequence[LocalFile], revision: str) -> None:
    now = repository.snapshot(revision)
    held = now.files if now is not None else {}
    wrong = [f.path for f in files if f.path not in held or not held[f.path].same_as(f)]
    if wrong:
        raise ObliqError(
            f"{repository.place} at {revision}: {wrong[0]} is not what was written "
            f"({len(wrong)} of {len(files)} files)"
        )
