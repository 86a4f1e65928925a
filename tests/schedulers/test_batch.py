"""Flink's Adaptive Batch Scheduler: its published cases, its tests, its own results, and properties for any input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.schedulers.batch import (
    MAX_SUBPARTITIONS_PER_TASK,
    MEBIBYTE,
    BatchSettings,
    Consumed,
    IndexRange,
    Input,
    JoinPlan,
    JoinType,
    OutEdge,
    Share,
    Side,
    broadcast_join,
    decide,
    forward_group_parallelism,
    normalized_bounds,
    parallelism,
    parallelism_1_15,
    skewed_sides,
    source_parallelism,
)
from autoscaler.schedulers.batch.all_to_all import all_to_all_shares
from autoscaler.schedulers.batch.inputs import shares_by_count
from autoscaler.schedulers.batch.pointwise import pointwise_shares
from autoscaler.schedulers.batch.ranges import (
    Slice,
    balanced_ranges,
    even_ranges,
    max_legal_value,
    merged,
    min_legal_value,
    split_by_bytes,
)
from autoscaler.schedulers.batch.skew import skew_threshold, split_partitions, target_size
from autoscaler.schedulers.slots import Bounds

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "batch.json").read_text())
RECORDED = json.loads((DATA / "batch_recorded.json").read_text())
GIBIBYTE = 1 << 30
TEN = (10, 15, 13, 12, 1, 10, 8, 20, 12, 17)

Ranges = Sequence[tuple[int, int]]


def settings_of(inputs: dict[str, Any]) -> BatchSettings:
    return BatchSettings(
        avg_data_volume_per_task=inputs.get("data_volume_per_task", 1),
        min_parallelism=inputs.get("min_parallelism", 1),
        max_parallelism=inputs.get("max_parallelism", 128),
    )


def one_partition(*sizes: int, **changes: Any) -> Input:
    return Input(subpartition_bytes=(sizes,), **changes)


def filled(
    partitions: int,
    subpartitions: int = 3,
    *,
    skewed_partitions: Sequence[int] = (),
    skewed: Sequence[int] = (),
    **changes: Any,
) -> Input:
    """A result like those of Flink's tests: 1 byte in each subpartition, 10 in the skewed ones."""
    rows = [
        [10 if column in skewed or row in skewed_partitions else 1 for column in range(subpartitions)]
        for row in range(partitions)
    ]
    return Input(subpartition_bytes=rows, **changes)


def share_bytes(each: Input, share: Share) -> int:
    return sum(each.slice(part.partitions, part.subpartitions).size for part in share)


def bytes_per_task(inputs: Sequence[Input], shares: Sequence[Sequence[Share]]) -> list[int]:
    of_inputs = [[share_bytes(each, share) for share in own] for each, own in zip(inputs, shares, strict=True)]
    return [sum(sizes) for sizes in zip(*of_inputs, strict=True)]


def pairs(ranges: Sequence[IndexRange] | None) -> list[list[int]] | None:
    return ranges if ranges is None else [[each.start, each.end] for each in ranges]


def subpartition_ranges(shares: Sequence[Share]) -> list[list[int]]:
    """The subpartitions of each task, if each has a single range."""
    assert all(len(share) == 1 for share in shares)
    return [[share[0].subpartitions.start, share[0].subpartitions.end] for share in shares]


def shares_as_lists(shares: Sequence[Share]) -> list[list[list[int]]]:
    return [
        [
            [part.partitions.start, part.partitions.end, part.subpartitions.start, part.subpartitions.end]
            for part in share
        ]
        for share in shares
    ]


