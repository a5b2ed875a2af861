from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from obliq_hf.errors import ObliqError
from obliq_hf.prompts import (
    TEMPLATES,
    PromptTemplate,
    check_prompt_name,
    checked_prompts,
    get_template,
    prompts_for,
)
from obliq_hf.tasks import ObliqTask, builtin_task_names, load_task, load_tasks

SCENE = Path(__file__).parents[2] / "training_recipes" / "quickstart" / "scene.yaml"


def values(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "name": "tone",
        "mechanism": "descriptive",
        "attribute": "tone of voice",
        "instruction": "Given a tone, retrieve letters written in it",
        "lens": "descriptive",
        "exclusion": "none",
        "reranking": {"reranker": "identity"},
    }
    return {k: v for k, v in {**base, **changes}.items() if v is not ...}


def write(folder: Path, text: str, name: str = "tone.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8", newline="\n")
    return file


def test_every_builtin_task_loads_and_bears_the_name_of_its_file():
    assert set(builtin_task_names()) == {"congress", "math", "twitter", "wildchat", "writing"}
    for name in builtin_task_names():
        assert load_task(name).name == name
    assert len(load_tasks(builtin_task_names())) == 5


def test_builtin_tasks_keep_the_dense_order_on_writing_alone():
    chosen = {name: load_task(name).reranking for name in builtin_task_names()}
    assert [n for n, r in chosen.items() if r["reranker"] == "identity"] == ["writing"]
    assert {r["rounds"] for r in chosen.values() if r["reranker"] == "tourrank"} == {5}


def test_builtin_tasks_name_tasks_that_mteb_has():
    import mteb

    for name in builtin_task_names():
        task = load_task(name)
        evaluated = mteb.get_task(task.mteb_name)
        assert task.hub_config in evaluated.metadata.eval_langs


def test_tasks_and_prompts_import_without_torch():
    code = (
        "import sys, obliq_hf.tasks, obliq_hf.prompts;"
        "print([m for m in ('torch', 'transformers', 'mteb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_users_task_file_loads_and_survives_a_round_trip(tmp_path):
    scene = load_task(SCENE)
    assert scene.lens == "tip-of-the-tongue"
    file = write(tmp_path, yaml.safe_dump(scene.to_dict()))
    assert load_task(file) == scene
    assert load_task(file).fingerprint == scene.fingerprint


def test_a_task_file_is_found_beside_the_recipe_that_names_it(tmp_path):
    write(tmp_path, yaml.safe_dump(values()))
    assert load_task("tone.yaml", relative_to=tmp_path).name == "tone"


@pytest.mark.parametrize(
    "missing", ["name", "mechanism", "attribute", "instruction", "lens", "exclusion", "reranking"]
)
def test_a_missing_key_is_named_with_its_file(tmp_path, missing):
    file = write(tmp_path, yaml.safe_dump(values(**{missing: ...})))
    with pytest.raises(ObliqError, match=rf"tone\.yaml: missing key '{missing}'"):
        load_task(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instrution": "x"}, r"unknown key 'instrution'.*'instruction'"),
        ({"mechanism": "analog"}, r"'mechanism': 'analog' is not valid.*'analogue'"),
        ({"lens": "chat"}, r"'lens': 'chat' is not valid"),
        ({"exclusion": "groups"}, r"'exclusion': 'groups'.*'group'"),
        ({"attribute": 3}, r"'attribute' must be text, not a number"),
        ({"name": False}, r"'name' must be text, not yes/no"),
        ({"instruction": ["a"]}, r"'instruction' must be text, not a list"),
        ({"instruction": "  "}, r"'instruction' is empty"),
        ({"instruction": "a\nb"}, r"'instruction' must be one line"),
        ({"attribute": None}, r"'attribute' must be text, not nothing"),
        ({"reranking": "identity"}, r"'reranking' must be a mapping"),
        ({"reranking": {"depth": 3}}, r"'reranking.reranker' is missing"),
        ({"reranking": {"reranker": "tournk"}}, r"'tournk' is not valid.*'tourrank'"),
        ({"reranking": {"reranker": "tourrank", "round": 5}}, r"reranking.round' is unknown"),
        ({"reranking": {"reranker": "tourrank", "rounds": 0}}, r"rounds' must be a whole number"),
        ({"reranking": {"reranker": "tourrank", "depth": True}}, r"depth' must be a whole number"),
        ({"reranking": {"reranker": "identity", "rounds": 2}}, r"goes with reranker 'tourrank'"),
        ({"mteb_name": "X-query"}, r"'mteb_name'"),
        ({"hub_config": "../x"}, r"'hub_config'"),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_what_is_near(tmp_path, changes, message):
    file = write(tmp_path, yaml.safe_dump(values(**changes)))
    with pytest.raises(ObliqError, match=rf"tone\.yaml: .*{message}"):
        load_task(file)


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "C:\\x", "a/b", "a\\b", "nul", "a\0b", "", ".", "-x", "a b", "x" * 65, "ü",
     "query", "Document", "PASSAGE", "corpus", "retrieval", "STS", "x-query", "x-document"],
)  # fmt: skip
def test_names_that_are_no_path_part_or_mean_another_prompt_are_refused(name):
    with pytest.raises(ObliqError, match="name"):
        ObliqTask.from_dict(values(name=name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", "'name' is given twice"),
        ("- a\n", "keys and values, not a list"),
        ("", "keys and values, not nothing"),
        ("name: [\n", "not readable as YAML"),
        ("1: a\n", "the key 1 is not text"),
        ("name: !!python/object/apply:os.getcwd []\n", "not readable as YAML"),
    ],
)
def test_a_file_that_is_no_task_is_named(tmp_path, text, message):
    with pytest.raises(ObliqError, match=rf"(?s)tone\.yaml.*{message}"):
        load_task(write(tmp_path, text))


