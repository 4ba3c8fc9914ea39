"""What a validation found, for people, programs and CI."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from agentrl_core import ConfigError, SampleIndex

_WIDTH = 15


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    """What it looked at is in order."""
    FAILED = "failed"
    """Something is wrong with the task."""
    SKIPPED = "skipped"
    """It cannot be told for this task; the account says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """Its name."""
    verdict: Verdict
    """How it ended."""
    did: str
    """What it did, on which samples; or why it did nothing."""
    problems: tuple[str, ...] = ()
    """Each with the value, the rule and the way out."""
    notes: tuple[str, ...] = ()
    """What is worth knowing but no fault."""
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks found."""

    target: str
    """What was validated."""
    task: str
    """Name of the task."""
    samples: tuple[SampleIndex, ...] = ()
    """Indices of what was played; some checks take the first two."""
    findings: tuple[Finding, ...] = field(default=())
    """In the order of the checks."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(finding.verdict is not Verdict.FAILED for finding in self.findings)

    def finding(self, check: str) -> Finding:
        """What one check found.

        Raises:
            KeyError: it was not run.
        """
        return {finding.check: finding for finding in self.findings}[check]

    def to_json(self) -> str:
        """The report as a JSON object."""
        findings = [asdict(finding) for finding in self.findings]
        record = {
            "target": self.target,
            "task": self.task,
            "ok": self.ok,
            "samples": self.samples,
            "findings": findings,
        }
        return json.dumps(record, indent=2, ensure_ascii=False) + "\n"

    def to_junit(self) -> str:
        """The report as JUnit XML, a test case a check."""
        counts = Counter(finding.verdict for finding in self.findings)
        suite = ElementTree.Element(
            "testsuite",
            name=f"agentrl-env validate {self.target}",
            tests=str(len(self.findings)),
            failures=str(counts[Verdict.FAILED]),
            skipped=str(counts[Verdict.SKIPPED]),
            errors="0",
            time=f"{sum(finding.seconds for finding in self.findings):.3f}",
        )
        for finding in self.findings:
            suite.append(_case(self.task, finding))
        suites = ElementTree.Element("testsuites")
        suites.append(suite)
        return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"

    def write(self, *, json_file: Path | None = None, junit_file: Path | None = None) -> None:
        """Write it to files.

        Raises:
            ConfigError: one cannot be written.
        """
        for path, text in ((json_file, self.to_json), (junit_file, self.to_junit)):
            if path is None:
                continue
            try:
                path.write_text(text(), encoding="utf-8", errors="replace")
            except OSError as error:
                raise ConfigError(f"cannot write the report to `{path}`: {error.strerror}") from error

    def table(self) -> str:
        """The report for a terminal."""
        counts = Counter(finding.verdict for finding in self.findings)
        lines = [f"{self.task} ({self.target}), samples {', '.join(map(repr, self.samples))}", ""]
        for finding in self.findings:
            lines += _rows(finding)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        return "\n".join([*lines, "", told]) + "\n"


_MARKS = {Verdict.PASSED: "ok  ", Verdict.FAILED: "FAIL", Verdict.SKIPPED: "skip"}


def _rows(finding: Finding) -> Sequence[str]:
    rows = [f"{_MARKS[finding.verdict]}  {finding.check:{_WIDTH}}  {finding.did}"]
    rows += [_indented("!", problem) for problem in finding.problems]
    rows += [_indented("-", note) for note in finding.notes]
    return rows


def _indented(mark: str, text: str) -> str:
    margin = " " * (_WIDTH + 8)
    return f"{margin}{mark} " + text.replace("\n", f"\n{margin}  ")


def _case(task: str, finding: Finding) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=task, name=finding.check, time=f"{finding.seconds:.3f}")
    if finding.verdict is Verdict.FAILED:
        failure = ElementTree.SubElement(case, "failure", message=_xml(finding.problems[0]))
        failure.text = _xml("\n".join(finding.problems))
    if finding.verdict is Verdict.SKIPPED:
        ElementTree.SubElement(case, "skipped", message=_xml(finding.did))
    output = ElementTree.SubElement(case, "system-out")
    output.text = _xml("\n".join([finding.did, *finding.notes]))
    return case


def _xml(text: Any) -> str:
    """Text without what XML has no way to write."""
    return "".join(
        c if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff" and c < "\ufffe") else "?"
        for c in str(text)
    )
