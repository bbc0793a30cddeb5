"""DAGs from files: YAML and JSON documents, and Python files with `@dag`.

Every refusal names file, line and column. YAML is read as its version 1.2 means it: only true and false are
booleans, `no`, `on`, 010 and dates stay text. One bad file never stops another.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redsched.definition.cron import day_fields_are_either
from redsched.definition.values import suggestion
from redsched.errors import DefinitionError, RedschedError

if TYPE_CHECKING:
    from types import ModuleType

    import yaml

    from redsched.definition.model import DagSpec
    from redsched.definition.python import Dag

MAX_NODES: Final = 2_000_000  # of one document with its aliases written out: 500,000 edges and room
MAX_DEPTH: Final = 100
_SUFFIXES: Final = (".yaml", ".yml", ".json", ".py")
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
# In folders only files that look like ours are read: others' YAML may hold anything, others' Python may do anything.
_OURS: Final = {
    ".py": re.compile(rb"redsched"),
    ".json": re.compile(rb'"dag"\s*:'),
    ".yaml": re.compile(rb"""(?m)^(?:\{\s*)?["']?dag["']?\s*:"""),
}
_TESTS: Final = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py|setup\.py")


_Node = Any  # of yaml; its stubs don't know the attributes of nodes


class Loaded(NamedTuple):
    """A DAG of a file, or what is wrong with it; `dag` or `error` is None."""

    path: str
    dag: DagSpec | None
    error: DefinitionError | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    root: Path  # its Python module is named from here
    walked: bool  # found in a folder, not named by the caller


def load_paths(paths: Sequence[Path]) -> list[Loaded]:
    """Every DAG below the paths, in order; a second DAG of an id is an error that names the first."""
    sources = _sources(paths)
    loaded: list[Loaded] = []
    with _importing([source.root for source in sources]):
        dags = _dags_of([source for source in sources if source.path.suffix == ".py"])
        for source in sources:
            if source.path.suffix == ".py":
                loaded += [_spec_of(str(source.path), dag) for dag in dags[source.path]]
            else:
                loaded += _load_documents(source)
    return _without_doubles(loaded)


def import_roots(paths: Sequence[Path]) -> list[str]:
    """The folders that workers put first on their import path: the paths, or the folders of the files."""
    folders = [path if path.is_dir() else path.parent for path in map(Path, paths)]
    return list(dict.fromkeys(str(folder.resolve()) for folder in folders))


def _sources(paths: Sequence[Path]) -> list[_Source]:
    found: dict[Path, _Source] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise DefinitionError(f"{path}: no such file or folder")
        if path.is_dir():
            root = path.resolve()
            for file in _walk(path):
                found.setdefault(file.resolve(), _Source(file, root, walked=True))
        elif path.suffix in _SUFFIXES:
            found.setdefault(path.resolve(), _Source(path, path.parent.resolve(), walked=False))
        else:
            raise DefinitionError(f"{path}: DAGs are in files named {', '.join('*' + s for s in _SUFFIXES)}")
    return list(found.values())


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS)
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix in _SUFFIXES and not _TESTS.fullmatch(name):
                yield Path(here, name)


def _without_doubles(loaded: list[Loaded]) -> list[Loaded]:
    first: dict[str, str] = {}
    out: list[Loaded] = []
    for one in loaded:
        if one.dag is None or one.dag.dag not in first:
            if one.dag is not None:
                first[one.dag.dag] = one.path
            out.append(one)
            continue
        text = (
            f"{one.path}: DAG {one.dag.dag} is defined in {first[one.dag.dag]} already; give one another id"
        )
        out.append(Loaded(one.path, None, DefinitionError(text)))
    return out


# ── YAML and JSON ────────────────────────────────────────────────────────────────────────────────


def _load_documents(source: _Source) -> list[Loaded]:
    path = str(source.path)
    try:
        data = source.path.read_bytes()
        if source.walked and not _OURS[source.path.suffix.replace("yml", "yaml")].search(data):
            return []
        text = _decoded(data)
        documents = _json_documents(text) if source.path.suffix == ".json" else _yaml_documents(text)
        documents = [document for document in documents if document.data is not None]
    except _Refusal as refusal:
        return [Loaded(path, None, DefinitionError(f"{path}:{refusal}"))]
    except OSError as error:
        return [Loaded(path, None, DefinitionError(f"{path}: {error.strerror or error}"))]
    if not documents and not source.walked:
        return [Loaded(path, None, DefinitionError(f"{path}: is empty; write `dag: id` and `tasks: …`"))]
    return [_build(path, document) for document in documents]


