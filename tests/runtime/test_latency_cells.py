"""How cells are timed and put into tables; nothing here looks at how long anything takes."""

from itertools import count
from random import Random

from runtime.latency import Cell, replaced, share_waited, sweep, tables_of
from runtime.latency.cells import seconds_waited


def fake_cells(log, number=12, sizes=(3, 4)):
    """Cells that log what is called: every measurement returns 1, 2, 3, ... seconds."""
    seconds = count(1)
    places = [{"rows": row, "context": context} for row in range(sizes[0]) for context in range(sizes[1])]
    return [
        Cell(
            ("draft",),
            place,
            lambda place=place: (log.append(("measure", *place.values())), float(next(seconds)))[1:],
            lambda place=place: log.append(("before", *place.values())),
            lambda place=place: log.append(("end", *place.values())),
        )
        for place in places[:number]
    ]


def test_a_sweep_visits_every_cell_once_with_warm_up_and_what_comes_before():
    log, steps = [], []
    rows = sweep(fake_cells(log), Random(0), 2, 3, lambda: steps.append(1))
    assert len(rows) == len(steps) == 12
    assert all(len(row["seconds"]) == 3 for row in rows)
    assert [kind for kind, *_ in log] == [*["before", "measure"] * 5, "end"] * 12
    places = [tuple(place) for _, *place in log]
    assert all(len(set(places[start : start + 11])) == 1 for start in range(0, 132, 11))  # visits are not mixed
    first = rows[0]["seconds"]
    assert first == [3.0, 4.0, 5.0]  # the warm-up's calls 1 and 2 are left out


def test_tables_hold_median_and_quartiles_of_the_calls_of_all_sweeps():
    places = [(2, 64), (1, 64), (1, 8), (2, 8)]  # in the order of visits, not of the grid
    rows = [
        {"table": "draft", "at": {"rows": row, "context": context}, "seconds": [row + context, row + context + 4.0]}
        for row, context in places
    ]
    again = [{**row, "seconds": [seconds + 1 for seconds in row["seconds"]]} for row in rows[::-1]]
    table = tables_of(rows + again)["draft"]
    assert {name: list(grid) for name, grid in table.axes.items()} == {"rows": [1, 2], "context": [8, 64]}
    assert table.calls == 4
    for row, context in places:  # seconds: s, s + 1, s + 4, s + 5
        latency = table.at(rows=row, context=context)
        base = row + context
        assert (latency.low, latency.seconds, latency.high) == (base + 0.75, base + 2.5, base + 4.25)


def row(table, place, seconds, waited=0.0, lasted=1.0):
    return {"table": table, "at": {"rows": place}, "seconds": seconds, "waited": waited, "lasted": lasted}


def test_a_cells_new_calls_replace_its_old_ones_and_no_others():
    rows = [row("draft", place, [float(place)]) for place in (1, 2, 1, 2)]
    again = [row("draft", 2, [8.0]), row("draft", 2, [9.0])]
    table = tables_of(replaced(rows, again))["draft"]
    assert table.calls == 2 and table.median.tolist() == [1.0, 8.5]


def test_the_share_waited_is_that_of_all_visits():
    rows = [row("draft", 1, [1.0], 0.1, 0.5), row("target", 1, [1.0], 0.3, 1.5)]
    assert share_waited(rows) == 0.4 / 2.0
    assert share_waited([]) == 0.0


def test_the_scheduler_is_asked_of_every_thread(tmp_path):
    for thread, text in (("7", "5000000000 1500000000 12\n"), ("8", "1 250000000 1\n")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert seconds_waited(tmp_path) == 1.75
    assert seconds_waited(tmp_path / "no such system") == 0.0
