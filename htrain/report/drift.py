"""What the batches of packed data need of other workers, as text: predicted by the partition beside measured."""

from htrain.data.pack_by_partition import PackedParts


def drift_text(packed: PackedParts) -> str:
    """A line for each worker, and one for their mean."""
    drift = packed.drift
    whose = "where the partition has them" if packed.is_partitioned else "new to the partition, each where its rows are"
    lines = [
        f"examples: {whose}; distinct rows of others that a batch of {drift.batch_size:,} needs, replicas taken off:",
        f"{'worker':<8}{'examples':>12}{'predicted':>12}{'measured':>12}",
    ]
    workers = list(zip(drift.examples, drift.predicted, drift.measured, strict=True))
    for worker, (examples, predicted, measured) in enumerate(workers):
        lines.append(f"{worker:<8}{examples:>12,}{predicted:>12,.2f}{measured:>12,.2f}")
    means = (f"{sum(of_workers) / len(workers):>12,.2f}" for of_workers in (drift.predicted, drift.measured))
    return "\n".join([*lines, f"{'mean':<8}{sum(drift.examples) / len(workers):>12,.1f}{''.join(means)}"])
