"""The page at `/` in a real Chromium, served by a real daemon with a day of history."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, expect

from autoscaler.web import self_contained
from tests.e2e.page_world import (
    EXPIRED,
    PICTURES,
    READ,
    WRITE,
    Opener,
    Tab,
    World,
    chromium,
    eventually,
    opener,
    remember_a_day,
    remember_a_week,
    tab_of,
    world,
)

pytestmark = pytest.mark.e2e

HTML = "<img src=x onerror=alert(1)>"
QUIET = [f"quiet-{number}" for number in range(1, 9)]
MAX_BYTES = 200_000
REDRAWN = """async () => {
    const times = [];
    for (let n = 0; n < 10; n++) {
        const begun = performance.now();
        document.dispatchEvent(new Event("theme"));
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - begun);
    }
    return times;
}"""
"""Milliseconds within which charts are redrawn after the colours change."""

WITHIN = 20_000.0
"""Milliseconds within which a change must arrive: the daemon normally decides and sends once a second."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with one cluster that has a day of history, two clusters in trouble, and some quiet ones."""
    with world(tmp_path_factory.mktemp("page")) as found:
        found.add("clicks", size=1, most=24)
        last = remember_a_day(found, "clicks")
        found.written.clear()
        found.add("clicks", size=last.decision.desired, most=24)
        found.add("full", size=2, most=2)
        found.add("broken", size=3, most=9)
        for name in QUIET:
            found.add(name, size=4, most=12)
            found.metrics.set(name, load=1500, capacity=2600)
        found.metrics.set("clicks", load=3900, capacity=4600)
        found.metrics.set("full", load=3000, capacity=1400, lag=500_000)
        found.metrics.clusters["broken"] = {"lag": 0, "arrivals": HTML, "throughput": 10, "utilization": 0.1}
        found.start()
        eventually(lambda: found.observed() == len(QUIET) + 3)
        yield found


@pytest.fixture(scope="module")
def opens(browser: Browser, house: World) -> Opener:
    return opener(browser, house)


@pytest.fixture
def tab(opens: Opener) -> Iterator[Tab]:
    with opens() as found:
        found.open()
        yield found


def names(tab: Tab) -> list[str]:
    return tab.page.locator("table.fleet a.name").all_inner_texts()


def row(tab: Tab, name: str) -> Any:
    return tab.page.locator("table.fleet tbody tr").filter(has=tab.page.get_by_role("link", name=name, exact=True))


def test_the_whole_page_is_small_and_loads_nothing_from_other_servers(tab: Tab, house: World) -> None:
    tab.go("#/cluster/clicks")
    tab.page.locator("figure[data-marks]").first.wait_for()
    sizes: dict[str, int] = tab.page.evaluate(
        """() => Object.fromEntries(
            ["navigation", "resource"].flatMap((type) => performance.getEntriesByType(type))
                .filter((each) => !/[/](api[/]|readyz)/.test(each.name))
                .map((each) => [each.name, each.decodedBodySize]))"""
    )
    assert len(sizes) > 10
    assert 50_000 < sum(sizes.values()) < MAX_BYTES
    assert [url for url in tab.requested if not url.startswith((house.url, "data:"))] == []


