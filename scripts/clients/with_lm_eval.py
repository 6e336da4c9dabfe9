"""lm-evaluation-harness: how likely continuations are and what is generated, on tasks of our own, as transformers has it.

Where there is no torch for transformers, scripts/check_logprobs.py computes the model in its place, in double precision: it is
within 1e-5 of transformers' logits of kernels/models/reference/llama-gqa (`scripts/check_logprobs.py --self-check FOLDER`).
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": tempfile.mkdtemp()}

import httpx
import lm_eval
import numpy as np
import transformers
from lm_eval.tasks import TaskManager

url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
GENERATED = 16
ROWS = [
    {"begin": "It was a dark and", "ends": ["windy night", "quiet house of the king"], "right": 0},
    {"begin": "The old man said that he", "ends": ["would go", "had never been so happy in his life"], "right": 1},
    {"begin": "She looked at the sea, and", "ends": ["then at the sky", "wept"], "right": 0},
]


def logits_of():
    """The model's logits behind each of some tokens, and who computes them."""
    try:
        import torch
    except ImportError:
        import check_logprobs

        return lambda tokens: check_logprobs.logits(folder, tokens), "check_logprobs.py"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return lambda tokens: model(torch.tensor([tokens])).logits[0].detach().double().numpy(), "transformers"


def likelihood(begin, end):
    """How likely the end is behind the beginning (nats)."""
    first, whole = tokenizer(begin)["input_ids"], tokenizer(f"{begin} {end}")["input_ids"]
    rows = logits(whole)
    rows = rows - rows.max(-1, keepdims=True)
    rows = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    return sum(rows[at - 1, whole[at]] for at in range(len(first), len(whole)))


def greedy(begin):
    tokens = tokenizer(begin)["input_ids"]
    start = len(tokens)
    while len(tokens) < start + GENERATED:
        tokens.append(int(logits(tokens)[-1].argmax()))
    return tokenizer.decode(tokens[start:])


def tasks(place):
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test"}
    common |= {"doc_to_text": "{{begin}}", "target_delimiter": " "}
    likely = {"task": "ends", "output_type": "multiple_choice", "doc_to_choice": "{{ends}}", "doc_to_target": "{{right}}"}
    said = {"task": "goes_on", "output_type": "generate_until", "doc_to_target": "{{ends[right]}}"}
    said["generation_kwargs"] = {"until": ["\x00"], "max_gen_toks": GENERATED, "temperature": 0}
    return [common | likely | {"metric_list": [{"metric": "acc"}]}, common | said | {"metric_list": [{"metric": "exact_match"}]}]


name = httpx.get(url + "/v1/models").json()["data"][0]["id"]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
logits, by = logits_of()
arguments = dict(model=name, base_url=url + "/v1/completions", tokenizer=str(folder), tokenizer_backend="huggingface")
arguments |= dict(max_retries=1, add_bos_token=True, max_length=1024, num_concurrent=2)
with tempfile.TemporaryDirectory() as place:
    asked = tasks(pathlib.Path(place))
    results = lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=asked, task_manager=TaskManager(include_defaults=False),
        log_samples=True, bootstrap_iters=0,
    )
off = 0.0
for sample in results["samples"]["ends"]:
    for end, response in zip(sample["doc"]["ends"], sample["filtered_resps"]):
        off = max(off, abs(float(response[0]) - likelihood(sample["doc"]["begin"], end)))
print(f"log-likelihoods are off by {off:.1e} from those of {by}")
assert off < 1e-3, off
for sample in results["samples"]["goes_on"]:
    (generated,) = sample["filtered_resps"]
    assert generated.strip() == greedy(sample["doc"]["begin"]).strip(), (generated, greedy(sample["doc"]["begin"]))
