"""The study store on bad days: folders that cannot be written, full disks, and writers that are killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store.store_tools import PLAN

from broker_server.study import results
from broker_server.study.records import Outcome, RoundRecord
from broker_server.study.store import FILE, StudyStore
from edge_client.errors import EnvironmentFault


def record(round: int, accepted: tuple[str, ...] = (), late: tuple[str, ...] = ()) -> RoundRecord:
    return RoundRecord(round, 1.0, 2.5, 3.0, 9.0, accepted, late, (), (), {}, {})


# ---- folders and disks -----------------------------------------------------------------------------------------------


def as_nobody(task: Callable[[], str]) -> str:
    """Return what `task` says when run by a user who owns nothing; root may write anywhere."""
    if os.geteuid() != 0:
        return task()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            os.write(writing, task().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that everybody may enter, and nobody writes to once a test says so."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


def test_a_finished_study_is_read_where_nothing_can_be_written(shelf: Path) -> None:
    with StudyStore.create(shelf) as store:
        store.begin_run(PLAN, 2, "magic")
    shelf.chmod(0o555)

    def read() -> str:
        with StudyStore.open(shelf) as store:
            return results.last_run(store).name

    assert as_nobody(read) == PLAN.name
    assert [file.name for file in shelf.iterdir()] == [FILE]


def test_a_folder_that_cannot_be_written_is_told(shelf: Path) -> None:
    shelf.chmod(0o555)

    def create() -> str:
        with pytest.raises(EnvironmentFault) as caught:
            StudyStore.create(shelf)
        return str(caught.value)

    assert as_nobody(create) == (
        f"{shelf / FILE}: unable to open database file; check that the disk has room, may be written and is not damaged"
    )


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%41b", "ä ö", "mode=ro&x"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    """A study is opened by URI, where some characters mean something else."""
    folder = tmp_path / name
    folder.mkdir()
    with StudyStore.create(folder) as store:
        store.begin_run(PLAN, 2, "magic")
    with StudyStore.open(folder) as store:
        assert results.last_run(store).name == PLAN.name
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_is_told_and_leaves_whole_rounds(store: StudyStore, run: int) -> None:
    """`max_page_count` refuses growth exactly as a disk without room does."""
    names = tuple(f"device-{i:02d}" for i in range(40))
    pages = store.rows("PRAGMA page_count")[0][0]
    store.rows(f"PRAGMA max_page_count={pages + 6}")
    written = 0
    with pytest.raises(EnvironmentFault, match=r"study\.sqlite: database or disk is full; check"):
        for round in range(1, 100):
            store.record_round(run, record(round, accepted=names))
            written = round
    assert 1 < written < 99
    with StudyStore.open(store.path.parent) as reader:
        assert reader.rows("SELECT count(*), max(round) FROM rounds") == [(written, written)]
        assert reader.rows("SELECT DISTINCT count(*) FROM participants GROUP BY round") == [(40,)]
    store.rows("PRAGMA max_page_count=100000")  # room again
    store.record_round(run, record(written + 1, accepted=names))
    assert store.rows("SELECT max(round) FROM rounds") == [(written + 1,)]


# ---- while it is written, and when the writer dies -------------------------------------------------------------------


def test_reading_while_another_connection_writes(store: StudyStore, run: int) -> None:
    store.record_round(run, record(1, accepted=("a",)))
    with StudyStore.open(store.path.parent) as reader:
        with store._transaction() as write:
            write.execute("INSERT INTO rounds VALUES (?, 2, 0, 0, 0, 0, '{}')", (run,))
            assert reader.rows("SELECT round FROM rounds") == [(1,)]  # neither blocked nor half a fact
        assert reader.rows("SELECT round FROM rounds") == [(1,), (2,)]


def test_a_round_that_cannot_be_written_whole_leaves_nothing(store: StudyStore, run: int) -> None:
    with pytest.raises(EnvironmentFault, match="UNIQUE"):
        store.record_round(run, record(1, accepted=("a",), late=("a",)))  # no device has two fates
    assert store.rows("SELECT count(*) FROM rounds") == store.rows("SELECT count(*) FROM participants") == [(0,)]


WRITER = """
import sys
from pathlib import Path
from broker_server.plan import RunPlan
from broker_server.study.records import RoundRecord
from broker_server.study.store import StudyStore

