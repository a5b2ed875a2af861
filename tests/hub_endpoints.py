"""The answers of a Hub of the tests, endpoint by endpoint."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

import yaml
from hub_large_files import HubLargeFiles
from hub_state import LFS_SUFFIXES, Blob, Commit, HubError, Repo
from starlette.responses import JSONResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request


class HubEndpoints(HubLargeFiles):
    """Handlers of all endpoints that the clients use."""

    def table(self) -> list[tuple[str, str, Callable[..., Awaitable[Response]]]]:
        repo = r"/api/(?P<kind>model|dataset|space)s/(?P<name>[^/]+/[^/]+)"
        rev = r"/(?P<rev>[^/]+)"
        file = r"/(?:(?P<kind>dataset|space)s/)?(?P<name>[^/]+/[^/]+)/resolve" + rev
        return [
            ("GET", r"/api/whoami-v2", self.whoami),
            ("POST", r"/api/repos/create", self.create),
            ("DELETE", r"/api/repos/delete", self.delete),
            ("POST", r"/api/validate-yaml", self.validate_yaml),
            ("GET", r"/api/(?P<kind>model|dataset|space)s", self.listing),
            ("GET", repo, self.info),
            ("GET", repo + r"/revision" + rev, self.info),
            ("GET", repo + r"/refs", self.list_refs),
            ("GET", repo + r"/commits" + rev, self.commits),
            ("GET", repo + r"/tree" + rev + r"(?:/(?P<path>.+))?", self.tree),
            ("POST", repo + r"/paths-info" + rev, self.paths_info),
            ("POST", repo + r"/preupload" + rev, self.preupload),
            ("POST", repo + r"/commit" + rev, self.commit),
            ("POST", repo + r"/branch/(?P<ref>.+)", self.branch),
            ("POST", repo + r"/tag" + rev, self.tag),
            ("DELETE", repo + r"/tag/(?P<ref>.+)", self.untag),
            ("GET", file + r"/(?P<path>.+)", self.resolve),
            ("HEAD", file + r"/(?P<path>.+)", self.resolve),
            (
                "POST",
                r"/(?:(?P<kind>dataset|space)s/)?(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch",
                self.lfs_batch,
            ),
            ("PUT", r"/__lfs__/(?P<sha>[0-9a-f]{64})", self.lfs_put),
            ("PUT", r"/__lfs_part__/(?P<sha>[0-9a-f]{64})/(?P<part>\d+)", self.lfs_part),
            ("POST", r"/__lfs_complete__/(?P<sha>[0-9a-f]{64})", self.lfs_complete),
            ("POST", r"/__lfs_verify__", self.lfs_verify),
        ]

    # ------------------------------------------------------------------ endpoints

    async def whoami(self, request: Request) -> Response:
        """Name, organisations and role of the token's holder."""
        user = self._user(request)
        if user is None:
            raise HubError(401, "Invalid username or password.")
        token = {"displayName": "t", "role": user.role, "createdAt": "2026-01-01T00:00:00.000Z"}
        return JSONResponse(
            {
                "type": "user",
                "name": user.name,
                "orgs": [{"type": "org", "name": org} for org in user.orgs],
                "auth": {"type": "access_token", "accessToken": token},
            }
        )

    async def create(self, request: Request) -> Response:
        """Make a repository."""
        user = self._user(request)
        if user is None:
            raise HubError(401, "Invalid username or password.")
        body = await request.json()
        owner = body.get("organization") or user.name
        if user.role != "write" or owner not in (user.name, *user.orgs):
            message = f'You don\'t have the rights to create a {body["type"]} under "{owner}"'
            raise HubError(403, message)
        kind, name = body.get("type") or "model", f"{owner}/{body['name']}"
        url = f"{self.url}/{kind}s/{name}" if kind != "model" else f"{self.url}/{name}"
        if (kind, name) in self.repos:
            answer = {"error": "You already created this repo", "url": url}
            return JSONResponse(answer, status_code=409)
        self._create(kind, name, body.get("visibility") == "private" or bool(body.get("private")))
        return JSONResponse({"url": url, "name": name, "id": name})

    async def delete(self, request: Request) -> Response:
        """Remove a repository."""
        body = await request.json()
        name = f"{body['organization']}/{body['name']}"
        repo = self._repo(request, body.get("type") or "model", name, write=True)
        del self.repos[repo.kind, repo.name]
        return Response(status_code=200)

    async def validate_yaml(self, request: Request) -> Response:
        """Check the metadata of a card."""
        text = (await request.json())["content"]
        match = re.match(r"---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(\r?\n|$)", text, re.DOTALL)
        if not match:
            warning = {"message": "empty or missing yaml metadata in repo card"}
            return JSONResponse({"errors": [], "warnings": [warning]})
        try:
            data = yaml.safe_load(match[1] or "")
            errors = [] if isinstance(data, dict) else [{"message": "metadata is not a mapping"}]
        except yaml.YAMLError as error:
            errors = [{"message": str(error)}]
        answer = {"errors": errors, "warnings": []}
        return JSONResponse(answer, status_code=400 if errors else 200)

    async def listing(self, request: Request, kind: str) -> Response:
        """Repositories of an author."""
        author = request.query_params.get("author")
        found = [
            self._describe(repo, self._at(repo, "main"))
            for repo in self.repos.values()
            if repo.kind == kind and not repo.private and author in (None, repo.name.split("/")[0])
        ]
        return JSONResponse(found)

    def _describe(self, repo: Repo, commit: Commit) -> dict[str, Any]:
        return {
            "id": repo.name,
            "modelId": repo.name,
            "author": repo.name.split("/")[0],
            "sha": commit.oid,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "siblings": [{"rfilename": path} for path in sorted(commit.tree)],
        }

    async def info(self, request: Request, kind: str, name: str, rev: str = "main") -> Response:
        """A repository at a revision."""
        repo = self._repo(request, kind, name)
        return JSONResponse(self._describe(repo, self._at(repo, rev)))

    async def list_refs(self, request: Request, kind: str, name: str) -> Response:
        """Branches, tags and pull requests."""
        repo = self._repo(request, kind, name)

        def named(prefix: str) -> list[dict[str, str]]:
            return [
                {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": oid}
                for ref, oid in repo.refs.items()
                if ref.startswith(prefix)
            ]

        return JSONResponse(
            {
                "branches": named("refs/heads/"),
                "tags": named("refs/tags/"),
                "converts": [],
                "pullRequests": [
                    {**row, "name": row["ref"]} for row in named("refs/pr/")
                ],
            }
        )  # fmt: skip

    async def commits(self, request: Request, kind: str, name: str, rev: str) -> Response:
        """The history of a revision."""
        repo = self._repo(request, kind, name)
        self._at(repo, rev)
        rows = [
            {
                "id": commit.oid,
                "title": commit.title,
                "message": commit.message,
                "authors": [{"user": "olga"}],
                "date": f"2026-01-01T00:{commit.number // 60:02}:{commit.number % 60:02}.000Z",
            }
            for commit in repo.history(rev)
        ]
        return JSONResponse(rows)

    async def tree(
        self, request: Request, kind: str, name: str, rev: str, path: str = ""
    ) -> Response:
        """Files (and folders) below a path, page by page."""
        repo = self._repo(request, kind, name)
        commit = self._at(repo, rev)
        prefix = path.rstrip("/") + "/" if path else ""
        recursive = request.query_params.get("recursive") == "true"
        rows: dict[str, dict[str, Any]] = {}
        for file, blob in sorted(commit.tree.items()):
            if not file.startswith(prefix):
                continue
            parts = file.removeprefix(prefix).split("/")
            for i in range(1, len(parts)):
                folder = prefix + "/".join(parts[:i])
                if recursive or i == 1:
                    oid = hashlib.sha1(folder.encode()).hexdigest()
                    rows[folder] = {"type": "directory", "path": folder, "size": 0, "oid": oid}
            if recursive or len(parts) == 1:
                rows[file] = blob.entry(file)
        if prefix and not rows:
            raise HubError(404, f"{path} does not exist", "EntryNotFound")
        start = int(request.query_params.get("cursor") or 0)
        page = list(rows.values())[start : start + self.page]
        headers = {"X-Repo-Commit": commit.oid}
        if start + self.page < len(rows):
            query = f"recursive={str(recursive).lower()}&cursor={start + self.page}"
            raw = request.scope["raw_path"].decode("ascii")
            headers["Link"] = f'<{self.url}{raw}?{query}>; rel="next"'
        return JSONResponse(page, headers=headers)

    async def paths_info(self, request: Request, kind: str, name: str, rev: str) -> Response:
        """What given paths are; unknown ones are left out."""
        repo = self._repo(request, kind, name)
        commit = self._at(repo, rev)
        body = await request.body()
        if request.headers.get("content-type", "").startswith("application/json"):
            wanted = json.loads(body)["paths"]
        else:
            wanted = parse_qs(body.decode()).get("paths", [])
        rows: list[dict[str, Any]] = []
        for path in wanted:
            if path in commit.tree:
                rows.append(commit.tree[path].entry(path))
            elif any(file.startswith(path.rstrip("/") + "/") for file in commit.tree):
                oid = hashlib.sha1(path.encode()).hexdigest()
                rows.append({"type": "directory", "path": path, "size": 0, "oid": oid})
        return JSONResponse(rows)

    async def preupload(self, request: Request, kind: str, name: str, rev: str) -> Response:
        """Say for each file whether it goes into the commit or into the large-file store."""
        asked_pr = request.query_params.get("create_pr") == "1"
        repo = self._repo(request, kind, name, write=not asked_pr)
        tree = self._at(repo, rev).tree
        answer = []
        for file in (await request.json())["files"]:
            path = file["path"]
            sample = base64.b64decode(file.get("sample") or "")
            large = path.endswith(LFS_SUFFIXES) or file["size"] > 10_000_000 or b"\0" in sample
            row = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if path in tree:
                row["oid"] = tree[path].etag
            answer.append(row)
        return JSONResponse({"files": answer})

    async def commit(self, request: Request, kind: str, name: str, rev: str) -> Response:
        """Apply a commit, on a branch or as a new pull request."""
        as_pull = request.query_params.get("create_pr") == "1"
        repo = self._repo(request, kind, name, write=not as_pull)
        lines = [json.loads(line) for line in (await request.body()).splitlines() if line]
        header = lines[0]["value"]
        head = self._at(repo, rev)
        if header.get("parentCommit") and header["parentCommit"] != head.oid and not as_pull:
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(head.tree)
        for line in lines[1:]:
            value = line["value"]
            path = value["path"]
            if ".." in path.split("/") or path.startswith("/") or "\\" in path:
                raise HubError(400, f"invalid path {path!r}")
            if line["key"] == "file":
                data = base64.b64decode(value["content"])
                if len(data) > 10_000_000 or path.endswith(LFS_SUFFIXES):
                    raise HubError(400, f"{path} must be uploaded as a large file")
                tree[path] = Blob(len(data), data=data)
            elif line["key"] == "lfsFile":
                stored = self.store / value["oid"]
                if not stored.is_file():
                    raise HubError(400, f"LFS pointer to a file that does not exist: {path}")
                tree[path] = Blob(stored.stat().st_size, sha256=value["oid"])
            elif line["key"] in {"deletedFile", "deletedFolder"}:
                gone = [p for p in tree if p == path or p.startswith(path.rstrip("/") + "/")]
                if not gone:
                    message = f"A file with this name doesn't exist: {path}"
                    raise HubError(404, message, "EntryNotFound")
                for p in gone:
                    del tree[p]
        ref = "refs/heads/" + rev if "refs/heads/" + rev in repo.refs else rev
        if ref not in repo.refs and not as_pull:
            raise HubError(400, f"{rev} is not a branch")
        answer: dict[str, Any] = {"success": True}
        if as_pull:
            repo.pulls += 1
            ref = f"refs/pr/{repo.pulls}"
            repo.refs[ref] = head.oid
            page = f"{self.url}/{kind}s/{name}" if kind != "model" else f"{self.url}/{name}"
            answer["pullRequestUrl"] = f"{page}/discussions/{repo.pulls}"
        made = self._commit(repo, ref, tree, header["summary"], header.get("description", ""))
        answer["commitOid"] = made.oid
        answer["commitUrl"] = f"{self.url}/{name}/commit/{made.oid}"
        return JSONResponse(answer)

    async def branch(self, request: Request, kind: str, name: str, ref: str) -> Response:
        """Make a branch."""
        repo = self._repo(request, kind, name, write=True)
        body = json.loads(await request.body() or b"{}")
        return self._make_ref(repo, "refs/heads/" + ref, body.get("startingPoint") or "main")

    async def tag(self, request: Request, kind: str, name: str, rev: str) -> Response:
        """Make a tag."""
        repo = self._repo(request, kind, name, write=True)
        return self._make_ref(repo, "refs/tags/" + (await request.json())["tag"], rev)

    def _make_ref(self, repo: Repo, ref: str, revision: str) -> Response:
        if ref in repo.refs:
            return JSONResponse({"error": f"Reference already exists: {ref}"}, status_code=409)
        repo.refs[ref] = self._at(repo, revision).oid
        return JSONResponse({"success": True})

    async def untag(self, request: Request, kind: str, name: str, ref: str) -> Response:
        """Remove a tag."""
        repo = self._repo(request, kind, name, write=True)
        if repo.refs.pop("refs/tags/" + ref, None) is None:
            raise HubError(404, f"no tag {ref}", "RevisionNotFound")
        return Response(status_code=200)

    async def resolve(
        self, request: Request, kind: str, name: str, rev: str, path: str
    ) -> Response:
        """A file's bytes, whole or a range, or its headers."""
        repo = self._repo(request, kind, name)
        user = self._user(request)
        if repo.gated and not (user and name.split("/")[0] in (user.name, *user.orgs)):
            raise HubError(403, "Access to this repository is restricted", "GatedRepo")
        commit = self._at(repo, rev)
        blob = commit.tree.get(path)
        if blob is None:
            message = "Entry not found"
            raise HubError(404, message, "EntryNotFound", **{"X-Repo-Commit": commit.oid})
        headers = {
            "X-Repo-Commit": commit.oid,
            "ETag": f'"{blob.etag}"',
            "Accept-Ranges": "bytes",
            "Content-Disposition": f"inline; filename*=UTF-8''{quote(Path(path).name)}",
        }
        if blob.sha256:
            headers["X-Linked-Etag"] = f'"{blob.sha256}"'
            headers["X-Linked-Size"] = str(blob.size)
        start, stop, status = 0, blob.size, 200
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range") or "")
        if match and request.method == "GET":
            if match[1]:
                start = int(match[1])
                stop = min(int(match[2]) + 1, blob.size) if match[2] else blob.size
            else:
                start = max(0, blob.size - int(match[2]))
            if start >= blob.size:
                return Response(status_code=416, headers={"Content-Range": f"bytes */{blob.size}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        headers["Content-Length"] = str(stop - start)
        if request.method == "HEAD":
            return Response(status_code=200, headers=headers)
        return StreamingResponse(self._read(blob, start, stop), status_code=status, headers=headers)

    def _read(self, blob: Blob, start: int, stop: int) -> Iterator[bytes]:
        if blob.data is not None:
            yield blob.data[start:stop]
            return
        with (self.store / str(blob.sha256)).open("rb") as file:
            file.seek(start)
            while start < stop:
                chunk = file.read(min(1 << 20, stop - start))
                start += len(chunk)
                yield chunk