def outcome(inputs: dict[str, Any]) -> Any:
    settings = settings_of(inputs)
    match inputs["form"]:
        case "1.15" if "non_broadcast_bytes" in inputs:
            assert inputs["max_broadcast_ratio"] == 0.5
            return parallelism_1_15(settings, sum(inputs["broadcast_bytes"]), sum(inputs["non_broadcast_bytes"]))
        case "1.15":
            bounds = normalized_bounds(settings)
            return [bounds.lower, bounds.upper]
        case "1.17+":
            return parallelism(settings, inputs["non_broadcast_bytes"])
        case "2.x all-to-all ranges by bytes":
            results = [one_partition(*sizes, type_number=at) for at, sizes in enumerate(inputs["subpartition_bytes"])]
            ranges = [subpartition_ranges(shares) for shares in decide(settings, results).shares]
            assert ranges[1:] == ranges[:-1]
            return ranges[0]
        case "by count":
            return pairs(even_ranges(inputs["subpartitions"], inputs["consumers"]))
        case "2.x pointwise":
            results = [
                Input(
                    subpartition_bytes=rows,
                    pointwise=True,
                    intra_input_key_correlated=inputs["intra_input_key_correlated"],
                )
                for rows in inputs["partitions_subpartition_bytes"]
            ]
            bounds = Bounds(inputs["parallelism"], inputs["parallelism"])
            shares = pointwise_shares(
                dict(enumerate(results)), bounds.lower, bounds, settings.avg_data_volume_per_task
            ).values()
            per_input = [bytes_per_task([each], [own]) for each, own in zip(results, shares, strict=True)]
            return {"per_input": per_input, "total": bytes_per_task(results, list(shares))}
        case "skew target size":
            sizes = inputs["aggregated_subpartition_bytes"]
            threshold = skew_threshold(sizes, inputs["skewed_factor"], inputs["skewed_threshold"])
            return target_size(sizes, threshold, inputs["data_volume_per_task"])
        case form:
            raise AssertionError(f"nothing answers for the form {form}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_published_cases_give_their_results(case: dict[str, Any]) -> None:
    assert outcome(case["inputs"]) == case["expected"]


def test_no_published_case_is_left_out() -> None:
    assert len(CASES) == 16
    assert {case["kind"] for case in CASES} == {"batch"}
    with pytest.raises(AssertionError, match="nothing answers for the form tides"):
        outcome({"form": "tides"})


@pytest.mark.parametrize("case", [*RECORDED["2.3.0"], *RECORDED["1.20.0"]])
def test_random_inputs_give_flinks_results_or_its_refusal(case: dict[str, Any]) -> None:
    def decision() -> Any:
        inputs = [Input(**each) for each in case["inputs"]]
        settings = BatchSettings(**case["settings"])
        found = decide(settings, inputs, inferred=[case["inferred"]], max_parallelism=case["max_parallelism"])
        return {"parallelism": found.parallelism, "shares": [shares_as_lists(own) for own in found.shares]}

    if case["expected"] is None:
        with pytest.raises(ValueError, match="expected"):
            decision()
    else:
        assert decision() == case["expected"]


# Flink 1.15: DefaultVertexParallelismDeciderTest.

OF_TESTS = BatchSettings(
    avg_data_volume_per_task=GIBIBYTE, min_parallelism=3, max_parallelism=100, default_source_parallelism=10
)


@pytest.mark.parametrize(
    ("broadcast", "others", "expected"),
    [
        (256 * MEBIBYTE, 8 * GIBIBYTE + 1024 * GIBIBYTE, 64),  # ...LargerThanMaxParallelism
        (512 * MEBIBYTE, 256 * MEBIBYTE + 8 * GIBIBYTE, 16),  # testNonBroadcastBytesCanNotDividedEvenly
        (0, 0, 4),
        (0, 5 * GIBIBYTE, 4),
        (0, 6 * GIBIBYTE, 8),  # half-way between two powers is rounded up
    ],
)
def test_until_1_15_a_parallelism_is_the_nearest_power_of_two(broadcast: int, others: int, expected: int) -> None:
    assert parallelism_1_15(OF_TESTS, broadcast, others) == expected


def test_a_volume_of_one_byte_that_a_broadcast_fills_counts_as_one() -> None:
    assert parallelism_1_15(BatchSettings(avg_data_volume_per_task=1), broadcast_bytes=9, non_broadcast_bytes=4) == 4


def test_bounds_without_a_power_of_two_give_no_parallelism_in_1_15() -> None:
    settings = BatchSettings(min_parallelism=5, max_parallelism=7)
    with pytest.raises(ValueError, match="a power of two from min_parallelism to max_parallelism, got 5 and 7"):
        parallelism_1_15(settings, 0, 1)


# DefaultVertexParallelismAndInputInfosDeciderTest.


@pytest.mark.parametrize(
    ("consumed", "expected"),
    [
        (256 * MEBIBYTE + 8 * GIBIBYTE, 9),  # testDecideParallelism, testNonBroadcastBytesCanNotDividedEvenly
        (8 * GIBIBYTE, 8),
        (0, 3),
    ],
)
def test_a_parallelism_is_the_bytes_over_the_volume_of_a_task(consumed: int, expected: int) -> None:
    assert parallelism(OF_TESTS, consumed) == expected


def test_broadcast_data_does_not_count() -> None:
    inputs = [one_partition(256 * MEBIBYTE, broadcast=True), filled(1, 100)]
    assert decide(OF_TESTS, inputs).parallelism == 3
    broadcast = [one_partition(10, broadcast=True, type_number=number) for number in (1, 2)]
    found = decide(BatchSettings(avg_data_volume_per_task=5, max_parallelism=10), broadcast)
    assert (found.parallelism, [subpartition_ranges(shares) for shares in found.shares]) == (1, [[[0, 0]], [[0, 0]]])


@pytest.mark.parametrize("limit", [None, MAX_SUBPARTITIONS_PER_TASK])
@pytest.mark.parametrize(
    ("bounds", "volume", "expected"),
    [
        ((4, 10), 1000, [[0, 1], [2, 5], [6, 7], [8, 9]]),  # ...DecidedParallelismIsMinParallelism
        ((1, 10), 60, [[0, 4], [5, 8], [9, 9]]),  # testAllEdgesAllToAllAndOneIsBroadcast
    ],
)
def test_each_task_gets_contiguous_subpartitions_and_all_broadcast_data(
    limit: int | None, bounds: tuple[int, int], volume: int, expected: list[list[int]]
) -> None:
    settings = BatchSettings(
        avg_data_volume_per_task=volume,
        min_parallelism=bounds[0],
        max_parallelism=bounds[1],
        max_subpartitions_per_task=limit,
    )
    # The volume is for all data of a task; in Flink 2 broadcast data uses a part of it.
    found = decide(settings, [one_partition(*TEN), one_partition(0, broadcast=True)])
    assert [subpartition_ranges(shares) for shares in found.shares] == [expected, [[0, 0]] * len(expected)]


def test_until_1_20_one_byte_wide_subpartitions_are_limited_to_32768_per_task() -> None:
    settings = BatchSettings(
        avg_data_volume_per_task=256 * MEBIBYTE,
        max_parallelism=100,
        max_subpartitions_per_task=MAX_SUBPARTITIONS_PER_TASK,
    )
    wide, narrow = filled(1024, 1024), filled(512, 512, pointwise=True)
    [shares] = decide(settings, [wide]).shares  # testEvenlyDistributeDataWithMaxSubpartitionLimitation
    assert shares == tuple((Consumed(IndexRange(0, 1023), each),) for each in even_ranges(1024, 32))
    by_count = decide(settings, [wide, narrow])  # testDecideParallelismWithMaxSubpartitionLimitation
    assert by_count.parallelism == 32
    assert decide(BatchSettings(avg_data_volume_per_task=256 * MEBIBYTE), [wide]).parallelism == 1


POINTWISE = Input(
    subpartition_bytes=((8, 12, 21, 9, 13), (7, 19, 13, 14, 5)), pointwise=True, intra_input_key_correlated=False
)


def test_until_1_20_a_pointwise_edge_divides_all_inputs_by_count() -> None:
    settings = BatchSettings(avg_data_volume_per_task=60, max_parallelism=10, max_subpartitions_per_task=32768)
    found = decide(settings, [one_partition(*TEN), POINTWISE])  # testHavePointwiseEdges
    assert subpartition_ranges(found.shares[0]) == [[0, 1], [2, 4], [5, 6], [7, 9]]
    assert shares_as_lists(found.shares[1]) == [[[0, 0, 0, 1]], [[0, 0, 2, 4]], [[1, 1, 0, 1]], [[1, 1, 2, 4]]]


def test_since_2_0_a_pointwise_edge_is_divided_by_bytes_too() -> None:
    found = decide(BatchSettings(avg_data_volume_per_task=60, max_parallelism=10), [one_partition(*TEN), POINTWISE])
    assert subpartition_ranges(found.shares[0]) == [[0, 1], [2, 5], [6, 7], [8, 9]]
    assert shares_as_lists(found.shares[1]) == [
        [[0, 0, 0, 1]],
        [[0, 0, 2, 3]],
        [[0, 0, 4, 4], [1, 1, 0, 1]],
        [[1, 1, 2, 4]],
    ]


def test_a_fixed_parallelism_divides_by_count() -> None:
    found = decide(OF_TESTS, [one_partition(*TEN)], parallelism=3, max_parallelism=100)  # testParallelismAlreadyDecided
    assert (found.parallelism, subpartition_ranges(found.shares[0])) == (3, [[0, 2], [3, 5], [6, 9]])
    assert decide(OF_TESTS, [], parallelism=7).parallelism == 7


def test_a_source_has_its_inferred_parallelism_or_the_default() -> None:
    assert decide(OF_TESTS, []).parallelism == 10  # testSourceJobVertex
    assert source_parallelism(OF_TESTS, [-1, -1]) == 10
    assert source_parallelism(OF_TESTS, [4, 12, -1]) == 12
    assert source_parallelism(OF_TESTS, [40], max_parallelism=16) == 16
    assert source_parallelism(OF_TESTS, max_parallelism=8) == 8
    assert source_parallelism(BatchSettings(max_parallelism=30)) == 30


def test_a_source_with_inputs_raises_the_minimum_parallelism_to_the_inferred_one() -> None:
    # testDynamicSourceParallelismWithUpstreamInputs
    found = decide(OF_TESTS, [one_partition(*TEN)], inferred=[4], max_parallelism=100)
    assert subpartition_ranges(found.shares[0]) == [[0, 1], [2, 5], [6, 7], [8, 9]]


def test_a_vertex_has_its_own_maximum_parallelism() -> None:
    assert decide(OF_TESTS, [one_partition(*TEN)], max_parallelism=2).parallelism == 2


def test_the_first_decided_vertex_of_a_forward_group_decides_for_all() -> None:
    assert forward_group_parallelism([None, None]) is None
    first = decide(OF_TESTS, [one_partition(*TEN)]).parallelism
    shared = forward_group_parallelism([None, first, first])
    assert shared == 3
    others = decide(OF_TESTS, [filled(2, 5), filled(1, 4, pointwise=True)], parallelism=shared)
    assert [len(shares) for shares in others.shares] == [3, 3]
    with pytest.raises(ValueError, match=r"one parallelism for all vertices of a forward group, got \[3, 4\]"):
        forward_group_parallelism([3, 4])


# VertexInputInfoComputationUtilsTest.


@pytest.mark.parametrize(
    ("count", "parts", "expected"),
    [
        (3, 1, [[0, 2]]),
        (3, 2, [[0, 0], [1, 2]]),
        (6, 4, [[0, 0], [1, 2], [3, 3], [4, 5]]),
        (10, 3, [[0, 2], [3, 5], [6, 9]]),
    ],
)
def test_ranges_by_count(count: int, parts: int, expected: list[list[int]]) -> None:
    assert pairs(even_ranges(count, parts)) == expected


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        (filled(2, 10), [[[0, 1, 0, 2]], [[0, 1, 3, 5]], [[0, 1, 6, 9]]]),
        (filled(2, 4, broadcast=True), [[[0, 1, 0, 3]]] * 3),
        (filled(2, 1, broadcast=True), [[[0, 1, 0, 0]]] * 3),
        (filled(2, 4, pointwise=True), [[[0, 0, 0, 1]], [[0, 0, 2, 3]], [[1, 1, 0, 3]]]),
        (filled(5, 2, pointwise=True), [[[0, 0, 0, 1]], [[1, 2, 0, 1]], [[3, 4, 0, 1]]]),
    ],
)
def test_shares_of_three_tasks_by_count(each: Input, expected: list[list[list[int]]]) -> None:
    assert shares_as_lists(shares_by_count(each, 3)) == expected