def test_the_content_security_policy_allows_no_script_but_its_own(tab: Tab) -> None:
    answer = tab.page.request.get(tab.url)
    assert answer.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'"
    )
    tab.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
        }"""
    )
    assert tab.page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in tab.said)
    tab.said.clear()


def test_clusters_with_problems_come_first_and_show_the_reason(tab: Tab) -> None:
    eventually(lambda: names(tab)[:2] == ["full", "broken"])
    expect(row(tab, "full").locator(".state")).to_contain_text("at its maximum of 2")
    expect(row(tab, "full").locator("th")).to_contain_text("In trouble")
    expect(tab.page.locator("#summary")).to_contain_text("2 in trouble")
    expect(row(tab, QUIET[0])).to_contain_text("1.5k")


def test_html_in_an_error_is_shown_as_text_and_has_no_effect(tab: Tab) -> None:
    expect(row(tab, "broken").locator(".state")).to_contain_text(HTML)
    tab.go("#/cluster/broken")
    expect(tab.page.locator(".sentence")).to_contain_text(HTML)
    expect(tab.page.locator(".trail")).to_contain_text(HTML)
    assert tab.page.locator("main img").count() == 0


def test_html_in_a_name_is_shown_as_text_and_has_no_effect(opens: Opener, house: World) -> None:
    all_rows = house.get("/api/v1/clusters")
    all_rows["clusters"][0] |= {
        "name": HTML,
        "fleet": "<b>fleet</b>",
        "trouble": "<svg onload=alert(2)>",
        "severity": 2,
    }
    all_rows["clusters"][0]["controls"] = [{"text": "<script>alert(3)</script>"}]
    with opens() as tab:
        tab.page.route("**/api/v1/clusters", lambda route: route.fulfill(body=json.dumps(all_rows)))
        tab.open()
        eventually(lambda: HTML in names(tab))
        expect(row(tab, HTML)).to_contain_text("<b>fleet</b>")
        row(tab, HTML).get_by_role("link").click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text(HTML)
        expect(tab.page.locator(".in-force")).to_have_text("<script>alert(3)</script>")
        assert tab.page.locator("main img, main svg[onload], main script, main b").count() == 0


def test_search_and_filters_show_only_matching_clusters(tab: Tab) -> None:
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("QUIET 3")
    eventually(lambda: names(tab) == ["quiet-3"])
    expect(tab.page.locator("#summary")).to_contain_text("1 of 11 clusters")
    assert "q=QUIET" in tab.page.url
    tab.page.keyboard.press("Escape")
    eventually(lambda: len(names(tab)) == 11)
    tab.page.get_by_label("State").select_option("trouble")
    eventually(lambda: set(names(tab)) == {"full", "broken"})
    tab.page.get_by_label("Search clusters").fill("nobody is called so")
    expect(tab.page.get_by_text("No cluster matches")).to_be_visible()


def test_a_change_is_shown_within_seconds_and_announced(tab: Tab, house: World) -> None:
    eventually(lambda: "full" in names(tab))
    try:
        house.metrics.clusters["quiet-8"] |= {"lag": None}
        expect(row(tab, "quiet-8").locator(".state")).to_contain_text("lag cannot be read", timeout=WITHIN)
        assert names(tab).index("quiet-8") < names(tab).index("quiet-1")
        expect(tab.page.locator("#live")).to_contain_text("In trouble: quiet-8")
    finally:
        house.metrics.set("quiet-8", load=1500, capacity=2600)
    expect(row(tab, "quiet-8").locator(".state")).not_to_contain_text("cannot be read", timeout=WITHIN)


def test_the_charts_show_a_day_with_its_decisions(tab: Tab) -> None:
    tab.go("#/cluster/clicks?range=24h")
    figures = tab.page.locator("figure[data-marks]")
    expect(figures).to_have_count(3)
    marks = int(figures.first.get_attribute("data-marks") or 0)
    assert marks >= 5
    assert tab.page.locator("ol.decisions button").count() >= marks
    expect(figures.nth(1)).to_contain_text("objective 1 min")
    # Something is drawn in each of the series' colours.
    drawn: list[list[bool]] = tab.page.evaluate(
        """() => [...document.querySelectorAll("figure[data-marks]")].map(figure => {
            const canvas = figure.querySelector("canvas");
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return [...figure.querySelectorAll(".swatch:not(.limit)")].map(swatch => {
                const [red, green, blue] = getComputedStyle(swatch).color.match(/[\\d.]+/g).map(Number);
                for (let i = 0; i < data.length; i += 4) {
                    const off = Math.abs(data[i] - red) + Math.abs(data[i + 1] - green) + Math.abs(data[i + 2] - blue);
                    if (off < 24 && data[i + 3] > 200) return true;
                }
                return false;
            });
        })"""
    )
    assert [len(each) for each in drawn] == [2, 2, 3]
    assert drawn[0] == [True, True]
    assert drawn[1][0]
    assert drawn[2][1]
    tab.picture("cluster")


def test_a_range_and_a_zoom_show_less_and_can_be_reset(tab: Tab) -> None:
    tab.go("#/cluster/clicks?range=24h")
    clock = tab.page.locator(".charts .clock").first
    expect(clock).to_contain_text(" to ")
    whole = clock.inner_text()
    area = tab.page.locator(".u-over").first
    box = area.bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=5)
    tab.page.mouse.up()
    tab.page.mouse.move(5, 5)
    back = tab.page.get_by_role("button", name="back from zoom")
    back.wait_for()
    expect(clock).not_to_have_text(whole)
    back.click()
    expect(back).to_be_hidden()
    tab.page.get_by_role("button", name="6h").click()
    assert "range=6h" in tab.page.url
    expect(tab.page.get_by_role("button", name="6h")).to_have_attribute("aria-pressed", "true")


def test_one_cursor_is_shown_in_all_charts(tab: Tab) -> None:
    tab.go("#/cluster/clicks?range=24h")
    tab.page.locator("figure[data-marks]").nth(2).wait_for()
    box = tab.page.locator(".u-over").first.bounding_box()
    assert box is not None
    values = tab.page.locator("figure output")
    before = values.all_inner_texts()
    tab.page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 30)
    expect(tab.page.locator(".charts .clock")).not_to_contain_text(" to ")
    after = values.all_inner_texts()
    assert after[0] != before[0]
    assert after[5] != before[5]


def test_everything_can_be_done_with_the_keyboard_alone(tab: Tab, house: World) -> None:
    press, focused = tab.page.keyboard.press, tab.page.locator(":focus")
    press("Tab")
    expect(focused).to_have_text("Skip to the content")
    expect(focused).to_be_in_viewport()
    press("Enter")
    expect(focused).to_have_id("main")
    press("ArrowDown")
    expect(focused).to_have_class("name")
    press("End")
    expect(focused).to_have_text("quiet-8")
    press("ArrowUp")
    expect(focused).to_have_text("quiet-7")
    press("/")
    tab.page.keyboard.type("clicks")
    press("Enter")
    expect(focused).to_have_text("clicks")
    press("Enter")
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("clicks")
    tab.page.get_by_role("button", name="24h").focus()
    press("Enter")
    decisions = tab.page.locator("ol.decisions button")
    eventually(lambda: decisions.count() >= 5)
    # From the range onwards: back to the charts, and the decisions after them.
    for _ in range(8):
        press("Tab")
        if tab.page.evaluate("document.activeElement.closest('ol.decisions') !== null"):
            break
    expect(decisions.first).to_be_focused()
    press("Tab")
    at = focused.get_attribute("data-at")
    press("Enter")
    expect(focused).to_contain_text("Decision of")
    trail = tab.page.locator(".trail")
    expect(trail.locator(".outcome")).to_contain_text("cluster clicks is scaled")
    said = house.get(f"/api/v1/clusters/clicks/decisions?limit=1&until={(at or '').replace('+', '%2B')}")["decisions"][
        0
    ]
    verdicts = trail.get_by_role("table", name="Each verdict").locator("tbody tr")
    assert verdicts.count() == len(said["decision"]["verdicts"])
    readings = trail.get_by_role("table", name="Each reading").locator("tbody tr")
    assert readings.count() >= len(said["observation"]["metrics"])
    tab.picture("decision")
    press("Escape")
    expect(decisions.nth(1)).to_be_focused()


def test_charts_are_read_and_zoomed_with_the_keyboard(tab: Tab) -> None:
    tab.go("#/cluster/clicks?range=24h")
    tab.page.locator("figure[data-marks]").nth(2).wait_for()
    tab.page.locator(".charts").focus()
    tab.page.keyboard.press("ArrowLeft")
    expect(tab.page.locator(".charts .clock")).not_to_contain_text(" to ")
    tab.page.keyboard.press("+")
    tab.page.get_by_role("button", name="back from zoom").wait_for()
    tab.page.locator(".charts").focus()
    tab.page.keyboard.press("0")
    expect(tab.page.get_by_role("button", name="back from zoom")).to_be_hidden()


def test_a_pause_set_in_its_dialog_reaches_the_daemon_and_is_shown(tab: Tab, house: World) -> None:
    tab.go("#/cluster/quiet-2")
    tab.enter(WRITE)
    expect(tab.page.locator("#access")).to_contain_text("Can change: alice")
    tab.page.get_by_role("button", name="Pause", exact=True).click()
    dialog = tab.page.get_by_role("dialog", name="Pause quiet-2")
    dialog.get_by_label("For", exact=True).select_option("4h")
    dialog.get_by_label("Reason").fill("the broker is being moved")
    dialog.get_by_role("button", name="Pause").click()
    expect(dialog).to_be_hidden()
    expect(tab.page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    control = house.get("/api/v1/controls")["controls"][0]
    assert (control["kind"], control["by"], control["reason"], control["clusters"]) == (
        "pause",
        "alice",
        "the broker is being moved",
        ["quiet-2"],
    )
    expect(tab.page.locator(".in-force")).to_contain_text("the broker is being moved", timeout=WITHIN)
    tab.go("#/controls")
    expect(tab.page.get_by_role("table", name="Controls in force")).to_contain_text("quiet-2")
    expect(tab.page.get_by_role("table", name="Audit, newest first").locator("tbody tr").first).to_contain_text("alice")
    tab.go("#/")
    tab.go("#/orders")  # its former address in bookmarks
    expect(tab.page.get_by_role("heading", name="Controls")).to_be_visible()
    tab.go("#/cluster/quiet-2")
    tab.page.get_by_role("button", name="Resume").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(tab.page.locator(".in-force")).to_be_hidden(timeout=WITHIN)
    assert house.get("/api/v1/controls")["controls"] == []


def test_a_refusal_by_the_daemon_is_explained_in_the_dialog(tab: Tab, house: World) -> None:
    tab.go("#/cluster/quiet-3")
    tab.enter(WRITE)
    expect(tab.page.locator("#access")).to_contain_text("Can change")
    tab.page.get_by_role("button", name="Limit").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("At least").fill("9")
    dialog.get_by_label("At most").fill("2")
    dialog.get_by_role("button", name="Limit").click()
    expect(dialog.get_by_role("alert")).to_contain_text("min is 9, expected at most max (2)")
    tab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert house.get("/api/v1/controls")["controls"] == []


def test_without_a_token_with_the_write_right_the_page_says_what_is_needed(tab: Tab) -> None:
    tab.go("#/cluster/quiet-4")
    pause = tab.page.get_by_role("button", name="Pause", exact=True)
    expect(pause).to_have_attribute("aria-disabled", "true")
    pause.press("Enter")
    dialog = tab.page.get_by_role("dialog", name="Access")
    expect(dialog).to_contain_text("rights: write")
    dialog.get_by_label("Token").fill(READ)
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog).to_be_hidden()
    expect(pause).to_have_attribute("title", "The token of grafana may only read: enter one with rights: write.")
    tab.enter("x" * 32)
    expect(dialog.get_by_role("alert")).to_have_text("The token is not one of daemon.tokens.")
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#access")).to_have_text("Access: read only")
    assert tab.page.evaluate("sessionStorage.token") == READ


@contextmanager
def reading_needs_a_token(house: World) -> Iterator[None]:
    """Require a token for reading, and wait at the end until it is free again: a refused page does not retry."""

    def refused() -> bool:
        try:
            house.get("/api/v1/clusters")
        except HTTPError as error:
            return error.code == 401
        return False

    text = house.config.read_text()
    house.reload(text.replace("daemon:\n", "daemon:\n  read_needs_token: true\n"))
    try:
        eventually(refused)
        yield
    finally:
        house.reload(text)
        eventually(lambda: not refused())


def test_if_reading_needs_a_token_the_page_asks_for_one(opens: Opener, house: World) -> None:
    with reading_needs_a_token(house), opens() as tab:
        tab.page.goto(tab.url)
        expect(tab.page.locator("#link-text")).to_have_text("refused")
        expect(tab.page.locator("#banner")).to_contain_text("needs a token")
        expect(tab.page.get_by_text("only with a valid token")).to_be_visible()
        tab.enter(READ)
        tab.page.locator("#link.live").wait_for()
        eventually(lambda: len(names(tab)) == len(QUIET) + 3)


def test_an_expired_token_is_refused_and_the_page_says_since_when(opens: Opener, house: World) -> None:
    since = "The token of carol has expired, at 2026-01-31 00:00:00 UTC"
    with opens() as tab:
        tab.open()
        tab.enter(EXPIRED)
        dialog = tab.page.get_by_role("dialog", name="Access")
        expect(dialog.get_by_role("alert")).to_have_text(f"{since}.")
        assert tab.page.evaluate("sessionStorage.token ?? null") is None
        # A token that expires while the page is open stays in the page.
        tab.page.evaluate("token => { sessionStorage.token = token }", EXPIRED)
        tab.page.reload()
        tab.page.locator("#link.live").wait_for()
        expect(tab.page.locator("#access")).to_have_text("Access: read only")
        expect(tab.page.locator("#access")).to_have_attribute(
            "title", f"{since}: enter another one with rights: write."
        )
        with reading_needs_a_token(house):
            tab.page.reload()
            expect(tab.page.locator("#link-text")).to_have_text("refused")
            expect(tab.page.locator("#banner")).to_have_text(f"{since}. Enter a token at “Access”.")


def test_a_token_is_stored_in_its_tab_only(tab: Tab) -> None:
    tab.enter(WRITE)
    expect(tab.page.locator("#access")).to_contain_text("Can change")
    assert tab.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    tab.page.reload()
    expect(tab.page.locator("#access")).to_contain_text("Can change")
    with tab.page.context.expect_page() as opened:
        tab.page.evaluate("window.open(location.href, '_blank', 'noopener')")
    opened.value.locator("#link.live").wait_for()
    expect(opened.value.locator("#access")).to_have_text("Access")


def test_a_requested_decision_is_made_at_once_and_explained(tab: Tab, house: World) -> None:
    tab.go("#/cluster/quiet-5")
    tab.enter(WRITE)
    expect(tab.page.locator("#access")).to_contain_text("Can change")
    tab.page.get_by_role("button", name="What would you do now?").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("a look at it")
    dialog.get_by_role("button", name="Decide now").click()
    expect(tab.page.get_by_role("heading", name="Decided now")).to_be_focused()
    expect(tab.page.locator(".trail .outcome")).to_contain_text("cluster quiet-5")
    entries = house.get("/api/v1/audit")["entries"]
    assert any(each["action"] == "decide" and each["reason"] == "a look at it" for each in entries)


def test_what_if_shows_another_objective_beside_the_recorded_history(tab: Tab) -> None:
    tab.go("#/cluster/clicks?range=6h")
    tab.page.get_by_label("Another objective").fill("20s")
    tab.page.get_by_role("button", name="Simulate").click()
    result = tab.page.locator(".result")
    expect(result.locator("figure[data-marks]")).to_have_count(2, timeout=60_000)
    expect(result.get_by_role("table", name="What if, in figures")).to_contain_text("What happened")
    result.scroll_into_view_if_needed()
    tab.picture("what-if")
    tab.page.get_by_label("Another objective").fill("soon")
    tab.page.get_by_role("button", name="Simulate").click()
    expect(result.get_by_role("alert")).to_contain_text("soon")


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("width", [1360, 360])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(opens: Opener, scheme: str, width: int) -> None:
    with opens(color_scheme=scheme, viewport={"width": width, "height": 800}) as tab:
        tab.open()
        eventually(lambda: len(names(tab)) > 3)
        found = {"fleet": tab.violations()}
        tab.picture(f"fleet-{scheme}-{width}")
        tab.go("#/cluster/clicks?range=24h")
        tab.page.locator("figure[data-marks]").nth(2).wait_for()
        tab.page.locator("ol.decisions button").first.click()
        tab.page.get_by_role("heading", name="Decision of").wait_for()
        found["cluster"] = tab.violations()
        assert tab.page.evaluate("document.documentElement.scrollWidth") == width
        tab.page.evaluate("scrollTo(0, 0)")
        tab.picture(f"cluster-{scheme}-{width}", full_page=True)
        tab.enter(WRITE)
        expect(tab.page.locator("#access")).to_contain_text("Can change" if width > 720 else "Can")
        tab.page.get_by_role("button", name="Hold").click()
        found["dialog"] = tab.violations()
        tab.picture(f"dialog-{scheme}-{width}")
        tab.page.keyboard.press("Escape")
        tab.go("#/controls")
        tab.page.get_by_role("heading", name="Who did what").wait_for()
        found["controls"] = tab.violations()
        assert tab.page.evaluate("document.documentElement.scrollWidth") == width
        assert found == {"fleet": [], "cluster": [], "dialog": [], "controls": []}


def test_the_theme_can_be_switched_and_is_remembered(tab: Tab) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = tab.page.evaluate(ground)
    theme = tab.page.locator("#theme")
    theme.click()
    expect(theme).to_contain_text("light")
    light = tab.page.evaluate(ground)
    assert light != dark
    tab.page.reload()
    expect(theme).to_contain_text("light")
    assert tab.page.evaluate(ground) == light


def test_an_unreachable_daemon_is_reported_and_updates_resume_when_it_is_back(tab: Tab, house: World) -> None:
    eventually(lambda: "full" in names(tab))
    house.stop()
    expect(tab.page.locator("#link")).to_contain_text("stale since", timeout=WITHIN)
    expect(tab.page.locator("#banner")).to_contain_text("Trying again in")
    expect(tab.page.locator("#banner")).to_contain_text("The data is from")
    assert "full" in names(tab)
    house.start()
    expect(tab.page.locator("#link")).to_have_class("link live", timeout=45_000)
    expect(tab.page.locator("#banner")).to_be_hidden()


THOUSAND = 1000
JOBS = ("ads", "alerts", "bids", "clicks", "fraud", "ledger", "orders", "search", "sessions", "views")
CROWD = [f"{JOBS[number % 10]}-{('eu', 'us', 'ap')[number % 3]}-{number:03}" for number in range(THOUSAND)]
GROWING = CROWD[100:104]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with a thousand clusters, of which a few have problems and two are paused."""
    with world(tmp_path_factory.mktemp("crowd"), interval=5000) as found:
        for number, name in enumerate(CROWD):
            size = 2 + number * 7 % 23
            found.add(name, size=size, least=1 if name in GROWING else size, most=48 if name in GROWING else size)
            capacity = size * 700.0
            found.metrics.set(name, load=capacity * (0.35 + number * 37 % 50 / 100), capacity=capacity)
            found.metrics.clusters[name]["lag"] = size * 250.0 * (number * 13 % 41)
        for name, behind in (("orders-eu-006", 400), ("fraud-us-004", 95)):
            size = 2 + CROWD.index(name) * 7 % 23
            found.metrics.set(name, load=size * 800.0, capacity=size * 700.0, lag=size * 700.0 * behind)
        del found.metrics.clusters["search-ap-017"]
        found.start()
        eventually(lambda: found.observed() == THOUSAND, 120)
        paused = {"action": "pause", "clusters": ["ledger-us-025", "ledger-us-055"], "for": "4h", "reason": "migration"}
        found.post("/api/v1/controls", paused)
        yield found


