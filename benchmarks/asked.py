"""Prompts as `paceline eval` asks them, for calibrating a lossy rule on problems like those that it will be evaluated on.

    python benchmarks/asked.py --task gsm8k --prompts gsm8k_train.jsonl.gz --limit 192 --out gsm8k.jsonl
    python benchmarks/asked.py --task mbpp --prompts mbpp_train.jsonl --out mbpp.jsonl
    paceline calibrate csd --model TARGET --draft-model DRAFT --prompts mbpp.jsonl --out mbpp.safetensors
    paceline calibrate csd --model TARGET --draft-model DRAFT --prompts gsm8k.jsonl --add-to mbpp.safetensors --out memory.safetensors

Takes the rows of the file, which all are of the task, in the order of a seed, `--skip` of them left out. Never give it
problems that the evaluation has.
"""

import argparse
import json
import random
from pathlib import Path

from paceline.quality.tasks import TASKS
from paceline.train import prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = prompts.read([asked.prompts], on_bad_line="stop", say=print)
    random.Random(asked.seed).shuffle(rows)
    chosen = rows[asked.skip :][: asked.limit]
    if not chosen:
        parser.error(f"{asked.prompts} has {len(rows)} rows, so none is left after --skip {asked.skip}")
    with asked.out.open("w", encoding="utf-8") as out:
        for row in chosen:
            turn = TASKS[asked.task].prompt(row.turns[0], chat=True)
            out.write(json.dumps({"id": row.id, "task": asked.task, "turns": [turn], "licence": row.licence}) + "\n")
    print(f"{len(chosen)} prompts in {asked.out}")


if __name__ == "__main__":
    main()
