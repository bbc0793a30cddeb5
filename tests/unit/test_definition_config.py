"""DAGs from files: YAML 1.2 words, places in refusals, Python files, folders."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from redsched.definition.config import import_roots, load_paths
from redsched.definition.model import DagSpec


@pytest.fixture(autouse=True)
def _same_modules(tmp_path: Path) -> Iterator[None]:
    """What a test imported from its folder is gone afterwards."""
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def loaded(folder: Path, text: str, name: str = "d.yaml") -> DagSpec:
    path = folder / name
    path.write_text(text)
    (one,) = load_paths([path])
    assert one.error is None, one.error
    assert one.dag is not None
    return one.dag


def refused(folder: Path, text: str | bytes, name: str = "d.yaml") -> str:
    """The refusal without the folder."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (one,) = load_paths([path])
    assert one.error is not None
    return str(one.error).replace(f"{folder}/", "")


def test_the_example_of_the_interface(tmp_path: Path) -> None:
    """All words of the interface are known."""
    spec = loaded(
        tmp_path,
        """\
dag: orders                       # id
description: Yesterday's orders
schedule: "0 2 * * *"
timezone: Europe/Paris
start: 2026-01-01
catchup: false
team: sales
max_active_runs: 4
max_active_tasks: 16
params:
  day: {type: string, format: date, default: "{{ logical_date }}"}
  limit: {type: integer, minimum: 1, maximum: 1000, default: 100}
defaults: {retries: 2, retry_delay: 30s, timeout: 10m}
tasks:
  extract:
    run: python extract.py
  clean:   {run: [python, clean.py], needs: [extract]}
  enrich:  {call: "shop.jobs:enrich", needs: [extract], pool: db, pool_slots: 2, priority: 5}
  join:    {call: "shop.jobs:join", needs: [clean, enrich], with: {left: "${clean}", right: "${enrich}"}}
  publish: {run: ./publish.sh, needs: [join], trigger_rule: all_success, retries: 5, retry_backoff: 2, env: {TARGET: prod}}
  notify:  {run: ./notify.sh, needs: [publish], allow_failure: true}
  cleanup: {run: rm -rf scratch, needs: [publish], trigger_rule: all_done}
""",
    )
    assert list(spec.tasks) == ["extract", "clean", "enrich", "join", "publish", "notify", "cleanup"]
    assert spec.tasks["publish"].retries == 5
    assert spec.tasks["clean"].timeout == 600_000


def test_yaml_words_stay_text(tmp_path: Path) -> None:
    """DF-106: `no`, `on`, `off`, dates and 010 are text as written; only true and false are booleans."""
    spec = loaded(
        tmp_path,
        """\
dag: d
catchup: yes
params: {country: NO, switch: off, day: 2026-01-01, code: 010, time: 1:30, big: 1_000, flag: true, n: 1e3}
tasks:
  no: {run: x}
  on: {run: x, needs: [no]}
  y: {run: [x, 010, 5], env: {PORT: 8080}}
""",
    )
    assert list(spec.tasks) == ["no", "on", "y"]
    assert spec.catchup is True
    assert {name: schema["default"] for name, schema in spec.params.items()} == {
        "country": "NO",
        "switch": "off",
        "day": "2026-01-01",
        "code": "010",
        "time": "1:30",
        "big": "1_000",
        "flag": True,
        "n": 1000.0,
    }
    assert spec.tasks["y"].run == ("x", "010", "5")
    assert spec.tasks["y"].env == {"PORT": "8080"}


def test_words_that_others_read_as_booleans_are_shown(tmp_path: Path) -> None:
    """DF-106: `validate` says what became of `NO`; quotes silence it."""
    path = tmp_path / "d.yaml"
    path.write_text("dag: d\nparams: {a: NO, b: 'off'}\ntasks: {no: {run: x}}\n")
    (one,) = load_paths([path])
    assert one.warnings == (
        f"{path}:2:13: NO is the text 'NO' (write false for a boolean, quotes for no warning)",
    )


