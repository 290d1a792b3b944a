"""Facts committed in groups: what a reader, and a killed writer's heir, finds."""

from pathlib import Path

from broker_server.plan import RunPlan
from broker_server.study.records import Outcome
from broker_server.study.store import StudyStore

PLAN = RunPlan(run="g", incarnation="5f0c21aa", method="gca", seed=1, rounds=2)


def noted(directory: Path) -> list[str]:
    with StudyStore.open(directory) as reader:
        return [detail for (detail,) in reader.rows("SELECT detail FROM events ORDER BY rowid")]


def test_a_group_appears_as_a_whole_and_with_what_is_durable(tmp_path: Path) -> None:
    with StudyStore.create(tmp_path) as store:
        run = store.begin_run(PLAN, 1, "magic")
        store.group = 3
        store.note(run, 1, None, "note", "a")
        store.note(run, 1, None, "note", "b")
        assert noted(tmp_path) == []
        store.note(run, 1, None, "note", "c")
        assert noted(tmp_path) == ["a", "b", "c"]
        store.note(run, 1, None, "note", "d")
        store.finish(run, Outcome(True, 2, 1.0, ""), 1.0, None)
        assert noted(tmp_path) == ["a", "b", "c", "d"]
        store.note(run, 1, None, "note", "e")
        assert noted(tmp_path) == ["a", "b", "c", "d"]
    assert noted(tmp_path) == ["a", "b", "c", "d", "e"]


def test_each_fact_stands_alone_unless_told_otherwise(tmp_path: Path) -> None:
    with StudyStore.create(tmp_path) as store:
        run = store.begin_run(PLAN, 1, "magic")
        store.note(run, 1, None, "note", "a")
        assert noted(tmp_path) == ["a"]
