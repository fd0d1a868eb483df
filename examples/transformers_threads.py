"""Models of transformers (small, with random weights) in a thread pool.

    pip install transformers && python examples/transformers_threads.py

Parts of it: ``forward``, ``generate``, ``stream``, ``flex``, ``modernbert``, as arguments.

The models are those that people compile as ``model.forward = torch.compile(model.forward)``, through ``generate`` with
a static cache, or by the model's own decorators.
"""

from __future__ import annotations

import safecompile.patch_all  # noqa: F401  covers what transformers compiles by itself

# isort: split

import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import transformers

THREADS = 4


def llama(attention: str = "sdpa") -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 256}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    ends = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    config = transformers.LlamaConfig(**sizes, **heads, **ends, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config).eval()


def tokens(seed: int, rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 128, (rows, length), generator=torch.Generator().manual_seed(seed))


def in_pool(work, count: int) -> int:
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(count)))


def forward() -> dict[str, int]:
    model, eager = llama(), llama()
    model.forward = torch.compile(model.forward, dynamic=True)

    def request(number: int) -> bool:
        ids = tokens(number, 2, 8 + number % 5)
        with torch.no_grad():
            return torch.allclose(model(ids).logits, eager(ids).logits, atol=1e-4)

    return {"right": in_pool(request, 24), "of": 24}


def generate() -> dict[str, int]:
    """Each thread has a copy, as a static cache belongs to its model; ``generate`` compiles the decoding step."""
    model = llama()
    prompts = [tokens(number, 2, 12) for number in range(THREADS)]
    options = {"max_new_tokens": 8, "do_sample": False}
    expected = [model.generate(prompt, **options) for prompt in prompts]
    # As on a GPU, where transformers compiles by itself; on a CPU it is asked to.
    compiled = transformers.CompileConfig(mode="default")
    compiled._compile_all_devices = True
    copies = [copy.deepcopy(model) for _ in prompts]

    def request(number: int) -> bool:
        for _ in range(2):
            got = copies[number].generate(
                prompts[number], cache_implementation="static", compile_config=compiled, **options
            )
        return torch.equal(got, expected[number])

    return {"right": in_pool(request, THREADS), "of": THREADS}


class Numbers:
    """What a streamer asks of a tokenizer."""

    def decode(self, ids, **_: object) -> str:
        return "".join(f"{int(one)} " for one in ids)


def stream() -> dict[str, int]:
    """``generate`` in a thread of its own feeds a streamer that its consumer reads."""
    model, eager = llama(), llama()
    model.forward = torch.compile(model.forward, dynamic=True)

    def request(number: int) -> bool:
        prompt = tokens(number, 1, 10 + number)
        streamer = transformers.TextIteratorStreamer(Numbers(), skip_prompt=True, timeout=240)
        options = {"max_new_tokens": 6, "do_sample": False}
        producer = threading.Thread(target=model.generate, args=(prompt,), kwargs={**options, "streamer": streamer})
        producer.start()
        text = "".join(streamer)
        producer.join()
        return text.split() == [str(int(one)) for one in eager.generate(prompt, **options)[0, prompt.shape[1] :]]

    return {"right": in_pool(request, 8), "of": 8}


def flex() -> dict[str, int]:
    """Three threads, a copy each whose attention is flex_attention."""
    model, eager = llama("flex_attention"), llama()
    eager.load_state_dict(model.state_dict())
    copies = [copy.deepcopy(model) for _ in range(3)]

    def request(number: int) -> bool:
        ids = tokens(number, 2, 128)
        with torch.no_grad():
            return torch.allclose(torch.compile(copies[number])(ids).logits, eager(ids).logits, atol=1e-3)

    return {"right": in_pool(request, 3), "of": 3}


def modernbert() -> dict[str, int]:
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    heads = {"num_attention_heads": 2, "global_attn_every_n_layers": 2, "local_attention": 32}
    config = transformers.ModernBertConfig(**sizes, **heads, **ends, attn_implementation="sdpa")
    model = transformers.ModernBertModel(config).eval()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, dynamic=True)

    def request(number: int) -> bool:
        ids = tokens(number, 2, 16 + number % 4)
        with torch.no_grad():
            return torch.allclose(compiled(ids).last_hidden_state, eager(ids).last_hidden_state, atol=1e-4)

    return {"right": in_pool(request, 16), "of": 16}


PARTS = {part.__name__: part for part in (forward, generate, stream, flex, modernbert)}


def main(*names: str) -> dict[str, int]:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    total = {"right": 0, "of": 0}
    for name in names or PARTS:
        seen = PARTS[name]()
        print(f"{name}: {seen['right']} of {seen['of']} were right")
        total = {key: total[key] + seen[key] for key in total}
    return total


if __name__ == "__main__":
    main(*sys.argv[1:])
