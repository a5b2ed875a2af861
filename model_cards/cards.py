"""Cards of datasets, models and adapters, written from what the artefacts say of themselves.

A card holds figures, names and settings. Texts of documents never enter it; a few of the queries
that a language model wrote do, as examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from model_cards import model_values
from model_cards.dataset_usage import usage
from model_cards.licences import PUBLIC_DOMAIN, UNKNOWN, Licence
from model_cards.rendering import render
from obliq_hf import __version__
from obliq_hf.hub.artefacts import has_graph_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from model_cards.facts import RunFacts
    from model_cards.results import EvaluatedOn
    from obliq_hf.hub.artefacts import Artefact
    from obliq_hf.hub.dataset_push import StagedDataset
    from obliq_hf.hub.model_files import ModelFiles

__all__ = ["CardOptions", "dataset_card", "model_card"]


@dataclass(frozen=True)
class CardOptions:
    """What a person says about an artefact, and the card cannot know.

    Attributes:
        repo_id: The repository.
        tag: The version tag.
        licence: The licence.
        language: Language codes of the texts.
        title: Heading; by default made from the name.
        adapter_repo: Where the adapter of a merged model is.
        merged_repo: Where the merged model of an adapter is.
        datasets: Names (``organisation/name@revision``) of the published training data.
        evaluated_on: The data that the results are for.
    """

    repo_id: str
    tag: str
    licence: Licence = UNKNOWN
    language: tuple[str, ...] = ("en",)
    title: str = ""
    adapter_repo: str | None = None
    merged_repo: str | None = None
    datasets: tuple[str, ...] = ()
    evaluated_on: EvaluatedOn | None = None
    other_licences: dict[str, Licence] = field(default_factory=dict)


_WHAT = {
    "corpus": (
        "A corpus with oblique retrieval tasks on it: what decides relevance is not said in the "
        "texts. Documents, queries, judgments and the documents that each query may not retrieve, "
        "in the columns that mteb reads."
    ),
    "graph": (
        "Pairs of passages that a frozen authorship encoder finds alike: each passage is joined to "
        "its nearest neighbours{other}. The pairs teach a retriever to find the same hand; the "
        "encoder's scores are not part of the supervision."
    ),
    "mixture": (
        "The training mixture of an oblique retriever: one dataset for each source of pairs, with "
        "hard negatives where they were mined, and beside it what must not share a batch."
    ),
    "queries": (
        "Queries written for passages by a language model in two stages: it first describes what "
        "a passage does not say, and then asks for that description, without the passage's names "
        "and rare words."
    ),
}

_LIMITS = {
    "corpus": [
        "Judgments are labels of origin or of one gold passage; other passages that a reader "
        "would accept count as wrong.",
        "What the corpus holds of its writers' metadata is as its source gives it.",
    ],
    "graph": [
        "An edge is a likeness that one encoder found, not a proof of common authorship; see the "
        "purity above for how often it is right.",
        "Topic, genre and period are part of what such encoders see; see the audit.",
    ],
    "mixture": [
        "Hard negatives come from word overlap (BM25); some may be relevant all the same.",
        "The pairs inherit the limits of the graph and of the queries they were made from.",
    ],
    "queries": [
        "One language model wrote all queries; its habits are in them.",
        "A query is answered by its passage by construction; other passages were not judged.",
    ],
}

_MODEL_LIMITS = [
    "Its reach is the kinds of likeness it was trained on; no transfer to other oblique tasks has "
    "been measured.",
    "An oblique retriever trades away some topical precision: measure both before replacing "
    "another model.",
    "Scores compare documents for one query; they are no probabilities and no proof.",
]


def _words(name: str) -> str:
    return name.split("/")[-1].replace("-", " ").replace("_", " ").strip().capitalize()


def _licence_text(licence: Licence, others: Mapping[str, Licence]) -> str:
    if licence == UNKNOWN:
        text = "Not stated. Ask before you use it."
    elif licence == PUBLIC_DOMAIN:
        text = "The texts are in the public domain; what was added is dedicated to it as well."
    else:
        text = f"{licence.shown}."
    for name, other in others.items():
        text += f" {name}: {other.shown}."
    return text


def dataset_card(artefact: Artefact, staged: StagedDataset, options: CardOptions) -> str:
    """The card of a dataset.

    Args:
        artefact: What is published.
        staged: Its configs with their sizes.
        options: What a person says of it.

    Returns:
        The card, with a header that has no ``configs`` and ``dataset_info`` yet: the push adds
        those.
    """
    from dataset_builders.diagnostics.query_report import card_section

    facts = artefact.facts
    reports = facts.get("reports") or []
    graph = facts.get("graph") or {}
    pairs = artefact.kind == "graph" or has_graph_pairs(facts.get("mixture") or {})
    people = pairs or _has_authors(artefact)
    rows = staged.rows()
    total = sum(sum(splits.values()) for splits in rows.values())
    about = {config.name: config for config in staged.configs}
    configs = [
        [name, split, f"{count:,}", ", ".join(about[name].features), about[name].about]
        for name, splits in rows.items()
        for split, count in splits.items()
    ]
    what = _WHAT[artefact.kind]
    if artefact.kind == "graph":
        apart = " outside its own source" if graph.get("exclude_same_group") else ""
        what = what.format(other=apart)
        if graph.get("neighbours") == "random":
            what += " In this config the neighbours are random: it is the control."
    values = {
        "title": options.title or _words(options.repo_id),
        "what": what,
        "usage": usage(artefact, staged, options.repo_id),
        "tag": options.tag,
        "configs": configs,
        "notes": _config_notes(artefact),
        "provenance": _provenance(artefact, staged),
        "purity": facts.get("purity"),
        "dose_purity": facts.get("dose_purity"),
        "audit": facts.get("audit"),
        "leakage": _leakage(facts.get("mixture"), None if reports else facts.get("queries")),
        "written": [card_section(report) for report in reports],
        "limits": _LIMITS[artefact.kind],
        "pairs": pairs,
        "people": people,
        "licence_text": _licence_text(options.licence, options.other_licences),
        "version": __version__,
    }
    header = {
        **options.licence.header(),
        "language": list(options.language),
        "pretty_name": values["title"],
        "task_categories": ["text-retrieval", "sentence-similarity"],
        "tags": ["obliq", "retrieval", *(["authorship"] if people else []), artefact.kind],
        "size_categories": [_size_category(total)],
    }
    return render("dataset.md", header, values)


def _size_category(rows: int) -> str:
    bounds = [
        (1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
        (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"),
    ]  # fmt: skip
    return next((name for bound, name in bounds if rows < bound), "100M<n<1B")


def _has_authors(artefact: Artefact) -> bool:
    columns = {column for config in artefact.configs for column in config.features}
    return bool(columns & {"author", "writer", "user", "speaker", "anchor_group"})


def _config_notes(artefact: Artefact) -> list[str]:
    if artefact.kind != "corpus":
        return []
    notes = [
        "Tasks on one corpus share its files. `-qrels` holds the gold judgments; "
        "pooled ones, where there are any, stand beside them as `-qrels-pooled`."
    ]
    if any(config.name.endswith("-excluded") for config in artefact.configs):
        notes.append(
            "Leave the documents of `-excluded` out before you take the first k; mteb does so "
            "through `-top_ranked`."
        )
    return notes


def _provenance(artefact: Artefact, staged: StagedDataset) -> list[list[Any]]:
    facts = artefact.facts
    rows: list[list[Any]] = []
    if artefact.kind == "corpus":
        found = facts.get("corpus") or {}
        source = found.get("source") or {}
        rows += [[f"source: {k}", _shown(v)] for k, v in source.items() if _plain(v)]
        rows += [[k, found[k]] for k in ("documents", "groups") if k in found]
        rows += [[f"left out: {k}", v] for k, v in (found.get("dropped") or {}).items()]
        rows += [
            [label, found[key]]
            for key, label in (
                ("fingerprint", "corpus fingerprint"),
                ("sha256", "corpus SHA-256"),
            )
            if key in found
        ]
    if artefact.kind == "graph":
        info = facts["graph"]
        names = {
            "teacher": "frozen authorship encoder", "teacher_fingerprint": "its fingerprint",
            "k": "neighbours a passage", "exclude_same_group": "own source left out",
            "documents": "passages", "edges": "edges in all", "dose": "edges taken",
            "selection": "how they were taken", "neighbours": "neighbours",
            "corpus_fingerprint": "corpus fingerprint",
        }  # fmt: skip
        rows += [[label, _shown(info[key])] for key, label in names.items() if key in info]
    if artefact.kind == "mixture":
        found = facts["mixture"]
        rows += [
            [label, _shown(found[key])]
            for key, label in (
                ("rows", "rows in all"), ("seed", "seed"), ("corpus", "corpus fingerprint"),
                ("recipe", "recipe hash"),
            )
            if found.get(key) is not None
        ]  # fmt: skip
        for entry in found.get("datasets", []):
            for reason, count in (entry.get("dropped") or {}).items():
                rows.append([f"{entry['name']}, left out: {reason}", count])
    if artefact.kind == "queries" and facts.get("queries"):
        found = facts["queries"]
        rows += [[k, _shown(v)] for k, v in _flat(found).items() if _plain(v)]
    rows.append(["content", staged.digest])
    rows.append(["made with", f"obliq-hf {__version__}"])
    return rows


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) or (
        isinstance(value, list) and all(isinstance(item, int | float | str) for item in value)
    )


def _shown(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update({f"{key}: {k}": v for k, v in inner.items()})
        else:
            flat[key] = inner
    return {k: v for k, v in flat.items() if not str(k).lower().endswith(("prompt", "text"))}


def _leakage(
    mixture: Mapping[str, Any] | None, queries: Mapping[str, Any] | None
) -> list[list[Any]]:
    rows: list[list[Any]] = []
    check = (mixture or {}).get("leak_check")
    if check:
        rows.append(["evaluation queries compared with every training query", check.get("queries")])
        rows.append(["held-out passages compared", check.get("passages")])
    for entry in (mixture or {}).get("datasets", []):
        found = (entry.get("source") or {}).get("evaluation_texts")
        for reason, count in (found or {}).items():
            done = "found, kept" if entry.get("kind") == "graph" else "found, dropped"
            rows.append([f"{entry['name']}: {reason} ({done})", count])
    for key, value in ((queries or {}).get("leakage") or {}).items():
        if _plain(value):
            rows.append([key.replace("_", " "), value])
    return rows


def model_card(model: ModelFiles, facts: RunFacts, options: CardOptions) -> str:
    """The card of a merged model, or of an adapter.

    Args:
        model: The checkpoint.
        facts: What its run says of it.
        options: What a person says of it.
    """
    values = model_values.collect(model, facts, options)
    values |= {
        "leakage": [
            *_leakage(facts.mixture, None),
            *(row for found in facts.queries.values() for row in _leakage(None, found)),
        ],
        "limits": [*_MODEL_LIMITS, *model_values.own_limits(model, facts)],
        "licence_text": _licence_text(options.licence, options.other_licences),
        "version": __version__,
    }
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "obliq"]
    header: dict[str, Any] = {
        **options.licence.header(),
        "language": list(options.language),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": [*tags, *(["peft", "lora"] if model.kind == "adapter" else [])],
        "datasets": [name.partition("@")[0] for name in options.datasets],
    }
    if model.base is not None:
        header["base_model"] = model.base.id
        header["base_model_relation"] = "adapter" if model.kind == "adapter" else "finetune"
    return render(f"{model.kind}.md", header, values)