store = StudyStore.create(Path(sys.argv[1]))
run = store.begin_run(RunPlan("magic", "5f0c21aa", "gca", 100, 10**6), 40, "magic")
names = tuple(f"device-{i:02d}" for i in range(40))
for round in range(1, 10**6):
    store.record_round(run, RoundRecord(round, 0.0, 1.0, 2.0, None, names, (), (), (), {}, {"stale": 1}))
    print(round, flush=True)
"""


@pytest.mark.parametrize("rounds", [1, 4, 13])
def test_a_killed_writer_leaves_whole_rounds(tmp_path: Path, rounds: int) -> None:
    """SIGKILL, at any instant of writing: what was told as written is there, and no round is half there."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(rounds)]
    os.kill(writer.pid, signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().splitlines() if line]
    assert writer.wait() == -signal.SIGKILL
    writer.stdout.close()
    with StudyStore.open(tmp_path) as store:
        written = [row[0] for row in store.rows("SELECT round FROM rounds ORDER BY round")]
        assert written in (told, [*told, told[-1] + 1])
        assert store.rows("SELECT DISTINCT count(*) FROM participants GROUP BY round") == [(40,)]
        assert store.rows("SELECT count(*) FROM events") == [(len(written),)]
        assert store.rows("PRAGMA integrity_check") == [("ok",)]
        assert results.last_run(store).completed is None


HALF = """
import sys
from pathlib import Path
from broker_server.study.records import RoundRecord
from broker_server.study.store import StudyStore
from broker_server.plan import RunPlan

store = StudyStore.create(Path(sys.argv[1]))
run = store.begin_run(RunPlan("magic", "5f0c21aa", "gca", 100, 2), 2, "magic")
store.record_round(run, RoundRecord(1, 0.0, 1.0, 2.0, None, ("a", "b"), (), (), (), {}, {}))
with store._transaction() as write:
    write.execute("PRAGMA cache_size=1")  # a transaction larger than this is in the log before it is committed
    write.execute("INSERT INTO rounds VALUES (?, 2, 0, 1, 2, NULL, '{}')", (run,))
    write.executemany("INSERT INTO participants VALUES (?, 2, ?, 'accepted')", ((run, f"d{i}") for i in range(20_000)))
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_amid_a_round_leaves_the_rounds_before_it(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None and writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    assert (tmp_path / f"{FILE}-wal").stat().st_size > 500_000  # the half round has reached the file
    os.kill(writer.pid, signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    writer.stdin.close()
    writer.stdout.close()
    with StudyStore.open(tmp_path) as store:
        assert store.rows("SELECT round FROM rounds") == [(1,)]
        assert store.rows("SELECT device FROM participants ORDER BY device") == [("a",), ("b",)]
        assert store.rows("PRAGMA integrity_check") == [("ok",)]


def test_a_round_is_on_the_disk_when_it_is_recorded(tmp_path: Path) -> None:
    """A finished round is forced to the disk with all before it; small facts are not forced one by one."""
    with StudyStore.create(tmp_path) as store:
        run = store.begin_run(PLAN, 2, "magic")
        full, normal = 2, 1
        for write, level in (
            (lambda: store.record_wire(run, 1, "a", "up", 1, 1, 1, 1), normal),
            (lambda: store.record_round(run, record(1)), full),
            (lambda: store.note(run, 1, None, "note", "x"), normal),
            (lambda: store.finish(run, Outcome(True, 1, 1.0), 1.0, None), full),
        ):
            write()
            assert store.rows("PRAGMA synchronous") == [(level,)]
