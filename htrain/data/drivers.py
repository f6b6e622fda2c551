"""The one door to fsspec: the driver of an address, and what its errors mean to a user.

Drivers are imported when the first address is read: a run on local files does not wait for them. Credentials and endpoints are the driver's own
business, found where its users keep them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ~/.aws, fsspec's configuration); htrain neither asks for nor writes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from htrain.errors import DataError, Error

# Between two parts of an answer. A server that says nothing is given up within a minute, before other roles give up the one that waits for it: s3fs asks five
# times, and of a web server a file is asked for in two ways.
_SILENT_SECONDS_S3, _SILENT_SECONDS_WEB = 10, 25
_CONNECT_SECONDS_WEB = 10
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}  # the extra of htrain that brings a driver
_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ~/.aws"


def scheme_of(address: str) -> str:
    """What stands before `://`."""
    return address.partition("://")[0].lower()


def absence(address: str) -> str:
    """What is said of a file that is not there: its bucket may not be, either."""
    return "no such file, or no such bucket" if _is_s3(address) else "no such file"


def _is_s3(address: str) -> bool:
    return _EXTRAS.get(scheme_of(address)) == "s3"


def is_driver(scheme: str) -> bool:
    """Whether fsspec knows a driver of this name, installed or not."""
    return scheme.lower() in import_module("fsspec").available_protocols()


def driver_of(address: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the address as it wants it. fsspec keeps one for each thread, and none across a fork."""
    scheme = scheme_of(address)
    driver = import_module("fsspec").filesystem(scheme, **_options(scheme))
    return driver, driver._strip_protocol(address)


def _options(scheme: str) -> dict[str, Any]:
    """Deadlines where a driver has none or multiplies them; what users configured for fsspec goes before."""
    if scheme in ("http", "https"):
        timeout = import_module("aiohttp").ClientTimeout(
            sock_connect=_CONNECT_SECONDS_WEB, sock_read=_SILENT_SECONDS_WEB
        )
        return _configured(scheme, "client_kwargs", {"timeout": timeout, "trust_env": True})
    if scheme in ("s3", "s3a"):  # botocore would try five times in each of the five
        return _configured(
            scheme, "config_kwargs", {"retries": {"total_max_attempts": 1}, "read_timeout": _SILENT_SECONDS_S3}
        )
    return {}


def _configured(scheme: str, option: str, ours: dict[str, Any]) -> dict[str, Any]:
    users = import_module("fsspec.config").conf.get(scheme, {})
    return {option: {**ours, **users.get(option, {})}}


@contextmanager
def speaking_of(
    address: str, *, kind: type[Error] = DataError, absent: type[Error] | None = None, refused: str = "cannot be read"
) -> Iterator[None]:
    """Within, whatever a driver raises is an error of this kind, of one line that names the address and says what to do; `absent` is
    that of what is not there."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:  # a driver raises what the libraries behind it do: they have no base in common
        meant = _meant(error)
        found = absent if absent and isinstance(meant, FileNotFoundError) else kind
        raise found(f"{address}: {_reason(meant, address, refused)}") from error


def is_absent(error: FileNotFoundError) -> bool:
    """Whether a driver says that there is no such file, and not, as that for the web does, that it could not be asked for it."""
    return isinstance(_meant(error), FileNotFoundError)


def _meant(error: BaseException) -> BaseException:
    """What is behind an error that fsspec calls a missing file: a server that was not reached, or said another thing than that there is none."""
    cause = error.__cause__
    is_hidden = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith(("aiohttp", "asyncio"))
    return cause if cause and is_hidden and getattr(cause, "status", 0) not in (404, 410) else error


def may_pass(error: Exception) -> bool:
    """Whether another try may go well: a connection breaks, but what is not there, not allowed or not installed will not be."""
    lasting = FileNotFoundError, PermissionError, ImportError, ValueError, Error, MemoryError
    return not isinstance(error, lasting) and not _has_expired(error) and getattr(error, "status", 500) >= 500


def _has_expired(error: BaseException) -> bool:
    """Whether a store says that a file is another than the one that was opened."""
    return type(error).__name__ == "FileExpired"


def _reason(error: BaseException, address: str, refused: str) -> str:
    scheme, is_s3 = scheme_of(address), _is_s3(address)
    status = getattr(error, "status", 0)
    if isinstance(error, ImportError) or (isinstance(error, ValueError) and "Protocol not known" in str(error)):
        return _driver_is_missing(error, scheme)
    if isinstance(error, FileNotFoundError):
        return absence(address)
    if isinstance(error, PermissionError) or status in (401, 403):
        return "access is denied" + (f": it takes the keys of {_KEYS}" if is_s3 else "")
    if _has_expired(error):
        return "was changed while it was read; start again"
    if "Credentials" in type(error).__name__:
        return f"{refused}: there are no credentials: set {_KEYS}; for a public bucket FSSPEC_S3_ANON=true"
    if status:  # the text of such an error has the whole address that was asked, behind redirects signatures with it
        return f"{refused}: the server answers {status} {getattr(error, 'message', '')}".rstrip()
    if "EndpointConnection" in type(error).__name__ or "Connector" in type(error).__name__:
        at = "the host and AWS_ENDPOINT_URL" if is_s3 else "the host"
        return f"{refused}: {_one_line(error)}; check {at}"
    return f"{refused}: {_one_line(error)}"


def _driver_is_missing(error: BaseException, scheme: str) -> str:
    if scheme in _EXTRAS:
        return f"the driver for {scheme}:// is not installed: pip install 'htrain[{_EXTRAS[scheme]}]'"
    if isinstance(error, ImportError):
        return f"the driver for {scheme}:// is not installed: {_one_line(error)}"
    return f"fsspec has no driver for {scheme}://"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
