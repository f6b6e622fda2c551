"""What shards and nets are called."""

TRAINER = "trainer"


def shard_name(table: str, index: int, count: int) -> str:
    """The parameter that holds shard `index` of `count` of `table`: the table itself when it is whole."""
    return table if count == 1 else f"{table}/{index}"


def net_name(device: str) -> str:
    """The name of a device's net, and of its file: `group_ps_0` for `group_ps:0`."""
    return device.replace(":", "_")
