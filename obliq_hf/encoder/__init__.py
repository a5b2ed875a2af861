"""Sentence encoders whose prompts come from tasks."""

from __future__ import annotations

from obliq_hf.encoder.lora import LoraSettings, MergeReport
from obliq_hf.encoder.sentence_transformer import ObliqSentenceTransformer
from obliq_hf.encoder.sources import EMBEDDED, EMBEDDED_ID, BaseRecord, embedded_model_path
from obliq_hf.prompts import TEMPLATES, PromptTemplate, prompts_for

__all__ = [
    "EMBEDDED",
    "EMBEDDED_ID",
    "TEMPLATES",
    "BaseRecord",
    "LoraSettings",
    "MergeReport",
    "ObliqSentenceTransformer",
    "PromptTemplate",
    "embedded_model_path",
    "prompts_for",
]