# AllToAllVertexInputInfoComputerTest: skewed factor 4, skewed threshold 10; unions of 1 and 10 results.


def all_to_all(inputs: Sequence[Input], bounds: tuple[int, int], count: int = 1, volume: int = 10) -> list[Any]:
    settings = BatchSettings(skewed_factor=4, skewed_threshold=10)
    shares = all_to_all_shares(settings, dict(enumerate(inputs)), count, Bounds(*bounds), volume)
    return [shares[key] for key in range(len(inputs))]


def of_side(side: int, inputs: Sequence[Input], shares: Sequence[Any]) -> list[int]:
    chosen = [at for at, each in enumerate(inputs) if each.type_number == side]
    return bytes_per_task([inputs[at] for at in chosen], [shares[at] for at in chosen])


unions = pytest.mark.parametrize("union", [1, 10])


@unions
@pytest.mark.parametrize("skewed", [[], [0]])
def test_partitions_with_correlated_keys_are_not_split(union: int, skewed: list[int]) -> None:
    inputs = [filled(10, type_number=1, skewed=skewed)] * union + [filled(10, type_number=2)] * union
    shares = all_to_all(inputs, (1, 10))
    assert all(shares_as_lists(own) == [[[0, 9, at, at]] for at in range(3)] for own in shares)
    assert of_side(1, inputs, shares) == [(100 if skewed else 10) * union, 10 * union, 10 * union]


