"""The sections of a recipe, one dataclass each; every setting carries its help and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from obliq_hf.errors import ObliqError
from training_recipes.settings import about

__all__ = [
    "SYSTEMS",
    "CorpusConfig",
    "EvaluationConfig",
    "GraphConfig",
    "HubConfig",
    "LLMConfig",
    "LoraConfig",
    "NegativesConfig",
    "QueriesConfig",
    "RowsConfig",
    "TrainingConfig",
]


SYSTEMS = ("bm25", "teacher", "base", "student", "fusion")
"""Systems that a run's evaluation can score."""


@dataclass(frozen=True)
class CorpusConfig:
    """Where the documents come from."""

    source: Literal["classics", "beir", "jsonl", "bench"] = field(
        default="classics",
        metadata=about("builder of the corpus; bench: each task has its own, as in OBLIQ-Bench"),
    )
    path: str | None = field(
        default=None, metadata=about("folder or file that the builder reads", path=True)
    )
    group_field: str | None = field(
        default=None, metadata=about("metadata field that names a document's source")
    )
    label_field: str | None = field(
        default=None,
        metadata=about("metadata field whose equal values in other sources are relevant (jsonl)"),
    )
    subfolder: str | None = field(
        default=None, metadata=about("file or folder below path that is searched")
    )
    metadata: str | None = field(
        default=None, metadata=about("file below path with further fields by _id (beir)")
    )
    where: dict[str, str] = field(
        default_factory=dict, metadata=about("only rows with these values of fields (jsonl)")
    )
    other_path: str | None = field(
        default=None,
        metadata=about("file below path with further texts, not searched: the corpus 'other'"),
    )
    other_where: dict[str, str] = field(
        default_factory=dict, metadata=about("only rows of it with these values of fields")
    )
    revision: str | None = field(
        default=None, metadata=about("revision of OBLIQ-Bench on the Hub (bench)", hashed=False)
    )
    folders: dict[str, str] = field(
        default_factory=dict,
        metadata=about(
            "task -> a folder of its own, where path does not hold it (bench)",
            path=True,
            hashed=False,
        ),
    )
    group_fields: dict[str, str] = field(
        default_factory=dict,
        metadata=about(
            "task -> metadata field that names a document's source (bench)", hashed=False
        ),
    )


@dataclass(frozen=True)
class QueriesConfig:
    """Where the training queries come from."""

    source: Literal["none", "recorded", "llm", "path"] = field(
        default="none", metadata=about("origin of the queries")
    )
    tasks: list[str] = field(
        default_factory=list, metadata=about("tasks to write or read queries for")
    )
    path: str | None = field(
        default=None, metadata=about("file or folder of queries for source 'path'", path=True)
    )
    count: int | None = field(
        default=None, metadata=about("documents sampled per task; null for all", min=1)
    )


@dataclass(frozen=True)
class RowsConfig:
    """Training rows of others, in a file whose columns have names of their own."""

    path: str | None = field(
        default=None, metadata=about(".jsonl, .json (a list) or .parquet file", path=True)
    )
    dataset: str | None = field(
        default=None, metadata=about("organisation/name@revision of a dataset on the Hub")
    )
    file: str | None = field(default=None, metadata=about("the file in that repository"))
    columns: dict[str, str] = field(
        default_factory=dict,
        metadata=about("role -> column: anchor, positive or positives, negatives, task"),
    )
    task: str | None = field(default=None, metadata=about("task that all rows are for"))
    names: dict[str, str] = field(
        default_factory=dict, metadata=about("value of the task column -> task of the recipe")
    )
    negatives: int | None = field(
        default=None, metadata=about("negatives kept a row; null for as many as all have", min=0)
    )

    @property
    def given(self) -> bool:
        """Whether the recipe has such rows."""
        return self.path is not None or self.dataset is not None


@dataclass(frozen=True)
class GraphConfig:
    """The kNN graph of a frozen authorship teacher, and the dose of its pairs."""

    task: str | None = field(
        default=None, metadata=about("task that the pairs train; null for no graph")
    )
    teacher: str = field(
        default="stylometric",
        metadata=about("'stylometric', a model name or a folder", path="maybe"),
    )
    teacher_revision: str | None = field(
        default=None, metadata=about("revision of the teacher on the Hub", hashed=False)
    )
    trust_remote_code: bool = field(
        default=False,
        metadata=about("whether code from the teacher's repository may run", hashed=False),
    )
    corpus: str = field(
        default="searched",
        metadata=about("'searched', 'other', or a corpus folder of other texts", path="maybe"),
    )
    k: int = field(default=3, metadata=about("nearest neighbours per document", min=1))
    dose: int | None = field(
        default=None, metadata=about("pairs that join the mixture; null for all", min=0)
    )
    selection: Literal["confident", "random", "mutual"] = field(
        default="random", metadata=about("how a dose is taken")
    )
    neighbours: Literal["teacher", "random"] = field(
        default="teacher",
        metadata=about("'random' keeps anchors, negatives and dose and replaces the neighbours"),
    )
    exclude_same_group: bool = field(
        default=True, metadata=about("no neighbours from the document's own source")
    )
    label: str | None = field(
        default=None,
        metadata=about("metadata column that stands for the attribute, to screen the graph with"),
    )


