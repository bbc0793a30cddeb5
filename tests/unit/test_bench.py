"""What the measurements are made of: statistics, the witnesses of what ran, shapes, and the cluster on paper."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench import cluster, pages, scripts
from bench.peers.__main__ import merged
from bench.peers.catalog import PEERS, tree_of
from redsched.bench import machine, numbers, shapes, stats
from redsched.bench.trace import Faults, Line, Trace, faults, gaps_ms

CHAIN = shapes.chain(3)


def line(task: str, ns: int, run: str = "d/r") -> Line:
    return Line(run, task, ns)


class TestStats:
    def test_a_quantile_lies_between_its_neighbours(self) -> None:
        assert stats.quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
        assert stats.quantile(range(101), 0.99) == 99
        assert stats.quantile([7.0], 0.99) == 7
        assert math.isnan(stats.quantile([], 0.5))

    @pytest.mark.parametrize("k", [-1.0, 0.0, 0.5, 1.0, 2.0])
    def test_the_exponent_of_a_law_is_found(self, k: float) -> None:
        assert stats.exponent([(x, 3 * x**k) for x in (1, 10, 100)]) == pytest.approx(k)

    def test_no_law_from_one_point(self) -> None:
        assert math.isnan(stats.exponent([(10, 1), (10, 2), (0, 5)]))

    def test_a_rate_leaves_the_first_tenth_out(self) -> None:
        late_start = [0.0, *(5 + i / 10 for i in range(19))]
        assert stats.rate_of_rest(late_start) == pytest.approx(10)
        assert math.isnan(stats.rate_of_rest([1.0]))


class TestFaults:
    def test_nothing_is_wrong_with_each_once_and_in_order(self) -> None:
        lines = [line("t0", 1), line("t1", 2), line("t2", 3)]
        assert faults(lines, ["d/r"], CHAIN) == Faults(0, 0, 0)

    def test_what_never_ran_is_lost(self) -> None:
        assert faults([line("t0", 1)], ["d/r", "d/other"], CHAIN).lost == 5

    def test_what_ran_again_is_doubled(self) -> None:
        lines = [line("t0", 1), line("t1", 2), line("t2", 3), line("t1", 4), line("t1", 5)]
        assert faults(lines, ["d/r"], CHAIN) == Faults(0, 2, 0)

    def test_what_nobody_asked_for_is_doubled(self) -> None:
        lines = [line("t0", 1), line("t1", 2), line("t2", 3), line("t0", 1, "d/ghost")]
        assert faults(lines, ["d/r"], CHAIN).doubled == 1

    def test_what_ran_before_what_it_needs_is_disordered(self) -> None:
        assert faults([line("t1", 1), line("t0", 2), line("t2", 3)], ["d/r"], CHAIN).disordered == 1

    def test_what_ran_without_what_it_needs_is_disordered(self) -> None:
        assert faults([line("t1", 1)], ["d/r"], CHAIN) == Faults(2, 0, 1)

    def test_gaps_go_from_body_to_body_of_one_run(self) -> None:
        lines = [line("t0", 0), line("t0", 9_000_000, "d/2"), line("t1", 2_000_000), line("t2", 5_000_000)]
        assert gaps_ms(lines, list(CHAIN)) == [2.0, 3.0]


class TestTrace:
    def test_a_line_that_is_half_written_is_read_later(self) -> None:
        trace = Trace()
        try:
            with trace.path.open("ab", buffering=0) as file:
                file.write(b"d/r\tt0\t1\nd/r\tt")
                assert trace.read() == [line("t0", 1)]
                file.write(b"1\t2\n")
                assert trace.read() == [line("t0", 1), line("t1", 2)]
        finally:
            trace.close()
        assert not trace.path.exists()

    def test_waiting_ends_when_nothing_comes(self) -> None:
        trace = Trace()
        try:
            assert not trace.wait(1, stall_s=0.01)
            assert trace.wait(0)
        finally:
            trace.close()


class TestShapes:
    def test_dag20_has_its_layers_and_edges(self) -> None:
        shape = shapes.dag20()
        depth: dict[str, int] = {}
        for task, needs in shape.items():
            depth[task] = 1 + max((depth[n] for n in needs), default=-1)
        assert [list(depth.values()).count(i) for i in range(6)] == [1, 6, 6, 4, 2, 1]
        assert sum(map(len, shape.values())) == 40

    @pytest.mark.parametrize("size", [3, 10, 1000])
    def test_a_fan_has_so_many_tasks(self, size: int) -> None:
        shape = shapes.fan(size)
        assert len(shape) == size
        assert len(shape["last"]) == size - 2

    @pytest.mark.parametrize("size", [1, 2, 20, 201])
    def test_layers_need_only_what_is_there(self, size: int) -> None:
        shape = shapes.layers(size, max(1, size // 5))
        assert len(shape) == size
        assert all(need in shape for needs in shape.values() for need in needs)

    def test_a_tree_keeps_an_edge_a_task(self) -> None:
        tree = tree_of(shapes.dag20())
        kept = [need for needs in tree.values() for need in needs]
        assert len(kept) == len(set(kept)) == 19
        assert tree_of(CHAIN) == CHAIN


class TestPlace:
    def test_a_command_shows_no_password(self) -> None:
        shown = machine.command(["/venv/bin/redsched", "bench", "hop", "--redis", "redis://u:secret@h:1/0"])
        assert shown.startswith("redsched bench hop --redis")
        assert "secret" not in shown

    def test_a_module_is_called_as_one(self) -> None:
        assert machine.command(["/x/bench/storm.py", "--dags", "9"]) == "python -m bench.storm --dags 9"
        assert machine.command(["/x/bench/peers/__main__.py"]) == "python -m bench.peers"
        assert machine.command(["/x/bench/growth.py"]) == "python -m bench.growth"
        assert machine.command(["/x/bench/a/redsched/__main__.py", "bench"]) == "redsched bench"
        assert machine.command(["/home/bench/bin/redsched", "bench"]) == "redsched bench"

    def test_values_are_shown_with_their_unit(self) -> None:
        assert numbers.shown("tasks_per_s", 12345.6) == "12,346 /s"
        assert numbers.shown("share_of_evalsha", 0.0512) == "5.12 %"
        assert numbers.shown("hop_ms_p50", 0.614) == "0.61 ms"
        assert numbers.shown("lost", 0) == "0"


class TestPages:
    def test_a_measurement_writes_into_its_place_again_and_again(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n")
        for _ in range(2):
            pages.fill(page, "x", "new")
        assert page.read_text() == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"

    def test_a_page_without_the_place_is_left_alone(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("a\n")
        with pytest.raises(ValueError, match="no place <!-- x -->"):
            pages.fill(page, "x", "new")

    def test_the_pages_have_the_places_that_are_filled(self) -> None:
        root = Path(pages.__file__).parents[1]
        for file, names in (
            ("docs/scaling.md", ("waiting", "schedulers", "workers", "size", "cluster")),
            ("bench/README.md", ("own", "peers")),
            ("README.md", ("peers",)),
        ):
            text = (root / file).read_text(encoding="utf-8")
            assert all(text.count(f"<!-- {mark}{n} -->") == 1 for n in names for mark in ("", "/"))

    def test_results_are_kept_of_a_quiet_machine(self) -> None:
        assert pages.kept(None, whole=True, busy=0.3)
        assert not pages.kept(None, whole=True, busy=7.0)
        assert not pages.kept(None, whole=False, busy=0.3)
        assert pages.kept(True, whole=False, busy=7.0)
        assert not pages.kept(False, whole=True, busy=0.3)

    def test_numbers_have_three_digits(self) -> None:
        assert [pages.number(n) for n in (12345.6, 45.12, 0.612, None, float("nan"))] == [
            "12,346",
            "45.1",
            "0.61",
            "–",
            "–",
        ]


class TestPeers:
    def test_each_has_an_adapter_and_pins_what_it_installs(self) -> None:
        for peer in PEERS:
            assert Path(peer.submit_command[1]).is_file()
            assert "@" in peer.packages[0] if peer.node else "==" in peer.packages[0]

    def test_rounds_become_medians_and_faults_add_up(self) -> None:
        rounds = [{"version": "1", "dag20_tasks_per_s": n, "dag20_lost": n // 3} for n in (1.0, 9.0, 3.0)]
        assert merged([*rounds, {"version": "1", "error": "it ended"}]) == {
            "version": "1",
            "dag20_tasks_per_s": 3.0,
            "dag20_lost": 4.0,
        }
        assert merged([{"error": "not installed"}]) == {"error": "not installed"}


class TestScripts:
    def test_time_inside_a_script_is_counted_once(self) -> None:
        log = [
            {"command": b"FCALL redsched_shard_advance_0123456789ab 5 {rs:s:7}:owner", "duration": 40},
            {"command": b"HSET {rs:s:7}:run:d:r 0 s", "duration": 3},
            {"command": b"XREADGROUP GROUP workers w STREAMS {rs:p:default}:stream >", "duration": 5},
        ]
        assert scripts.calls_of(log) == {"shard": [40], "pool": [5], "control": []}
        assert [scripts.named(x["command"]) for x in log] == ["shard/advance", "HSET", "XREADGROUP"]  # type: ignore[arg-type]


class TestCluster:
    COSTS = cluster.Costs(30.0, 15.0, [100.0, 300.0], [50.0, 150.0])

    def test_slots_are_those_of_redis(self) -> None:
        assert cluster.crc16(b"123456789") == 0x31C3
        assert cluster.crc16(b"foo") % cluster.SLOTS == 12182  # CLUSTER KEYSLOT foo

    def test_all_the_work_is_somewhere(self) -> None:
        loads = cluster.loads("rs", 16, 4, 8, self.COSTS)
        assert sum(shard for shard, _ in loads.values()) == pytest.approx(30)
        assert sum(pool for _, pool in loads.values()) == pytest.approx(15)

    def test_one_node_carries_what_a_task_costs(self) -> None:
        assert cluster.carried(16, 1, 1, self.COSTS, 1)["median"] == pytest.approx(1e6 / 45)

    def test_eight_nodes_carry_at_most_eight_times_as_much(self) -> None:
        one, eight = (cluster.carried(256, 128, n, self.COSTS, 5)["median"] for n in (1, 8))
        assert 4 * one < eight <= 8 * one

    def test_one_pool_is_a_limit_that_no_node_lifts(self) -> None:
        assert cluster.carried(256, 1, 8, self.COSTS, 5)["median"] < 1e6 / 15

    def test_waits_grow_with_the_load(self) -> None:
        load = cluster.loads("rs", 16, 1, 1, self.COSTS)[0]
        calm, busy = (
            stats.quantile(cluster.waits_ms(load, self.COSTS, rate, 5000), 0.99) for rate in (2000, 20_000)
        )
        assert calm < busy

    def test_a_calm_rate_is_below_what_is_carried(self) -> None:
        calm = cluster.calm_rate(16, 1, 1, self.COSTS, calls=2000)
        assert 0 < calm < 1e6 / 45
