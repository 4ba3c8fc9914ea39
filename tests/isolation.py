"""Import a package, module by module, in a bare interpreter, and refuse what must not come along.

    python -I tests/isolation.py PACKAGE_OR_MODULE ... [--forbid NAME ...] [--skip MODULE ...] [--installed]

Prints one line and exits 0, or names every fault and exits 1. Needs nothing but the standard library,
so that it runs in an environment that holds one wheel and its dependencies only.
"""

import argparse
import importlib
import pkgutil
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path


def modules_of(name: str) -> Iterator[str]:
    """The module and, for a package, everything in it; `__main__` would run the program."""
    yield name
    path = getattr(importlib.import_module(name), "__path__", None)
    for found in pkgutil.walk_packages(path or [], f"{name}."):
        if not found.name.endswith(".__main__"):
            yield found.name


def faults_of_installation(package: str) -> Iterator[str]:
    """What is wrong with the installed wheel of a package."""
    module_file = Path(str(importlib.import_module(package).__file__))
    site_packages = Path(sysconfig.get_paths()["purelib"])
    if not module_file.is_relative_to(site_packages):
        yield f"{package} is imported from {module_file}, which is outside {site_packages}"
    if not (module_file.parent / "py.typed").is_file():
        yield f"the wheel of {package} has no py.typed"
    yield from faults_of_dependencies(package)
    yield from faults_of_scripts(package)


def faults_of_dependencies(package: str) -> Iterator[str]:
    """Declared dependencies that are missing or cannot be imported."""
    names_of = {}
    for module, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            names_of.setdefault(_normal(distribution), []).append(module)
    for requirement in metadata.requires(package.replace("_", "-")) or []:
        if "extra ==" in requirement:
            continue
        distribution = _normal(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
        public = [name for name in names_of.get(distribution, []) if not name.startswith("_")]
        if not public:
            yield f"{package} declares {requirement!r}, which is not installed"
        for name in public:
            try:
                importlib.import_module(name)
            except Exception as error:
                yield f"{package} declares {requirement!r}, but importing {name} fails: {error!r}"


def faults_of_scripts(package: str) -> Iterator[str]:
    """Console scripts that do not answer `--version` and `--help`."""
    for script in metadata.distribution(package.replace("_", "-")).entry_points.select(
        group="console_scripts"
    ):
        for option in ("--version", "--help"):
            command = [str(Path(sys.executable).with_name(script.name)), option]
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
            )
            if run.returncode != 0 or not run.stdout.strip():
                yield f"`{script.name} {option}` exits {run.returncode}: {run.stderr.strip()[-2000:]}"


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def main() -> int:
    """Check what the command line names; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", help="packages or modules to import")
    parser.add_argument("--forbid", nargs="*", default=[], help="modules that must not get loaded")
    parser.add_argument("--skip", nargs="*", default=[], help="modules that are not imported")
    parser.add_argument("--installed", action="store_true", help="check the wheels that were installed, too")
    options = parser.parse_args()

    modules = sorted({module for name in options.names for module in modules_of(name)} - {*options.skip})
    for module in modules:
        importlib.import_module(module)
    # Looked at before the dependencies are imported for their own sake.
    faults = [f"importing {options.names} loads {name}" for name in options.forbid if name in sys.modules]
    if options.installed:
        faults += [fault for name in options.names for fault in faults_of_installation(name)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{' '.join(options.names)}: {len(modules)} modules imported, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
