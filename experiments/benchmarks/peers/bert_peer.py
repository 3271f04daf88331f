"""Times masked language modelling steps of Hugging Face's BertForMaskedLM, a round for every line of standard input.

The batches are an npz of `tokens_i` (what is shown) and `labels_i` (-100 where nothing is to be said), drawn before.
"""

import argparse
import time
from importlib.metadata import version

import numpy as np
import torch
import transformers
from rounds import serve
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

    def step(index: int) -> float:
        tokens, labels = batches[index]
        loss = model(input_ids=tokens, attention_mask=(tokens != PAD).long(), labels=labels).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(options.warmup):
        step(number % count)
    facts = {
        "name": "huggingface",
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "attention": model.config._attn_implementation,
    }

    def round_of() -> dict:
        losses, seconds, counts = [], [], []
        for number in range(options.steps):
            index = number % count
            start = time.perf_counter()
            losses.append(step(index))
            seconds.append(time.perf_counter() - start)
            counts.append(int((batches[index][0] != PAD).sum()))
        return {**facts, "losses": losses, **summary(seconds, counts)}

    serve(round_of)


if __name__ == "__main__":
    main()
