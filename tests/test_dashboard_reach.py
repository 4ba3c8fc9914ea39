"""The dashboard for everybody: keyboard, themes, names for screen readers, small windows; and its parts."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.timeout(180)


# --- keyboard, themes, readers


def test_the_keyboard_alone_is_enough(crowd, watch):
    page = watch.open(crowd)
    expect(page.get_by_role("table")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Sessions", level=1)).to_be_focused()
    rows = page.locator("tbody [data-row]")
    expect(rows).to_have_count(50)
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(rows.nth(1)).to_be_focused()
    session_id = rows.nth(1).inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Session {session_id}")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("tbody [data-row]:focus")).to_have_text(session_id)
    page.keyboard.press("n")
    expect(page.get_by_text(re.compile("^51–100 of"))).to_be_visible()
    expect(rows.first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search sessions")).to_be_focused()
    page.keyboard.type("jk?")  # Letters in a field are letters.
    expect(page.get_by_label("Search sessions")).to_have_value("jk?")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_tab_goes_through_the_page_in_order_and_shows_where_it_is(live, watch):
    page = watch.open(live)
    expect(page.get_by_role("table")).to_be_visible()
    names = []
    for _ in range(13):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => {
              const node = document.activeElement;
              const style = getComputedStyle(node);
              const row = node.closest("tr") && getComputedStyle(node.closest("tr"));
              const isShown = style.outlineStyle !== "none" || (row && row.boxShadow !== "none");
              return [node.getAttribute("aria-label") ?? node.textContent.trim(), isShown];
            }"""
        )
        assert focus[1], f"nothing shows that {focus[0]} has the focus"
        names.append(focus[0])
    assert names[0] == "Skip to content"
    wanted = ["AgentRL", "Overview", "Workers", "Sessions", "Play"]
    assert [re.sub(r"\d+$", "", name) for name in names[1:6]] == wanted
    assert "guess" in names
    assert names.index("guess") < names.index("Play guess")


def test_charts_are_read_with_arrow_keys(live, watch):
    page = watch.open(live)
    plot = page.locator(".plot").first
    expect(plot).to_have_attribute("aria-label", re.compile("Requests a second, last 15 minutes"))
    plot.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".chart .when").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    expect(page.locator(".chart [aria-live]").first).to_contain_text("Requests")


LUMINANCE = """
() => {
  const probe = document.body.appendChild(document.createElement("div"));
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (name) => {
    probe.style.color = `var(--${name})`;
    canvas.fillStyle = getComputedStyle(probe).color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const names = ["ink", "soft", "faint", "accent", "good", "warn", "bad", "page", "panel", "side"];
  const found = Object.fromEntries(names.map((name) => [name, luminance(name)]));
  probe.remove();
  return found;
}
"""


def test_both_themes_follow_the_system_and_are_readable(live, watch):
    for scheme in ("light", "dark"):
        page = watch.open(live, color_scheme=scheme)
        found = page.evaluate(LUMINANCE)
        assert (found["page"] > 0.5) == (scheme == "light")
        for text in ("ink", "soft", "faint", "accent", "good", "warn", "bad"):
            for ground in ("page", "panel", "side") if text in ("ink", "soft", "faint") else ("panel",):
                high, low = sorted((found[text], found[ground]), reverse=True)
                contrast = (high + 0.05) / (low + 0.05)
                assert contrast >= 4.5, f"{text} on {ground} in {scheme}: {contrast:.2f}"


def test_a_chosen_theme_wins_and_stays(live, watch):
    page = watch.open(live, color_scheme="light")
    button = page.get_by_role("button", name=re.compile("theme"))
    for label, is_light in (("System theme", True), ("Light theme", True), ("Dark theme", False)):
        expect(button).to_have_attribute("aria-label", f"{label}: change")
        assert (page.evaluate(LUMINANCE)["page"] > 0.5) == is_light
        page.keyboard.press("t")
    page.keyboard.press("t")
    page.keyboard.press("t")
    page.reload()
    expect(button).to_have_attribute("aria-label", "Dark theme: change")
    assert page.evaluate(LUMINANCE)["page"] < 0.5


