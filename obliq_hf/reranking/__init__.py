"""Reranking: a first stage's candidates in a better order, always a permutation of them.

    from obliq_hf.reranking import TourRank, pools_from_run, rerank

=================  ================================================================================
`values`           `Candidate`, `Pool`, `Ranking`, `Tally`
`reranker`         the protocol `Reranker`; `IdentityReranker`
`tourrank`         `TourRank`: tournaments in groups; `stage_plan` has their stages
`listwise`         `Listwise`: overlapping windows, generic or task-aware
`cross_encoder`    `CrossEncoderReranker`: any CrossEncoder of sentence-transformers
`fused`            `Fused` with the first stage; `StoredScores` of another run
`cascade`          `Cascade`: deep pools, step by step
`schedule`         `rerank`: all queries at once under one bound on calls
`sweep`            `sweep`: many settings over the same pools
`asking`           `Asking`: prompts, forms of answer, budgets of texts
`candidates`       `pools_from_run`, `TextBudget`
`parser`           `parse_ranking`: the one parser for answers; `json_lists` are what it reads as
                   JSON, `other_lists` are no rankings
`settings`         `RerankSettings`: rerankers as plain values
`policy`           `Policy`: the reranker of each task, chosen on development queries
`oracle`           `OracleClient`: a judge that knows the answer and errs at a stated rate
=================  ================================================================================

Importing this package loads no model code.
"""

from __future__ import annotations

from obliq_hf.reranking.asking import Asking
from obliq_hf.reranking.candidates import ModelTokens, TextBudget, pools_from_run
from obliq_hf.reranking.cascade import Cascade
from obliq_hf.reranking.cross_encoder import CrossEncoderReranker
from obliq_hf.reranking.fused import Fused, StoredScores
from obliq_hf.reranking.listwise import Listwise
from obliq_hf.reranking.oracle import OracleClient
from obliq_hf.reranking.parser import FAULTS, ParsedRanking, parse_ranking
from obliq_hf.reranking.policy import (
    Policy,
    Trial,
    choose,
    load_policy,
    task_policy,
    write_policy,
)
from obliq_hf.reranking.reranker import IdentityReranker, Reranker
from obliq_hf.reranking.schedule import Reranked, rerank, reranked_run
from obliq_hf.reranking.settings import RerankSettings, build_reranker, parse_rerankers
from obliq_hf.reranking.stage_plan import Stage, StagePlan, parse_plan, scaled_plan
from obliq_hf.reranking.sweep import sweep
from obliq_hf.reranking.tourrank import TourRank
from obliq_hf.reranking.values import Candidate, Pool, Ranking, Tally

__all__ = [
    "FAULTS",
    "Asking",
    "Candidate",
    "Cascade",
    "CrossEncoderReranker",
    "Fused",
    "IdentityReranker",
    "Listwise",
    "ModelTokens",
    "OracleClient",
    "ParsedRanking",
    "Policy",
    "Pool",
    "Ranking",
    "RerankSettings",
    "Reranked",
    "Reranker",
    "Stage",
    "StagePlan",
    "StoredScores",
    "Tally",
    "TextBudget",
    "TourRank",
    "Trial",
    "build_reranker",
    "choose",
    "load_policy",
    "parse_plan",
    "parse_ranking",
    "parse_rerankers",
    "pools_from_run",
    "rerank",
    "reranked_run",
    "scaled_plan",
    "sweep",
    "task_policy",
    "write_policy",
]