@unions
def test_each_part_of_a_skewed_partition_meets_the_whole_other_side(union: int) -> None:
    left = filled(10, type_number=1, skewed=[0], intra_input_key_correlated=False)
    inputs = [left] * union + [filled(10, type_number=2)] * union
    shares = all_to_all(inputs, (1, 10))
    assert of_side(1, inputs, shares) == [20 * union] * 5 + [10 * union] * 2
    assert of_side(2, inputs, shares) == [10 * union] * 7
    assert shares_as_lists(shares[0]) == [
        *([[at, at + 1, 0, 0]] for at in range(0, 10, 2)),
        [[0, 9, 1, 1]],
        [[0, 9, 2, 2]],
    ]


@unions
@pytest.mark.parametrize(
    ("bounds", "left_bytes", "right_bytes"),
    [
        ((1, 2), [12, 12], [22, 22]),
        ((1, 1), [24], [24]),
        ((1, 5), [12, 10, 10, 12], [12, 10, 10, 12]),
        ((5, 5), [2, 10, 10, 10, 12], [2, 10, 10, 10, 12]),
    ],
)
def test_if_both_sides_are_skewed_all_parts_meet_and_data_read_twice_by_a_task_counts_once(
    union: int, bounds: tuple[int, int], left_bytes: list[int], right_bytes: list[int]
) -> None:
    sides = [filled(2, type_number=side, skewed=[1], intra_input_key_correlated=False) for side in (1, 2)]
    inputs = [sides[0]] * union + [sides[1]] * union
    shares = all_to_all(inputs, bounds, bounds[0])
    assert of_side(1, inputs, shares) == [size * union for size in left_bytes]
    assert of_side(2, inputs, shares) == [size * union for size in right_bytes]


def test_a_union_of_results_with_different_numbers_of_partitions_is_not_split() -> None:
    def inputs(**changes: Any) -> list[Input]:
        return [filled(count, type_number=side, **changes) for side, count in ((1, 2), (1, 3), (2, 2))]

    plain = all_to_all(inputs(), (1, 2), 2)
    assert [shares_as_lists(own) for own in plain] == [[[[0, last, 0, 1]], [[0, last, 2, 2]]] for last in (1, 2, 1)]
    skewed = inputs(skewed=[1], intra_input_key_correlated=False)
    shares = all_to_all(skewed, (1, 2), 2)
    assert (of_side(1, skewed, shares), of_side(2, skewed, shares)) == ([55, 55], [12, 12])


