"""The paper's own numbers (arXiv 2605.18864), to be shown beside ours and marked as the paper's.

A cell is mean ± standard deviation over seeds, in thousandths; the averages have no deviation. Facts, in our own layout.
"""

from dataclasses import dataclass

SOURCE = "arXiv 2605.18864"
TASKS = {"aime": "AIME", "amc23": "AMC23", "math500-l5": "MATH-500 L5"}  # our task → the paper's heading
QWEN, DISTILL = "Qwen2.5-Math-7B", "DeepSeek-R1-Distill-Qwen-7B"


@dataclass(frozen=True)
class Value:
    mean: float
    std: float | None = None


# ---- pass@1 and pass@top: one line a row; six pairs (AIME, AMC23, MATH-500 L5, each pass@1 then pass@top) -----------------

_RESULTS = """
1 | Base              | 33±24   393±25 | 355±62 950±18 | 294±18 781±9  | 227 708
1 | GRPO              | 53±27   407±25 | 430±57 960±14 | 315±36 775±20 | 266 714
1 | GRPO w/o KL       | 43±19   410±25 | 410±34 930±33 | 319±19 763±10 | 258 701
1 | GRPO + Forward KL | 57±35   433±12 | 420±21 975±0  | 318±34 772±7  | 265 727
1 | GRPO + Random     | 50±41   420±30 | 410±49 965±29 | 340±26 782±14 | 267 722
1 | GRPO + Token      | 57±19   427±25 | 395±37 960±14 | 303±42 769±5  | 252 718
1 | GRPO + Branch     | 63±30   427±35 | 465±63 965±29 | 322±37 794±11 | 284 729
3 | Base              | 33±24   393±25 | 355±62 950±18 | 294±18 781±9  | 227 708
3 | BNPO              | 43±19   400±31 | 390±34 920±21 | 297±43 778±10 | 243 699
3 | BNPO + Branch     | 70±18   420±7  | 435±74 950±18 | 309±34 776±18 | 271 715
3 | DAPO              | 43±22   387±14 | 425±43 930±21 | 322±21 772±10 | 264 696
3 | DAPO + Branch     | 43±15   413±32 | 440±42 940±14 | 318±19 784±9  | 267 712
4 | Base              | 230±36  553±7  | 595±33 955±11 | 461±23 827±6  | 429 778
4 | GRPO              | 250±53  550±37 | 635±45 940±29 | 461±24 824±7  | 449 771
4 | GRPO + Branch     | 260±28  567±39 | 635±74 935±14 | 461±12 821±16 | 452 774
9 | Base              | 135±5   572±14
9 | GRPO              | 170±5   477±8
9 | GRPO + Branch     | 172±2   483±5
"""
TOP = {1: 256, 3: 256, 4: 64, 9: 256}  # the larger k of each table
MODEL = {1: QWEN, 3: QWEN, 4: DISTILL, 9: QWEN}
AVERAGE = "average"


def _value(text: str) -> Value:
    mean, _, std = text.partition("±")
    return Value(int(mean) / 1000, int(std) / 1000 if std else None)


def results(table: int) -> dict[str, dict[tuple[str, int], Value]]:
    """Row → (task or "average", k) → value, for Tables 1, 3, 4 and 9."""
    groups = ["minerva"] if table == 9 else [*TASKS, AVERAGE]
    out: dict[str, dict[tuple[str, int], Value]] = {}
    for line in _RESULTS.strip().splitlines():
        number, row, *cells = (part.strip() for part in line.split("|"))
        if int(number) == table:
            out[row] = {
                (group, k): _value(text)
                for group, pair in zip(groups, cells)
                for k, text in zip((1, TOP[table]), pair.split())
            }
    return out


# ---- the others --------------------------------------------------------------------------------------------------

PATTERNS = {  # Table 2: Base, GRPO, GRPO + Branch; AIME, 16 samples a problem, right ones only
    "constraint set-up": (0.458, 0.604, 0.583),
    "structural": (0.291, 0.377, 0.301),
    "contradiction": (0.007, 0.008, 0.033),
}
PATTERN_ROWS = ("Base", "GRPO", "GRPO + Branch")

GRADIENT_NORM = {  # Table 5: early, mid, late third of training
    "GRPO": (0.056, 0.030, 0.053),
    "GRPO + Branch": (0.040, 0.029, 0.054),
    "GRPO w/o KL": (0.018, 0.010, 0.023),
}

GRID_TASK, GRID_TOP, GRID_SEEDS = "amc23", 256, 3
GRID = {  # Table 6: (τ, ρ) → pass@1, pass@256
    (0.8, 0.1): (0.417, 0.967),
    (0.8, 0.3): (0.450, 0.958),
    (0.8, 0.5): (0.400, 0.950),
    (1.2, 0.1): (0.392, 0.967),
    (1.2, 0.3): (0.433, 0.967),
    (1.2, 0.5): (0.375, 0.958),
    (2.0, 0.1): (0.450, 0.917),
    (2.0, 0.3): (0.400, 0.983),
    (2.0, 0.5): (0.408, 0.975),
}

# ---- labels ------------------------------------------------------------------------------------------------------

_ALIASES = {  # recipe names and other spellings → the row
    "Base": "base sft basemodel",
    "GRPO": "grpo r1distillgrpo full1.5bgrpo full3bgrpo",
    "GRPO w/o KL": "grponokl grpowokl nokl",
    "GRPO + Forward KL": "grpoforwardkl forwardkl",
    "GRPO + Random": "random gporandom grporandom",
    "GRPO + Token": "token grpotoken",
    "GRPO + Branch": "branch grpobranch r1distill full1.5b full3b sage",
    "BNPO": "bnpo bnponokl",
    "BNPO + Branch": "bnpobranch",
    "DAPO": "dapo daponokl",
    "DAPO + Branch": "dapobranch",
}
_ROW_OF = {alias: row for row, aliases in _ALIASES.items() for alias in aliases.split()}


def row_of(label: str) -> str:
    """The paper's row for a label: "branch", "grpo_branch" and "GRPO + Branch" are one; any other label stays itself."""
    return _ROW_OF.get("".join(c for c in label.lower() if c.isalnum() or c == "."), label)
