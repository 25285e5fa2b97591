"""`paceline trace`: one answer as a page on which a person steps through the rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidRequest
from . import common, options
from .console import Progress, stderr
from .generate import Chat, Prompt

if TYPE_CHECKING:
    from .common import Session

Out = Annotated[Path, typer.Option(help="The page to write, one file that needs nothing else.")]
MOST = 2000  # tokens: a page holds every node of every round


def main(
    context: typer.Context,
    prompt: Prompt,
    model: options.Model = common.EMBEDDED,
    method: options.Method = "auto",
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    budget: options.Budget = None,
    shape: options.Shape = None,
    head: options.Head = None,
    profile: options.Profile = None,
    exits: options.Exits = None,
    exit_settings: options.ExitSettings = None,
    rule: options.Rule = None,
    rule_mode: options.RuleMode = None,
    memory: options.Memory = None,
    thresholds: options.Thresholds = None,
    rule_settings: options.RuleSettings = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    chat: Chat = True,
    out: Out = Path("trace.html"),
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    revision: options.Revision = None,
    weights: options.Weights = "auto",
    draft_weights: options.DraftWeights = None,
) -> None:
    """Answer one prompt and write a page that shows each round: the draft, what target and draft thought, and what was kept."""
    models, plan = common.chosen(context.params)
    common.check(models, plan, stream=None, as_json=False)
    if max_new_tokens > MOST:
        raise InvalidRequest(f"--max-new-tokens is {max_new_tokens}; a page takes at most {MOST}")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InvalidRequest(f"--out {out} is no file in a folder that exists; make the folder first, or give another name")
    text = common.read_prompt(prompt)
    with Progress() as progress:
        progress("starting")
        params = common.sampling_params(context.params)
        session = common.open_session(models, plan, params, progress)
        story = _told(session, text, chat, progress)
    from ..trace.write import write

    write(story, out)
    stderr().print(f"{story['tokens']} tokens in {len(story['rounds'])} rounds; written to {out}", soft_wrap=True)


def _told(session: Session, text: str, chat: bool, progress: Progress) -> dict[str, Any]:
    from .. import api
    from ..trace.story import tell

    seq = api.request(session.target, text, session.params, chat)
    told = tell(session.target, session.drafter, session.rule, seq, lambda tokens: progress(f"decoding, {tokens} tokens"))
    about = {"model": session.target.name, "method": session.method, "lossless": session.rule.lossless}
    return about | {"temperature": session.params.temperature, "prompt": text} | told
