"""Sizes as text, in one way everywhere: memory in binary units, as a cluster file gives it, and what travels in decimal ones, as links are sold."""

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_BITS = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s", "Pbit/s", "Ebit/s")


def memory_text(num_bytes: float) -> str:
    """Bytes of memory: 512 B, 1.0 KiB, 158.7 MiB. What is not 0 is never told as 0."""
    return _text(num_bytes, 1024, _BINARY)


def traffic_text(num_bytes: float) -> str:
    """Bytes that travel: 208 B, 2.1 kB, 14.3 MB; of an example they may be less than one: 0.05 B."""
    return _text(num_bytes, 1000, _DECIMAL)


def bandwidth_text(bytes_per_second: float) -> str:
    """The rate of a link, in bits as a cluster file gives it: 25.0 Gbit/s."""
    return _text(8 * bytes_per_second, 1000, _BITS)


def _text(value: float, base: int, units: tuple[str, ...]) -> str:
    """A value with the unit that holds after rounding: 1,023.96 KiB are 1.0 MiB."""
    power = 0
    while power < len(units) - 1 and value >= base - (0.05 if power else 0.5):
        value, power = value / base, power + 1
    if power:
        return f"{value:,.1f} {units[power]}"
    if value == int(value) or value >= 9.95:
        return f"{value:,.0f} {units[0]}"
    return f"{value:.1f} {units[0]}" if value >= 0.95 else f"{value:.1g} {units[0]}"