@pytest.mark.parametrize(("correlated", "volume", "expected"), [(True, 10, [20, 10]), (False, 1, [15, 15])])
def test_an_input_not_correlated_with_others_is_divided_separately(
    correlated: bool, volume: int, expected: list[int]
) -> None:
    # testComputeRebalancedWithAndWithoutCorrelations
    each = filled(10, inter_inputs_keys_correlated=False, intra_input_key_correlated=correlated)
    shares = all_to_all([each], (1, 5), 2, volume)
    assert sorted(bytes_per_task([each], shares), reverse=True) == expected


def test_a_separate_input_gets_as_many_tasks_as_those_divided_together() -> None:
    alone = filled(4, 4, inter_inputs_keys_correlated=False)
    broadcast = one_partition(0, broadcast=True, inter_inputs_keys_correlated=False)
    shares = all_to_all([one_partition(*TEN), alone, broadcast], (1, 10), volume=60)
    assert [len(own) for own in shares] == [3, 3, 3]


def test_a_separate_input_with_too_few_subpartitions_is_divided_by_partitions() -> None:
    each = filled(3, 2, inter_inputs_keys_correlated=False)
    assert shares_as_lists(all_to_all([each], (1, 9), 3)[0]) == [[[at, at, 0, 1]] for at in range(3)]


# PointwiseVertexInputInfoComputerTest, with the rule of Flink 2.3: all inputs are cut alike.


def pointwise(inputs: Sequence[Input], tasks: int) -> list[Any]:
    return list(pointwise_shares(dict(enumerate(inputs)), tasks, Bounds(tasks, tasks), 10).values())


@pytest.mark.parametrize(
    ("tasks", "expected"), [(3, [[0, 0, 0, 2], [1, 1, 0, 2], [2, 2, 0, 2]]), (2, [[0, 1, 0, 2], [2, 2, 0, 2]])]
)
def test_a_pointwise_partition_with_correlated_keys_is_not_split(tasks: int, expected: list[list[int]]) -> None:
    [shares] = pointwise([filled(3, pointwise=True)], tasks)
    assert shares_as_lists(shares) == [[each] for each in expected]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (0, [[[0, 0, 0, 0]], [[0, 0, 1, 1]], [[0, 0, 2, 2], [1, 2, 0, 2]]]),
        (1, [[[0, 0, 0, 2], [1, 1, 0, 0]], [[1, 1, 1, 1]], [[1, 1, 2, 2], [2, 2, 0, 2]]]),
    ],
)
def test_a_skewed_pointwise_partition_is_split(row: int, expected: list[list[list[int]]]) -> None:
    each = filled(3, skewed_partitions=[row], pointwise=True, intra_input_key_correlated=False)
    [shares] = pointwise([each], 3)
    assert shares_as_lists(shares) == expected


def test_pointwise_inputs_are_cut_into_the_same_number_of_slices() -> None:
    inputs = [
        Input(subpartition_bytes=rows, pointwise=True, intra_input_key_correlated=False)
        for rows in (((1, 2, 3), (4, 5, 6), (7, 8, 9)), ((1, 2), (3, 4)))
    ]
    shares = pointwise(inputs, 2)  # 4 slices: of 3 partitions the last is halved, of 2 both
    assert [bytes_per_task([each], [own]) for each, own in zip(inputs, shares, strict=True)] == [[21, 24], [3, 7]]


def test_the_number_of_slices_per_task_is_limited_with_many_subpartitions() -> None:
    each = filled(100, 9, pointwise=True, intra_input_key_correlated=False)
    [shares] = pointwise([each], 2)  # 64 slices of whole partitions
    assert shares_as_lists(shares) == [[[0, 49, 0, 8]], [[50, 99, 0, 8]]]


def test_pointwise_inputs_with_too_few_slices_are_divided_by_count() -> None:
    [shares] = pointwise([filled(2, pointwise=True)], 4)
    assert shares_as_lists(shares) == [[[0, 0, 0, 0]], [[0, 0, 1, 2]], [[1, 1, 0, 0]], [[1, 1, 1, 2]]]


# VertexParallelismAndInputInfosDeciderUtilsTest, AggregatedBlockingInputInfoTest, BisectionSearchUtilsTest.


@pytest.mark.parametrize(
    ("sizes", "median"),
    [((5, 1, 3), 3), ((7, 3, 9, 1), 5), ((2,) * 5, 2), ((8,), 8), ((2, 4), 3), ((1, 2, 3, 0, 0), 1), ((0, 0), 1)],
)
def test_a_partition_is_skewed_relative_to_the_median(sizes: tuple[int, ...], median: int) -> None:
    assert skew_threshold(sizes, 1.0, 0) == median
    assert skew_threshold(sizes, 1.5, 0) == int(1.5 * median)
    assert skew_threshold(sizes, 1.5, 50) == 50


@pytest.mark.parametrize(
    ("sizes", "threshold", "volume", "expected"),
    [
        ((100, 200, 150, 50), 150, 75, 100),
        ((200, 180, 70, 30), 100, 80, 80),
        ((100, 50, 75), 200, 60, 75),
        ((40, 400, 40), 160, 20, 40),
        ((40, 400, 40), 500, 20, 160),
        ((40, 400, 40), 30, 20, 20),
    ],
)
def test_parts_of_a_skewed_partition_are_as_large_as_the_other_partitions(
    sizes: tuple[int, ...], threshold: int, volume: int, expected: int
) -> None:
    assert target_size(sizes, threshold, volume) == expected