def test_scrolling_through_a_thousand_rows_is_smooth(browser: Browser, crowd: World) -> None:
    with opener(browser, crowd)() as tab:
        tab.page.add_init_script(
            """window.tasks = [];
            new PerformanceObserver((list) => tasks.push(...list.getEntries().map((each) => each.duration)))
                .observe({ type: "longtask", buffered: true });"""
        )
        tab.open()
        eventually(lambda: len(names(tab)) > 10)
        grid = tab.page.locator("table.fleet")
        assert grid.get_attribute("aria-rowcount") == str(THOUSAND + 1)
        assert grid.locator("tbody tr").count() < 60
        paint = tab.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        # An update of a thousand clusters changes the visible rows, and recreates none. They are sorted by their sizes,
        # which do not change: on a busy machine a problem of a cluster may begin or end.
        tab.page.get_by_role("button", name="Workers").click()
        rows = "Object.fromEntries([...document.querySelectorAll('a.name')].map((link) => [link.textContent, link]))"
        tab.page.evaluate(f"window.before = {rows}; window.tasks.length = 0")
        texts = tab.page.locator("td.state .text")
        before = texts.all_inner_texts()
        eventually(lambda: texts.all_inner_texts() != before)
        tab.page.wait_for_timeout(6000)
        assert tab.page.evaluate(f"Object.entries({rows}).every(([name, link]) => window.before[name] === link)")
        updating = tab.page.evaluate("window.tasks")
        # Scrolled down and up again: the document stays small, and the last row is shown.
        frames: list[float] = tab.page.evaluate(
            """async () => {
                window.tasks.length = 0;
                const times = [];
                let last = performance.now();
                for (let y = 0; y < document.documentElement.scrollHeight; y += 400) {
                    scrollTo(0, y);
                    await new Promise(requestAnimationFrame);
                    times.push(performance.now() - last);
                    last = performance.now();
                }
                scrollTo(0, document.documentElement.scrollHeight);
                return times;
            }"""
        )
        eventually(lambda: tab.page.locator(f"tr[aria-rowindex='{THOUSAND + 1}']").count() == 1)
        assert grid.locator("tbody tr").count() < 60
        scrolling = tab.page.evaluate("window.tasks")
        median = sorted(frames)[len(frames) // 2]
        print(  # noqa: T201 - figures
            f"\nfirst contentful paint {paint:.0f} ms; long tasks: {len(updating)} in 6 s of updates (longest "
            f"{max(updating, default=0):.0f} ms), {len(scrolling)} in {len(frames)} steps of scrolling (longest "
            f"{max(scrolling, default=0):.0f} ms); frame {median:.1f} ms in the median, {max(frames):.0f} ms at most"
        )
        tab.page.locator("#main").focus()
        tab.page.keyboard.press("Home")
        expect(tab.page.locator("tr[aria-rowindex='2'] a")).to_be_focused()
        assert tab.page.evaluate("scrollY") < 100
        if PICTURES:
            tab.page.get_by_role("button", name="Trouble first").click()
            for name in GROWING:
                crowd.metrics.set(name, load=14_000, capacity=9_000, lag=30_000)
            for _ in range(60):
                if tab.page.locator("td.moving", has_text="→").count() > 2:
                    break
                tab.page.wait_for_timeout(500)
            tab.page.evaluate("scrollTo(0, 0)")
            tab.picture("fleet")
            tab.page.set_viewport_size({"width": 360, "height": 740})
            tab.page.wait_for_timeout(500)
            tab.picture("phone")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60):  # noqa: S310 - the daemon of this test
            return True
    except (OSError, HTTPException):
        return False