REFUSALS = [
    (
        "dag: d\nschedule: */5 * * * *\ntasks: {a: {run: x}}",
        "d.yaml:2:12: ",
        'quote the schedule: schedule: "*/5 * * * *"',
    ),
    (
        "dag: d\nschedule: @daily\ntasks: {a: {run: x}}",
        "d.yaml:2:11: ",
        'quote the schedule: schedule: "@daily"',
    ),
    (
        "dag: d\ntasks: {a: {run: x}}\ntasks: {b: {run: x}}",
        "d.yaml:3:1: ",
        "'tasks' is given twice, first at 2:1",
    ),
    ("dag: d\ntasks:\n  a: {run: x}\n  a: {run: y}", "d.yaml:4:3: ", "'a' is given twice, first at 3:3"),
    (
        "dag: d\ntasks:\n  a:\n    run: x\n    retries: 1\n    retries: 5",
        "d.yaml:6:5: ",
        "'retries' is given twice, first at 5:5",
    ),
    ("dag: d\ntasks:\n  null: {run: x}", "d.yaml:3:3: ", "quote it: 'null'"),
    ("dag: d\ntasks:\n  ~: {run: x}", "d.yaml:3:3: ", "quote it: '~'"),
    ("dag: d\ntasks:\n  1: {run: x}", "d.yaml:3:3: ", "quote it: '1'"),
    ("dag: d\non: x\ntasks:\n  a: {run: x}", "d.yaml:2:1: ", "on: unknown key"),
    ("dag: 1\ntasks:\n  a: {run: x}", "d.yaml:1:1: ", "quote it: '1'"),
    (
        "dag: d\ntasks:\n  a: {run: x, retrys: 3}",
        "d.yaml:3:15: ",
        "DAG d: tasks.a.retrys: unknown key; did you mean 'retries'",
    ),
    (
        "dag: d\ndefaults: {retries: -1}\ntasks: {a: {run: x}}",
        "d.yaml:2:12: ",
        "defaults.retries: must be at least 0",
    ),
    ("dag: d\ntasks:\n  a: {run: x, needs: [b]}", "d.yaml:3:15: ", "there is no task 'b'"),
    ("dag: d\ntasks:\n  a: {run: x, needs: [b]}\n  b: {run: x, needs: [a]}", "d.yaml:3:3: ", "a -> b -> a"),
    ("dag: d\ntasks: {a: !!python/object/apply:os.system [x]}", "d.yaml:2:12: ", "is not supported"),
    ("dag: d\nx: &a [*a]\ntasks: {a: {run: x}}", "d.yaml:2:4: ", "an alias to what it stands in"),
    ("dag: d\ntasks:\n\ta: {run: x}", "d.yaml:3:1: ", "indent with spaces"),
    ("dag: d\nx: " + "[" * 5_000, "d.yaml:", ""),
    ("dag: d\nx: " + "[" * 200 + "]" * 200, "d.yaml:2:", "nested more than 100 levels"),
    (b"dag: d\ntasks: \xff", "d.yaml:2:8: ", "is not UTF-8"),
    (b"dag: d\ntasks: \x00", "d.yaml:2:1: ", "can't be in YAML"),
    ("", "d.yaml: ", "is empty"),
    ("hello", "d.yaml:1:1: ", "must be a mapping"),
]


@pytest.mark.parametrize(("text", "place", "said"), REFUSALS)
def test_refusals_name_line_and_column(tmp_path: Path, text: str | bytes, place: str, said: str) -> None:
    """DF-101, DF-106, DF-107: where it stands and what to write."""
    error = refused(tmp_path, text)
    assert error.startswith(place)
    assert said in error


def test_a_merge_is_legal_and_local_values_win(tmp_path: Path) -> None:
    """DF-107: `<<: *base` with an override is no double key."""
    spec = loaded(
        tmp_path,
        "dag: d\ntasks:\n  a: &base {run: x, retries: 1}\n  b:\n    <<: *base\n    retries: 5\n    needs: [a]\n",
    )
    assert (spec.tasks["b"].run, spec.tasks["b"].retries) == ("x", 5)