def rows_of(*sizes: int) -> list[tuple[Slice, ...]]:
    return [(Slice(IndexRange(0, 0), IndexRange(at, at), size),) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("bounds", "volume", "expected"),
    [
        ((1, 5), 300, [[0, 1], [2, 2], [3, 4]]),
        ((1, 5), 10000, [[0, 4]]),
        ((1, 5), 100, [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]),
        ((5, 5), 200, [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]),
        ((4, 4), 200, [[0, 0], [1, 1], [2, 2], [3, 4]]),  # by count
        ((6, 6), 200, None),
    ],
)
def test_ranges_by_bytes_or_otherwise_by_count(
    bounds: tuple[int, int], volume: int, expected: list[list[int]] | None
) -> None:
    assert pairs(balanced_ranges(rows_of(100, 200, 300, 200, 100), volume, Bounds(*bounds))) == expected


@pytest.mark.parametrize(("low", "high", "expected"), [(1, 17, 8), (8, 17, 8), (1, 8, 8), (9, 17, 9), (1, 7, -1)])
def test_the_smallest_legal_value_is_found(low: int, high: int, expected: int) -> None:
    assert min_legal_value(lambda value: 29 // value <= 3, low, high) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1, 17, 11), (11, 17, 11), (1, 11, 11), (1, 10, 10), (12, 17, -1)]
)
def test_the_largest_legal_value_is_found(low: int, high: int, expected: int) -> None:
    assert max_legal_value(lambda value: value // 3 <= 3, low, high) == expected


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(3, 4), (0, 1)], [[0, 1], [3, 4]]),
        ([(2, 3), (0, 1)], [[0, 3]]),
        ([(0, 5), (1, 2), (5, 7)], [[0, 7]]),
    ],
)
def test_overlapping_or_adjacent_ranges_are_merged(ranges: Ranges, expected: list[list[int]]) -> None:
    assert pairs(merged([IndexRange(*each) for each in ranges])) == expected


# AdaptiveBroadcastJoinOptimizationStrategy, AdaptiveSkewedJoinOptimizationStrategy.

SMALL, LARGE = MEBIBYTE - 1, MEBIBYTE


@pytest.mark.parametrize(
    ("join_type", "sides"),
    [
        ("inner", {"left", "right"}),
        ("left", {"right"}),
        ("semi", {"right"}),
        ("anti", {"right"}),
        ("right", {"left"}),
    ],
)
def test_a_small_side_of_a_join_is_broadcast_and_the_other_may_be_split(join_type: JoinType, sides: set[Side]) -> None:
    settings = BatchSettings()
    found = {
        "left": broadcast_join(settings, join_type, SMALL, None),
        "right": broadcast_join(settings, join_type, None, SMALL),
    }
    expected = {side: JoinPlan(broadcast=True, build=side) if side in sides else None for side in found}
    assert found == cast("dict[str, Any]", expected)
    skewed = [1] * 4 + [300 * MEBIBYTE]
    split = {side for side in ("left", "right") if join_type == "inner" or side not in sides}
    assert skewed_sides(settings, join_type, skewed, skewed) == split


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (SMALL, SMALL, JoinPlan(broadcast=True, build="left")),
        (LARGE, SMALL, JoinPlan(broadcast=True, build="right")),
        (LARGE, LARGE, JoinPlan(broadcast=False, build="right")),
        (LARGE, LARGE + 1, JoinPlan(broadcast=False, build="left")),
        (LARGE, None, None),
        (None, LARGE, None),
        (None, None, None),
    ],
)
def test_a_join_is_broadcast_as_soon_as_a_complete_side_is_below_the_threshold(
    left: int | None, right: int | None, expected: JoinPlan | None
) -> None:
    assert broadcast_join(BatchSettings(), "inner", left, right) == expected


def test_no_join_is_broadcast_if_that_is_disabled() -> None:
    assert broadcast_join(BatchSettings(adaptive_broadcast_join_strategy="none"), "inner", 0, 0) is None
    never = BatchSettings(broadcast_threshold=-1)
    assert broadcast_join(never, "inner", 0, 0) == JoinPlan(broadcast=False, build="right")


@pytest.mark.parametrize(
    ("strategy", "edges", "splits"),
    [
        ("auto", [], True),
        ("auto", ["free", "free"], True),
        ("auto", ["free", "consecutive_hash"], False),
        ("auto", ["forward"], False),
        ("forced", ["free", "consecutive_hash"], True),
        ("forced", ["forward"], False),
        ("none", [], False),
    ],
)
def test_a_join_is_changed_if_its_downstream_edges_allow_it(strategy: Any, edges: list[OutEdge], splits: bool) -> None:
    settings = BatchSettings(skewed_join_optimization_strategy=strategy, skewed_threshold=40)
    assert skewed_sides(settings, "inner", [10, 41, 10], [10, 10, 40], edges) == ({"left"} if splits else set())
    broadcast = broadcast_join(settings, "inner", 0, 0, edges)
    assert (broadcast is not None) == ({"free"} >= set(edges))