def test_a_week_is_drawn_from_a_small_answer(browser: Browser, tmp_path: Path) -> None:
    with world(tmp_path) as found:
        found.add("clicks", size=1, most=24)
        last = remember_a_week(found, "clicks")
        found.written.clear()
        found.add("clicks", size=last.decision.desired, most=24)
        found.metrics.set("clicks", load=3900, capacity=4600)
        found.start()
        eventually(lambda: found.observed() == 1)
        # The first request reads a week of decisions from the state store. A busy machine needs longer than the 30 s of
        # a request; the work continues meanwhile, and its result is available to the next request.
        begun = time.monotonic()
        eventually(lambda: _answers(f"{found.url}/api/v1/clusters/clicks/series"), 600)
        filled = time.monotonic() - begun
        with opener(browser, found)() as tab:
            tab.open()
            with tab.page.expect_response(re.compile("/series[?]"), timeout=60_000) as answered:
                tab.go("#/cluster/clicks?range=7d")
            figures = tab.page.locator("figure[data-marks]")
            expect(figures).to_have_count(3)
            drawn = tab.page.evaluate(
                """() => {
                    const entries = performance.getEntriesByType("resource");
                    const [entry] = entries.filter((each) => /[/]series[?]/.test(each.name));
                    return { waited: entry.responseEnd - entry.startTime, bytes: entry.encodedBodySize };
                }"""
            )
            body = answered.value.body()
            series = json.loads(body)
            redrawn: list[float] = tab.page.evaluate(REDRAWN)
            print(  # noqa: T201 - figures
                f"\na week: {len(series['at'])} points, {len(series['decisions'])} changes of size, {len(body):,} "
                f"bytes ({drawn['bytes']:,} on the wire), {drawn['waited']:.0f} ms to answer, "
                f"{filled:.1f} s to read the store before; "
                f"charts drawn again in {sorted(redrawn)[len(redrawn) // 2]:.1f} ms in the median of {len(redrawn)}"
            )
            # A period is 15 minutes: 672 in a week, of which the page requests 600.
            assert 400 <= len(series["at"]) <= 700
            assert series["at"][-1] - series["at"][0] > 6.5 * 24 * 3600
            known = [value for value in series["load"] if value is not None]
            assert len(known) > 0.95 * len(series["at"])
            assert max(known) > 3 * min(known)  # the labels of the days are visible
            assert drawn["bytes"] < 50_000
            assert int(figures.first.get_attribute("data-marks") or 0) > 30
            assert len(redrawn) == 10
            clock = tab.page.locator(".charts .clock").first
            expect(clock).to_contain_text(" to ")
            tab.picture("week")