@dataclass(frozen=True)
class NegativesConfig:
    """Hard negatives mined with BM25."""

    queries: int = field(default=0, metadata=about("negatives per query row", min=0, max=64))
    graph: int = field(default=0, metadata=about("negatives per graph pair", min=0, max=64))
    first_rank: int = field(
        default=10, metadata=about("first BM25 rank that may become a negative", min=1)
    )
    last_rank: int = field(
        default=100, metadata=about("last BM25 rank that may become a negative", min=1)
    )
    fill: Literal["none", "random"] = field(
        default="none", metadata=about("what stands in where too few are left")
    )

    def __post_init__(self) -> None:
        if self.last_rank < self.first_rank:
            raise ObliqError(
                f"last_rank: {self.last_rank} comes before first_rank {self.first_rank}"
            )


@dataclass(frozen=True)
class LoraConfig:
    """A low-rank adapter instead of training all weights."""

    r: int = field(default=16, metadata=about("rank of the update", min=1))
    alpha: float = field(default=32.0, metadata=about("scale of the update, over r", above=0))
    dropout: float = field(
        default=0.0, metadata=about("dropout in front of the adapter", min=0, max=0.95)
    )
    targets: list[str] | None = field(
        default=None,
        metadata=about("names of the projections; null for those of attention and MLP"),
    )


