"""What the wheel holds, and what its extras ask for."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("obliq_hf", "dataset_builders", "eval_mteb", "model_cards", "training_recipes")
INSTALLED_AS = {"faiss": "faiss-cpu", "yaml": "pyyaml", "Stemmer": "PyStemmer"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in the wheel, built from a copy of the source."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        copytree(ROOT / name, source / name, ignore=ignore_patterns("__pycache__", ".*"))
    for name in ("tests", "benchmarks"):
        (source / name).mkdir()
        (source / name / "__init__.py").touch()
        (source / name / "test_x.py").touch()
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(out), str(source)], check=True, cwd=out)
    (file,) = out.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_the_wheel_holds_every_module_and_every_file_that_is_read_at_run_time(
    wheel: list[str],
) -> None:
    files = [p for name in PACKAGES for p in (ROOT / name).rglob("*") if p.is_file()]
    wanted = {
        p.relative_to(ROOT).as_posix()
        for p in files
        if "__pycache__" not in p.parts and not p.name.startswith(".")
    }
    kinds = {Path(name).suffix for name in wanted}
    assert {".py", ".yaml", ".md", ".jsonl", ".typed"} <= kinds
    assert wanted - set(wheel) == set()


def test_the_wheel_holds_nothing_but_the_packages_and_its_metadata(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in wheel if Path(name).name.startswith("test_")]
    assert any(name.endswith("entry_points.txt") for name in wheel)


def _extras() -> dict[str, set[str]]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    sections = {"": config["options"]["install_requires"], **config["options.extras_require"]}
    return {
        name: {re.split(r"[<>=!~ \[]", line, maxsplit=1)[0].lower() for line in text.split("\n")}
        - {""}
        for name, text in sections.items()
    }


def _imported() -> set[str]:
    found: set[str] = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found.update(alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return {INSTALLED_AS.get(name, name).lower().replace("_", "-") for name in found}


def test_an_extra_asks_for_what_the_packages_import_with_it() -> None:
    extras = _extras()
    for needs in ("train", "eval"):
        assert extras["data"] <= extras[needs], needs
    used = _imported()
    for name in ("data", "train", "eval", "report"):
        assert extras[name] - used == set(), name