RECORDED = os.environ.get("AUTOSCALER_PAGE_RUN")
"""A page.html of another run, such as a demo, to test instead of that of a simulated run."""

RUN = r'<script type="application/json" id="run">(.*?)</script>'
"""The run that a file contains."""


def simulated(directory: Path, load: str) -> Path:
    """The page of a simulated run, as a file."""
    example = Path(__file__).parents[2] / "examples" / "flink-kubernetes.yaml"
    command = [sys.executable, "-m", "autoscaler", "simulate", str(example), "--load", load, "--open"]
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment["TMPDIR"] = str(directory)
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = re.search(r"page: (\S+\.html)", printed.stdout + printed.stderr)
    assert found is not None
    return Path(found[1])


def test_a_run_is_shown_from_a_file_without_any_request(browser: Browser, tmp_path: Path) -> None:
    with tab_of(browser, simulated(tmp_path, "steps6h").as_uri()) as tab:
        tab.page.goto(tab.url)
        expect(tab.page.locator("#link-text")).to_have_text("a recorded run")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("clicks")
        expect(tab.page.locator("figure[data-marks]")).to_have_count(3)
        assert int(tab.page.locator("figure").first.get_attribute("data-marks") or 0) > 3
        tab.page.locator("ol.decisions button").last.click()
        expect(tab.page.get_by_role("heading", name="Decision of")).to_be_focused()
        expect(tab.page.locator(".trail .outcome")).to_contain_text("cluster clicks is scaled")
        expect(tab.page.get_by_role("button", name="Pause")).to_have_attribute("title", re.compile("recorded run"))
        expect(tab.page.get_by_role("heading", name="Capacity by size")).to_be_visible()
        assert tab.violations() == []
        tab.page.evaluate("scrollTo(0, 0)")
        tab.picture("file")
        assert [url for url in tab.requested if not url.startswith(("file:", "data:"))] == []