@dataclass(frozen=True)
class TrainingConfig:
    """How the encoder is trained. Rows of a batch are counted over all processes."""

    base: str = field(
        default="embedded", metadata=about("'embedded', a model name or a folder", path="maybe")
    )
    revision: str | None = field(default=None, metadata=about("revision of the base"))
    layers: int | None = field(
        default=None, metadata=about("keep only the first layers of the base", min=1)
    )
    template: str = field(default="instruct", metadata=about("prompt template"))
    include_prompt: bool = field(
        default=False, metadata=about("whether the prompt's tokens are pooled")
    )
    max_length: int | None = field(
        default=None, metadata=about("tokens per text; null for the base's own", min=8)
    )
    lengths: dict[str, int] = field(
        default_factory=dict, metadata=about("tokens per text for single tasks, in training", min=8)
    )
    lora: LoraConfig | None = field(
        default=None, metadata=about("adapter settings; null trains all weights")
    )
    dropout: float | None = field(
        default=None,
        metadata=about("dropout of the encoder; null for the base's own", min=0, max=0.95),
    )
    loss: Literal["plain", "cached"] = field(
        default="plain",
        metadata=about(
            "cached bounds memory at large batches; gradient accumulation, which would not add "
            "negatives, is not offered"
        ),
    )
    mini_batch_size: int = field(
        default=32, metadata=about("rows per forward pass of the cached loss", min=1)
    )
    temperature: float = field(
        default=0.05, metadata=about("similarities are divided by this", above=0)
    )
    learning_rate: float = field(default=1e-4, metadata=about("highest learning rate", above=0))
    scheduler: Literal["linear", "cosine", "constant"] = field(
        default="linear", metadata=about("after the warm-up")
    )
    warmup_ratio: float = field(
        default=0.1, metadata=about("share of the steps that warm up", min=0, max=1)
    )
    weight_decay: float = field(default=0.0, metadata=about("decoupled weight decay", min=0))
    max_grad_norm: float = field(
        default=1.0, metadata=about("gradients are clipped to this norm; 0 for never", min=0)
    )
    batch_size: int = field(
        default=32, metadata=about("rows of a global batch, over all processes", min=2)
    )
    min_batch_size: int | None = field(
        default=None,
        metadata=about("smallest short batch that is still trained on; null for a quarter", min=1),
    )
    separate_groups: bool = field(
        default=True, metadata=about("graph rows that share a source are never in one batch")
    )
    repeat: dict[str, int] = field(
        default_factory=dict,
        metadata=about(
            "passes over a dataset, by its name or kind (queries, graph); 1 where absent", min=0
        ),
    )
    max_steps: int | None = field(default=None, metadata=about("stop after so many steps", min=1))
    gradient_checkpointing: bool = field(
        default=False, metadata=about("recompute activations to save memory")
    )
    bf16: Literal["auto"] | bool = field(
        default="auto", metadata=about("mixed precision; auto where the device has it")
    )
    base_dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto",
        metadata=about(
            "of the frozen weights beside an adapter; auto is bfloat16 where bf16 is on"
        ),
    )
    save_dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("of the saved model")
    )
    save_steps: int = field(
        default=200, metadata=about("steps between checkpoints", min=1, hashed=False)
    )
    save_total_limit: int = field(
        default=2, metadata=about("checkpoints kept", min=2, hashed=False)
    )
    logging_steps: int = field(
        default=10, metadata=about("steps between logged losses", min=1, hashed=False)
    )
    dev_split: str | None = field(
        default=None,
        metadata=about(
            "split that chooses the best checkpoint, every save_steps; null keeps the last"
        ),
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """What is scored, and how deep."""

    corpus: Literal["searched", "other"] = field(
        default="searched", metadata=about("corpus whose tasks are scored")
    )
    split: str | None = field(
        default="test",
        metadata=about("split of the reported queries; null trains without scoring anything"),
    )
    systems: list[str] = field(
        default_factory=lambda: list(SYSTEMS),
        metadata=about("systems to score"),
    )
    depth: int = field(default=1000, metadata=about("documents per query in a run", min=1))
    snippets: bool = field(
        default=False,
        metadata=about("show beginnings of texts in the report; for public-domain texts only"),
    )


@dataclass(frozen=True)
class HubConfig:
    """Where results are published."""

    push_to_hub: bool = field(default=False, metadata=about("publish the trained model"))
    repo_id: str | None = field(
        default=None, metadata=about("organisation/name of the model repository")
    )
    adapter_repo_id: str | None = field(
        default=None, metadata=about("organisation/name of the adapter's own repository")
    )
    to: str = field(default="hub", metadata=about("'hub', or 'folder:PATH', a folder as a Hub"))
    private: bool = field(default=True, metadata=about("create repositories as private"))
    hub_strategy: Literal["end", "every_save"] = field(
        default="end",
        metadata=about("publish at the end alone, or the whole model at every checkpoint too"),
    )
    base: str | None = field(
        default=None, metadata=about("organisation/name@commit of the base, if not recorded")
    )
    licence: str | None = field(
        default=None, metadata=about("licence of the checkpoint; null carries the base's on")
    )
    version: str | None = field(
        default=None, metadata=about("version tag; null makes one from the content")
    )
    corpus_repo_id: str | None = field(
        default=None, metadata=about("organisation/name@revision of the data it is scored on")
    )


@dataclass(frozen=True)
class LLMConfig:
    """The language model that writes queries. A key is named by its variable, never written."""

    endpoint: str | None = field(
        default=None, metadata=about("address of an OpenAI-compatible server", hashed=False)
    )
    model: str | None = field(default=None, metadata=about("name of the model on the server"))
    revision: str | None = field(default=None, metadata=about("revision of the model"))
    temperature: float = field(default=0.7, metadata=about("sampling temperature", min=0))
    max_tokens: int = field(
        default=1024, metadata=about("longest answer, thinking included", min=1)
    )
    thinking: bool | None = field(
        default=None,
        metadata=about("told to the model's chat template; null where that knows of no thinking"),
    )
    structured: Literal["response_format", "structured_outputs", "none"] = field(
        default="response_format", metadata=about("how the server enforces the form of an answer")
    )
    concurrency: int = field(default=16, metadata=about("requests in flight", min=1, hashed=False))
    api_key_env: str | None = field(
        default=None, metadata=about("environment variable that holds the key", hashed=False)
    )
    budget_calls: int | None = field(default=None, metadata=about("most calls", min=0))
    budget_tokens: int | None = field(default=None, metadata=about("most tokens", min=0))
    budget_cost: float | None = field(
        default=None, metadata=about("most money; needs a price", min=0)
    )
    price_prompt: float = field(
        default=0.0, metadata=about("price of a million prompt tokens", min=0, hashed=False)
    )
    price_completion: float = field(
        default=0.0, metadata=about("price of a million answer tokens", min=0, hashed=False)
    )

    def __post_init__(self) -> None:
        if self.budget_cost is not None and not (self.price_prompt or self.price_completion):
            raise ObliqError("budget_cost: needs price_prompt or price_completion")
