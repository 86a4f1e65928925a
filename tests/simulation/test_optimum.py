import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy", reason="numpy is not installed (extra simulate)")

from autoscaler.simulation.loads import Load
from autoscaler.simulation.optimum import OptimumError, Problem, optimum, problem, solve
from autoscaler.simulation.plant import PLANTS, PlantSpec


def _brute_force(given: Problem) -> int | None:
    """The minimum over every sequence of sizes."""
    best: int | None = None
    for sequence in itertools.product(range(len(given.capacity)), repeat=len(given.arrivals)):
        backlog, cost, before = 0.0, 0, sequence[0]
        for came, most, size in zip(given.arrivals, given.most, sequence, strict=True):
            lost = given.lost_up if size > before else given.lost_down if size < before else 0.0
            cost += size + 1 + max(0, size - before) * given.startup
            backlog = max(0.0, backlog + came - given.capacity[size] * (1 - lost))
            before = size
            if backlog > most:
                break
        else:
            best = cost if best is None else min(best, cost)
    return best


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    sizes = draw(st.integers(1, 4))
    steps = draw(st.integers(1, 6 if sizes < 4 else 5))
    records = st.integers(0, 12 * sizes)
    capacity = sorted(draw(st.lists(st.integers(5, 12 * sizes), min_size=sizes, max_size=sizes)))
    # Eighths, so that sums are exact and both methods agree on what is just allowed.
    lost = st.integers(0, 14).map(lambda eighths: eighths / 8)
    return Problem(
        arrivals=tuple(map(float, draw(st.lists(records, min_size=steps, max_size=steps)))),
        capacity=tuple(map(float, capacity)),
        lost_up=draw(lost),
        lost_down=draw(lost),
        most=tuple(map(float, draw(st.lists(st.integers(0, 25), min_size=steps, max_size=steps)))),
        startup=draw(st.integers(0, 3)),
    )


@given(_problems())
def test_it_is_the_least_of_all_sequences_of_sizes(given: Problem) -> None:
    expected = _brute_force(given)
    if expected is None:
        with pytest.raises(OptimumError, match="workers keep the objective"):
            solve(given)
    else:
        assert solve(given) == expected


def test_a_constant_load_costs_the_size_that_can_process_it() -> None:
    given = Problem(arrivals=(19.0,) * 50, capacity=(10.0, 20.0, 30.0), lost_up=0.4, lost_down=0.3, most=(0.0,) * 50)
    assert solve(given) == 100


def test_a_backlog_is_used_if_the_objective_allows_it() -> None:
    # 21 records a step: two workers leave one each time; up to 5 are allowed.
    given = Problem(arrivals=(21.0,) * 5, capacity=(10.0, 20.0, 30.0), lost_up=0.0, lost_down=0.0, most=(5.0,) * 5)
    assert solve(given) == 10
    assert (
        solve(Problem(arrivals=(21.0,) * 6, capacity=(10.0, 20.0, 30.0), lost_up=0.0, lost_down=0.0, most=(5.0,) * 6))
        == 13
    )


def test_a_short_peak_is_not_worth_two_changes_that_cost_more_than_they_save() -> None:
    busy, quiet = 30.0, 5.0
    arrivals = (busy, busy, quiet, busy, busy)
    cheap = Problem(arrivals=arrivals, capacity=(10.0, 20.0, 30.0), lost_up=0.0, lost_down=0.0, most=(0.0,) * 5)
    dear = Problem(arrivals=arrivals, capacity=(10.0, 20.0, 30.0), lost_up=0.9, lost_down=0.9, most=(0.0,) * 5)
    assert solve(cheap) == 13
    assert solve(dear) == 15


def test_starting_workers_are_billed() -> None:
    arrivals = (10.0, 30.0, 30.0)
    assert (
        solve(Problem(arrivals=arrivals, capacity=(10.0, 20.0, 30.0), lost_up=0.0, lost_down=0.0, most=(0.0,) * 3)) == 7
    )
    assert (
        solve(
            Problem(
                arrivals=arrivals, capacity=(10.0, 20.0, 30.0), lost_up=0.0, lost_down=0.0, most=(0.0,) * 3, startup=1
            )
        )
        == 9
    )


def test_a_load_beyond_the_largest_size_has_no_optimum() -> None:
    with pytest.raises(OptimumError, match="step 1: not even 2 workers keep the objective"):
        solve(Problem(arrivals=(5.0, 50.0), capacity=(10.0, 20.0), lost_up=0.0, lost_down=0.0, most=(0.0, 10.0)))


def test_a_plant_and_a_load_make_a_problem() -> None:
    plant = PlantSpec(startup=90, restart_up=12, restart_down=9, heartbeat=6, cold=0.8, cold_for=30, gamma=0.5, slo=47)
    load = Load("x", (1.0,) * 6 + (4.0,) * 6 + (9.0,))
    given = problem(load, plant, largest=2)
    assert given.arrivals == (30, 120)
    assert given.capacity == pytest.approx((9 / 4 * 30, 9 / 4 * 2**0.5 * 30))
    assert given.lost_up == pytest.approx((12 + 6) / 30)
    assert given.lost_down == pytest.approx((9 + 6 + 6) / 30)
    # All arrivals of 47 s: 30 s of 4/s and 17 s of 1/s.
    assert given.most == pytest.approx((30, 120 + 17))
    assert given.startup == 3


def test_all_hours_of_a_load_count_even_if_it_does_not_end_with_a_step() -> None:
    whole = optimum(Load("x", (10.0,) * 720), PLANTS["k8s"])
    assert 15.5 < whole < 16
    assert optimum(Load("x", (10.0,) * (720 + 3)), PLANTS["k8s"]) == pytest.approx(whole * 723 / 720)


@pytest.mark.parametrize("seconds", [0.0, 2.0, 32.0])
def test_a_step_is_a_multiple_of_the_plants_step(seconds: float) -> None:
    with pytest.raises(ValueError, match="expected a multiple of 5"):
        problem(Load("x", (1.0,) * 100), PLANTS["k8s"], seconds=seconds)


def test_without_numpy_the_error_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['numpy'] = None; import autoscaler.simulation.optimum"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "the optimum needs numpy: pip install '.[simulate]'" in found.stderr


def test_a_simulation_needs_no_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; import autoscaler.simulation.loop"
    subprocess.run([sys.executable, "-c", code], check=True)
