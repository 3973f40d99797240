"""What the runners of test suites share: downloads, runs of pytest and node, lists of outcomes."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / "target" / "suites"


def sh(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def venv(packages, name="venv"):
    """A Python with these packages, in a virtual environment of this name."""
    at = WORK / name
    done = at / ".forerun"
    wanted = " ".join(packages)
    if not done.exists() or done.read_text() != wanted:
        sh(sys.executable, "-m", "venv", "--clear", at)
        sh(at / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        done.write_text(wanted)
    return at / "bin" / "python"


def sdist(name, version):
    """The unpacked source distribution of a package."""
    tree = WORK / f"{name}-{version}"
    if not tree.exists():
        sh(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-binary",
            ":all:",
            "--no-deps",
            "--dest",
            WORK,
            f"{name}=={version}",
        )
        with tarfile.open(WORK / f"{name}-{version}.tar.gz") as archive:
            archive.extractall(WORK, filter="data")
    return tree


def junit(path):
    """The outcome of each test in a report by pytest."""
    outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname').rsplit('.', 1)[-1]}::{case.get('name')}"
        outcome, why = "pass", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome, why = "fail", child.get("message", "")
            elif child.tag == "skipped":
                outcome, why = "skip", child.get("message", "")
        outcomes[name] = (outcome, " ".join(why.split())[:160])
    return outcomes


def pytest(python, arguments, cwd, environment=(), timeout_s=600):
    report = WORK / f"report-{os.getpid()}.xml"
    report.unlink(missing_ok=True)
    ran = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            # A long traceback takes seconds to format in files of thousands of lines.
            "--tb=native",
            "-o",
            "addopts=",
            "-p",
            "no:cacheprovider",
            "--junitxml",
            report,
            *arguments,
        ],
        cwd=cwd,
        env={**os.environ, **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    if not report.exists():
        raise SystemExit(f"pytest wrote no report:\n{ran.stdout}")
    return junit(report)


def node_packages(packages, name):
    """A folder with these packages of npm."""
    at = WORK / name
    done = at / ".forerun"
    wanted = " ".join(packages)
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(at, ignore_errors=True)
        at.mkdir(parents=True)
        sh("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", at, *packages)
        done.write_text(wanted)
    return at


def node(at, file, environment):
    """The outcome of each test in a file of this folder, with the packages in `at`."""
    # Node looks for packages beside the file.
    shutil.copy(HERE / file, at)
    ran = subprocess.run(
        ["node", "--test", "--test-reporter", "tap", file],
        cwd=at,
        env={**os.environ, **environment},
        text=True,
        timeout=300,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    outcomes = {}
    for line in ran.stdout.splitlines():
        result = re.match(r"^\s*(not )?ok \d+ - (.+?)(?: # (SKIP|TODO).*)?$", line)
        # The file is a test, too.
        if result and not result[2].endswith(file):
            outcome = "fail" if result[1] else "skip" if result[3] else "pass"
            outcomes[result[2]] = (outcome, "")
    if not outcomes:
        raise SystemExit(f"node printed no results:\n{ran.stdout[-4000:]}")
    return outcomes


def list_path(name):
    """The file of a list of outcomes."""
    return HERE / "expected" / f"{name}.txt"


def read_list(path):
    """The outcomes and reasons of a list, by test."""
    known = {}
    if path.exists():
        for line in path.read_text().splitlines():
            if line and not line.startswith("#"):
                outcome, rest = line.split("  ", 1)
                name, _, why = rest.partition("  # ")
                known[name.strip()] = (outcome.strip(), why.strip())
    return known


def write_list(path, heading, outcomes, known):
    lines = [
        f"# {heading}",
        "# Outcome, test, and the reason if it does not pass. Written by suites/run --record.",
    ]
    for name, (outcome, why) in sorted(outcomes.items()):
        reason = known.get(name, ("", ""))[1] or why
        lines.append(f"{outcome:<5}  {name}" + (f"  # {reason}" if outcome != "pass" else ""))
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def compare(suite, outcomes, known):
    """Prints the differences from the known outcomes and returns their number."""
    differences = 0
    for name in sorted(outcomes.keys() | known.keys()):
        now, expected = (
            outcomes.get(name, ("did not run", "")),
            known.get(name, ("is not listed", "")),
        )
        if now[0] != expected[0]:
            differences += 1
            print(f"  {suite}: {name}: {now[0]} (listed: {expected[0]}) {now[1]}")
    return differences


def report(suite, list_name, outcomes, record, is_listed):
    """Prints the outcomes of a suite. If they are listed, compares them with the list, or writes
    it; returns the number of differences."""
    counts = {}
    for outcome, _ in outcomes.values():
        word = outcome.split()[0]
        counts[word] = counts.get(word, 0) + 1
    print("  " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    for name, (outcome, why) in sorted(outcomes.items()):
        if outcome != "pass":
            print(f"  {outcome}: {name}  {why}")
    if not is_listed:
        return 0
    path = list_path(list_name)
    known = read_list(path)
    if record:
        write_list(path, list_name, outcomes, known)
        return 0
    return compare(suite, outcomes, known)
