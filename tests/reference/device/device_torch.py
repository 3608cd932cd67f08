"""Part 5: the layers of part 4 by transformers in torch, on the same card."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from device_layers import LAYERS, MODEL, step_name
from device_records import NotRun, Records
from published import PUBLISHED
from tiny_variants import variant

STEPS = ((64, 4096), (1, 4096), (8, 4096), (8, 131072), (1, 131072))
"""Lanes and positions."""
TINY_STEPS = ((2, 256),)
TIMES, ROUNDS = 20, 3
CHUNK = 4096
"""Tokens of each lane's prompt that are read at a time."""


def check_torch(records: Records, rehearse: bool) -> None:
    """Run part 5: decode steps in eager mode, on random weights and a random cache."""
    steps = TINY_STEPS if rehearse else STEPS
    records.plan([step_name(lanes, 1, context, context) for lanes, context in steps])
    results: list[Any] = []

    def model() -> Any:
        if not results:
            results.append(_model(rehearse))
        return results[0]

    for lanes, context in steps:
        records.check(step_name(lanes, 1, context, context), partial(_timed, model, lanes, context))


def _model(tiny: bool) -> Any:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise NotRun(f"torch and transformers are not installed: {error}") from error
    if not tiny and not torch.cuda.is_available():
        raise NotRun("torch sees no GPU")
    text = PUBLISHED[MODEL]["text_config"]
    fields = variant("sparse_base").text if tiny else text
    layers = {"num_hidden_layers": LAYERS, "layer_types": text["layer_types"][:LAYERS]}
    config = AutoConfig.for_model("qwen3_5_moe_text", **{**fields, **layers})
    torch.manual_seed(0)
    device = "cpu" if tiny else "cuda"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.to(device).eval()


def _timed(model: Callable[[], Any], lanes: int, context: int) -> dict[str, Any]:
    network = model()
    import torch
    from transformers import DynamicCache

    device = network.device
    cache = DynamicCache(config=network.config)
    generator = torch.Generator(device=device).manual_seed(1)
    prompt = context - TIMES * (ROUNDS + 1)
    with torch.inference_mode():
        for begin in range(0, prompt, CHUNK):
            tokens = _tokens((lanes, min(CHUNK, prompt - begin)), generator, network)
            network(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token, best = _tokens((lanes, 1), generator, network), float("inf")
        for number in range(ROUNDS + 1):
            _wait(device)
            start = time.perf_counter()
            for _ in range(TIMES):
                logits = network(token, past_key_values=cache, use_cache=True).logits
                token = logits[:, -1:].argmax(-1)
            _wait(device)
            if number:
                best = min(best, (time.perf_counter() - start) / TIMES)
    return {"ms": 1e3 * best, "positions": int(cache.get_seq_length()), "torch": torch.__version__}


def _tokens(shape: tuple[int, int], generator: Any, network: Any) -> Any:
    import torch

    return torch.randint(1, network.config.vocab_size, shape, generator=generator, device=network.device)


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
