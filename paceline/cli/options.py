"""The options that commands share, each defined once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Option(help="smollm2 (embedded), a folder, a .gguf file, or a hub id such as owner/name or owner/name@revision.")
]
Method = Annotated[str, typer.Option(help="drafter, drafter/rule or drafter+drafter; `paceline methods` lists them.")]
DraftModel = Annotated[str | None, typer.Option(help="A small model with the same tokenizer, for methods draft_model and auto.")]
NumSpeculativeTokens = Annotated[int | None, typer.Option(min=1, help="Depth of the draft.")]
Budget = Annotated[int | None, typer.Option(min=1, help="Nodes of the draft tree, the root included.")]
Head = Annotated[
    str | None, typer.Option(help="Folder of a head of this target, for method jetspec; the embedded model has one of its own.")
]
Exits = Annotated[
    str | None,
    typer.Option(help="Folder of exit heads of this target, for method specbound, or lens for its own norm and output layer."),
]
ExitSettings = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE of specbound, as threshold=0.8, depth=15, layers=9,15 or annealing=0.5. Repeatable."),
]
Record = Annotated[
    Path | None,
    typer.Option(help="Keep in this folder what was drafted, kept and refused: `paceline train rcsd --records` learns from it."),
]
Shape = Annotated[
    str | None,
    typer.Option(help="Of a draft model's tree, drawn or fixed as the rule needs: chain, chain:5, 2x3 (width, depth) or sequoia:0.6,0.2."),
]
Rule = Annotated[str | None, typer.Option(help="Short for --method METHOD/RULE, as in --method draft_model --rule csd.")]
Suite = Annotated[str | None, typer.Option(help="builtin, or NAME for NAME.jsonl in the current folder, such as spec_bench.")]
Profile = Annotated[
    str | None, typer.Option(help="What `paceline tune` wrote, for method auto; without it the one that the cache holds, if there is one.")
]
RuleMode = Annotated[str | None, typer.Option(help="Of the lossy rules csd and easd: off, shadow (count, change nothing) or on.")]
Memory = Annotated[str | None, typer.Option(help="Correction memory for rule csd, made by `paceline calibrate csd`.")]
Thresholds = Annotated[
    str | None, typer.Option(help="Thresholds for rule easd, made by `paceline calibrate easd`; without them it is in shadow.")
]
RuleSettings = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE of csd or easd, as csd.tau=0.05 or easd.preset=published. Repeatable.")
]
MaxNewTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy decoding.")]
TopP = Annotated[float | None, typer.Option(help="Sample from the likeliest tokens up to this mass.")]
TopK = Annotated[int | None, typer.Option(help="Sample from this many of the likeliest tokens.")]
MinP = Annotated[float | None, typer.Option(help="Sample from tokens at least this likely, relative to the likeliest one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 discourages tokens of prompt and output; 1 is off.")]
Seed = Annotated[int | None, typer.Option(help="For repeatable sampling.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be given several times.")]
System = Annotated[str | None, typer.Option(help="A system message before the conversation.")]
Stream = Annotated[bool | None, typer.Option("--stream/--no-stream", help="Print text as it comes. The default on a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of the text.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16; auto is bfloat16 where the hardware has it.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 and so on.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")]
Weights = Annotated[str, typer.Option(help="auto, packed (in the CPU's layout) or plain; the numbers are the same.")]
DraftWeights = Annotated[
    str | None, typer.Option(help="auto, plain, packed, int4 or int8 (rounded, quicker to read); never changes the text's law.")
]
