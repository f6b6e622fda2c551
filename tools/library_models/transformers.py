"""Sequence models of transformers under a head that scores an item: small random configurations, nothing is downloaded."""

from collections.abc import Callable, Iterator

import torch
import transformers
from torch import nn

from library_models.case import Case, Ids

ITEMS, LENGTH, WIDTH = 70, 8, 16


class NextItem(nn.Module):
    """The items of a history through an encoder, and the item's embedding by what stands at the last place: SASRec's head."""

    def __init__(self, encoder: nn.Module, *, masked: bool = True) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.encoder, self.masked = encoder, masked

    def forward(self, history: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """history[B,L], item[B,1] -> logit[B]."""
        known = {"attention_mask": (history != 0).long()} if self.masked else {}
        seen = self.encoder(inputs_embeds=self.items(history), **known).last_hidden_state[:, -1]
        return (seen * self.items(item[:, 0])).sum(1)


class Classified(nn.Module):
    """A library's own classifier of sequences with one label, over ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        """history[B,L] -> logit[B,1]."""
        return self.model(input_ids=history, attention_mask=(history != 0).long()).logits


def cases() -> Iterator[Case]:
    """Encoders and decoders of two layers, with their usual dropouts."""
    for name, make in _encoders().items():
        yield Case("transformers", name, lambda make=make: NextItem(make().train()), {"history": Ids(LENGTH, ITEMS), "item": Ids(1, ITEMS)})  # fmt: skip
    for name, make in _classifiers().items():
        yield Case("transformers", name, lambda make=make: Classified(make().train()), {"history": Ids(LENGTH, ITEMS)})


def _encoders() -> dict[str, Callable[[], nn.Module]]:
    t = transformers
    size = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": ITEMS,
        "max_position_embeddings": 16,
    }
    deep = {**size, "intermediate_size": 32}
    causal = {**deep, "num_key_value_heads": 1, "head_dim": 8, "use_cache": False}
    gpt = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": ITEMS, "use_cache": False}
    distil = {
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 32,
        "vocab_size": ITEMS,
        "max_position_embeddings": 16,
    }
    neo = {
        "hidden_size": WIDTH,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": ITEMS,
        "max_position_embeddings": 16,
        "use_cache": False,
    }
    opt = {**size, "word_embed_proj_dim": WIDTH, "ffn_dim": 32, "use_cache": False}
    eager = {"attn_implementation": "eager"}
    return {
        "BERT": lambda: t.BertModel(t.BertConfig(**deep)),
        "BERT eager": lambda: t.BertModel(t.BertConfig(**deep, **eager)),
        "RoBERTa": lambda: t.RobertaModel(t.RobertaConfig(**deep)),
        "ALBERT": lambda: t.AlbertModel(t.AlbertConfig(**deep, embedding_size=WIDTH)),
        "ELECTRA": lambda: t.ElectraModel(t.ElectraConfig(**deep, embedding_size=WIDTH)),
        "DistilBERT": lambda: t.DistilBertModel(t.DistilBertConfig(**distil)),
        "MPNet": lambda: t.MPNetModel(t.MPNetConfig(**deep)),
        "DeBERTa-v2": lambda: t.DebertaV2Model(t.DebertaV2Config(**deep)),
        "GPT-2": lambda: t.GPT2Model(t.GPT2Config(**gpt)),
        "GPT-2 eager": lambda: t.GPT2Model(t.GPT2Config(**gpt, **eager)),
        "GPT-Neo": lambda: t.GPTNeoModel(t.GPTNeoConfig(**neo, attention_types=[[["global", "local"], 1]])),
        "OPT": lambda: t.OPTModel(t.OPTConfig(**opt)),
        "Llama": lambda: t.LlamaModel(t.LlamaConfig(**causal)),
        "Mistral": lambda: t.MistralModel(t.MistralConfig(**causal)),
        "Qwen2": lambda: t.Qwen2Model(t.Qwen2Config(**causal)),
        "Gemma": lambda: t.GemmaModel(t.GemmaConfig(**causal)),
        "Phi": lambda: t.PhiModel(t.PhiConfig(**deep, use_cache=False)),
        "XLNet": lambda: t.XLNetModel(t.XLNetConfig(d_model=WIDTH, n_layer=2, n_head=2, d_inner=32, vocab_size=ITEMS)),
    }


def _classifiers() -> dict[str, Callable[[], nn.Module]]:
    t = transformers
    known = {"vocab_size": ITEMS, "num_labels": 1}
    size = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
    }
    gpt = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": 0}
    return {
        "BERT classifier": lambda: t.BertForSequenceClassification(t.BertConfig(**size, **known)),
        "RoBERTa classifier": lambda: t.RobertaForSequenceClassification(t.RobertaConfig(**size, **known)),
        "ELECTRA classifier": lambda: t.ElectraForSequenceClassification(t.ElectraConfig(**size, **known)),
        "GPT-2 classifier": lambda: t.GPT2ForSequenceClassification(t.GPT2Config(**gpt, **known)),
    }
