"""Writes the parts of docs/wire.md that the code says better than anybody. Run it after changing what they show:

python tests/service/wire_page.py
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wire_examples import dtype_table, frame_table, packed_examples, value_examples, whole_table
from wire_exchange import evaluate_exchange, fold_dtype_table, phase_exchange, plain_exchange
from wire_situations import status_table

from fedstack import errors
from fedstack.service.host.limits import DataWorkerLimits, DispatcherLimits, ServerLimits, ServiceLimits, option_of
from fedstack.transport.wire.status import code_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
# What stands between two such lines is written here, everything else by hand.
_PART = re.compile(
    r"(<!-- (?P<name>[\w ]+), written by tests/service/wire_page\.py -->\n).*?(<!-- end -->\n)", re.DOTALL
)


def parts() -> Mapping[str, str]:
    """Returns the parts of the page by their names."""
    return {
        "dtypes": _table(dtype_table()),
        "values": _block(value_examples()),
        "statuses": _table(status_table()),
        "errors": _table(_error_table()),
        "evaluate": _block([evaluate_exchange()]),
        "frames": _table(frame_table()),
        "wholes": _table(whole_table()),
        "packed": _block(packed_examples()),
        "fold dtypes": _table(fold_dtype_table()),
        "plain exchange": _block([plain_exchange()]),
        "phase exchange": _block([phase_exchange()]),
        "limits": _table(_limit_table(ServiceLimits)),
        "server limits": _table(_limit_table(ServerLimits)),
        "dispatcher limits": _table(_limit_table(DispatcherLimits)),
        "data worker limits": _table(_limit_table(DataWorkerLimits)),
    }


def _error_table() -> Iterator[str]:
    yield "| `error` | status |"
    yield "| --- | --- |"
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.FedstackError) and found is not errors.FedstackError:
            status = "its own" if found is errors.RemoteError else code_of(found("")).name
            yield f"| `{name}` | {status} |"
    yield f"| any other, by the name of its class | {code_of(ZeroDivisionError()).name} |"


def _limit_table(table: type[attrs.AttrsInstance]) -> Iterator[str]:
    meanings = dict(re.findall(r"^ +(\w+): (.+)\.$", table.__doc__ or "", re.MULTILINE))
    yield "| limit | default | option of `fedstack serve` |"
    yield "| --- | --- | --- |"
    limits = table()
    for field in attrs.fields(table):
        value = getattr(limits, field.name)
        if isinstance(value, (int, float)):
            yield f"| {meanings[field.name]} | {_number(field.name, value)} | `{option_of(field.name)}` |"


def _number(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{round(value) + 1 >> 30} GiB" if value + 1 >= 1 << 30 else f"{int(value) >> 20} MiB"
    return f"{value:g} s" if name.endswith("_seconds") else f"{value:,}"


def _table(lines: Iterator[str]) -> str:
    return "\n" + "".join(f"{line}\n" for line in lines) + "\n"


def _block(lines: Iterator[str] | list[str]) -> str:
    text = "\n".join(lines).rstrip()
    return f"```text\n{text}\n```\n"


def renewed(page: str) -> str:
    """Returns the page with its parts as they are now."""
    now = parts()
    return _PART.sub(lambda found: f"{found[1]}{now[found['name']]}{found[3]}", page)


def names_in(page: str) -> list[str]:
    """Lists the parts in the page."""
    return [found["name"] for found in _PART.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
