#!/usr/bin/env python3
"""Figures of the house, by crate: how much code there is, how long functions are, and what is unsafe, commented or named twice.

    scripts/house_figures.py                    of this tree
    scripts/house_figures.py ../other           of another
    scripts/house_figures.py --table ../other   what docs/design/code.md has of both: the other before, this one after

Counts Rust as it is written, without compiling: comments and strings are blanked out first, so that what is said about `unsafe`
is not counted as it. A crate's tests and benches count with it.

How long a build takes and how large the program is can only be read from a tree that was built: a step of `.ci/run` says how long
it took, `cargo build --release --timings` writes down the whole build, and both are read here from the target folder, as far as
they are there (`CARGO_TARGET_DIR`, or target in the tree). A target folder that was empty before gives a build from nothing.
"""
import argparse
import collections
import os
import pathlib
import re

import module_cycles

HERE = pathlib.Path(__file__).resolve().parent.parent
CRATES = ["protocol", "coordinator", "coordinator/simulator", "kernels", "node", "testnet"]


def blanked(text):
    """The text with comments, strings and characters as spaces, and how many lines hold a comment and nothing else."""
    out, comments, i, only = [], 0, 0, True
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\\'\n])\'', re.S
    )
    for found in pattern.finditer(text):
        before = text[i : found.start()]
        out.append(before)
        if found.group().startswith("//"):
            line = text.rfind("\n", 0, found.start()) + 1
            comments += not text[line : found.start()].strip()
        out.append("".join("\n" if c == "\n" else " " for c in found.group()))
        i = found.end()
    out.append(text[i:])
    return "".join(out), comments


def functions(code):
    """Lines of every function that has a body, and whether it was cut short by the end of the file."""
    for found in re.finditer(r"\bfn\s+\w+", code):
        depth, at = 0, found.end()
        # The body is the first brace outside of brackets; a semicolon there ends a function without one.
        while at < len(code):
            c = code[at]
            if c in "([":
                depth += 1
            elif c in ")]":
                depth -= 1
            elif c == ";" and depth == 0:
                break
            elif c == "{" and depth == 0:
                start, braces = at, 0
                while at < len(code):
                    braces += (code[at] == "{") - (code[at] == "}")
                    if braces == 0:
                        yield code.count("\n", found.start(), at) + 1
                        break
                    at += 1
                break
            at += 1


def percentile(sorted_numbers, part):
    return sorted_numbers[min(len(sorted_numbers) - 1, int(len(sorted_numbers) * part))] if sorted_numbers else 0


class Crate:
    """What there is in one crate."""

    def __init__(self, root, name):
        self.name, self.count, self.lengths = name, collections.Counter(), []
        self.types, self.stems, self.sizes = collections.defaultdict(set), collections.defaultdict(set), []
        inner = [other for other in CRATES if other.startswith(f"{name}/")]
        for path in sorted((root / name).rglob("*.rs")):
            at = path.relative_to(root)
            if "target" not in at.parts and not any(at.is_relative_to(other) for other in inner):
                self.read(path, at)
        self.lengths.sort()

    def read(self, path, at):
        text = path.read_text()
        code, comments = blanked(text)
        lines = text.count("\n")
        self.sizes.append((lines, str(at)))
        self.stems[path.stem].add(path)
        # A `type` inside a trait's implementation has its trait's name for it.
        for found in re.finditer(r"(?:\b(?:struct|enum|trait|union)|^(?:pub(?:\([^)]*\))?\s+)?type)\s+(\w+)", code, re.M):
            self.types[found.group(1)].add(path)
        self.lengths += functions(code)
        self.count.update(
            files=1,
            lines=lines,
            comments=comments,
            blocks=len(re.findall(r"\bunsafe\s*\{", code)),
            fns=len(re.findall(r"\bunsafe\s+(?:extern\s+)?fn\s+\w", code)),
            impls=len(re.findall(r"\bunsafe\s+impl\b", code)),
            allows=len(re.findall(r"#!?\[allow\(", code)),
            expects=len(re.findall(r"#!?\[expect\(", code)),
        )


