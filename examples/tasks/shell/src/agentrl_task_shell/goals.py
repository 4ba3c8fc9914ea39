"""Goals in a directory: the files at first, what is to be done, how it is judged, and one way to do it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

_NAMES = ["apple", "brick", "cloud", "delta", "ember", "fern", "grape", "hill", "iris", "jade"]
_WORDS = ["red", "sun", "tea", "oak", "fog", "ice", "sky", "ink", "bay", "elm", "owl", "fig"]


@dataclass(frozen=True, slots=True)
class Goal:
    """Something to be done in a directory."""

    text: str
    """What the agent is asked."""
    files: dict[str, bytes]
    """What lies in the directory at first."""
    solution: str
    """Commands that do it; the last line of what they write is the answer, where one is asked for."""
    answer: str | None = None
    """What is to be answered; None where only the directory counts."""
    check: str | None = None
    """A command that succeeds where the directory is as it should be."""
    hidden: dict[str, bytes] = field(default_factory=dict)
    """Files that are put there for the check alone."""


Maker = Callable[[random.Random], Goal]


def _lines(chance: random.Random, count: int) -> list[str]:
    return [" ".join(chance.choices(_WORDS, k=4)) for _ in range(count)]


def _text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def count_files(chance: random.Random) -> Goal:
    """How many files end so."""
    count = chance.randint(11, 40)
    files = {f"docs/{chance.choice(_NAMES)}-{number}.txt": b"x\n" for number in range(count)}
    files |= {f"docs/note-{number}.md": b"x\n" for number in range(chance.randint(1, 9))}
    return Goal("how many .txt files are in docs?", files, "ls docs/*.txt | wc -l", answer=str(count))


def count_lines(chance: random.Random) -> Goal:
    """How many lines hold a word."""
    lines, word = _lines(chance, chance.randint(60, 120)), chance.choice(_WORDS)
    count = sum(word in line.split() for line in lines)
    return Goal(
        f"how many lines of log.txt have the word {word}?",
        {"log.txt": _text(lines)},
        f"grep -cw {word} log.txt",
        answer=str(count),
    )


def make_file(chance: random.Random) -> Goal:
    """Write a file."""
    name, text = chance.choice(_NAMES), " ".join(chance.sample(_WORDS, 3))
    return Goal(
        f"write the line '{text}' into the file {name}.txt",
        {},
        f"echo '{text}' > {name}.txt",
        check=f'[ "$(cat {name}.txt)" = "{text}" ]',
    )


def rename_all(chance: random.Random) -> Goal:
    """Give files another ending."""
    names = chance.sample(_NAMES, chance.randint(4, 8))
    files = {f"{name}.txt": f"{name}\n".encode() for name in names} | {"keep.log": b"keep\n"}
    tests = " && ".join(f'[ "$(cat {name}.md)" = {name} ]' for name in names)
    return Goal(
        "rename every .txt file to end in .md instead; leave the others as they are",
        files,
        'for f in *.txt; do mv "$f" "${f%.txt}.md"; done',
        check=f'{tests} && [ -e keep.log ] && [ "$(ls | wc -l)" = {len(files)} ]',
    )


def largest_file(chance: random.Random) -> Goal:
    """Which file is the largest."""
    names = chance.sample(_NAMES, 8)
    sizes = chance.sample(range(100, 5000), 8)
    files = {
        f"data/{chance.choice(_WORDS)}/{name}.bin": b"\0" * size
        for name, size in zip(names, sizes, strict=True)
    }
    return Goal(
        "what is the name (without directories) of the largest file below data?",
        files,
        "find data -type f -printf '%s %f\\n' | sort -n | tail -1 | cut -d' ' -f2",
        answer=f"{names[sizes.index(max(sizes))]}.bin",
    )


def sum_column(chance: random.Random) -> Goal:
    """Add numbers up."""
    rows = [(chance.choice(_NAMES), chance.randint(1, 99), chance.randint(1, 99)) for _ in range(40)]
    name = rows[0][0]
    total = sum(amount for who, amount, _ in rows if who == name)
    text = _text(["name,amount,weight", *(f"{who},{amount},{weight}" for who, amount, weight in rows)])
    return Goal(
        f"in table.csv, what is the sum of amount over the rows of {name}?",
        {"table.csv": text},
        f"awk -F, '$1 == \"{name}\" {{ s += $2 }} END {{ print s }}' table.csv",
        answer=str(total),
    )


def protect(chance: random.Random) -> Goal:
    """Change rights."""
    names = chance.sample(_NAMES, 5)
    secret = names[:2]
    files = {f"{name}.key": (b"SECRET\n" if name in secret else b"public\n") for name in names}
    tests = " && ".join(
        f'[ "$(stat -c %a {name}.key)" {"=" if name in secret else "!="} 600 ]' for name in names
    )
    return Goal(
        "the .key files that contain the word SECRET must be readable and writable by their owner alone"
        " (mode 600); leave the others as they are",
        files,
        "grep -l SECRET *.key | xargs chmod 600",
        check=tests,
    )


def most_common(chance: random.Random) -> Goal:
    """Which word is the most common, over many files."""
    favourite = chance.choice(_WORDS)
    others = [word for word in _WORDS if word != favourite]
    files = {}
    for number in range(6):
        words = chance.choices(others, k=60) + [favourite] * 14
        chance.shuffle(words)
        files[f"logs/{chance.choice(_NAMES)}/{number}.log"] = _text(
            [" ".join(words[start : start + 5]) for start in range(0, len(words), 5)]
        )
    return Goal(
        "which word is the most common in all .log files below logs together?",
        files,
        "find logs -name '*.log' -exec cat {} + | tr -s ' ' '\\n' | sort | uniq -c | sort -n | tail -1"
        " | awk '{ print $2 }'",
        answer=favourite,
    )


def write_script(chance: random.Random) -> Goal:
    """Write a program that works on input it has not seen."""
    column, seen, unseen = chance.randint(1, 3), [], []
    for rows, count in ((seen, 12), (unseen, 30)):
        rows.extend(",".join(str(chance.randint(-50, 50)) for _ in range(3)) for _ in range(count))
    expected = max(int(row.split(",")[column - 1]) for row in unseen)
    return Goal(
        f"write an executable script best.sh that prints the greatest number in column {column} of the"
        " comma-separated file it is given as its argument; example.csv is an example",
        {"example.csv": _text(seen)},
        f"printf '#!/bin/sh\\ncut -d, -f{column} \"$1\" | sort -n | tail -1\\n' > best.sh; chmod +x best.sh",
        check=f'[ -x best.sh ] && [ "$(./best.sh unseen.csv)" = {expected} ]',
        hidden={"unseen.csv": _text(unseen)},
    )


def sort_out(chance: random.Random) -> Goal:
    """Move files by what is in them."""
    kinds = chance.sample(_WORDS, 3)
    files = {f"inbox/{number}.txt": f"kind: {chance.choice(kinds)}\n".encode() for number in range(12)}
    tests = [
        f'grep -q "^kind: {data.decode().split()[1]}$" sorted/{data.decode().split()[1]}/{name.split("/")[1]}'
        for name, data in files.items()
    ]
    return Goal(
        "every file in inbox says its kind in a line 'kind: K'; move each to sorted/K/ under its own name, so"
        " that inbox is empty",
        files,
        'for f in inbox/*; do k=$(sed -n "s/^kind: //p" "$f"); mkdir -p "sorted/$k";'
        ' mv "$f" "sorted/$k/"; done',
        check=" && ".join([*tests, '[ -z "$(ls -A inbox)" ]']),
    )


LEVELS: dict[str, tuple[Maker, ...]] = {
    "easy": (count_files, count_lines, make_file),
    "medium": (rename_all, largest_file, sum_column, protect),
    "hard": (most_common, write_script, sort_out),
}
"""Kinds of goals by difficulty."""


def make_goal(difficulty: str, seed: str) -> Goal:
    """A goal; the same seed gives the same one, and its answer does not stand in its text."""
    chance = random.Random(f"shell/{difficulty}/{seed}")
    while True:
        goal = chance.choice(LEVELS[difficulty])(chance)
        if goal.answer is None or goal.answer not in goal.text.split():
            return goal
