"""Files that another user could have written are neither read nor written."""

import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ir_passes.files import trust
from ir_passes.files.store import FileStore
from ir_passes.files.trust import UntrustedError, make_own_folder, require_own_path

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A store in tmp_path/cache/kept with one file."""
    store = FileStore(tmp_path / "cache" / "kept")
    store.write_file("one", b"kept")
    return store


def own_link(folder: Path) -> None:
    """The folder is a link of the user's own to a folder elsewhere."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def relative_link(folder: Path) -> None:
    """The parent is a link with .. in it."""
    folder.parent.rename(folder.parent.with_name("moved"))
    folder.parent.symlink_to(Path("..") / folder.parents[1].name / "moved")


TRUSTED: dict[str, Callable[[Path], None]] = {
    "made by the store": lambda folder: None,
    "readable by all": lambda folder: folder.chmod(0o755),
    "in a sticky folder": lambda folder: folder.parent.chmod(0o1777),
    "own link": own_link,
    "relative link": relative_link,
    "in a folder that nobody may list": lambda folder: folder.parent.chmod(0o311),
}


@pytest.mark.parametrize("name", TRUSTED)
def test_own_files_are_read(name: str, store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    TRUSTED[name](store.directory)
    assert store.read_file("one", 9) == b"kept"
    store.write_file("two", b"new")
    assert store.read_file("two", 9) == b"new" and not caplog.records


def stranger(path: Path, follow: bool = True) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=follow)


def strangers_link(folder: Path) -> None:
    """In a sticky folder anybody can make a link to a folder of the user's."""
    own_link(folder)
    folder.parent.chmod(0o1777)
    stranger(folder, follow=False)


def link_into_open_folder(folder: Path) -> None:
    """The user owns the link, but others may write to its target's folder."""
    (folder.parents[1] / "open").mkdir()
    (folder.parents[1] / "open").chmod(0o777)
    folder.rename(folder.parents[1] / "open" / "target")
    folder.symlink_to(folder.parents[1] / "open" / "target")


UNTRUSTED: dict[str, Callable[[Path], None]] = {
    "folder of everybody": lambda folder: folder.chmod(0o777),
    "folder of a group": lambda folder: folder.chmod(0o770),
    "sticky folder": lambda folder: folder.chmod(0o1777),
    "parent of everybody": lambda folder: folder.parent.chmod(0o777),
    "parent of a group": lambda folder: folder.parent.chmod(0o775),
    "parent of a parent": lambda folder: folder.parents[1].chmod(0o777),
    "file of everybody": lambda folder: (folder / "one").chmod(0o646),
    "file of a group": lambda folder: (folder / "one").chmod(0o664),
    "link into a folder of everybody": link_into_open_folder,
}
OF_STRANGERS: dict[str, Callable[[Path], None]] = {
    "file": lambda folder: stranger(folder / "one"),
    "folder": stranger,
    "parent": lambda folder: stranger(folder.parent),
    "link": strangers_link,
}


@pytest.mark.parametrize("name", UNTRUSTED)
def test_files_that_others_could_have_written_are_not_read(
    name: str, store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    UNTRUSTED[name](store.directory)
    check_refused(store, caplog, "chmod go-w")


@needs_root
@pytest.mark.parametrize("name", OF_STRANGERS)
def test_files_of_another_user_are_not_read(name: str, store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    """As root, too: whoever owns a file may write it."""
    OF_STRANGERS[name](store.directory)
    check_refused(store, caplog, f"chown {os.geteuid()}")


def check_refused(store: FileStore, caplog: pytest.LogCaptureFixture, command: str) -> None:
    """Nothing is read; one warning names the path and the command that repairs it."""
    assert store.read_file("one", 9) is None and store.read_file("one", 9) is None
    (record,) = caplog.records
    with pytest.raises(UntrustedError) as error:
        store.require_file("one", 9)
    assert record.levelname == "WARNING" and f"{command} {error.value.path}" in record.getMessage()
    if error.value.folder:
        with pytest.raises(UntrustedError):
            store.write_file("two", b"new")
        assert not (store.directory / "two").exists()
    if command.startswith("chmod"):
        error.value.path.chmod(stat.S_IMODE(error.value.path.stat().st_mode) & ~0o022)
        assert store.read_file("one", 9) == b"kept"


def test_folders_are_made_for_this_user_alone(tmp_path: Path) -> None:
    """Under any umask: a folder that a group may write would not be read later."""
    initial = os.umask(0o002)
    try:
        FileStore(tmp_path / "a" / "b" / "c").write_file("one", b"kept")
    finally:
        os.umask(initial)
    for place in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c" / "one").stat().st_mode) == 0o600


def test_nothing_is_made_in_a_folder_of_everybody(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UntrustedError):
        make_own_folder(tmp_path / "open" / "cache")
    assert not (tmp_path / "open" / "cache").exists()


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="at most 40 symbolic links"):
        require_own_path(tmp_path / "a" / "cache")


def test_root_may_own_parents_and_not_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may own /home, as in an image, but not the store's folder."""

    of_root = lambda status: os.stat_result([0 if number == 4 else value for number, value in enumerate(status)])
    store, user = FileStore(tmp_path / "kept"), os.geteuid() or 1000
    store.write_file("one", b"kept")
    lstat, fstat = os.lstat, os.fstat
    monkeypatch.setattr(trust.os, "geteuid", lambda: user)
    monkeypatch.setattr(trust.os, "lstat", lambda path: of_root(lstat(path)))
    require_own_path(store.directory)
    monkeypatch.setattr(trust.os, "fstat", lambda descriptor: of_root(fstat(descriptor)))
    with pytest.raises(UntrustedError, match="belongs to user 0"):
        store.require_file("one", 9)


def test_the_error_survives_pickling() -> None:
    error = UntrustedError(Path("store"), "belongs to user 5", "chown it", folder=True)
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is UntrustedError and str(other) == str(error)
