"""The study's Markdown: the tables of papers 004 and 001 for one pair, every number with its 95 % interval.

by slice      004, Tables 2 and 3: rule by slice, settings pooled
by setting    004, appendix F: rule by sampling setting, with and without delayed expansion
chains        001, Table 1 and the ablations: tokenwise against block (= HSD) by γ and by temperature
eleven        001, Table 2: eleven drafts
phases        001, Table A.4: where a token's time goes
depth         004, Figure 1: acceptance by depth and the laws' distance
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipelines.measuring.verifiers.names import AS_DRAFTED, BLOCK_EFFICIENCY, TOKENS_PER_SECOND
from pipelines.reporting.markdown import table
from pipelines.reporting.statistics import Interval
from pipelines.reporting.verifier_folder import VerifierComparison
from pipelines.reporting.verifier_report import VerifierReport
from predictors.rounds import PHASES

ELEVEN = "eleven"


class VerifierTables:
    """Markdown tables of one comparison."""

    def __init__(self, comparison: VerifierComparison, report: VerifierReport) -> None:
        self.comparison = comparison
        self.report = report
        self.slices = [*sorted(comparison.roots["slice"].unique()), None]
        timed = comparison.timed_settings
        self.reference = "T=1" if "T=1" in timed else timed[0]

    def sections(self) -> dict[str, str]:
        """Title and Markdown of every section."""
        return {
            "Who wins where": self.winners(),
            "Best block efficiency by slice, exact expectation (paper 004, Table 2)": self.by_slice("expected"),
            "The same shapes, decoded (timed settings only)": self.by_slice("decoded"),
            "Best tokens per second by slice (paper 004, Table 3)": self.by_slice("tokens_per_second"),
            "Best block efficiency by setting, exact expectation (paper 004, appendix F)": self.by_setting("expected"),
            "The same shapes, decoded": self.by_setting("decoded"),
            "Best tokens per second by setting": self.by_setting("tokens_per_second"),
            "Shapes chosen": self.chosen_shapes(),
            f"Chains by draft length, {self.reference} (paper 001)": self.chains_by_length(),
            "Every shape with every rule, exact expectation, all settings": self.every_shape(),
            "Every rule against traversal (on chains: block) on the same trees, paired, all settings": self.paired(),
            f"The same by sampling setting, on {self._widest()}": self.paired_by_setting(),
            "Chains by sampling setting (paper 001)": self.chains_by_setting(),
            "Eleven drafts of eight tokens (paper 001, Table 2)": self.eleven(),
            f"Where a token's time goes, {self.reference} (paper 001, Table A.4)": self.phases(),
            "Acceptance by depth (paper 004, Figure 1)": self.by_depth(),
        }

    def winners(self) -> str:
        """The best rule by setting and by slice, and which others the data do not tell apart from it."""
        measures = {
            BLOCK_EFFICIENCY: ("block efficiency, exact", self.comparison.settings),
            TOKENS_PER_SECOND: ("tokens per second", self.comparison.timed_settings),
        }
        rows = []
        for measure, (label, settings) in measures.items():
            scopes = [(name, [name], None) for name in settings]
            scopes += [(slice_ or "all", settings, slice_) for slice_ in self.slices]
            for name, some, slice_ in scopes:
                best = self.report.winner(measure, some, slice_)
                key = "tokens_per_second" if measure == TOKENS_PER_SECOND else "expected"
                rows.append([label, name, best["name"], _cell(best["value"], key), ", ".join(best["tied"]) or "none"])
        return table(["measure", "where", "first", "value", "not told apart from it"], rows)

    def by_slice(self, key: str) -> str:
        """Rows are rules, columns slices."""
        columns = [
            self._rows(key, self._settings(key), slice_) for slice_ in self.slices
        ]  # one list of rules per column
        rows = [[cells[0]["name"], *(_cell(cell[key], key) for cell in cells)] for cells in zip(*columns, strict=True)]
        return table(["rule", *(name or "all" for name in self.slices)], rows)

    def by_setting(self, key: str) -> str:
        """Rows are rules, columns sampling settings."""
        settings = self._settings(key)
        columns = [self._rows(key, [name], None) for name in settings]
        rows = [[cells[0]["name"], *(_cell(cell[key], key) for cell in cells)] for cells in zip(*columns, strict=True)]
        return table(["rule", *settings], rows)

    def chosen_shapes(self) -> str:
        """What validation prompts chose: for block efficiency, and after a slash for speed."""
        best = [self.report.block_efficiencies([name]) for name in self.comparison.settings]
        fast = {name: self.report.speeds([name]) for name in self.comparison.timed_settings}
        rows = []
        for index, first in enumerate(best[0]):
            cells = [first["name"]]
            for name, column in zip(self.comparison.settings, best, strict=True):
                speed = f" / {fast[name][index]['drafters'][0]}" if name in fast else ""
                cells.append(column[index]["drafters"][0] + speed)
            rows.append(cells)
        return table(["rule", *self.comparison.settings], rows)

    def every_shape(self) -> str:
        """Rows are shapes in the grid's order, columns rules: compare at equal depth here."""
        roots = self.comparison.roots
        rules = [str(name) for name in roots["verifier"].unique()]
        rows = []
        for shape, part in roots.groupby("drafter", sort=False):
            cells = {
                rule: self.report.bootstrap(some["document"]).rate(some["expected"], np.ones(len(some)))
                for rule, some in part.groupby("verifier")
            }
            nodes = part["nodes"].mean()
            rows.append([str(shape), f"{nodes:.1f}", *(_cell(cells.get(rule), "expected") for rule in rules)])
        return table(["shape", "nodes", *rules], rows)

    def paired(self) -> str:
        """Ratios of exact block efficiencies: no verification noise, and what trees differ in cancels."""
        rules, settings = self._verifiers(), self.comparison.settings
        shapes = [str(shape) for shape in self.comparison.roots["drafter"].unique()]
        return table(["shape", *rules], [[shape, *self._paired_cells(shape, rules, settings)] for shape in shapes])

    def paired_by_setting(self) -> str:
        """The same by sampling setting, on the widest tree of i.i.d. paths."""
        rules, shape = self._verifiers(), self._widest()
        settings = self.comparison.settings
        return table(["setting", *rules], [[name, *self._paired_cells(shape, rules, [name])] for name in settings])

    def _verifiers(self) -> list[str]:
        return [str(name) for name in self.comparison.roots["verifier"].unique()]

    def _widest(self) -> str:
        roots = self.comparison.roots
        return str(roots[roots["family"] == "iid"].groupby("drafter")["nodes"].mean().idxmax())

    def _paired_cells(self, shape: str, rules: list[str], settings: list[str]) -> list[str]:
        roots = self.comparison.roots
        measured = set(roots.loc[roots["drafter"] == shape, "verifier"])
        items = {
            rule: pd.concat([self.comparison.expected(setting, shape, rule) for setting in settings])
            for rule in rules
            if rule in measured
        }
        base = items["block" if "block" in measured else "traversal"] if measured & {"block", "traversal"} else None
        known = {} if base is None else {rule: self.report.ratio(some, base) for rule, some in items.items()}
        return [_cell(known.get(rule), "expected") for rule in rules]

    def chains_by_length(self) -> str:
        """Tokenwise and block by γ."""
        return self._pairs([(self.reference, name, name) for name in self._chains()])

    def chains_by_setting(self) -> str:
        """Tokenwise and block by sampling setting, at γ of the middle."""
        chains = self._chains()
        middle = chains[len(chains) // 2]
        return self._pairs([(name, middle, f"{name}, {middle}") for name in self.comparison.settings])

    def eleven(self) -> str:
        """Rules on the shape of eleven drafts, by timed setting."""
        rows = []
        for setting in self.comparison.timed_settings:
            for family, verifier in self.comparison.rules:
                if family == ELEVEN:
                    drafter = str(self.comparison.roots.query("family == @family")["drafter"].iloc[0])
                    rows.append([setting, verifier, *self._arm(setting, drafter, verifier)])
        return table(["setting", "rule", *ARM_COLUMNS], rows)

    def phases(self) -> str:
        """Milliseconds per token and shares of the time, for chains and the eleven drafts.

        Verifying includes turning logits into laws and committing the accepted path to the caches."""
        decoding = self.comparison.decoding
        decoding = decoding[decoding["setting"] == self.reference]
        always = [*self._chains(), *decoding.query("family == @ELEVEN")["drafter"].unique()]
        rows = []
        for (drafter, verifier), part in decoding[decoding["drafter"].isin(always)].groupby(["drafter", "verifier"]):
            bootstrap, cells = self.report.bootstrap(part["document"]), [str(drafter), str(verifier)]
            cells.append(f"{1000 * part['seconds'].sum() / part['tokens'].sum():.2f}")
            for phase in (*PHASES, "rest"):
                cells.append(_cell(bootstrap.rate(100 * part[f"seconds_{phase}"], part["seconds"]), "share"))
            rows.append(cells)
        rows.sort(key=lambda row: (always.index(row[0]), row[1]))
        return table(["shape", "rule", "ms/token", *(f"{phase} %" for phase in (*PHASES, "rest"))], rows)

    def by_depth(self) -> str:
        """Acceptance rates of the per-node solvers, and the distance of the laws."""
        rows = self.report.acceptance()
        depths = sorted({row["depth"] for row in rows})
        groups = dict.fromkeys((row["draws"], row["solver"]) for row in rows)
        lines = []
        for draws, solver in sorted(groups, key=lambda key: (-key[0], key[1])):
            part = {row["depth"]: row for row in rows if (row["draws"], row["solver"]) == (draws, solver)}
            label = f"{solver}, {'as drafted' if draws == AS_DRAFTED else f'{draws} draws'}"
            lines.append([label, *(_cell(part[depth]["rate"], "rate") for depth in depths)])
        part = {row["depth"]: row for row in rows if (row["draws"], row["solver"]) == (AS_DRAFTED, "nss")}
        lines.append(["‖p − q‖₁", *(_cell(part[depth]["distance"], "rate") for depth in depths)])
        return table(["depth", *map(str, depths)], lines)

    def _pairs(self, places: Iterable[tuple[str, str, str]]) -> str:
        """Tokenwise, block and their paired ratio; (setting, chain, label) per row."""
        rows = []
        for setting, chain, label in places:
            pair = [self.comparison.expected(setting, chain, verifier) for verifier in ("tokenwise", "block")]
            cells = [label, *(_cell(self.report.rate(items), "expected") for items in pair)]
            cells.append(_percent(self.report.ratio(pair[1], pair[0])))
            cells += self._timed_pair(setting, chain)
            rows.append(cells)
        header = ["", "tokenwise, exact", "block = HSD, exact", "gain", "tokenwise, decoded", "block, decoded"]
        return table([*header, "tokenwise, tokens/s", "block, tokens/s", "gain"], rows)

    def _timed_pair(self, setting: str, chain: str) -> list[str]:
        if setting not in self.comparison.timed_settings:
            return ["–"] * 5
        counts = [self.comparison.decoded(setting, chain, verifier) for verifier in ("tokenwise", "block")]
        times = [self.comparison.timed(setting, chain, verifier) for verifier in ("tokenwise", "block")]
        if any(
            items.empty for items in (*counts, *times)
        ):  # this length was not chosen, so it was not timed on test prompts
            return ["–"] * 5
        cells = [_cell(self.report.rate(items), "decoded") for items in counts]
        cells += [_cell(self.report.rate(items), "tokens_per_second") for items in times]
        return [*cells, _percent(self.report.ratio(times[1], times[0]))]

    def _arm(self, setting: str, drafter: str, verifier: str) -> list[str]:
        comparison, report = self.comparison, self.report
        timed = comparison.timed(setting, drafter, verifier)
        verify = comparison.timed(setting, drafter, verifier, "seconds_verify").assign(
            amount=lambda items: 100 * items["amount"]
        )
        return [
            _cell(report.rate(comparison.expected(setting, drafter, verifier)), "expected"),
            _cell(report.rate(comparison.decoded(setting, drafter, verifier)), "decoded"),
            _cell(report.rate(timed), "tokens_per_second"),
            _cell(report.ratio(timed, comparison.plain(setting)), "rate"),
            _cell(report.rate(verify), "share"),
        ]

    def _rows(self, key: str, settings: Sequence[str], slice_: str | None) -> list[dict[str, Any]]:
        if key == "tokens_per_second":
            return self.report.speeds(settings, slice_)
        return self.report.block_efficiencies(settings, slice_)

    def _settings(self, key: str) -> list[str]:
        return self.comparison.settings if key == "expected" else self.comparison.timed_settings

    def _chains(self) -> list[str]:
        """Chains, by length."""
        roots: pd.DataFrame = self.comparison.roots
        names = {str(name) for name in roots.loc[roots["family"] == "chain", "drafter"]}
        return sorted(names, key=lambda name: (int(re.findall(r"\d+", name)[0]), name))


ARM_COLUMNS = ("block efficiency, exact", "decoded", "tokens/s", "speed-up over plain", "verifying, % of time")


def _cell(value: Interval | None, key: str) -> str:
    """A number with its interval; one decimal for tokens per second and shares, three for rates, two otherwise."""
    if value is None or value["value"] is None or value["low"] is None:
        return "–"
    digits = {"tokens_per_second": 1, "share": 1, "rate": 3}.get(key, 2)
    return f"{value['value']:.{digits}f} ({value['low']:.{digits}f}–{value['high']:.{digits}f})"


def _percent(ratio: Interval) -> str:
    if ratio["value"] is None:
        return "–"
    gains = [100 * ((ratio[name] or 0.0) - 1) for name in ("value", "low", "high")]
    return f"{gains[0]:+.1f} % ({gains[1]:+.1f}…{gains[2]:+.1f})"