@pytest.mark.parametrize("view", ["", "#/workers", "#/sessions", "#/play"])
def test_everything_that_can_be_used_has_a_name_and_views_have_one_heading(live, watch, view):
    page = watch.open(live, view)
    expect(page.locator("main .view")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("main")).to_have_count(1)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a[href], input, select, textarea, [tabindex='0']")]
          .filter((node) => node.checkVisibility())
          .filter((node) => !node.getAttribute("aria-label") && !node.labels?.length)
          .filter((node) => !node.textContent.trim())
          .map((node) => node.outerHTML)"""
    )
    assert unnamed == []


def test_a_small_window_shows_everything_without_scrolling_sideways(crowd, watch):
    for view in ("", "#/workers", "#/sessions", "#/play"):
        page = watch.open(crowd, view, viewport={"width": 390, "height": 800})
        expect(page.locator("main .view")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


# --- parts


def test_a_form_is_made_of_a_tools_schema(live, watch):
    page = watch.open(live)
    schema = {
        "type": "object",
        "required": ["text", "size"],
        "properties": {
            "text": {"type": "string"},
            "size": {"enum": ["S", "M", 3]},
            "count": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": 2},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }
    values = page.evaluate(
        """async (schema) => {
          const { SchemaForm } = await import("/dashboard/schema_form.js");
          const form = new SchemaForm(schema);
          document.body.append(form.element);
          const set = (name, value) => { form.element.querySelector(`[name=${name}]`).value = value; };
          const first = form.value();
          set("text", "a\\nb"); set("size", "2"); set("count", "7");
          set("share", "0.5"); set("sure", "false"); set("tags", '["x"]');
          const second = form.value();
          const refused = [];
          for (const [name, value] of [["count", "0"], ["count", "1.5"], ["tags", "[x"]]) {
            set(name, value);
            try { form.value(); } catch (error) { refused.push(error.message.split(":")[0]); }
            set("count", ""); set("tags", "");
          }
          form.element.remove();
          return [first, second, refused];
        }""",
        schema,
    )
    assert values == [
        {"text": "", "size": "S", "count": 2},
        {"text": "a\nb", "size": 3, "count": 7, "share": 0.5, "sure": False, "tags": ["x"]},
        ["count", "count", "tags"],
    ]


def test_numbers_are_written_as_people_read_them(live, watch):
    page = watch.open(live)
    written = page.evaluate(
        """async () => {
          const { ago, count, decimal, duration, long, rate, signed } = await import("/dashboard/format.js");
          const { ceiling, runs } = await import("/dashboard/charts.js");
          return {
            duration: [null, 0, 0.00042, 0.0123, 0.9999, 1.5, 12.34, 754].map(duration),
            rate: [null, 0, 0.25, 12.3, 1234.5].map(rate),
            ago: [0, 59.9, 61, 7200, 200000].map(ago),
            rest: [count(10000), decimal(-0.12345), signed(0.5), signed(-1), long(3725)],
            ceiling: [0, 0.03, 1, 1.1, 7, 950].map(ceiling),
            runs: runs([[0, 1], [5, 2], [10, null], [15, 3], [60, 4]].map(([at, x]) => ({ at, x })), "x")
              .map((run) => run.map((point) => point.value)),
          };
        }"""
    )
    assert written == {
        "duration": ["–", "0 s", "420 µs", "12.3 ms", "1.00 s", "1.50 s", "12.3 s", "12 min 34 s"],
        "rate": ["–", "0", "0.25", "12.3", "1,235"],
        "ago": ["now", "59 s ago", "1 min ago", "2 h ago", "2 d ago"],
        "rest": ["10,000", "−0.123", "+0.5", "−1", "1 h 2 min"],
        "ceiling": [1, 0.03, 1, 1.2, 8, 1000],
        "runs": [[1, 2], [3], [4]],
    }
