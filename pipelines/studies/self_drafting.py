"""The page of the study ``self_drafting``: every arm, and what guesses cost and bring."""

from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, HF_LOOKUP, HF_PLAIN, PLAIN
from pipelines.reporting.comparison import By, Comparison
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.plots import BLUE, GREEN, PURPLE, picture
from pipelines.reporting.section import SPEEDUP, Section, Table, grid
from pipelines.reporting.self_drafting import CANDIDATES, DE, GUESSES, PASSES, UPKEEP, own_arms

COLOURS = {"lookahead": GREEN, "self": PURPLE}  # by the first letters of an arm; other arms are trees


def self_drafting(measured: Measured, pair: str) -> Section:
    """Every arm at every sampling setting; of static chains the best."""
    compared, tables = Comparison(measured), []
    for setting in measured.settings:
        own, by = own_arms(measured, setting), By(setting)
        arms = (PLAIN, measured.choices(setting).get(CHAIN, CHAIN), HF_LOOKUP, HF_PLAIN, *own)
        timed = {arm: (arm, by) for arm in arms if compared.speedup(arm, PLAIN, by)["value"] is not None}
        columns = compared.metrics(*PASSES, UPKEEP, of=own) | compared.metrics(SPEEDUP)
        tables.append(grid("arm", timed, columns, setting))
    return Section(
        "self_drafting",
        f"Drafting without a draft model on {pair}",
        "Tokens committed a pass (DE), the share of passes with candidates (HR), and tokens committed in those (AL).",
        tables,
        [picture("self_drafting", "Speed-up over tokens fed to a pass", fed_and_speed, tables)],
    )


def fed_and_speed(tables: list[Table]) -> Figure:
    """Measured speed-up over the tokens fed to a pass besides the newest one, one panel per sampling setting."""
    figure = Figure(figsize=(6.4 * len(tables), 4.2), layout="constrained")
    for axes, table in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables, strict=True):
        for row in table.record()["rows"]:
            if row[DE] is not None:
                dot = row[GUESSES] + row[CANDIDATES], row[SPEEDUP]["value"]
                colour = next((own for name, own in COLOURS.items() if row["arm"].startswith(name)), BLUE)
                axes.plot(*dot, "o", color=colour, markersize=4)
                axes.annotate(row["arm"], dot, fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.set(xlabel="guessed and candidate tokens a pass", ylabel=SPEEDUP, title=table.caption)
        axes.grid(color="#e6e6e6")
    return figure
