"""Guard a Hugging Face text classifier: it knows sport, cooking and finance; what does it do with astronomy?

A tiny DistilBERT is built from a configuration and trained on sentences that this script makes, then guarded through
batches that are dictionaries, as Hugging Face's loaders yield them. Needs the extra `gem-ood[torch]` and
transformers; downloads nothing and runs in about ten seconds. From the repository's root:

    python examples/guard_text_classifier.py
"""

import random
import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from gem_ood import GEM
from gem_ood.torch import OODModel

TOPICS = {
    "sport": "team goal coach match referee league striker stadium trophy season player fans",
    "cooking": "soup garlic oven pan butter recipe flour spice kitchen chef dough onion",
    "finance": "bank loan market shares profit investor bond dividend price budget tax credit",
    "astronomy": "planet orbit comet telescope galaxy moon crater eclipse nebula asteroid star rocket",
}
KNOWN = ("sport", "cooking", "finance")
COMMON_WORDS = "the a this that new old good bad every some was is has had seen near with after before over today often"
PADDING = "[PAD]"
EPOCHS = 6
SEED = 0

Batch = dict[str, torch.Tensor]


def main() -> int:
    """Train, guard, and print which share of each topic is flagged; return 2 where transformers is absent."""
    try:
        from transformers import DistilBertConfig, DistilBertForSequenceClassification
    except ImportError:
        print("this example needs transformers; run: pip install transformers", file=sys.stderr)
        return 2
    torch.manual_seed(SEED)
    generator = random.Random(SEED)
    # Like any tokenizer's, this vocabulary is wider than what the classifier is trained on.
    words = [PADDING, *COMMON_WORDS.split(), *" ".join(TOPICS.values()).split()]
    vocabulary = {word: place for place, word in enumerate(words)}

    def loader(topics: Sequence[str], n_sentences: int) -> DataLoader:
        examples = make_sentences(generator, topics, n_sentences)
        return DataLoader(examples, batch_size=50, collate_fn=lambda rows: encode(rows, vocabulary))

    config = DistilBertConfig(
        vocab_size=len(vocabulary), dim=32, hidden_dim=64, n_layers=2, n_heads=2, num_labels=len(KNOWN)
    )
    model = DistilBertForSequenceClassification(config)
    train = loader(KNOWN, 1500)
    train_model(model, train)

    # The three lines: batches are dictionaries with "labels", and the model's output has "logits".
    guarded = OODModel(model, GEM(covariance="oas"))
    guarded.fit(train)
    guarded.calibrate(loader(KNOWN, 400), tpr=0.95)

    print(f"DistilBERT with {model.num_parameters():,} weights; GEM reads the input of layer {guarded.layer!r}.")
    print(f"{guarded.detector.threshold_.guarantee}\n")
    print(f"{'400 sentences on':<26}{'flagged':>9}{'median p-value':>16}")
    for topics in (KNOWN, ("astronomy",)):
        judged = guarded.verdicts(loader(topics, 400))
        print(f"{', '.join(topics):<26}{judged.is_ood.mean():>9.1%}{np.median(judged.p_value):>16.3f}")
    return 0


def make_sentences(generator: random.Random, topics: Sequence[str], n_sentences: int) -> list[tuple[str, int]]:
    """Return sentences and the places of their topics: common words, some of the topic and sometimes a stray one."""
    made = []
    for number in range(n_sentences):
        topic = topics[number % len(topics)]
        words = generator.choices(COMMON_WORDS.split(), k=generator.randint(4, 8))
        words += generator.choices(TOPICS[topic].split(), k=generator.randint(3, 6))
        if generator.random() < 0.3:
            words += generator.choices(TOPICS[generator.choice(KNOWN)].split(), k=1)
        generator.shuffle(words)
        made.append((" ".join(words), topics.index(topic)))
    return made


def encode(examples: Sequence[tuple[str, int]], vocabulary: Mapping[str, int]) -> Batch:
    """Return a batch as Hugging Face's tokenizers make it: one number per word, filled up to the longest sentence."""
    rows = [torch.tensor([vocabulary[word] for word in sentence.split()]) for sentence, _ in examples]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=vocabulary[PADDING])
    labels = torch.tensor([label for _, label in examples])
    return {"input_ids": input_ids, "attention_mask": (input_ids != vocabulary[PADDING]).long(), "labels": labels}


def train_model(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Train for a few seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(EPOCHS):
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
    model.eval()


if __name__ == "__main__":
    sys.exit(main())
