"""Programs as people write them, with models of transformers (small, with random weights), cold, in threads.

``python tests/gpu/real_programs.py [--steps a,b] [--modes plain,safe] [--repeats 2] [--json FILE]``
Numbers are compared with those of eager code, and compiles are counted. On a machine without a GPU the steps run on the
CPU, which only shows that they are written rightly. torchvision of another torch must not be importable.
"""

import copy
import queue
import threading
import time

import harness
from harness import in_threads, lock, main, step

NAMES = ("generate_with_a_static_cache", "modernbert_reduce_overhead", "flex_attention_as_implementation")
NAMES += ("two_models_trained", "captures_beside_compiles", "short_lived_threads", "autocast_beside_full_precision")
harness.LONGER_S.update(dict.fromkeys(NAMES, 200.0))


def device():
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def own_stream():
    """A stream of the thread's own, ordered behind what has been queued so far."""
    import contextlib

    import torch

    if device() == "cpu":
        return contextlib.nullcontext()
    mine = torch.cuda.Stream()
    mine.wait_stream(torch.cuda.default_stream())
    return torch.cuda.stream(mine)


def full_precision():
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN may be another release's


def small(name, kind, attention="sdpa", **sizes):
    """Returns a model of transformers that compiles in seconds."""
    import torch
    import transformers

    full_precision()
    torch.manual_seed(0)
    common = {"vocab_size": 512, "hidden_size": 128, "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1}
    config = getattr(transformers, f"{name}Config")(**common, attn_implementation=attention, **sizes)
    return getattr(transformers, f"{name}{kind}")(config).to(device()).eval()


def llama(attention="sdpa"):
    sizes = {"intermediate_size": 256, "num_hidden_layers": 2, "num_key_value_heads": 2, "eos_token_id": None}
    return small("Llama", "ForCausalLM", attention, max_position_embeddings=512, **sizes)


def tokens(seed, rows, length):
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (rows, length), generator=generator).to(device())


def graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def close(got, want, what, **tolerance):
    import torch

    torch.testing.assert_close(got, want, msg=lambda m: f"{what}: {m}", **tolerance)


@step
def generate_with_a_static_cache():
    """Four threads, a copy of the model each, ``generate`` with a static cache, which compiles the decoding step."""
    import torch

    made = llama()
    prompts = [tokens(i, 2, 24) for i in range(4)]
    options = {"max_new_tokens": 24, "do_sample": False}
    want = [made.generate(one, **options) for one in prompts]
    copies = [copy.deepcopy(made) for _ in prompts]

    def work(i):
        with own_stream():
            for _ in range(2):
                got = copies[i].generate(prompts[i], cache_implementation="static", **options)
                assert torch.equal(got, want[i]), f"thread {i}: {int((got != want[i]).sum())} tokens differ"

    in_threads(4, work, 180)
    return {"graphs": graphs()}


