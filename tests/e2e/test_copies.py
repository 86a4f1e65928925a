"""Copies of the daemon that share clusters: real processes, a real PostgreSQL, and faults of each.

All tests use one set of copies. The clocks of one copy are an hour ahead from the start. At the end the logs of the
targets and of the database are compared: who called which target, and in whose term.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.copies import PERIOD, RATE, Copies, copies, eventually
from tests.postgres_server import postgres

pytestmark = pytest.mark.e2e

CLUSTERS = int(os.environ.get("COPIES_CLUSTERS", "300"))

TAKEN = 20.0
"""Seconds within which another copy must have taken over."""

LOST = "leases lost: expired, or taken by another copy of the daemon"

AWAY = float(os.environ.get("COPIES_AWAY", "40"))
"""Seconds for which the database is away. COPIES_AWAY=600 is an outage of ten minutes."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    """Three copies that have been running for a while."""
    with postgres() as server, copies(tmp_path_factory.mktemp("copies"), server, CLUSTERS) as found:
        first = found.start()
        eventually(lambda: "clusters taken over" in first.messages(), first.log.read_text)
        found.start(ahead=3600)
        found.start()
        found.wait_until_balanced()
        time.sleep(5)
        yield found


@pytest.fixture
def system(played: Copies) -> Copies:
    """The same system, repaired after the previous fault."""
    while len(played.running) < 3:
        played.start()
    played.wait_until_balanced()
    return played


def test_a_killed_copy_is_replaced_by_the_others(system: Copies) -> None:
    killed = system.running[0]
    lost = system.owned_by(killed)
    killed.process.kill()
    at = time.time()
    eventually(lambda: len(system.owners()) == CLUSTERS and not system.owned_by(killed), patience=TAKEN)
    assert time.time() - at <= TAKEN
    # Not only owned, but with new decisions.
    eventually(lambda: all(times[-1] > at + 5 for name, times in system.ticks().items() if name in lost))


def test_a_copy_suspended_for_longer_than_the_lease_does_no_harm(system: Copies) -> None:
    stopped = system.running[0]
    lost = system.owned_by(stopped)
    at = time.time()
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: len(system.owners()) == CLUSTERS and not system.owned_by(stopped), patience=TAKEN)
        time.sleep(3)
    finally:
        continued = time.time()
        stopped.process.send_signal(signal.SIGCONT)
    eventually(lambda: LOST in stopped.messages(), stopped.log.read_text)
    system.wait_until_balanced()
    # It called only targets of leases that it had taken again.
    terms = system.terms()
    for call in system.calls():
        if call.process == stopped.process.pid and call.at > continued and call.cluster in lost:
            assert any(at < since < call.at for since, _, _ in terms[call.cluster])


def test_a_disconnected_copy_scales_nothing_and_resumes_afterwards(system: Copies) -> None:
    cut = system.running[0]
    lost = system.owned_by(cut)
    cut.way.cut()
    at = time.time()
    eventually(lambda: len(system.owners()) == CLUSTERS and not system.owned_by(cut), patience=TAKEN)
    time.sleep(5)
    assert cut.get("/readyz")[0] == 503
    reconnected = time.time()
    cut.way.mend()
    calls = [call for call in system.calls() if call.process == cut.process.pid and at + 1 < call.at < reconnected]
    assert calls == []
    eventually(lambda: "leases are renewed again" in cut.messages(), cut.log.read_text)
    system.wait_until_balanced()
    assert lost


def test_a_slow_database_delays_ticks_but_loses_no_lease(system: Copies) -> None:
    lines = [len(each.lines()) for each in system.running]
    for each in system.running:
        each.way.delay = 0.2
    begin = time.time()
    time.sleep(18)
    for each in system.running:
        each.way.delay = 0.0
    time.sleep(3)
    for each, number in zip(system.running, lines, strict=True):
        assert LOST not in each.messages()[number:]
    assert system.longest_gap(begin, time.time()) <= TAKEN


def test_a_restarted_database_is_used_again(system: Copies) -> None:
    lines = [len(each.lines()) for each in system.running]
    system.server.stop()
    system.server.start()
    at = time.time()
    eventually(lambda: all(times[-1] > at for times in system.ticks().values()))
    for each, number in zip(system.running, lines, strict=True):
        assert LOST not in each.messages()[number:]


def test_during_a_database_outage_nothing_is_scaled_the_reason_is_shown_and_everything_resumes(system: Copies) -> None:
    system.server.stop()
    time.sleep(2)
    begin = time.time()
    time.sleep(AWAY)
    for each in system.running:
        status, ready = each.get("/readyz")
        assert status == 503
        assert "postgresql://" in ready["store"]
        assert each.metric("autoscaler_leases_ok") == 0
        assert each.get("/healthz")[0] == 200
        assert "cannot renew leases: nothing is scaled" in each.messages()
    end = time.time()
    assert [call for call in system.calls() if begin < call.at < end] == []
    system.server.start()
    back = time.time()
    eventually(lambda: all(times[-1] > back for times in system.ticks().values()), patience=TAKEN + 10)
    system.wait_until_balanced()
    eventually(lambda: all(each.get("/readyz")[0] == 200 for each in system.running))


def test_any_copy_answers_for_all_clusters(system: Copies) -> None:
    names = sorted(system.names)
    asked = system.running[0]
    status, answer = asked.get("/api/v1/clusters")
    assert status == 200
    assert [row["name"] for row in answer["clusters"]] == names
    assert len(answer["copies"]) == 3
    assert [copy["problem"] for copy in answer["copies"]] == [None] * 3
    of_another = next(name for name, url in system.owners().items() if url != asked.url)
    status, cluster = asked.get(f"/api/v1/clusters/{of_another}")
    assert (status, cluster["name"]) == (200, of_another)
    status, decisions = asked.get(f"/api/v1/clusters/{of_another}/decisions?limit=3")
    assert (status, len(decisions["decisions"])) == (200, 3)
    assert asked.metric("autoscaler_copies") == 3
    assert asked.metric("autoscaler_leases_owned") == asked.metric("autoscaler_clusters")


def test_a_copy_that_does_not_answer_is_named(system: Copies) -> None:
    asked, silent = system.running[:2]
    of_silent = next(iter(system.owned_by(silent)))
    silent.process.send_signal(signal.SIGSTOP)
    try:
        status, answer = asked.get("/api/v1/clusters")
    finally:
        silent.process.send_signal(signal.SIGCONT)
    assert status == 200
    assert {copy["url"]: copy["problem"] for copy in answer["copies"]}[silent.url] == "no answer within 5 s"
    row = next(row for row in answer["clusters"] if row["name"] == of_silent)
    assert "cannot be asked" in row["problem"]
    assert len(answer["clusters"]) == CLUSTERS


def test_a_rolling_update_causes_no_long_gap_between_ticks(system: Copies) -> None:
    begin = time.time()
    for old in system.running:
        new = system.start()
        eventually(lambda new=new: "clusters taken over" in new.messages(), new.log.read_text)  # type: ignore[misc]
        old.process.terminate()
        assert old.process.wait(60) == 0
    eventually(lambda: len(system.owners()) == CLUSTERS)
    time.sleep(5)
    assert system.longest_gap(begin, time.time()) <= TAKEN


def test_two_copies_never_call_for_one_cluster_in_one_term(played: Copies) -> None:
    calls = played.calls()
    assert len(calls) > 2 * CLUSTERS
    assert len({call.process for call in calls}) > 3
    assert {key: callers for key, callers in played.callers_by_term().items() if len(callers) > 1} == {}
    assert played.calls_without_lease() == []


def test_rate_limits_hold_whatever_the_owner_of_a_cluster_and_its_clock(played: Copies) -> None:
    assert any(call.after - call.before == RATE for call in played.calls())
    assert played.faster_than_the_rate() == [], (RATE, PERIOD)
