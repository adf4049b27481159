"""JUnit XML: one test case for each thing that was checked."""

import io
from collections.abc import Sequence

import msgspec
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite


class Checked(msgspec.Struct, frozen=True):
    """One thing that was checked. `verdict`: holds, violated, undecided, skipped, or blind.

    `clause` and `message` say what fell, `report` is the whole story.
    """

    group: str
    name: str
    verdict: str
    seconds: float = 0.0
    clause: str = ""
    message: str = ""
    report: str = ""


def junit(tests: Sequence[Checked], name: str = "kvproof check") -> bytes:
    """The XML of a run. An empty run is an error: it would look like a success."""
    if not tests:
        raise ValueError("a report needs at least one test.")
    suite = TestSuite(name)
    for test in tests:
        case = TestCase(test.name, f"kvproof.{test.group}", round(test.seconds, 3))
        result = _result(test)
        if result is not None:
            if test.report:
                result.text = _legal(test.report)
            case.result = [result]
        suite.add_testcase(case)
    xml = JUnitXml(name)
    xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    stream = io.BytesIO()
    xml.write(stream)
    return stream.getvalue()


def _result(test: Checked) -> Failure | Error | Skipped | None:
    message = _legal(test.message)
    match test.verdict:
        case "holds":
            return None
        case "violated":
            return Failure(message, test.clause or "violated")
        case "skipped":
            return Skipped(message)
        case _:
            return Error(message, test.verdict)


def _legal(text: str) -> str:
    """Without the control characters that XML 1.0 has no way to write."""
    return "".join(each for each in text if each in "\t\n\r" or (each >= " " and each not in "\ufffe\uffff"))
