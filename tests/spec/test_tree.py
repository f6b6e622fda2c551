"""The tree of options: one document, the same flags, and every value checked by what stands on its field."""

from dataclasses import fields, replace
from typing import Any

import pytest
from drawn_options import drawn_options
from hypothesis import given, settings

import htrain
from htrain.errors import UsageError
from htrain.spec.cache import HetCache, LookAheadCache
from htrain.spec.dense_sync import AllReduce, Easgd, ModelAveraging
from htrain.spec.fields import check, fields_of, parse
from htrain.spec.optimizers import Adagrad, Adam, RowwiseAdagrad, Sgd
from htrain.spec.options import Options
from htrain.spec.tree import (
    checked,
    dashed,
    document_of,
    flag_text,
    flags,
    flat,
    options_of,
    questions,
    sections_of,
    with_flags,
)
from htrain.spec.tree import given as said


@given(drawn_options())
def test_document_and_flags_say_all_of_the_options(options: Options) -> None:
    assert options_of(document_of(options), "options") == options
    assert with_flags(**flat(options)) == options
    assert checked(options) == options


@given(drawn_options(), drawn_options())
def test_flags_change_what_they_are_about_and_nothing_else(options: Options, others: Options) -> None:
    """Flags that chose a kind take the section from its defaults on; the rest is as it was."""
    for name, question in questions().items():
        if question.kinds:
            chosen = with_flags(options, **{name: getattr(others, name).kind})
            assert type(getattr(chosen, name)) is type(getattr(others, name))
            assert all(getattr(chosen, f.name) == getattr(options, f.name) for f in fields(Options) if f.name != name)


@given(drawn_options())
def test_what_was_said_is_enough_to_say_it_again(options: Options) -> None:
    values = {name: value for name, value in flat(options).items() if name in said(options)}
    assert with_flags(**values) == options


@settings(max_examples=50)
@given(drawn_options())
def test_every_value_is_parsed_back_from_its_text(options: Options) -> None:
    for name in questions():
        section = getattr(options, name)
        for field in fields_of(type(section)).values():
            value = getattr(section, field.name)
            if not isinstance(value, tuple):
                text = str(value).lower() if isinstance(value, bool) else flag_text(value)
                assert parse(text, field.hint) == value


def test_every_field_has_a_sentence() -> None:
    for name in questions():
        for section in sections_of(name):
            assert {f.name for f in fields(section)} == set(fields_of(section)), (
                "a field of a section without a sentence"
            )
            for field in fields_of(section).values():
                assert field.sentence[0].isupper() or field.sentence.split("'")[0].isupper()
                assert field.sentence.endswith(".")
    assert {name for name, flag in flags().items() if flag.chooses_kind} == {
        name for name, question in questions().items() if question.kinds
    }


def test_no_default_is_a_number_that_stands_for_a_word() -> None:
    """0 is a value where it means none of it: a seed, a staleness, a decay, shares of what may be nothing."""
    zeros = {name for name, value in flat(Options()).items() if not isinstance(value, bool) and value in (0, -1)}
    decays = {
        f"{part}_{name}"
        for part in ("dense", "sparse")
        for name in ("weight_decay", "lazy_weight_decay", "initial_accumulator")
    }
    assert zeros == {"seed", "dense_schedule_warmup", "sparse_schedule_warmup", *decays}
    meant = {
        ("HetCache", "staleness", 0),
        ("Gmp", "staleness", 0),
        ("Adam", "beta1", 0),
        ("Adam", "beta2", 0),
        ("Bmuf", "momentum", 0),
        *((kind, "weight_decay", 0) for kind in ("Sgd", "Adagrad", "Adam", "AdamW")),
        *((kind, "lazy_weight_decay", 0) for kind in ("Sgd", "Adagrad", "RowwiseAdagrad")),
        ("Ftrl", "l1", 0),
        ("Ftrl", "l2", 0),
        *((kind, "initial_accumulator", 0) for kind in ("Adagrad", "RowwiseAdagrad")),
        *((kind, beta, 0) for kind in ("AdamW", "SparseAdam", "RowwiseAdam") for beta in ("beta1", "beta2")),
        *((kind, "warmup", 0) for kind in ("ConstantRate", "LinearDecay", "CosineDecay", "StepDecay")),
        ("LinearDecay", "share", 0),
        ("CosineDecay", "share", 0),
        ("Sgd", "momentum", 0),
        ("LazyMomentum", "lazy_momentum", 0),
        ("Sgd", "dampening", 0),
    }
    for name in questions():
        for section in sections_of(name):
            for field in fields_of(section).values():
                for value in (0, -1):
                    if _is_value(value, field.hint):
                        assert (section.__name__, field.name, value) in meant


