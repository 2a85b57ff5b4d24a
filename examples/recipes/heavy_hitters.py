"""Heavy hitters: the words that many clients have, found letter by letter (after TrieHH, Zhu et al., 2020).

The server knows prefixes that at least --least clients have. In each round, every client says which letters follow them
in its words, the server sums these 0s and 1s, and goes on with the longer prefixes that enough clients have. It also
sees the counts below --least, and there is no noise. The words are those of descriptions of data sets in scikit-learn.
"""

import argparse
import re
from pathlib import Path

import federated_language as fl
import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets

import fedstack
from fedstack.data.partition import IidPartitioner

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=12, help="the most letters of a word (%(default)s)")
parser.add_argument("--least", type=int, default=8, help="how many of 30 clients have a word (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("out"), help="the folder for the picture (%(default)s)")
(options := parser.parse_args()).rounds > 0 or parser.error("expected at least one round")
MOST, LONGEST, LEAST, LETTERS = 200, 24, max(options.least, 1), "\0abcdefghijklmnopqrstuvwxyz"  # \0 ends a word
text = "".join(getattr(datasets, f"load_{name}")().DESCR for name in ("breast_cancer", "digits", "iris", "wine"))
words = np.array(re.findall("[a-z]{3,23}", text.lower()))
clients = [sorted({*part.tolist()}) for part in IidPartitioner(30).partition(words, seed=0).split(words)]


def as_numbers(words, rows):  # uint8[rows, LONGEST]
    numbers = [[LETTERS.index(letter) for letter in word.ljust(LONGEST, "\0")] for word in words]
    return np.array(numbers + [[0] * LONGEST] * (rows - len(words)), np.uint8)


TRIE, FOUND = {"prefixes": (np.uint8, [MOST, LONGEST]), "length": np.int32}, (np.int32, [MOST, 27])
WORDS = (np.uint8, [None, LONGEST])


@fedstack.python_computation([TRIE, WORDS], FOUND)
def next_letters(trie, words):
    found, at = np.zeros(FOUND[1], np.int32), trie["length"]
    for number, prefix in enumerate(trie["prefixes"]):
        found[number, words[(words[:, :at] == prefix[:at]).all(axis=1), at]] = 1
    return found


@fl.federated_computation(fl.FederatedType(TRIE, fl.SERVER), fl.FederatedType(WORDS, fl.CLIENTS))
def count_letters(trie, clients):
    return fl.federated_sum(fl.federated_map(next_letters, (fl.federated_broadcast(trie), clients)))


fedstack.set_sync_local_execution_context()
data, prefixes, hitters = [as_numbers(client, len(client)) for client in clients], [""], {}
for number in range(min(options.rounds, LONGEST)):
    counts = count_letters({"prefixes": as_numbers(prefixes, MOST), "length": number}, data)[: len(prefixes)]
    longer = {prefixes[row] + LETTERS[col]: int(counts[row, col]) for row, col in np.argwhere(counts >= LEAST)}
    hitters |= {word[:-1]: count for word, count in longer.items() if word.endswith("\0")}
    prefixes = [word for word in longer if not word.endswith("\0")][:MOST]
    print(f"{number + 1} letters: {len(prefixes)} prefixes, {len(hitters)} words")
missed = {word for word in words.tolist() if sum(word in client for client in clients) >= LEAST} - {*hitters}
axes = (figure := Figure(figsize=(6.4, 3.6), layout="constrained")).add_subplot(xlabel="word", ylabel="clients")
shown = sorted(hitters, key=hitters.get, reverse=True)[:20]
axes.bar(shown, [hitters[word] for word in shown])
axes.tick_params(axis="x", rotation=60)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(picture := options.out / "heavy_hitters.svg")
most = f"that {LEAST} clients have, such as {', '.join(shown[:4])}"
print(f"found {len(hitters)} words {most}; missed {len(missed)}\npicture: {picture}")