MOMENTS = 5
FRAME = {"width": 400, "height": 1080}
OVERLAPS = """() => {
    const clock = document.querySelector(".charts .clock").getBoundingClientRect();
    return [...document.querySelectorAll(".charts .key")].some((each) => {
        const key = each.getBoundingClientRect();
        return key.left < clock.right && clock.left < key.right && key.top < clock.bottom && clock.top < key.bottom;
    });
}"""


def until(recorded: dict[str, Any], share: float) -> dict[str, Any]:
    """A recorded run of one cluster, cut after this share of it."""
    [row], [name] = recorded["clusters"], recorded["series"]
    series = recorded["series"][name]
    count = max(2, round(share * len(series["at"])))
    now = series["at"][count - 1]

    def before(text: str) -> bool:
        return bool(datetime.fromisoformat(text).timestamp() <= now)

    cut = {key: value[:count] for key, value in series.items() if isinstance(value, list)}
    changes = {key: [each for each in series[key] if before(each["at"])] for key in ("decisions", "rescales")}
    for each in changes["rescales"]:
        if each["ended_at"] is not None and not before(each["ended_at"]):
            each |= {"ended_at": None, "outcome": None}
    at = datetime.fromtimestamp(now, UTC).isoformat()
    figures = {key: series[key][count - 1] for key in ("load", "capacity", "lag", "backlog_time", "current", "desired")}
    decisions = [each for each in recorded["decisions"][name] if before(each["decision"]["at"])]
    shown = {**row, **(decisions[-1] if decisions else {}), **figures, "at": at, "ready": series["ready"][count - 1]}
    if share < 1:
        shown |= {"trouble": None, "severity": 0, "missing": {}, "problem": None}  # those of the end
    return {
        **recorded,
        "clusters": [shown],
        "series": {name: {**series, **cut, **changes, "until": at}},
        "decisions": {name: decisions},
    }


