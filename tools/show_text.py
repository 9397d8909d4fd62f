#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints prompts and what became of them: show_text.py PROMPTS.jsonl GENERATIONS.jsonl [COUNT]"""
import json
import sys


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def main():
    prompts, generations = lines(sys.argv[1]), lines(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else len(generations)
    # Spread over the file: the demo's prompts come in kinds, one after the other.
    for i in range(0, len(generations), max(1, -(-len(generations) // count))):
        g = generations[i]
        prompt = prompts[g.get("index", i)].get("text", "")
        print(f"\n[{g.get('id', i)}]  {prompt} | {g.get('text', g.get('error', ''))}")


if __name__ == "__main__":
    main()
