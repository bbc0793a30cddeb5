"""`up` on its own server, after everything was killed and the last write was cut off; in a folder with a long name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redsched import embedded
from redsched.client import Client
from tests.processes import SAY, Site, until

NewSite = Callable[..., Site]


def test_two_ups_come_back_to_a_cut_file_in_a_deep_folder(new_site: NewSite) -> None:
    site = new_site(server=False)
    data = site.folder / ("long" * 30) / "data"
    site.settings = replace(site.settings, data=data)
    (site.folder / "dags").mkdir()
    line = f"{SAY}; until [ -e go ]; do sleep 0.02; done"
    (site.folder / "dags" / "d.yaml").write_text(
        f"dag: d\ntasks: {{a: {{run: '{line}'}}, b: {{run: '{SAY}', needs: [a]}}}}\n"
    )
    words = ("--data", str(data), "dags")
    first = site.process("up", *words)
    first.says("ready:")
    site.keep_writes()
    assert site.json("run", "start", "d", "--id", "r", "--data", str(data))["run"] == "r"
    site.nth(1, "a")

    site.kill_everybody()
    first.end()
    assert embedded.find(data) is None
    (last,) = (data / "appendonlydir").glob("*.incr.aof")
    with last.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$5\r\n{f:c")  # the write that the power cut off
    (site.folder / "go").touch()

    both = [site.process("up", *words) for _ in range(2)]
    until(lambda: any(x.count("ready:") for x in both), lambda: str([x.lines for x in both]))
    until(lambda: not all(x.alive for x in both), "both are up")
    (good,), (refused,) = [x for x in both if x.alive], [x for x in both if not x.alive]
    assert refused.end() == 4 and refused.count("runs with")
    with Client(settings=site.embedded_settings()) as client:
        shown = client.wait("d", "r", 30)
    assert shown["state"] == "success"
    assert {n: t["attempt"] for n, t in shown["tasks"].items()} == {"a": 2, "b": 1}
    assert [x.task for x in site.begun()] == ["a", "a", "b"]
    assert good.stop(40) == 0
    assert embedded.find(data) is None