def test_consecutive_pictures_of_a_run_show_more_and_more_of_it(browser: Browser, tmp_path: Path) -> None:
    file = Path(RECORDED) if RECORDED else simulated(tmp_path, "steps6h")
    recorded = json.loads(re.findall(RUN, file.read_text(), re.DOTALL)[0])
    marks, pictures = [], []
    for number in range(MOMENTS):
        file = tmp_path / f"{number}.html"
        file.write_text(self_contained(until(copy.deepcopy(recorded), (number + 1) / MOMENTS)))
        with tab_of(browser, file.as_uri(), viewport=FRAME) as tab:
            tab.page.goto(tab.url)
            figures = tab.page.locator("figure[data-marks]")
            expect(figures).to_have_count(3)
            marks.append(int(figures.first.get_attribute("data-marks") or 0))
            assert not tab.page.evaluate(OVERLAPS)
            pictures.append(tab.page.screenshot())
    assert marks == sorted(marks)
    assert marks[-1] > marks[0]
    assert len(set(pictures)) == MOMENTS
    if PICTURES:
        sources = [f"data:image/png;base64,{b64encode(each).decode()}" for each in pictures]
        images = "".join(f"<img src='{each}' style='float:left; margin-right:8px'>" for each in sources)
        width = MOMENTS * (FRAME["width"] + 8) - 8
        with tab_of(browser, "", viewport={"width": width, "height": FRAME["height"]}) as tab:
            tab.page.set_content(f"<body style='margin:0; width:{width + 8}px; overflow:hidden'>{images}")
            tab.picture("strip")


def test_html_in_a_recorded_run_is_shown_as_text_and_has_no_effect(browser: Browser, tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "name": HTML,
        "fleet": None,
        "dry_run": False,
        "at": "2026-01-05T00:00:00+00:00",
        "age": 0,
        "min": 1,
        "max": 2,
        **dict.fromkeys(
            ("current", "ready", "proposed", "desired", "load", "capacity", "lag", "backlog_time", "objective")
        ),
        "reason": "steady",
        "rescale": None,
        "controls": [],
        "missing": {},
        "problem": None,
        "learned": None,
        "trouble": "</script><script>alert(1)</script>",
        "severity": 2,
    }
    file = tmp_path / "run.html"
    file.write_text(self_contained({"clusters": [row, {**row, "name": "b"}], "series": {}, "decisions": {}}))
    with tab_of(browser, file.as_uri()) as tab:
        tab.page.goto(tab.url)
        eventually(lambda: names(tab) == [HTML, "b"])
        tab.page.keyboard.press("ArrowDown")
        tab.page.keyboard.press("Enter")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text(HTML)
        expect(tab.page.locator(".sentence")).to_have_text("</script><script>alert(1)</script>")
        expect(tab.page.get_by_text("this file has no series")).to_be_visible()
