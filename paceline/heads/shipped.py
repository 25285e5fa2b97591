"""Where heads are: a folder that was named, or one that comes with Paceline. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointMismatch, InvalidRequest

CONFIG = "config.json"
LENS = "lens"
_SHIPPED = Path(__file__).parent  # one folder per target, named as the target is; its exit heads are inside


def head_folder(head: str | Path | None, target_name: str) -> Path:
    """The folder of a head: this one, or None for the one that is shipped for this target.

    Raises CheckpointMismatch if it holds no head, InvalidRequest where none is shipped.
    """
    if head is not None:
        folder = Path(head).expanduser().absolute()
        if not (folder / CONFIG).is_file():
            raise CheckpointMismatch(f"{head} holds no head: it has no {CONFIG}; name the folder that a training or an export wrote")
        return folder
    folder = _SHIPPED / target_name
    if folder.parent == _SHIPPED and (folder / CONFIG).is_file():
        return folder
    raise InvalidRequest(
        f"no JetSpec head is shipped for {target_name or 'this target'}; give one with --head DIR (head= in Python), "
        f"or train one: paceline train jetspec --model {target_name or 'MODEL'} --prompts FILE --out DIR"
    )


def exits_folder(exits: str | Path | None, target_name: str) -> Path | None:
    """The folder of exit heads: this one, or None for those that are shipped for this target. None where the logit lens is to read.

    Raises CheckpointMismatch if it holds nothing.
    """
    if exits == LENS:
        return None
    if exits is not None:
        folder = Path(exits).expanduser().absolute()
        if not (folder / CONFIG).is_file():
            raise CheckpointMismatch(
                f"{exits} holds no exit heads: it has no {CONFIG}; name the folder that `paceline train exits` wrote, or {LENS} for none"
            )
        return folder
    folder = _SHIPPED / target_name / "exits"
    return folder if folder.parent.parent == _SHIPPED and (folder / CONFIG).is_file() else None