@dataclass(frozen=True, slots=True)
class _Document:
    """Plain data; `place` finds the line and column of a path in it."""

    data: Any
    place: Callable[[Sequence[str | int]], str]
    odd: tuple[str, ...] = ()


class _Refusal(Exception):
    """`line:column: what is wrong`."""

    def __init__(self, line: int, column: int, text: str) -> None:
        super().__init__(f"{line}:{column}: {text}")


def _build(path: str, document: _Document) -> Loaded:
    from pydantic import ValidationError

    from redsched.definition.model import DagSpec, problems, report
    from redsched.definition.plan import WrongGraph, check_graph

    data = document.data
    name = data.get("dag") if isinstance(data, dict) else None
    try:
        spec = DagSpec.model_validate(data)
    except ValidationError as error:
        lines = [
            report(name, [problem], f"{path}:{document.place(problem[0])}")
            for problem in problems(error)[:20]
        ]
        return Loaded(path, None, DefinitionError("\n".join(lines)))
    try:
        check_graph(spec)
    except WrongGraph as error:
        return Loaded(path, None, DefinitionError(f"{path}:{document.place(error.loc)}: {error}"))
    return Loaded(path, spec, None, (*warnings_about(spec), *(f"{path}:{text}" for text in document.odd)))


def warnings_about(spec: DagSpec) -> tuple[str, ...]:
    """What is allowed and often not meant."""
    if isinstance(spec.schedule, str) and day_fields_are_either(spec.schedule):
        text = f"schedule {spec.schedule!r} restricts day of month and weekday: it fires when either matches"
        return (f"DAG {spec.dag}: {text}",)
    return ()


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - before.rfind(b"\n")
        raise _Refusal(
            line, column, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def _json_documents(text: str) -> list[_Document]:
    """One document. Lines are looked for only when they are needed, by reading the text as YAML."""
    try:
        data = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _Refusal(error.lineno, error.colno, f"{error.msg} (JSON)") from None
    except RecursionError:
        raise _Refusal(1, 1, "nested too deeply") from None
    except _Twins as twins:
        _yaml_documents(text)  # refuses it too, and names both places
        raise _Refusal(1, 1, f"the key {twins} is given twice; remove one") from None
    except ValueError as error:
        raise _Refusal(1, 1, f"{error}") from None
    return [_Document(data, lambda loc: _yaml_place(text, loc))]


class _Twins(ValueError):
    pass


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twins(repr(next(key for key in keys if keys.count(key) > 1)))
    return data


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON; write a number or null")


def _yaml_place(text: str, loc: Sequence[str | int]) -> str:
    try:
        return _yaml_documents(text)[0].place(loc)
    except (_Refusal, IndexError):
        return "1:1"


def _yaml_documents(text: str) -> list[_Document]:
    import yaml

    try:
        return [_document(node) for node in yaml.compose_all(text, Loader=_loader()) if node is not None]
    except yaml.MarkedYAMLError as error:
        raise _yaml_refusal(error, text) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Refusal(line, 1, f"the character #x{ord(text[error.position]):04x} can't be in YAML") from None
    except yaml.YAMLError as error:
        raise _Refusal(1, 1, " ".join(str(error).split())) from None
    except RecursionError:
        raise _Refusal(1, 1, "nested too deeply") from None


_RESOLVERS: Final = (  # YAML 1.2, its JSON words and numbers: what looks otherwise stays text as it was written
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", tuple("tTfF")),
    ("tag:yaml.org,2002:int", r"^-?(?:0|[1-9][0-9]*)$", tuple("-0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$",
        tuple("-0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"^<<$", ("<",)),
)
_loader_class: Any = None


def _loader() -> Any:
    """A loader with the resolvers of YAML 1.2, on libyaml where that is there (ten times as fast)."""
    global _loader_class
    if _loader_class is None:
        import yaml

        base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _loader_class = type("Loader", (base,), {"yaml_implicit_resolvers": {}})
        for tag, pattern, first in _RESOLVERS:
            _loader_class.add_implicit_resolver(tag, re.compile(pattern), list(first))
    return _loader_class


_UNQUOTED: Final = re.compile(r"""^\s*(?:-\s+)?(?:([\w.-]+)\s*:\s+)?([*@%`&!|>].*?)\s*$""")


def _yaml_refusal(error: yaml.MarkedYAMLError, text: str) -> _Refusal:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return _Refusal(1, 1, str(error))
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    said = ", ".join(part for part in (error.context, error.problem) if part)
    unquoted = _UNQUOTED.match(line)
    if unquoted and unquoted[2][0] in "*@%`":
        what = "the schedule" if unquoted[1] in ("schedule", None) else "the value"
        lead = f"{unquoted[1]}: " if unquoted[1] else ""
        said += f'; quote {what}: {lead}"{unquoted[2]}"'
    elif "\t" in line[: mark.column + 1]:
        said += "; indent with spaces, not tabs"
    return _Refusal(mark.line + 1, mark.column + 1, said)


def _document(root: _Node) -> _Document:
    reader = _Reader()
    data = reader.value(root, 0)
    return _Document(data, lambda loc: _place(root, loc), tuple(reader.odd))


class _Reader:
    """Plain data from a tree of nodes; counts, so that a few aliases can't become a billion values."""

    def __init__(self) -> None:
        self.count = 0
        self.odd: list[str] = []
        self.above: set[int] = set()
        self.keys: list[str] = []

    def value(self, node: _Node, depth: int) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise _refuse(node, f"more than {MAX_NODES:,} values in one document, aliases counted")
        if depth > MAX_DEPTH:
            raise _refuse(node, f"nested more than {MAX_DEPTH} levels deep")
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind == "str" and node.id == "scalar":
            return self._text(node)
        if node.id == "scalar" and kind in _SCALARS:
            return self._scalar(node, kind)
        if kind not in ("map", "seq") or id(node) in self.above:
            what = "an alias to what it stands in" if id(node) in self.above else f"the tag {node.tag!r}"
            raise _refuse(node, f"{what} is not supported; write plain text, numbers, lists and mappings")
        self.above.add(id(node))
        try:
            if kind == "seq":
                return [self.value(item, depth + 1) for item in node.value]
            return self._mapping(node, depth)
        finally:
            self.above.discard(id(node))

    def _text(self, node: _Node) -> str:
        text: str = node.value
        if not node.style and text.lower() in _YES_NO and not _FREE.isdisjoint(self.keys):
            meant = "true" if text.lower() in ("yes", "on", "y") else "false"
            self.odd.append(
                f"{_at(node)}: {text} is the text '{text}' (write {meant} for a boolean, quotes for no warning)"
            )
        return text

    def _scalar(self, node: _Node, kind: str) -> Any:
        try:
            return _SCALARS[kind](node.value)
        except ValueError:
            raise _refuse(node, f"{node.value!r} can't be read as {kind}") from None

    def _mapping(self, node: _Node, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        places: dict[str, str] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._merged(value_node, depth) | merged
                continue
            key = self._key(key_node)
            if key in places:
                raise _refuse(key_node, f"the key {key!r} is given twice, first at {places[key]}; remove one")
            places[key] = _at(key_node)
            self.keys.append(key)
            own[key] = self.value(value_node, depth + 1)
            self.keys.pop()
        return merged | own if merged else own

    def _key(self, node: _Node) -> str:
        if node.id != "scalar":
            raise _refuse(node, "a key must be text")
        if node.tag != "tag:yaml.org,2002:str":
            shown = node.value or "null"
            raise _refuse(node, f"the key {shown} is not text to YAML; quote it: '{shown}'")
        key: str = node.value
        return key

    def _merged(self, node: _Node, depth: int) -> dict[str, Any]:
        parts = node.value if node.id == "sequence" else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if part.id != "mapping":
                raise _refuse(part, "<<: takes an alias to a mapping, like `<<: *base`")
            merged = self.value(part, depth + 1) | merged
        return merged


_FREE: Final = frozenset({"params", "with", "env"})  # where a boolean and a text are both possible
_YES_NO: Final = frozenset({"yes", "no", "on", "off", "y", "n"})
_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": float,
    "str": str,
}


def _at(node: _Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _refuse(node: _Node, text: str) -> _Refusal:
    return _Refusal(node.start_mark.line + 1, node.start_mark.column + 1, text)


def _place(root: _Node, loc: Sequence[str | int]) -> str:
    """Line and column of the deepest part of the path that was written; a key, where there is one."""
    node, place = root, _at(root)
    for part in loc:
        if node.id == "mapping":
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                break
            place, node = _at(pair[0]), pair[1]
        elif node.id == "sequence" and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            place = _at(node)
        else:
            break
    return place


# ── Python ───────────────────────────────────────────────────────────────────────────────────────


_imported: set[str] = set()  # modules of the paths, to be imported anew the next time


@contextmanager
def _importing(roots: Iterable[Path]) -> Iterator[None]:
    """The roots first on the import path, and nothing remembered of files that may have changed."""
    from redsched.definition.python import created

    kept, kept_flag = sys.path[:], sys.dont_write_bytecode
    folders = list(dict.fromkeys(map(str, roots)))
    created[:] = [dag for dag in created if dag.module not in _imported]
    for name in _imported:
        sys.modules.pop(name, None)
    _imported.clear()
    importlib.invalidate_caches()
    before = set(sys.modules)
    # Because Python trusts a .pyc for a file of the same second and size, which a quick edit can be.
    sys.dont_write_bytecode = True
    sys.path[:] = [*folders, *(entry for entry in kept if entry not in folders)]
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = kept, kept_flag
        _imported.update(name for name in set(sys.modules) - before if _is_below(sys.modules[name], folders))


def _is_below(module: ModuleType, folders: Sequence[str]) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)


def _module_name(source: _Source) -> str:
    # By its place, not by where a link leads: mounted files are often links into another folder.
    place = source.path.parent.resolve() / source.path.name
    parts = list(place.relative_to(source.root).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def _dags_of(sources: Sequence[_Source]) -> dict[Path, list[Dag | DefinitionError]]:
    """The DAGs of each file: those whose function stands in it, and those that it had made by other modules."""
    from redsched.definition.python import created

    found: dict[Path, list[Dag | DefinitionError]] = {source.path: [] for source in sources}
    owner: dict[str, Path] = {}
    made: list[tuple[Path, Sequence[Dag]]] = []
    for source in sources:
        known = len(created)
        try:
            if source.walked and not _OURS[".py"].search(source.path.read_bytes()):
                continue
            owner[_import(source).__name__] = source.path
        except DefinitionError as error:
            found[source.path].append(error)
        except OSError as error:
            found[source.path].append(DefinitionError(f"{source.path}: {error.strerror or error}"))
        else:
            made.append((source.path, created[known:]))
    for dag in created:
        if dag.module in owner:
            found[owner[dag.module]].append(dag)
    for path, dags in made:
        found[path] += [dag for dag in dags if dag.module not in owner]
    return found


def _import(source: _Source) -> ModuleType:
    name, file = _module_name(source), source.path.resolve()
    try:
        with redirect_stdout(sys.stderr):  # because stdout may have to be one JSON document
            module = sys.modules.get(name) or importlib.import_module(name)
    except (Exception, SystemExit) as error:  # because a file may raise anything, and stops no other
        sys.modules.pop(name, None)
        raise _import_refusal(source.path, error) from error
    other = getattr(module, "__file__", None)
    if Path(other or "").resolve() != file:
        raise DefinitionError(
            f"{source.path}: its module name {name!r} is taken by {other or 'a module of Python'}; rename the file"
        )
    return module


def _spec_of(path: str, dag: Dag | DefinitionError) -> Loaded:
    if isinstance(dag, DefinitionError):
        return Loaded(path, None, dag)
    try:
        with redirect_stdout(sys.stderr):
            spec = dag.spec
    except RedschedError as error:
        text = str(error)
        return Loaded(
            path, None, DefinitionError(text if ".py:" in text.partition(" ")[0] else f"{dag.place}: {text}")
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        return Loaded(path, None, _import_refusal(Path(path), error, f"DAG {dag.id}: "))
    return Loaded(path, spec, None, warnings_about(spec))


def _import_refusal(path: Path, error: BaseException, lead: str = "") -> DefinitionError:
    """The error with the last line of the file that it came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return DefinitionError(
            f"{error.filename}:{error.lineno}:{error.offset}: {lead}SyntaxError: {error.msg}"
        )
    lines = [
        f.lineno
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).resolve() == path.resolve()
    ]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, RedschedError):
        return DefinitionError(f"{place}: {lead}{error}")
    text = f"{lead}{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += suggestion(error.name, sys.stdlib_module_names)
    return DefinitionError(f"{place}: {text}")