def test_aliases_can_not_become_a_billion(tmp_path: Path) -> None:
    """Nine lists of nine aliases each are refused instead of written out."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    began = time.monotonic()
    assert "aliases counted" in refused(tmp_path, "dag: d\n" + "\n".join(lines))
    assert time.monotonic() - began < 20


def test_json_has_places_too(tmp_path: Path) -> None:
    """The same shape; the same refusals."""
    text = json.dumps({"dag": "d", "tasks": {"a": {"run": "x"}}})
    assert loaded(tmp_path, text, "d.json").dag == "d"
    assert refused(tmp_path, '{"dag": "d",\n "tasks": {"a": {"run": "x"}, "a": {}}}', "d.json").startswith(
        "d.json:2:31: "
    )
    assert refused(tmp_path, '{"dag": "d",\n "tasks": {"a": {"run": 3}}}', "d.json").startswith(
        "d.json:2:18: "
    )
    assert refused(tmp_path, '{"dag": "d",}', "d.json").startswith("d.json:1:1")
    assert "NaN is not JSON" in refused(tmp_path, '{"dag": "d", "x": NaN}', "d.json")


def test_several_documents_in_a_file(tmp_path: Path) -> None:
    """Each is a DAG; an empty one is nothing; a second one of the same id is refused."""
    path = tmp_path / "d.yaml"
    path.write_text(
        "dag: a\ntasks: {x: {run: x}}\n---\n---\ndag: b\ntasks: {x: {run: x}}\n---\ndag: a\ntasks: {y: {run: x}}\n"
    )
    found = load_paths([path])
    assert [one.dag.dag if one.dag else "" for one in found] == ["a", "b", ""]
    assert f"DAG a is defined in {path} already" in str(found[2].error)


DAGS = """
from __future__ import annotations
from redsched import command, dag, task

@task(retries=3)
def extract(limit: int) -> list[int]: ...

@dag(params={"limit": 100})
def orders(limit):
    extract(limit) >> command("show", "true")

@dag
def broken():
    extract(1)
    undefined()

@dag
def twice():
    extract(1)
    extract(2)
"""


def test_a_python_file_holds_several_dags(tmp_path: Path) -> None:
    """One bad DAG stops no other, and each refusal names its line."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "dags.py").write_text(DAGS)
    good, broken, twice = load_paths([tmp_path])
    assert good.dag is not None
    assert good.dag.tasks["extract"].call == "shop.dags:extract"
    assert (
        str(broken.error)
        == f"{tmp_path}/shop/dags.py:15: DAG broken: NameError: name 'undefined' is not defined"
    )
    assert f"at {tmp_path}/shop/dags.py:19 and at {tmp_path}/shop/dags.py:20" in str(twice.error)
    assert load_paths([tmp_path / "shop" / "dags.py"])[0].dag == good.dag.model_copy(
        update={
            "tasks": {
                k: t.model_copy(update={"call": "dags:extract"} if t.call else {})
                for k, t in good.dag.tasks.items()
            }
        }
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import redsched\n1 / 0\n", ":2: ZeroDivisionError: division by zero"),
        ("import redsched\ndef x(:\n", ":2:7: SyntaxError: "),
        ("import redsched, nosuchmodule\n", ":1: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("import redsched, sys\nsys.exit(3)\n", ":2: SystemExit: 3"),
    ],
)
def test_a_python_file_that_fails(tmp_path: Path, text: str, said: str) -> None:
    """Whatever it raises, it is one refusal, and its neighbour loads."""
    (tmp_path / "bad_one.py").write_text(text)
    (tmp_path / "good_one.py").write_text(DAGS)
    found = load_paths([tmp_path])
    assert said in str(found[0].error)
    assert found[1].dag is not None