def test_flink_does_not_change_a_full_join() -> None:
    full = cast("JoinType", "full")
    with pytest.raises(ValueError, match="expected an inner, left, right, semi or anti join, got full"):
        broadcast_join(BatchSettings(), full, 1, 1)
    with pytest.raises(ValueError, match="got full"):
        skewed_sides(BatchSettings(), full, [1], [1])


def test_a_skewed_join_is_split_if_its_keys_are_not_correlated() -> None:
    settings = BatchSettings(avg_data_volume_per_task=40, skewed_threshold=40, max_parallelism=20)
    left, right = filled(10, skewed=[0], type_number=1), filled(10, type_number=2)
    [side] = skewed_sides(settings, "inner", left.by_subpartition, right.by_subpartition)
    assert side == "left"
    assert decide(settings, [left, right]).parallelism == 2
    split = decide(settings, [replace(left, intra_input_key_correlated=False), right])
    assert split.parallelism == 5
    assert max(bytes_per_task([left, right], split.shares)) < left.by_subpartition[0]


# Properties for any input.

sizes = st.lists(st.integers(0, 50), min_size=1, max_size=40)
volumes = st.integers(1, 200)
some_bounds = st.tuples(st.integers(1, 12), st.integers(0, 12)).map(lambda each: Bounds(each[0], each[0] + each[1]))


def indexes(ranges: Sequence[IndexRange]) -> list[int]:
    return [at for each in ranges for at in range(each.start, each.end + 1)]


@given(sizes, volumes, some_bounds)
def test_ranges_are_contiguous_cover_all_and_are_as_many_as_allowed(
    sizes: list[int], volume: int, bounds: Bounds
) -> None:
    ranges = balanced_ranges(rows_of(*sizes), volume, bounds)
    assert (ranges is None) == (len(sizes) < bounds.lower)
    if ranges is not None:
        assert indexes(ranges) == list(range(len(sizes)))
        assert bounds.lower <= len(ranges) <= bounds.upper


@given(sizes, volumes, st.integers(1, 10))
def test_no_range_is_above_the_limits_but_a_single_subpartition(sizes: list[int], volume: int, longest: int) -> None:
    ranges = split_by_bytes(rows_of(*sizes), volume, longest)
    assert indexes(ranges) == list(range(len(sizes)))
    for each in ranges:
        part = sizes[each.start : each.end + 1]
        assert len(part) == 1 or (sum(part) <= volume and len(part) <= longest)
    for each, following in pairwise(ranges):  # it is as long as possible
        more = sum(sizes[each.start : following.start + 1])
        assert more > volume or each.end - each.start + 1 == longest


@given(sizes, volumes, st.data())
def test_more_bytes_never_give_fewer_tasks(sizes: list[int], volume: int, data: st.DataObject) -> None:
    larger = [size + data.draw(st.integers(0, 20)) for size in sizes]
    assert len(split_by_bytes(rows_of(*larger), volume)) >= len(split_by_bytes(rows_of(*sizes), volume))
    settings = BatchSettings(avg_data_volume_per_task=volume)
    assert parallelism(settings, sum(larger)) >= parallelism(settings, sum(sizes))
    for broadcast in (0, max(larger)):
        before = parallelism_1_15(settings, broadcast, sum(sizes))
        assert parallelism_1_15(settings, broadcast, sum(larger)) >= before
        assert parallelism_1_15(settings, broadcast + 1, sum(sizes)) >= before


@given(st.integers(1, 100), st.integers(1, 100))
def test_ranges_by_count_differ_by_one_at_most(count: int, parts: int) -> None:
    if parts > count:
        with pytest.raises(ValueError, match=f"expected 1 to {count} tasks for {count} subpartitions, got {parts}"):
            even_ranges(count, parts)
    else:
        ranges = even_ranges(count, parts)
        assert indexes(ranges) == list(range(count))
        assert len({each.end - each.start for each in ranges}) <= 2


@given(sizes, st.integers(1, 200))
def test_parts_of_a_skewed_partition_are_below_the_target_or_one_partition(sizes: list[int], target: int) -> None:
    ranges = split_partitions(sizes, target)
    assert indexes(ranges) == list(range(len(sizes)))
    assert all(each.start == each.end or sum(sizes[each.start : each.end + 1]) < target for each in ranges)


COLUMNS = 8
rows = st.lists(st.lists(st.integers(0, 90), min_size=COLUMNS, max_size=COLUMNS), min_size=1, max_size=4)


@st.composite
def joins(draw: st.DrawFn) -> list[Input]:
    """Results of the left side of a join, and one of its right side."""
    left, right = draw(st.booleans()), draw(st.booleans())
    return [
        *(Input(subpartition_bytes=draw(rows), type_number=1, intra_input_key_correlated=left) for _ in "ab"),
        Input(subpartition_bytes=draw(rows), type_number=2, intra_input_key_correlated=right),
    ]


def cells(share: Share) -> set[tuple[int, int]]:
    """Partition and subpartition of all data that a task reads."""
    return {
        (row, column)
        for part in share
        for row in indexes([part.partitions])
        for column in indexes([part.subpartitions])
    }


