"""What a batch service does: answers the requests of a folder of batch files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def answer_requests(
    folder: Path, number: int, script: Callable[[dict[str, Any]], str | tuple[int, str]]
) -> list[dict[str, Any]]:
    """Answer a file of requests, in another order; gives their bodies.

    `script` gives the text of the answer to a body, or an HTTP status and what is said with it.
    """
    rows = [
        json.loads(line)
        for line in (folder / f"requests-{number:04d}.jsonl").read_text("utf-8").splitlines()
    ]
    lines = []
    for row in reversed(rows):
        said = script(row["body"])
        status, body = 200, {}
        if isinstance(said, str):
            message = {"role": "assistant", "content": said}
            body = {
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        else:
            status, body = said[0], {"error": {"message": said[1]}}
        response = {"status_code": status, "body": body}
        lines.append(json.dumps({"custom_id": row["custom_id"], "response": response}) + "\n")
    (folder / f"answers-{number:04d}.jsonl").write_text("".join(lines), "utf-8")
    return [row["body"] for row in rows]
