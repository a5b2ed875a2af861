"""How a Hub of the tests takes large files, and who may do what with a repository."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from hub_state import Commit, HubError, HubState, Repo, User
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request


class HubLargeFiles(HubState):
    """Rights, and the handlers of uploads that go past a commit."""

    # ------------------------------------------------------------------ who may do what

    def _user(self, request: Request) -> User | None:
        header = request.headers.get("authorization")
        if header is None:
            return None
        user = self.users.get(header.removeprefix("Bearer "))
        if user is None:
            raise HubError(401, "Invalid credentials in Authorization header")
        return user

    def _repo(self, request: Request, kind: str, name: str, *, write: bool = False) -> Repo:
        user = self._user(request)
        repo = self.repos.get((kind, name))
        owner = name.split("/")[0]
        member = user is not None and owner in (user.name, *user.orgs)
        if repo is None or (repo.private and not member):
            status = 401 if user is None else 404
            raise HubError(status, "Repository not found", "RepoNotFound")
        if write and user is None:
            raise HubError(401, "Invalid username or password.")
        if write and not (member and user and user.role == "write"):
            raise HubError(403, "You don't have the rights to push to this repository")
        return repo

    def _at(self, repo: Repo, revision: str) -> Commit:
        commit = repo.find(revision)
        if commit is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # ------------------------------------------------------------------ large files

    async def lfs_batch(self, request: Request, kind: str, name: str) -> Response:
        """Where to upload each file; nothing for those that are there."""
        self._repo(request, kind, name)
        if self._user(request) is None:
            raise HubError(401, "Invalid username or password.")
        objects = []
        for item in (await request.json())["objects"]:
            sha, size = item["oid"], item["size"]
            row: dict[str, Any] = {"oid": sha, "size": size, "authenticated": True}
            if not (self.store / sha).is_file():
                upload: dict[str, Any] = {"href": f"{self.url}/__lfs__/{sha}"}
                if size > self.part_bytes:
                    count = -(-size // self.part_bytes)
                    upload["href"] = f"{self.url}/__lfs_complete__/{sha}"
                    upload["header"] = {"chunk_size": str(self.part_bytes)} | {
                        f"{i:05}": f"{self.url}/__lfs_part__/{sha}/{i}" for i in range(1, count + 1)
                    }
                verify = {"href": f"{self.url}/__lfs_verify__"}
                row["actions"] = {"upload": upload, "verify": verify}
            objects.append(row)
        return JSONResponse({"transfer": "basic", "objects": objects})

    async def lfs_put(self, request: Request, sha: str) -> Response:
        """Take a whole file, in a stream to disk."""
        digest = hashlib.sha256()
        temporary = self.store / f"{sha}.{time.monotonic_ns()}.part"
        with temporary.open("wb") as out:
            async for chunk in request.stream():
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != sha:
            temporary.unlink()
            raise HubError(400, "content does not match its SHA-256")
        temporary.replace(self.store / sha)
        return Response(status_code=200)

    async def lfs_part(self, request: Request, sha: str, part: str) -> Response:
        """Take one part of a file."""
        data = await request.body()
        self.parts.setdefault(sha, {})[int(part)] = data
        return Response(status_code=200, headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    async def lfs_complete(self, request: Request, sha: str) -> Response:
        """Join the parts of a file."""
        wanted = (await request.json())["parts"]
        parts = self.parts.get(sha, {})
        data = b"".join(parts.get(p["partNumber"], b"") for p in wanted)
        if hashlib.sha256(data).hexdigest() != sha:
            raise HubError(400, "parts do not make up the file")
        (self.store / sha).write_bytes(data)
        self.parts.pop(sha, None)
        return Response(status_code=200)

    async def lfs_verify(self, request: Request) -> Response:
        """Confirm that a file is there."""
        body = await request.json()
        stored = self.store / body["oid"]
        if not stored.is_file() or stored.stat().st_size != body["size"]:
            raise HubError(404, "object not found")
        return Response(status_code=200)
