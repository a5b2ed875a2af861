"""What the card of a checkpoint says, taken from its files and its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from obliq_hf.hub.artefacts import has_graph_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from model_cards.cards import CardOptions
    from model_cards.facts import RunFacts
    from obliq_hf.hub.model_files import ModelFiles

__all__ = ["collect", "own_limits"]

_SHOWN_METRICS = (
    ("ndcg_at_10", "nDCG@10"), ("ndcg_at_50", "nDCG@50"), ("recall_at_10", "Recall@10"),
    ("recall_at_100", "Recall@100"),
)  # fmt: skip
_SYSTEMS = {
    "bm25": "BM25", "teacher": "frozen teacher", "base": "untrained base",
    "student": "**this model**", "fusion": "this model and the teacher, fused",
}  # fmt: skip


def collect(model: ModelFiles, facts: RunFacts, options: CardOptions) -> dict[str, Any]:
    """The values of the model and adapter templates, without limits, leakage and licence."""
    training = facts.training or {}
    settings = training.get("settings") or {}
    graph = _trained_on_graph(facts)
    prompts = [
        [name, f"`{text}`" if text else "(nothing)"]
        for name, text in model.prompts.items()
        if not name.endswith(("-query", "-document"))
    ]
    report = facts.report or {}
    on = options.evaluated_on
    return {
        "title": options.title or options.repo_id.split("/")[-1],
        "what": _what(model, facts),
        "usage": _usage(model, options),
        "usage_pinned": _usage_pinned(model, options),
        "base_id": model.base.id if model.base else "",
        "base_revision": model.base.revision if model.base else "",
        "tag": options.tag,
        "adapter_repo": options.adapter_repo,
        "merged_repo": options.merged_repo,
        "prompts": prompts,
        "include_prompt": bool(settings.get("include_prompt")),
        "results_header": ["task", "system", *[label for _, label in _shown(report)]],
        "results": _results(report),
        "differences": _differences(report),
        "policy": [_policy_row(row) for row in facts.policy],
        "evaluated_on": f"{on.repo_id}{'@' + on.revision if on.revision else ''}" if on else "",
        "training": _training(model, training),
        "data": _data(facts, options),
        "hyperparameters": _hyperparameters(settings),
        "merge": training.get("merge") if model.kind == "model" else None,
        "purity": facts.purity if graph else None,
        "dose_purity": facts.dose_purity if graph else None,
        "audit": facts.audit if graph else None,
        "pairs": graph,
        "people": graph or "writing" in model.prompts,
    }


def own_limits(model: ModelFiles, facts: RunFacts) -> list[str]:
    """Limits of this checkpoint in particular."""
    limits = []
    length = ((facts.training or {}).get("settings") or {}).get("max_length")
    if length:
        limits.append(f"It reads {length} tokens of a text, prompt included; the rest is cut off.")
    if not (facts.report or {}).get("systems"):
        limits.append("No scores come with this revision.")
    if ((facts.graph or {}).get("neighbours")) == "random":
        limits.append("It was trained on random neighbours: a control, not a retriever to use.")
    return limits


def _trained_on_graph(facts: RunFacts) -> bool:
    return has_graph_pairs(facts.mixture or {})


def _what(model: ModelFiles, facts: RunFacts) -> str:
    tasks = [n for n in model.prompts if n not in {"query", "document"} and not _for_mteb(n)]
    base = f" on {model.base.id}" if model.base else ""
    kind = "LoRA adapter for a sentence encoder" if model.kind == "adapter" else "sentence encoder"
    text = (
        f"A {kind}{base} for oblique retrieval: finding texts by an attribute that they do not "
        f"state. Tasks: {', '.join(tasks) or 'none in particular'}."
    )
    if _trained_on_graph(facts):
        text += (
            " It learnt authorship from the nearest-neighbour graph of a frozen authorship encoder,"
            " never from that encoder's scores."
        )
    return text


def _for_mteb(name: str) -> bool:
    return name.endswith(("-query", "-document"))


def _first_task(model: ModelFiles) -> str:
    names = [n for n in model.prompts if n not in {"query", "document"} and not _for_mteb(n)]
    if "writing" in names:
        return "writing"
    return names[0] if names else "query"


def _usage(model: ModelFiles, options: CardOptions) -> str:
    return "\n".join(
        [
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{options.repo_id}")',
            'queries = model.encode_query(["a passage, or what you remember of one"], '
            f'prompt_name="{_first_task(model)}")',
            'documents = model.encode_document(["one passage", "another passage"])',
            "print(model.similarity(queries, documents))",
        ]
    )


def _usage_pinned(model: ModelFiles, options: CardOptions) -> str:
    if model.base is None:
        return ""
    return "\n".join(
        [
            "from peft import PeftModel",
            "from transformers import AutoModel",
            "",
            f'base = AutoModel.from_pretrained("{model.base.id}", '
            f'revision="{model.base.revision}")',
            f'model = PeftModel.from_pretrained(base, "{options.repo_id}")',
        ]
    )


def _shown(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    measured = {
        metric
        for systems in (report.get("systems") or {}).values()
        for scores in systems.values()
        for metric in scores
    }
    return [(metric, label) for metric, label in _SHOWN_METRICS if metric in measured]


def _results(report: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for task, systems in (report.get("systems") or {}).items():
        chosen = [name for name in _SYSTEMS if name in systems]
        for name in chosen:
            row: list[Any] = [task, _SYSTEMS[name]]
            for metric, _ in _shown(report):
                value = systems[name].get(metric)
                span = report.get("intervals", {}).get(task, {}).get(name, {}).get(metric)
                text = "" if value is None else f"{value:.3f}"
                row.append(text + (f" [{span[0]:.3f}, {span[1]:.3f}]" if span else ""))
            rows.append(row)
    return rows


def _differences(report: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for found in report.get("comparisons") or []:
        if found.get("metric") != "ndcg_at_10" or found.get("a") != "student":
            continue
        if found.get("by", "query") != "query":
            continue
        low, high = found["ci95"]
        p = found.get("p")
        rows.append(
            [
                found["task"],
                f"this model − {_SYSTEMS.get(found['b'], found['b'])}",
                f"{found['delta']:+.3f}",
                f"[{low:+.3f}, {high:+.3f}]",
                "" if p is None else ("< .001" if p < 0.001 else f"{p:.3f}"),
            ]
        )
    return rows


def _policy_row(row: Mapping[str, Any]) -> list[Any]:
    gain, span = row["delta"], row["ci95"]
    return [
        row["task"],
        row["reranker"],
        f"{row['depth']} of {row['first_stage_depth']}",
        "" if gain is None else f"{gain:+.3f} [{span[0]:+.3f}, {span[1]:+.3f}]",
        row["queries"] or "",
        "" if row["requests_per_query"] is None else f"{row['requests_per_query']:g}",
    ]


def _training(model: ModelFiles, training: Mapping[str, Any]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    if model.base is not None:
        rows.append(["base", model.base.id])
        rows.append(["base revision", model.base.revision or "not recorded"])
    record = training.get("base") or {}
    if record.get("layers"):
        rows.append(["layers kept of the base", record["layers"]])
    if record.get("bidirectional") is not None:
        rows.append(["attention", "bidirectional" if record["bidirectional"] else "causal"])
    lora = (training.get("settings") or {}).get("lora")
    if training:
        rows.append(["trained", f"LoRA, r {lora['r']}" if lora else "all weights"])
    rows.append(["weights in this repository", f"{model.parameters:,} ({model.dtype})"])
    for key, label in (
        ("steps", "steps"), ("seed", "seed"), ("processes", "processes"), ("device", "device"),
        ("recipe", "recipe hash"), ("mixture", "mixture hash"), ("fingerprint", "training hash"),
    ):  # fmt: skip
        if training.get(key) is not None:
            rows.append([label, training[key]])
    versions = training.get("versions") or {}
    if versions:
        rows.append(["versions", ", ".join(f"{name} {v}" for name, v in versions.items())])
    return rows


def _data(facts: RunFacts, options: CardOptions) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for entry in (facts.mixture or {}).get("datasets") or []:
        rows.append(
            [
                entry["name"],
                entry.get("task"),
                entry.get("kind"),
                entry.get("rows"),
                entry.get("negatives"),
                str(entry.get("fingerprint", ""))[:16],
            ]
        )
    for name in options.datasets:
        repo, _, revision = name.partition("@")
        rows.append([repo, "", "published data", "", "", revision or "main"])
    corpus = facts.corpus or {}
    if corpus:
        rows.append(
            [
                "corpus", ", ".join(corpus.get("tasks") or {}), "searched", corpus.get("documents"),
                "", str(corpus.get("fingerprint", ""))[:16],
            ]
        )  # fmt: skip
    return rows


def _hyperparameters(settings: Mapping[str, Any]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for key, value in settings.items():
        if key in {"base", "revision"}:
            continue
        if isinstance(value, dict):
            rows += [[f"{key}.{inner}", _plain(v)] for inner, v in value.items()]
        else:
            rows.append([key, _plain(value)])
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, bool) or value is None else value
