from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from obliq_hf.errors import ObliqError
from training_recipes.stages import Stage, StageRunner, run_lock


def build(folder, log, *, knob=1, fail=None):
    def work(name, outputs):
        def run():
            log.append(name)
            for output in outputs:
                (folder / output).mkdir(exist_ok=True)
                (folder / output / "result").write_text(f"{name} {knob}", encoding="utf-8")
            if fail == name:
                raise RuntimeError("stopped half-way")

        return run

    return StageRunner(
        folder,
        [
            Stage("corpus", ("corpus",), {}, (), work("corpus", ("corpus",))),
            Stage("graph", ("graph",), {"k": knob}, ("corpus",), work("graph", ("graph",))),
            Stage("queries", ("queries",), {}, ("corpus",), work("queries", ("queries",))),
            Stage("train", ("model",), {}, ("graph", "queries"), work("train", ("model",))),
        ],
    )


def test_a_second_run_finds_every_result(tmp_path):
    log: list[str] = []
    assert build(tmp_path, log).run() == ["corpus", "graph", "queries", "train"]
    assert build(tmp_path, log).run() == []
    assert log == ["corpus", "graph", "queries", "train"]


def test_deleting_a_folder_runs_that_stage_and_those_built_on_it(tmp_path):
    build(tmp_path, []).run()
    shutil.rmtree(tmp_path / "graph")
    assert build(tmp_path, []).run() == ["graph", "train"]


def test_a_truncated_file_is_not_taken_for_a_result(tmp_path):
    build(tmp_path, []).run()
    (tmp_path / "queries" / "result").write_text("", encoding="utf-8")
    assert build(tmp_path, []).run() == ["queries", "train"]


def test_a_changed_setting_runs_its_stage_and_those_built_on_it(tmp_path):
    build(tmp_path, []).run()
    assert build(tmp_path, [], knob=2).run() == ["graph", "train"]


def test_a_failed_stage_keeps_its_partial_result_for_the_same_settings_only(tmp_path):
    with pytest.raises(RuntimeError):
        build(tmp_path, [], fail="graph").run()
    (tmp_path / "graph" / "partial").write_text("kept", encoding="utf-8")
    assert build(tmp_path, []).run(until="graph") == ["graph"]
    assert (tmp_path / "graph" / "partial").exists()
    with pytest.raises(RuntimeError):
        build(tmp_path, [], knob=2, fail="graph").run()
    assert not (tmp_path / "graph" / "partial").exists()


def test_old_results_are_never_joined_to_new_inputs_after_an_interruption(tmp_path):
    build(tmp_path, []).run()
    shutil.rmtree(tmp_path / "graph")
    build(tmp_path, []).run(until="graph")
    assert build(tmp_path, []).run() == ["train"]


@pytest.mark.parametrize("name", ["corpus", "graph", "model"])
def test_what_no_run_has_made_is_never_removed(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes").write_text("mine", encoding="utf-8")
    log: list[str] = []
    with pytest.raises(ObliqError, match=f"{name} was not made by a run"):
        build(tmp_path, log).run()
    assert log == []
    if name == "model":
        build(tmp_path, log).run(until="queries")
        with pytest.raises(ObliqError, match="model was not made by a run"):
            build(tmp_path, log).begin("train")
    assert (tmp_path / name / "notes").read_text(encoding="utf-8") == "mine"


def test_what_a_run_has_made_is_replaced_also_after_an_interruption_further_up(tmp_path):
    build(tmp_path, []).run()
    with pytest.raises(RuntimeError):
        build(tmp_path, [], knob=2, fail="graph").run()
    assert (tmp_path / "model").exists()  # of the first run; its mark is gone
    assert build(tmp_path, [], knob=2).run() == ["graph", "train"]
    assert (tmp_path / "model" / "result").read_text(encoding="utf-8") == "train 2"


def test_the_folder_of_a_version_without_a_record_is_known_by_its_marks(tmp_path):
    build(tmp_path, []).run()
    (tmp_path / "stages" / "made.json").unlink()
    with pytest.raises(RuntimeError):
        build(tmp_path, [], knob=2, fail="graph").run()
    assert build(tmp_path, [], knob=2).run() == ["graph", "train"]


@pytest.mark.parametrize("found", [False, True], ids=["made", "found"])
def test_a_result_that_later_stages_cannot_use_stops_the_run_at_once_and_is_kept(tmp_path, found):
    asked: list[set[str]] = []

    def refuse(waiting):
        asked.append(set(waiting))
        raise ObliqError("no judgments")

    def strict(log):
        runner = build(tmp_path, log)
        runner.stages = [
            replace(stage, verify=refuse) if stage.name == "corpus" else stage
            for stage in runner.stages
        ]
        return runner

    if found:
        build(tmp_path, []).run(until="corpus")
    log: list[str] = []
    with pytest.raises(ObliqError, match="no judgments"):
        strict(log).run()
    assert log == ([] if found else ["corpus"])
    assert asked == [{"graph", "queries", "train"}]
    assert strict(log).run(until="corpus") == []
    build(tmp_path, []).run()
    assert strict(log).run() == []


@pytest.mark.parametrize("state", ["fresh", "no input", "finished", "not reached"])
def test_what_a_stage_needs_is_asked_for_before_any_stage_and_only_when_it_will_run(
    tmp_path, state
):
    def refuse():
        raise ObliqError("queries need a server")

    if state != "fresh":
        build(tmp_path, []).run()
    if state != "finished":
        shutil.rmtree(tmp_path / "corpus", ignore_errors=True)
    log: list[str] = []
    runner = build(tmp_path, log)
    runner.stages = [
        replace(stage, check=refuse) if stage.name == "queries" else stage
        for stage in runner.stages
    ]
    until = "graph" if state == "not reached" else None
    if state in {"fresh", "no input"}:
        with pytest.raises(ObliqError, match="need a server"):
            runner.run()
        assert log == []
    else:
        assert runner.run(until=until) == ([] if state == "finished" else ["corpus", "graph"])


def test_stages_out_of_order_are_refused(tmp_path):
    with pytest.raises(ValueError, match="out of order"):
        StageRunner(tmp_path, [Stage("b", ("b",), {}, ("a",), lambda: None)])


def test_a_second_process_is_told_that_the_folder_is_in_use(tmp_path):
    with run_lock(tmp_path):
        code = (
            "import sys, pathlib; from training_recipes.stages import run_lock\n"
            "with run_lock(pathlib.Path(sys.argv[1])): pass"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert "in use by another process" in done.stderr
    with run_lock(tmp_path):
        pass


def test_the_lock_is_free_again_after_a_kill(tmp_path):
    code = textwrap.dedent(
        """
        import sys, time, pathlib
        from training_recipes.stages import run_lock
        with run_lock(pathlib.Path(sys.argv[1])):
            print("held", flush=True)
            time.sleep(60)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ObliqError, match="in use"), run_lock(tmp_path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with run_lock(tmp_path):
        pass
