"""Encoding a corpus into an index: in shards, resumable, by one process or several."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from obliq_hf.encoder.processes import Workers
from obliq_hf.encoder.text_encoder import UnencodableText
from obliq_hf.errors import DataError, ObliqError
from obliq_hf.files import atomic_path, content_hash, read_json, write_json
from obliq_hf.records import Corpus, corpus_file, iter_documents
from obliq_hf.search.index import MANIFEST, EncodedBy, Manifest, VectorIndex
from obliq_hf.search.shards import Shard, ShardRecord, check_storage, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from obliq_hf.encoder.text_encoder import TextEncoder
    from obliq_hf.records import EmptyPolicy

__all__ = ["encode_corpus"]

logger = logging.getLogger(__name__)

PLAN = "plan.json"
_MOST_ROWS = 16_384
_FEWEST_ROWS = 1024
_SHARDS_PER_PROCESS = 4


def encode_corpus(
    encoder: TextEncoder,
    corpus: str | Path | Corpus,
    out: str | Path,
    *,
    storage: str = "float16",
    keep_exact: bool = False,
    shard_rows: int | None = None,
    empty: EmptyPolicy = "error",
    workers: Workers | None = None,
    show_progress: bool = False,
) -> VectorIndex:
    """Encode a corpus's documents, title and text joined, into an index folder.

    The corpus is read as a stream, twice: once for its ids and digests, once for the texts. A text
    that stands under several ids is encoded once. Every shard is written whole or not at all;
    started again, finished shards are found and missing or damaged ones encoded anew. Under a
    launcher with several processes each encodes its share of the shards.

    Args:
        encoder: The model.
        corpus: A corpus file or folder, or a corpus in memory.
        out: The index's folder.
        storage: ``float16``, ``float32`` or ``int8``: how vectors are kept on disk.
        keep_exact: Keep the float32 vectors beside smaller ones, to decide the order of what these
            nominate.
        shard_rows: Vectors of a shard; by default 16,384, fewer where processes would be idle.
        empty: What to do with documents without a visible character.
        workers: The processes; by default those of the launcher.
        show_progress: Show a bar, in the first process.

    Returns:
        The index.

    Raises:
        DataError: A document is not as it must be, or there is none.
        ObliqError: ``out`` holds something else, or another encoding; a setting is not valid; a
            vector is not finite (its document is named).
    """
    kind = check_storage(storage)
    if shard_rows is not None and shard_rows < 1:
        raise ObliqError(f"shard_rows must be at least 1, not {shard_rows}")
    workers = workers or Workers.here()
    source = _Documents(corpus, empty)
    folder = Path(out)
    if workers.first:
        plan = _make_plan(encoder, source, folder, kind, keep_exact, shard_rows, workers.count)
        pending = plan.pending(folder)
    else:
        pending = []
    workers.wait()
    plan = _Plan.read(folder)
    pending = workers.agree(pending)
    if pending and len(pending) < plan.shards:
        logger.info("%d of %d shards found", plan.shards - len(pending), plan.shards)
    _encode_shards(
        encoder, source, folder, plan, workers.share(pending), show_progress and workers.first
    )
    workers.wait()
    if workers.first:
        _finish(folder, plan)
    workers.wait()
    return VectorIndex(folder)


class _Documents:
    """Ids and texts of a corpus, as often as they are read; the same rows each time."""

    def __init__(self, corpus: str | Path | Corpus, empty: EmptyPolicy) -> None:
        self.corpus = corpus if isinstance(corpus, Corpus) else corpus_file(corpus)
        self.empty = empty
        self.name = "corpus" if isinstance(corpus, Corpus) else str(self.corpus)

    def _all(self) -> Iterator[tuple[str, str]]:
        if isinstance(self.corpus, Corpus):
            yield from zip(self.corpus.ids, self.corpus.full_texts(), strict=True)
            return
        for document in iter_documents(self.corpus):
            title, text = document.title, document.text
            yield document.id, f"{title} {text}".strip() if title else text

    def read(self, dropped: dict[str, int] | None = None) -> Iterator[tuple[str, str, bytes]]:
        """Yield id, text and the text's digest of every document that is kept.

        Args:
            dropped: Receives the number of rows left out, by reason.
        """
        counts: dict[str, int] = {} if dropped is None else dropped
        seen: dict[str, bytes] = {}
        for identifier, text in self._all():
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if identifier in seen:
                if seen[identifier] != digest:
                    raise DataError(
                        f"{self.name}: id {identifier!r} stands for two different texts"
                    )
                counts["repeated"] = counts.get("repeated", 0) + 1
                continue
            if not text.strip():
                if self.empty == "error":
                    raise DataError(
                        f"{self.name}: document {identifier!r} is empty; give it a text, remove "
                        "it, or encode with empty 'keep' or 'drop'"
                    )
                if self.empty == "drop":
                    counts["empty"] = counts.get("empty", 0) + 1
                    continue
            seen[identifier] = digest
            yield identifier, text, digest


@dataclass(frozen=True)
class _Plan:
    """What an encoding sets out to do; content of ``plan.json``."""

    encoding: str
    encoded_by: EncodedBy
    documents: int
    vectors: int
    storage: str
    exact: bool
    corpus: str
    dropped: dict[str, int]
    shard_rows: int

    @classmethod
    def read(cls, folder: Path) -> _Plan:
        value = read_json(folder / PLAN)
        try:
            return cls(**{**value, "encoded_by": EncodedBy(**value["encoded_by"])})
        except (KeyError, TypeError) as error:
            raise DataError(f"{folder / PLAN}: not an encoding's plan: {error}") from error

    @property
    def shards(self) -> int:
        return -(-self.vectors // self.shard_rows)

    @property
    def header(self) -> dict[str, str]:
        return {"encoding": self.encoding, "model": self.encoded_by.fingerprint}

    def record(self, folder: Path, number: int) -> ShardRecord | None:
        """The record of a finished shard whose files are as they must be, else None."""
        mark = folder / "shards" / f"{number:05d}.json"
        if not mark.is_file():
            return None
        try:
            record = ShardRecord(**read_json(mark))
            first = number * self.shard_rows
            if (record.first, record.rows) != (first, min(self.shard_rows, self.vectors - first)):
                return None
            Shard(
                folder / "shards",
                record,
                storage=self.storage,  # type: ignore[arg-type]
                dimension=self.encoded_by.dimension,
                metadata=self.header,
            )
        except (DataError, TypeError, KeyError) as error:
            logger.warning("shard %d is encoded anew: %s", number, error)
            return None
        return record

    def pending(self, folder: Path) -> list[int]:
        """Numbers of the shards that are still to be encoded."""
        return [n for n in range(self.shards) if self.record(folder, n) is None]


def _make_plan(
    encoder: TextEncoder,
    source: _Documents,
    folder: Path,
    storage: str,
    keep_exact: bool,
    shard_rows: int | None,
    processes: int,
) -> _Plan:
    """Scan the corpus, and write ids, vector rows and plan, or find them as they must be."""
    known = _Plan.read(folder) if (folder / PLAN).is_file() else None
    if known is None and folder.is_dir() and any(folder.iterdir()):
        raise ObliqError(f"{folder}: holds something else than an index; give another folder")
    ids: list[str] = []
    rows: list[int] = []
    vector_row: dict[bytes, int] = {}
    digest = hashlib.sha256()
    dropped: dict[str, int] = {}
    for identifier, _, text in source.read(dropped):
        ids.append(identifier)
        rows.append(vector_row.setdefault(text, len(vector_row)))
        digest.update(f"{identifier}\n".encode() + text)
    if not ids:
        raise DataError(f"{source.name}: the corpus holds no documents")
    vectors = len(vector_row)
    if shard_rows is None and known is not None:
        shard_rows = known.shard_rows
    if shard_rows is None:
        even = -(-vectors // (_SHARDS_PER_PROCESS * processes))
        shard_rows = min(_MOST_ROWS, max(_FEWEST_ROWS, even))
    by = EncodedBy(
        name=encoder.name,
        fingerprint=encoder.fingerprint,
        revision=encoder.revision,
        prompt=encoder.document_prompt,
        max_length=encoder.max_length,
        dimension=encoder.dimension,
        query_prompts=dict(encoder.query_prompts),
    )
    identity: dict[str, Any] = {
        "model": by.fingerprint,
        "prompt": by.prompt,
        "max_length": by.max_length,
        "corpus": digest.hexdigest(),
        "storage": storage,
        "exact": keep_exact and storage != "float32",
        "shard_rows": shard_rows,
    }
    plan = _Plan(
        encoding=content_hash(identity),
        encoded_by=by,
        documents=len(ids),
        vectors=vectors,
        storage=storage,
        exact=identity["exact"],
        corpus=identity["corpus"],
        dropped=dropped,
        shard_rows=shard_rows,
    )
    if known is not None and known.encoding != plan.encoding:
        raise ObliqError(
            f"{folder}: holds another encoding ({_differences(known, plan)}); give another folder, "
            "or remove it"
        )
    if known is None or known != plan or not _written(folder, plan):
        _write_plan(folder, plan, ids, np.array(rows, dtype=np.int64))
    for leftover in (folder / "shards").glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    return plan


def _differences(known: _Plan, plan: _Plan) -> str:
    """What sets two plans apart, for a message."""
    a, b = known.encoded_by, plan.encoded_by
    found = [
        name
        for name, same in (
            (f"model {a.name} {a.fingerprint[:12]}", a.fingerprint == b.fingerprint),
            (f"prompt {a.prompt!r}", a.prompt == b.prompt),
            (f"max_length {a.max_length}", a.max_length == b.max_length),
            ("other texts", known.corpus == plan.corpus),
            (f"storage {known.storage}", known.storage == plan.storage),
            (f"exact {known.exact}", known.exact == plan.exact),
            (f"shard_rows {known.shard_rows}", known.shard_rows == plan.shard_rows),
        )
        if not same
    ]
    return ", ".join(found)


def _written(folder: Path, plan: _Plan) -> bool:
    copies = plan.documents != plan.vectors
    return (folder / "ids.txt").is_file() and (not copies or (folder / "rows.npy").is_file())


def _write_plan(folder: Path, plan: _Plan, ids: Sequence[str], rows: NDArray[np.int64]) -> None:
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(folder / "ids.txt") as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as out,
    ):
        out.writelines(f"{identifier}\n" for identifier in ids)
    if plan.documents != plan.vectors:
        with atomic_path(folder / "rows.npy") as temporary, temporary.open("wb") as stream:
            np.save(stream, rows, allow_pickle=False)
    write_json(folder / PLAN, asdict(plan))


def _encode_shards(
    encoder: TextEncoder,
    source: _Documents,
    folder: Path,
    plan: _Plan,
    numbers: list[int],
    show_progress: bool,
) -> None:
    """Encode some of the shards, in one pass over the corpus."""
    from tqdm.auto import tqdm

    if not numbers:
        return
    wanted = set(numbers)
    total = sum(min(plan.shard_rows, plan.vectors - number * plan.shard_rows) for number in numbers)
    seen: set[bytes] = set()
    ids: list[str] = []
    texts: list[str] = []
    with tqdm(total=total, desc="documents", unit="text", disable=not show_progress) as bar:
        for identifier, text, digest in source.read():
            if digest in seen:
                continue
            row = len(seen)
            seen.add(digest)
            number = row // plan.shard_rows
            if number in wanted:
                ids.append(identifier)
                texts.append(text)
            if row + 1 == plan.vectors or (row + 1) % plan.shard_rows == 0:
                if texts:
                    _encode_shard(encoder, folder, plan, number, ids, texts, bar)
                    wanted.remove(number)
                    ids, texts = [], []
                if not wanted:
                    return
    raise DataError(f"{source.name}: has changed while it was encoded; start again")


def _encode_shard(
    encoder: TextEncoder,
    folder: Path,
    plan: _Plan,
    number: int,
    ids: list[str],
    texts: list[str],
    bar: Any,
) -> None:
    try:
        vectors = encoder.encode(texts, prompt=plan.encoded_by.prompt, progress=bar.update)
    except UnencodableText as error:
        raise ObliqError(
            f"document {ids[error.row]!r}: its vector is not finite; finished shards are kept"
        ) from error
    if vectors.shape != (len(texts), plan.encoded_by.dimension):
        raise ObliqError(
            f"{encoder.name} gave vectors of shape {vectors.shape}, not "
            f"({len(texts)}, {plan.encoded_by.dimension})"
        )
    record = write_shard(
        folder / "shards",
        number,
        vectors,
        first=number * plan.shard_rows,
        storage=plan.storage,  # type: ignore[arg-type]
        keep_exact=plan.exact,
        metadata=plan.header,
    )
    write_json(folder / "shards" / f"{number:05d}.json", asdict(record))


def _finish(folder: Path, plan: _Plan) -> None:
    """Write the manifest, once every shard is there."""
    records = [plan.record(folder, number) for number in range(plan.shards)]
    missing = [number for number, record in enumerate(records) if record is None]
    if missing:
        raise DataError(f"{folder}: shards {missing[:5]} are not as they must be; start again")
    manifest = Manifest(
        encoding=plan.encoding,
        encoded_by=plan.encoded_by,
        documents=plan.documents,
        vectors=plan.vectors,
        storage=plan.storage,
        exact=plan.exact,
        corpus=plan.corpus,
        dropped=plan.dropped,
        shards=tuple(record for record in records if record is not None),
    )
    path = folder / MANIFEST
    if not path.is_file() or read_json(path) != manifest.to_dict():
        write_json(path, manifest.to_dict())