def test_output_of_an_import_stays_off_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DF-111: stdout may have to be one JSON document."""
    (tmp_path / "chatty.py").write_text("import redsched\nprint('hello')\n")
    assert load_paths([tmp_path]) == []
    assert capsys.readouterr() == ("", "hello\n")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """`up` watches: the second reading sees the edit, in helpers too, and leaves no .pyc behind."""
    (tmp_path / "helper_of_dags.py").write_text("N = 1")
    text = "from redsched import command, dag\nfrom helper_of_dags import N\n@dag\ndef d():\n    command('a', f'echo {N}')\n"
    (tmp_path / "watched.py").write_text(text)
    first = load_paths([tmp_path / "watched.py"])
    (tmp_path / "helper_of_dags.py").write_text("N = 2")
    second = load_paths([tmp_path / "watched.py"])
    assert [one.dag.tasks["a"].run for one in first + second if one.dag] == ["echo 1", "echo 2"]
    assert not list(tmp_path.rglob("*.pyc"))


def test_dags_made_by_a_factory_are_found(tmp_path: Path) -> None:
    """Kept in no variable, made by another file."""
    factory = "from redsched import command, dag\ndef make(id):\n    @dag(id=id)\n    def made():\n        command('a', 'true')\n"
    (tmp_path / "a_factory.py").write_text(factory)
    (tmp_path / "teams.py").write_text(
        "import redsched\nfrom a_factory import make\nmake('t1'); make('t2')\n"
    )
    assert [one.dag.dag for one in load_paths([tmp_path]) if one.dag] == ["t1", "t2"]
    assert [one.dag.dag for one in load_paths([tmp_path / "teams.py"]) if one.dag] == ["t1", "t2"]


def test_what_a_folder_does_not_give(tmp_path: Path) -> None:
    """Hidden and installed folders, files of others, tests: neither read nor imported."""
    for name in (".hidden", "node_modules", "__pycache__", "env"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text("import redsched\n1 / 0")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "setup.py").write_text("import redsched\n1 / 0")
    (tmp_path / "test_x.py").write_text("import redsched\n1 / 0")
    (tmp_path / "others.py").write_text("1 / 0")
    (tmp_path / "chart.yaml").write_text("{{ if x }}")
    (tmp_path / "Taskfile.yml").write_text("tasks: {a: b}")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "d.yaml").write_text("dag: d\ntasks: {a: {run: x}}")
    assert [one.path for one in load_paths([tmp_path])] == [str(tmp_path / "d.yaml")]


def test_a_module_name_that_is_taken(tmp_path: Path) -> None:
    """A file named like a module of Python can't be imported by a worker either."""
    assert "module name 'json' is taken" in refused(tmp_path, "import redsched", "json.py")


def test_import_roots(tmp_path: Path) -> None:
    """Folders, and the folders of files, each once."""
    (tmp_path / "d.yaml").touch()
    (tmp_path / "sub").mkdir()
    assert import_roots([tmp_path / "sub", tmp_path / "d.yaml", tmp_path]) == [
        str(tmp_path / "sub"),
        str(tmp_path),
    ]


def test_links_as_a_mounted_folder_has_them(tmp_path: Path) -> None:
    """A volume swaps all files at once by links through a hidden folder; module names come from where the links stand."""
    real, dags = tmp_path / "real", tmp_path / "dags"
    (dags / "..2026").mkdir(parents=True)
    real.mkdir()
    (dags / "..data").symlink_to("..2026")
    text = "from redsched import dag, task\n@task\ndef t(): ...\n@dag\ndef {}(): t()\n"
    (dags / "..2026" / "mounted.py").write_text(text.format("mounted"))
    (dags / "mounted.py").symlink_to("..data/mounted.py")
    (real / "other.py").write_text(text.format("linked"))
    (dags / "linked.py").symlink_to(real / "other.py")
    (real / "broken.py").write_text("import redsched\nraise ValueError\n")
    (dags / "broken.py").symlink_to(real / "broken.py")
    for paths in ([dags], [dags / "broken.py", dags / "linked.py", dags / "mounted.py"]):
        broken, *good = load_paths(paths)
        assert f"{dags}/broken.py:2: ValueError" in str(broken.error)
        assert [one.dag.tasks["t"].call for one in good if one.dag] == ["linked:t", "mounted:t"]