class Tree:
    """What there is in all crates together."""

    def __init__(self, root):
        elsewhere = os.environ.get("CARGO_TARGET_DIR") if root == HERE else None
        self.target = pathlib.Path(elsewhere or root / "target")
        self.crates = [Crate(root, name) for name in CRATES if (root / name).is_dir()]
        self.count = sum((crate.count for crate in self.crates), collections.Counter())
        self.lengths = sorted(length for crate in self.crates for length in crate.lengths)
        self.sizes = sorted((size for crate in self.crates for size in crate.sizes), reverse=True)
        module_cycles.ROOT = root
        self.cycles = module_cycles.cycles(False)

    def twice(self, what):
        """Names that more than one file has, and how many have them."""
        names = collections.defaultdict(set)
        for crate in self.crates:
            for name, at in getattr(crate, what).items():
                names[name] |= at
        common = ("Self", "mod", "lib", "main", "tests")
        return {name: len(at) for name, at in names.items() if len(at) > 1 and name not in common}

    def built(self):
        """What a build has left: sizes of the programs (MB), and how long the last one with --timings took."""
        sizes = {}
        for profile in ("release", "debug"):
            program = self.target / profile / "tsnode"
            if program.is_file():
                sizes[profile] = program.stat().st_size / 1e6
        took = None
        timings = self.target / "cargo-timings" / "cargo-timing.html"
        if timings.is_file():
            total = re.search(r"Total time:</td>\s*<td>\s*([^<]+?)\s*</td>", timings.read_text())
            took = total and total.group(1)
        return sizes, took

    def density(self):
        return 100 * self.count["comments"] / max(self.count["lines"], 1)


def program_size(tree):
    sizes, _ = tree.built()
    return ", ".join(f"{size:.1f} ({profile})" for profile, size in sizes.items()) or "not built: cargo build --release"


def build_time(tree):
    return tree.built()[1] or "not measured: cargo build --release --timings"


def show(tree):
    print(f"{'crate':<22} {'files':>6} {'lines':>7} {'fns':>6} {'p50':>4} {'p90':>4} {'p99':>4} {'longest':>8} "
          f"{'unsafe {':>9} {'unsafe fn':>10} {'unsafe impl':>12} {'allow':>6} {'expect':>7} {'comments/100':>13}")
    for crate in [*tree.crates, tree]:
        count, lengths, name = crate.count, crate.lengths, getattr(crate, "name", "all")
        print(f"{name:<22} {count['files']:>6} {count['lines']:>7} {len(lengths):>6} {percentile(lengths, .5):>4} "
              f"{percentile(lengths, .9):>4} {percentile(lengths, .99):>4} {max(lengths, default=0):>8} {count['blocks']:>9} "
              f"{count['fns']:>10} {count['impls']:>12} {count['allows']:>6} {count['expects']:>7} "
              f"{100 * count['comments'] / max(count['lines'], 1):>13.1f}")
    print("\nlargest files")
    for lines, path in tree.sizes[:10]:
        print(f"{lines:>7} {path}")
    print(f"\nimport cycles between modules: {len(tree.cycles)}")
    for line in tree.cycles:
        print(f"        {line}")
    print(f"\nsize of the program (MB): {program_size(tree)}\ntime of a build: {build_time(tree)}")
    for what, names in (("types", "types"), ("files", "stems")):
        twice = tree.twice(names)
        most = sorted(twice.items(), key=lambda item: (-item[1], item[0]))[:12]
        print(f"\nnames of {what} used more than once: {len(twice)}; most: " + ", ".join(f"{n} {k}" for n, k in most))


def compare(before, after):
    """A table of Markdown."""
    print("| | before | after |\n| --- | --- | --- |")
    of = lambda tree, name: next((crate.count["lines"] for crate in tree.crates if crate.name == name), 0)
    for name in CRATES:
        print(f"| lines of `{name}` | {of(before, name) or '-'} | {of(after, name)} |")
    rows = [
        ("lines in all", lambda t: t.count["lines"]),
        ("lines of a function: p50, p90, p99, longest",
         lambda t: ", ".join(str(n) for n in (*(percentile(t.lengths, p) for p in (.5, .9, .99)), max(t.lengths)))),
        ("largest files (lines)", lambda t: ", ".join(str(lines) for lines, _ in t.sizes[:3])),
        ("files above 600 lines", lambda t: sum(lines > 600 for lines, _ in t.sizes)),
        ("import cycles, and modules in them",
         lambda t: f"{len(t.cycles)}, {sum(len(line.split(': ')[1].split()) for line in t.cycles)}"),
        ("names of types used more than once", lambda t: len(t.twice("types"))),
        ("names of files used more than once", lambda t: len(t.twice("stems"))),
        ("`unsafe` blocks, functions", lambda t: f"{t.count['blocks']}, {t.count['fns']}"),
        ("`#[allow]`, `#[expect]`", lambda t: f"{t.count['allows']}, {t.count['expects']}"),
        ("lines of comments in 100", lambda t: f"{t.density():.1f}"),
        ("size of the program (MB)", program_size),
        ("time of a build", build_time),
    ]
    for what, value in rows:
        print(f"| {what} | {value(before)} | {value(after)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tree", nargs="?", default=HERE, type=pathlib.Path)
    parser.add_argument("--table", action="store_true", help="a table of Markdown: TREE before, this tree after")
    asked = parser.parse_args()
    tree = Tree(asked.tree.resolve())
    compare(tree, Tree(HERE)) if asked.table else show(tree)


main()