def _is_value(value: int, hint: Any) -> bool:
    try:
        check(value, hint)
    except ValueError:
        return False
    return True


def test_another_kind_begins_with_its_defaults_and_keeps_the_rate() -> None:
    options = with_flags(dense_optimizer="adam", dense_lr=0.5, beta1=0.1)
    assert options.dense_optimizer == Adam(lr=0.5, beta1=0.1)
    assert with_flags(options, dense_optimizer="sgd").dense_optimizer == Sgd(lr=0.5)
    assert with_flags(options, sparse_optimizer="rowwise_adagrad", sparse_eps=1e-3).sparse_optimizer == RowwiseAdagrad(
        lr=0.02, eps=1e-3
    )
    assert with_flags(dense_eps=1e-4).dense_optimizer == Adagrad(lr=0.005, eps=1e-4)
    assert with_flags(dense_optimizer="adam", dense_eps=1e-4).dense_optimizer == Adam(lr=0.005, eps=1e-4)


def test_another_kind_keeps_what_means_the_same_of_both() -> None:
    options = with_flags(
        dense_sync="easgd", sync_period=2, sync_through="groups", sync_alpha=0.1, table_store="mapped", row_dtype="int8"
    )
    assert with_flags(options, dense_sync="model_averaging").dense_sync == ModelAveraging(
        period=2, through="groups"
    )  # its alpha says something else
    assert with_flags(options, dense_sync="allreduce").dense_sync == AllReduce()
    assert with_flags(options, sparse_sync="allgather").sparse_sync.store == "mapped"
    assert (
        with_flags(with_flags(cache="het", cache_window=5), cache="lookahead").cache == LookAheadCache()
    )  # whose window takes other values


def test_a_flag_of_two_kinds_is_the_chosen_ones() -> None:
    assert with_flags(cache="lookahead", cache_window="auto").cache == LookAheadCache()
    assert with_flags(cache="het", cache_window=3).cache == HetCache(window=3)
    with pytest.raises(UsageError, match="--cache-window: 'auto' is not a whole number of 1 to 1,000,000"):
        with_flags(cache="het", cache_window="auto")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"batchsize": 3}, "--batchsize: there is no such option; there are batch_size"),
        ({"batch_size": True}, "--batch-size: True is not a whole number"),
        ({"batch_size": 2.5}, "--batch-size: 2.5 is not a whole number of 1 to 16,777,216"),
        ({"prefetch": 1}, "--prefetch: 1 is not true or false"),
        ({"dense_lr": float("nan")}, "--dense-lr: nan is not a finite number above 0"),
        ({"dense_lr": 10**400}, "--dense-lr: .* is not a finite number above 0"),
        (
            {"dense_sync": ["easgd"]},
            r"--dense-sync: \['easgd'\] is not one of easgd, model_averaging, bmuf, allreduce, ps",
        ),
        ({"loss": "mae"}, "--loss: 'mae' is not bce, bce_probability, mse or own"),
        ({"sync_top_k": 0}, "--sync-top-k: 0 is not a finite number above 0 and at most 1"),
        (
            {"sync_alpha": 0, "dense_sync": "easgd"},
            "--sync-alpha: 0 is not a finite number above 0 and below 1, or auto",
        ),
        (
            {"fc_dtype": "int8", "fc_gradient_dtype": "bfloat16"},
            "--fc-gradient-dtype: bfloat16 wants --fc-dtype bfloat16 too",
        ),
    ],
)
def test_what_a_field_does_not_take_is_refused_by_the_name_of_its_flag(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        with_flags(**values)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"dense_optimiser": {}}, "options.dense_optimiser: unknown entry; options are batch_size"),
        (
            {"dense_sync": {"kind": "easgd", "bucket_bytes": 3}},
            "options.dense_sync.bucket_bytes: belongs to kind allreduce, and dense sync is easgd",
        ),
        (
            {"dense_sync": {"kind": "sgd"}},
            "options.dense_sync.kind: 'sgd' is not one of easgd, model_averaging, bmuf, allreduce, ps",
        ),
        ({"cache": 3}, "options.cache: want entries such as {kind: none}"),
        ({"fusions": {"relus": True}}, "options.fusions.relus: unknown entry; fusions takes relu, fields"),
    ],
)
def test_a_document_that_says_what_is_not_there_is_refused_by_its_place(document: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options_of(document, "options")


def test_sections_are_had_from_the_package() -> None:
    options = htrain.Options(
        dense_sync=htrain.AllReduce(), cache=htrain.HetCache(staleness=0), dense_optimizer=htrain.Sgd(0.1)
    )
    assert (options.lockstep, options.looks_ahead, dashed("sync_period")) == (True, False, "--sync-period")
    assert replace(options, dense_sync=Easgd()).dense_sync.round_steps == 8
    assert AllReduce().round_steps == 1