@given(joins(), volumes, st.integers(1, COLUMNS), st.integers(0, 7), st.sampled_from([None, 10, 32768]))
def test_every_part_of_a_join_meets_those_of_the_other_side_in_one_task(
    inputs: list[Input], volume: int, least: int, more: int, limit: int | None
) -> None:
    settings = BatchSettings(
        avg_data_volume_per_task=volume,
        min_parallelism=least,
        max_parallelism=min(least + more, COLUMNS),
        skewed_factor=1.5,
        skewed_threshold=20,
        max_subpartitions_per_task=limit,
    )
    found = decide(settings, inputs)
    assert settings.min_parallelism <= found.parallelism <= settings.max_parallelism
    right = [cells(share) for share in found.shares[-1]]
    for each, shares in zip(inputs[:-1], found.shares[:-1], strict=True):
        met = {
            (row, column, other)
            for share, others in zip(shares, right, strict=True)
            for row, column in cells(share)
            for other, same in others
            if same == column
        }
        all_rows, all_others = (len(result.subpartition_bytes) for result in (each, inputs[-1]))
        assert met == set(product(range(all_rows), range(COLUMNS), range(all_others)))


# Invalid input.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"avg_data_volume_per_task": 0}, "avg_data_volume_per_task of 1 or more, got 0"),
        ({"avg_data_volume_per_task": -5}, "avg_data_volume_per_task of 1 or more, got -5"),
        ({"min_parallelism": 0}, "1 <= min_parallelism <= max_parallelism, got 0 and 128"),
        ({"min_parallelism": 9, "max_parallelism": 8}, "1 <= min_parallelism <= max_parallelism, got 9 and 8"),
        ({"default_source_parallelism": 0}, "default_source_parallelism above 0, got 0"),
        ({"skewed_factor": 0.0}, "skewed_factor above 0, got 0"),
        ({"skewed_factor": float("nan")}, "skewed_factor above 0, got nan"),
        ({"skewed_threshold": -1}, "skewed_threshold above 0, got -1"),
        ({"max_subpartitions_per_task": 0}, "max_subpartitions_per_task above 0, got 0"),
    ],
)
def test_settings_that_flink_refuses_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        BatchSettings(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"subpartition_bytes": ()}, "the same number of subpartitions"),
        ({"subpartition_bytes": ((),)}, "the same number of subpartitions, 1 or more"),
        ({"subpartition_bytes": ((1, 2), (1,))}, "the same number of subpartitions"),
        ({"subpartition_bytes": ((1, 2), (1, -3))}, "0 or more bytes, got -3"),
        ({"subpartition_bytes": ((1,),), "broadcast": True, "pointwise": True}, "broadcast or pointwise, got both"),
    ],
)
def test_an_invalid_input_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Input(**changes)


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more bytes, got -1"):
        parallelism(BatchSettings(), -1)
    with pytest.raises(ValueError, match="0 or more bytes, got -2"):
        parallelism_1_15(BatchSettings(), -2, 1)


def test_without_bytes_one_task_suffices_but_without_a_volume_more_are_used() -> None:
    inputs = [one_partition(*[0] * 9), one_partition(0, broadcast=True)]
    assert decide(BatchSettings(), inputs).parallelism == 1
    # So they are divided by count: by the maximum parallelism since Flink 2.0, by the minimum before.
    assert decide(BatchSettings(min_parallelism=4, max_parallelism=8), inputs).parallelism == 8
    assert decide(BatchSettings(min_parallelism=4, max_subpartitions_per_task=32768), inputs).parallelism == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"parallelism": 0}, "1 <= parallelism <= max_parallelism, got 0 and None"),
        ({"parallelism": 9, "max_parallelism": 8}, "1 <= parallelism <= max_parallelism, got 9 and 8"),
        ({"max_parallelism": 0}, "1 <= parallelism <= max_parallelism, got None and 0"),
        ({"inferred": [200], "max_parallelism": 256}, "got lower 200 and upper 128"),
        ({"parallelism": 11}, "expected 1 to 10 tasks for 10 subpartitions, got 11"),
    ],
)
def test_an_invalid_parallelism_is_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        decide(BatchSettings(), [one_partition(*TEN)], **arguments)


@pytest.mark.parametrize("limit", [None, MAX_SUBPARTITIONS_PER_TASK])
def test_inputs_with_different_numbers_of_subpartitions_are_refused(limit: int | None) -> None:
    settings = BatchSettings(max_subpartitions_per_task=limit)
    with pytest.raises(ValueError, match=r"the same number of subpartitions, got \[2, 3\]"):
        decide(settings, [one_partition(1, 2), one_partition(1, 2, 3, type_number=2)])


def test_inputs_of_one_kind_must_agree_on_their_keys() -> None:
    with pytest.raises(ValueError, match="one intra_input_key_correlated for all inputs of type 0"):
        decide(BatchSettings(), [one_partition(1), one_partition(1, intra_input_key_correlated=False)])
    with pytest.raises(ValueError, match=r"to have as many partitions, got \[2, 3\]"):
        decide(BatchSettings(), [filled(2, pointwise=True), filled(3, pointwise=True)])