@step
def modernbert_reduce_overhead():
    """Eight threads share a ModernBERT that is compiled with CUDA graphs."""
    import torch

    sizes = {"intermediate_size": 192, "num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 32}
    special = {"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "reference_compile": False}
    made = small("ModernBert", "Model", **sizes, **special)
    compiled = torch.compile(made, mode="reduce-overhead" if device() == "cuda" else None)
    inputs = [tokens(i, 4, 64) for i in range(8)]
    with torch.no_grad():
        want = [made(one).last_hidden_state for one in inputs]

    def work(i):
        with torch.no_grad(), own_stream():
            for _ in range(6):
                torch.compiler.cudagraph_mark_step_begin()
                close(compiled(inputs[i]).last_hidden_state.clone(), want[i], f"thread {i}", rtol=1e-3, atol=1e-3)

    in_threads(8, work, 180)
    return {"graphs": graphs()}


@step
def flex_attention_as_implementation():
    """Three threads train a copy of a model each whose attention is flex_attention."""
    import torch

    made = llama("flex_attention").train()
    reference = llama("sdpa").train()
    reference.load_state_dict(made.state_dict())
    inputs = [tokens(i, 2, 128) for i in range(3)]
    want = []
    for one in inputs:
        reference.zero_grad()
        reference(one, labels=one).loss.backward()
        want.append([p.grad.clone() for p in reference.parameters()])
    copies = [copy.deepcopy(made) for _ in inputs]

    def work(i):
        with own_stream():
            compiled = torch.compile(copies[i])
            for _ in range(3):
                copies[i].zero_grad()
                compiled(inputs[i], labels=inputs[i]).loss.backward()
                for mine, wanted in zip(copies[i].parameters(), want[i], strict=True):
                    close(mine.grad, wanted, f"thread {i}", rtol=2e-2, atol=2e-3)

    in_threads(3, work, 180)
    return {"graphs": graphs()}


def trained(net, inputs, forward, low):
    """Returns the losses of some steps of SGD."""
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for x in inputs:
        with torch.autocast(device(), dtype=torch.bfloat16, enabled=low):
            loss = forward(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def two_models(low_of):
    import torch

    full_precision()
    nn = torch.nn
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
    second = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    models = [first.to(device()), second.to(device())]
    inputs = [[torch.randn(8, 32, 128, device=device()) for _ in range(8)] for _ in models]
    want = []
    for i, one in enumerate(models):
        eager = copy.deepcopy(one)
        want.append(trained(eager, inputs[i], eager, low_of(i)))

    def work(i):
        with own_stream():
            got = trained(models[i], inputs[i], torch.compile(models[i]), low_of(i))
            loose = {"rtol": 5e-2, "atol": 5e-3} if low_of(i) else {"rtol": 1e-3, "atol": 1e-4}
            close(got, want[i], f"model {i}", **loose)

    in_threads(2, work, 180)
    return {"graphs": graphs()}


@step
def two_models_trained():
    """Two threads train a model each, forward, backward and optimizer, from the first step on."""
    return two_models(lambda _: False)


@step
def autocast_beside_full_precision():
    """The same, one of the two in bfloat16."""
    return two_models(bool)


@step
def captures_beside_compiles():
    """A thread captures and replays graphs by hand while three others compile a new function at each step."""
    import torch

    stop = threading.Event()
    seen = {"captures": 0}

    def capturing():
        weight, x = torch.randn(256, 256, device="cuda"), torch.randn(64, 256, device="cuda")
        mine = torch.cuda.Stream(priority=-1)
        with torch.cuda.stream(mine):
            want = (x @ weight).relu()
        mine.synchronize()
        while not stop.is_set():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=mine, capture_error_mode="thread_local"):
                y = (x @ weight).relu()
            graph.replay()
            mine.synchronize()
            close(y, want, "a capture", rtol=1e-3, atol=1e-3)
            seen["captures"] += 1
            time.sleep(0.02)

    def compiling(i):
        with own_stream():
            for k in range(4):

                def function(x, k=k):
                    return torch.nn.functional.softmax(x * (k + 1), -1).sum(0) + x.amax(0)

                generator = torch.Generator(device()).manual_seed(k)  # the default one is not to be used in a capture
                x = torch.randn(128, 96 + 32 * i, device=device(), generator=generator)
                close(torch.compile(function)(x), function(x), f"thread {i}, function {k}", rtol=1e-3, atol=1e-3)

    def work(i):
        if i:
            try:
                compiling(i)
            finally:
                with lock:
                    seen[i] = True
                if sum(j in seen for j in (1, 2, 3)) == 3:
                    stop.set()
        elif device() == "cuda":
            capturing()

    in_threads(4, work, 180)
    return {"graphs": graphs(), "captures": seen["captures"]}


@step
def short_lived_threads():
    """Sixty requests, each in a thread of its own, six at a time; one compile."""
    import torch

    made = llama()
    compiled = torch.compile(made)
    inputs = [tokens(i, 2, 48) for i in range(60)]
    with torch.no_grad():
        want = [made(one).logits for one in inputs]
    waiting: queue.Queue = queue.Queue()
    for i in range(60):
        waiting.put(i)

    def request(i):
        with torch.no_grad(), own_stream():
            close(compiled(inputs[i]).logits, want[i], f"request {i}", rtol=1e-3, atol=1e-3)

    def work(_):
        while True:
            try:
                i = waiting.get_nowait()
            except queue.Empty:
                return
            in_threads(1, lambda _: request(i), 170)

    in_threads(6, work, 180)
    return {"graphs": graphs()}


if __name__ == "__main__":
    main(__file__, __doc__)