def test_byte_order_mark_and_crlf_do_not_matter(tmp_path):
    file = tmp_path / "tone.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(values()).replace("\n", "\r\n").encode())
    assert load_task(file).instruction == values()["instruction"]


def test_unknown_tasks_and_files_are_told_with_the_nearest_name(tmp_path):
    with pytest.raises(ObliqError, match=r"'writting'.*'writing'"):
        load_task("writting")
    with pytest.raises(ObliqError, match="no such task file"):
        load_task(tmp_path / "none.yaml")
    with pytest.raises(ObliqError, match="a folder"):
        (tmp_path / "d.yaml").mkdir()
        load_task(tmp_path / "d.yaml")


def test_tasks_that_differ_only_by_case_or_share_an_evaluation_are_refused():
    tone = ObliqTask.from_dict(values())
    with pytest.raises(ObliqError, match="'tone' and 'Tone'"):
        load_tasks([tone, ObliqTask.from_dict(values(name="Tone"))])
    with pytest.raises(ObliqError, match="share"):
        load_tasks([tone, tone])
    with pytest.raises(ObliqError, match="share"):
        load_tasks(["math", ObliqTask.from_dict(values(mteb_name=load_task("math").mteb_name))])
    with pytest.raises(ObliqError, match="share"):
        a, b = (ObliqTask.from_dict(values(name=n)) for n in ("a-b", "a_b"))
        load_tasks([a, b])


def test_changing_one_copy_of_a_task_leaves_the_next_alone():
    load_task("math").reranking["rounds"] = 99
    assert load_task("math").reranking["rounds"] != 99


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_instructions_stand_on_the_query_side_only(template):
    task = load_task("writing")
    prompts = prompts_for([task], template)
    assert prompts["document"] == TEMPLATES[template].document
    assert task.instruction not in prompts["document"] + prompts["query"]
    if template != "none":
        assert prompts["writing"].count(task.instruction) == 1
        assert prompts["writing"].endswith("\n")
    assert prompts["writing"] == prompts[f"{task.mteb_name}-query"]


def test_document_prompts_stand_under_mtebs_names_where_there_are_any():
    task = load_task("writing")
    assert f"{task.mteb_name}-document" not in prompts_for(task)
    with_parts = prompts_for(task, "reasonir")
    assert with_parts[f"{task.mteb_name}-document"] == with_parts["document"] != ""


def test_mteb_finds_each_tasks_own_prompt_and_the_generic_one_elsewhere():
    import mteb
    from mteb.models.abs_encoder import get_prompt_name
    from mteb.types import PromptType

    prompts = prompts_for(builtin_task_names(), "reasonir")
    for name in builtin_task_names():
        meta = mteb.get_task(load_task(name).mteb_name).metadata
        assert prompts[get_prompt_name(prompts, meta, PromptType.query)] == prompts[name]
        assert prompts[get_prompt_name(prompts, meta, PromptType.document)] == prompts["document"]
    other = mteb.get_task("SCIDOCS").metadata
    assert get_prompt_name(prompts, other, PromptType.query) == "query"


def test_every_prompt_under_a_name_of_mteb_names_a_task_that_mteb_has():
    import mteb

    tasks = [*builtin_task_names(), ObliqTask.from_dict(values())]
    sides = [name.rsplit("-", 1)[0] for name in prompts_for(tasks, "reasonir") if "-" in name]
    assert sorted(set(sides)) == sorted(load_task(n).mteb_name for n in builtin_task_names())
    for name in set(sides):
        assert mteb.get_task(name).metadata.name == name


def test_braces_in_an_instruction_stay_as_they_are():
    task = ObliqTask.from_dict(values(instruction="Find proofs like $\\{a_{n}\\}$ {instruction}"))
    assert "$\\{a_{n}\\}$ {instruction}\n" in prompts_for(task)["tone"]


def test_templates_are_checked():
    with pytest.raises(ObliqError, match="'instruct'"):
        get_template("instuct")
    with pytest.raises(ObliqError, match=r"\{task\}"):
        PromptTemplate(query="{task}: ")
    with pytest.raises(ObliqError, match="document"):
        PromptTemplate(query="", document="{instruction}")
    with pytest.raises(ObliqError, match="'docs'"):
        get_template({"query": "", "docs": ""})
    assert get_template({"query": "q: {instruction}\n"}).query_prompt("x") == "q: x\n"


def test_prompts_under_other_names_are_mapped_or_refused():
    assert checked_prompts({"query": "q", "passage": "d"}) == {"query": "q", "document": "d"}
    with pytest.raises(ObliqError, match="OBLIQWritting-query"):
        checked_prompts({"OBLIQWritting-query": "x"})
    with pytest.raises(ObliqError, match="'writing'"):
        checked_prompts({"writting": "x"})
    with pytest.raises(ObliqError, match="two different texts"):
        checked_prompts({"passage": "a", "corpus": "b"})
    assert checked_prompts({"tone": "x"}, saved=["tone"]) == {"tone": "x"}


def test_a_querys_prompt_on_documents_is_refused():
    prompts = prompts_for("writing", "reasonir")
    check_prompt_name("OBLIQBenchWritingRetrieval-document", prompts, document=True)
    with pytest.raises(ObliqError, match="is a query's"):
        check_prompt_name("writing", prompts, document=True)
    with pytest.raises(ObliqError, match="'writing'"):
        check_prompt_name("writting", prompts)
