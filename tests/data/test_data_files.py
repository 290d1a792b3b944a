"""Finding, unpacking, verifying and fetching: the right file is used, any other is one clear line."""

import gzip
import io
import lzma
import tracemalloc
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.error import URLError

import pytest

from edge_client.errors import ConfigError, EnvironmentFault
from sim.data import load
from sim.data.fetching import ARCHIVE_LIMIT, PACKED_SURPLUS, fetch, open_https
from sim.data.files import cache_dir, find, obtain, read, search_path
from sim.data.sources import MAGIC, RawFile

CONTENT = b"".join(b"%d,%d,g\n" % (i, i * i) for i in range(500))
URL = "https://example.org/toy.csv"
TOY = RawFile("toy.csv", len(CONTENT), sha256(CONTENT).hexdigest(), url=URL)
GZIPPED = RawFile(TOY.name, TOY.size, TOY.sha256, url="https://example.org/toy.csv.gz", packed="gz")
ZIPPED = RawFile(TOY.name, TOY.size, TOY.sha256, url="https://example.org/a.zip", members=("inner.zip", "toy.csv"))

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def place(folder: Path, content: bytes, suffix: str = "") -> Path:
    path = folder / "toy" / f"toy.csv{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def serving(body: bytes, asked: list[str] | None = None) -> Callable[[str, float], io.BytesIO]:
    def opener(url: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        if asked is not None:
            asked.append(url)
        return io.BytesIO(body)

    return opener


def unreachable(url: str, timeout: float) -> io.BytesIO:
    raise URLError("Name or service not known")


# Finding


@pytest.mark.parametrize("suffix", PACKERS)
def test_plain_and_packed_files_are_read(tmp_path: Path, bare_machine: Path, suffix: str) -> None:
    path = place(tmp_path, PACKERS[suffix](CONTENT), suffix)
    assert obtain("toy", TOY, tmp_path, offline=True) == (CONTENT, path)


def test_the_folder_given_comes_before_the_variable_and_the_cache(
    tmp_path: Path, bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, variable = tmp_path / "given", tmp_path / "variable"
    paths = [place(folder, CONTENT) for folder in (given, variable, bare_machine)]
    monkeypatch.setenv("GCA_DATA_DIR", str(variable))
    assert search_path(given) == (given, variable, bare_machine)
    for path in paths:
        assert find("toy", TOY, search_path(given)) == path
        path.unlink()
    assert find("toy", TOY, search_path(given)) is None


def test_what_the_operating_system_brings_is_looked_at_last(tmp_path: Path, bare_machine: Path) -> None:
    file = RawFile(TOY.name, TOY.size, TOY.sha256, system=str(tmp_path / "usr"))
    (tmp_path / "usr").mkdir()
    theirs = tmp_path / "usr" / "toy.csv.gz"
    theirs.write_bytes(gzip.compress(CONTENT))
    assert obtain("toy", file, offline=True) == (CONTENT, theirs)
    assert obtain("toy", file, tmp_path, offline=True) == (CONTENT, theirs)
    ours = place(tmp_path, CONTENT)
    assert obtain("toy", file, tmp_path, offline=True) == (CONTENT, ours)


def test_a_published_archive_stays_packed(tmp_path: Path, bare_machine: Path) -> None:
    packed = gzip.compress(CONTENT)
    file = RawFile("toy.tar.gz", len(packed), sha256(packed).hexdigest(), url=URL)
    path = place(tmp_path, packed).rename(tmp_path / "toy" / "toy.tar.gz")
    assert obtain("toy", file, tmp_path, offline=True) == (packed, path)


def test_a_relative_cache_variable_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path.home() / ".cache" / "gca"


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"--data-dir: .*nowhere is not a folder"):
        search_path(tmp_path / "nowhere")
    monkeypatch.setenv("GCA_DATA_DIR", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"GCA_DATA_DIR: .*gone is not a folder"):
        search_path()


def test_offline_and_absent_says_where_from_what_and_where_to(bare_machine: Path) -> None:
    with pytest.raises(EnvironmentFault) as error:
        load("magic", offline=True)
    message, (file,) = str(error.value), MAGIC.files
    for part in (file.url, file.sha256, str(bare_machine / "magic" / "magic04.data"), ".gz or .xz"):
        assert part in message
    assert "\n" not in message


# Verifying


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda content: content[:-1], "is not the published toy.csv"),
        (lambda content: b"9" + content[1:], "is not the published toy.csv"),
        (lambda content: content + b"\n", f"more than the {len(CONTENT):,} bytes"),
        (lambda content: b"", "is not the published toy.csv"),
    ],
    ids=["truncated", "changed", "longer", "empty"],
)
def test_other_content_is_refused(
    tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes], complaint: str
) -> None:
    path = place(tmp_path, PACKERS[suffix](damage(CONTENT)), suffix)
    with pytest.raises(EnvironmentFault) as error:
        read(path, TOY)
    assert str(path) in str(error.value) and complaint in str(error.value) and "replace the file" in str(error.value)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize(
    "damage",
    [lambda packed: packed[: len(packed) // 2], lambda packed: b"not packed at all", lambda packed: b""],
    ids=["truncated", "garbage", "empty"],
)
def test_a_broken_archive_is_one_line(tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    path = place(tmp_path, damage(PACKERS[suffix](CONTENT)), suffix)
    with pytest.raises(EnvironmentFault) as error:
        read(path, TOY)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("position", range(10, 200, 19))
def test_flipped_bytes_in_a_gzip_never_pass(tmp_path: Path, position: int) -> None:
    packed = bytearray(gzip.compress(CONTENT))
    packed[position] ^= 0xFF
    with pytest.raises(EnvironmentFault):
        read(place(tmp_path, bytes(packed), ".gz"), TOY)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_bomb_is_refused_without_unpacking_it(tmp_path: Path, suffix: str) -> None:
    path = place(tmp_path, PACKERS[suffix](bytes(64 * 2**20)), suffix)
    assert path.stat().st_size < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentFault, match="more than"):
            read(path, TOY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # xz needs its 8 MiB dictionary, whatever it unpacks


def test_the_first_file_found_is_not_passed_over_when_damaged(tmp_path: Path, bare_machine: Path) -> None:
    damaged = place(tmp_path, b"no")
    place(bare_machine, CONTENT)
    with pytest.raises(EnvironmentFault, match=str(damaged)):
        obtain("toy", TOY, tmp_path)


# Fetching


def test_a_fetched_file_is_cached_and_not_asked_for_again(bare_machine: Path) -> None:
    asked: list[str] = []
    content, path = obtain("toy", TOY, opener=serving(CONTENT, asked))
    assert (content, path) == (CONTENT, bare_machine / "toy" / "toy.csv")
    assert obtain("toy", TOY, opener=unreachable) == (CONTENT, path)
    assert asked == [URL]
    assert [entry.name for entry in path.parent.iterdir()] == ["toy.csv"]


def test_a_gzip_is_unpacked(tmp_path: Path) -> None:
    assert fetch(GZIPPED, tmp_path / "toy.csv", serving(gzip.compress(CONTENT))) == CONTENT
    assert (tmp_path / "toy.csv").read_bytes() == CONTENT


def test_a_zip_in_a_zip_is_unpacked(tmp_path: Path) -> None:
    body = zipped("inner.zip", zipped("toy.csv", CONTENT))
    assert fetch(ZIPPED, tmp_path / "toy.csv", serving(body)) == CONTENT
    assert (tmp_path / "toy.csv").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("file", "body", "complaint"),
    [
        (TOY, CONTENT[:-1], "is not the published"),
        (TOY, CONTENT + b"x", "more than"),
        (GZIPPED, b"<html>moved</html>", "gzip"),
        (GZIPPED, gzip.compress(CONTENT)[:-9], "end"),
        (GZIPPED, gzip.compress(bytes(2**20)), "more than"),
        (GZIPPED, bytes(TOY.size + PACKED_SURPLUS + 1), "more than"),
        (ZIPPED, b"<html>moved</html>", "zip"),
        (ZIPPED, zipped("other.zip", b""), "inner.zip"),
        (ZIPPED, zipped("inner.zip", zipped("toy.csv", bytes(2**20))), "more than"),
        (ZIPPED, zipped("inner.zip", bytes(ARCHIVE_LIMIT + 1)), "more than"),
        (ZIPPED, bytes(ARCHIVE_LIMIT + 1), "more than"),
    ],
    ids=[
        "truncated",
        "longer",
        "gz page",
        "gz truncated",
        "gz bomb",
        "gz endless",
        "page",
        "no member",
        "bomb",
        "inner bomb",
        "endless",
    ],
)
def test_a_wrong_download_leaves_nothing_behind(tmp_path: Path, file: RawFile, body: bytes, complaint: str) -> None:
    target = tmp_path / "cache" / "toy.csv"
    with pytest.raises(EnvironmentFault) as error:
        fetch(file, target, serving(body))
    message = str(error.value)
    assert complaint in message and file.url in message and file.sha256 in message and str(target) in message
    assert "\n" not in message
    assert list(tmp_path.rglob("*csv*")) == []


def test_no_network_is_one_line_with_the_mend(bare_machine: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot fetch toy\.csv: .*not known.*; download https://example\.org"):
        obtain("toy", TOY, opener=unreachable)


@pytest.mark.parametrize("offline", [True, False])
def test_an_absent_file_belongs_into_the_folder_that_was_given(
    tmp_path: Path, bare_machine: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    given, named = tmp_path / "given", tmp_path / "named"
    given.mkdir()
    named.mkdir()
    monkeypatch.chdir(given)
    for variable, asked, place in (("", Path(), given), (str(named), Path(), given), (str(named), None, named)):
        monkeypatch.setenv("GCA_DATA_DIR", variable)
        with pytest.raises(EnvironmentFault) as error:
            obtain("toy", TOY, asked, offline=offline, opener=unreachable)
        assert f"put it at {place / 'toy' / 'toy.csv'} (" in str(error.value)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFault, match="cannot fetch"):
        fetch(TOY, tmp_path / "file" / "toy.csv", serving(CONTENT))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/toy.csv", "ftp://127.0.0.1/toy.csv", "file:///etc/hostname"])
def test_only_https_is_opened(url: str) -> None:
    with pytest.raises(URLError, match="unknown url type"):
        open_https(url, 1.0)
