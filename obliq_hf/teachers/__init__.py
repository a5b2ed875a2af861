"""Teachers: frozen encoders whose nearest neighbours share the hand that wrote them."""

from __future__ import annotations

from obliq_hf.teachers.loading import check_teacher, load_teacher
from obliq_hf.teachers.luar import LuarTeacher
from obliq_hf.teachers.sentence_transformer import SentenceTransformerTeacher
from obliq_hf.teachers.stylometric import ProfileSettings, StylometricProfile
from obliq_hf.teachers.teacher import Teacher, embed, unit_vectors

__all__ = [
    "LuarTeacher",
    "ProfileSettings",
    "SentenceTransformerTeacher",
    "StylometricProfile",
    "Teacher",
    "check_teacher",
    "embed",
    "load_teacher",
    "unit_vectors",
]
