"""`obliq rerank` called as a person does, with the judge behind a server."""

from __future__ import annotations

from typer.testing import CliRunner

from eval_mteb.rerank_cli import app
from obliq_hf.errors import ObliqError


def obliq(*words):
    result = CliRunner().invoke(app, [str(w) for w in words])
    if isinstance(result.exception, ObliqError):
        raise result.exception
    assert result.exception is None, result.output
    return result.output


def llm(server):
    return "--llm", server.url, "--model", "judge"
