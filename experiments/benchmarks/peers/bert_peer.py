"""Times masked language modelling steps of Hugging Face's BertForMaskedLM and prints one line of JSON.

The batches are an npz of `tokens_i` (what is shown) and `labels_i` (-100 where nothing is to be said), drawn before.
"""

import argparse
import json
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
import transformers
from sizes import ADAM_BETAS, ADAM_EPSILON, DROPOUT, LEARNING_RATE, PAD, SIZES, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    size = SIZES[options.size]
    with np.load(options.data) as arrays:
        count = len(arrays.files) // 2
        batches = [
            tuple(torch.tensor(arrays[f"{name}_{i}"], dtype=torch.long) for name in ("tokens", "labels"))
            for i in range(count)
        ]
    config = transformers.BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.d_model,
        num_hidden_layers=options.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        max_position_embeddings=batches[0][0].shape[1],
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        pad_token_id=PAD,
    )
    model = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), LEARNING_RATE, ADAM_BETAS, ADAM_EPSILON, weight_decay=0.01
    )
    losses, seconds, counts = [], [], []
    for number in range(-options.warmup, options.steps):
        tokens, labels = batches[number % count]
        start = time.perf_counter()
        loss = model(input_ids=tokens, attention_mask=(tokens != PAD).long(), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        value = loss.item()
        elapsed = time.perf_counter() - start
        if number < 0:
            continue
        losses.append(value)
        seconds.append(elapsed)
        counts.append(int((tokens != PAD).sum()))
    result = {
        "name": "huggingface",
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
        "losses": losses,
        **summary(seconds, counts),
    }
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
