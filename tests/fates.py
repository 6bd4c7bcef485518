"""What a model makes of a placeholder instead of copying it."""

from __future__ import annotations

from collections.abc import Callable

#: What a model makes of a placeholder, and what of it is counted: returned, altered, lost, invented.
FATES: dict[str, tuple[Callable[[str, str], str], tuple[int, int, int, int]]] = {
    "copied": (lambda kind, tag: f"<{kind}_{tag}>", (1, 0, 0, 0)),
    "copied twice": (lambda kind, tag: f"<{kind}_{tag}> or <{kind}_{tag}>", (1, 0, 0, 0)),
    "inflected": (lambda kind, tag: f"<{kind}_{tag}>s", (1, 0, 0, 0)),
    "possessive": (lambda kind, tag: f"<{kind}_{tag}>'s", (1, 0, 0, 0)),
    "compounded": (lambda kind, tag: f"the-<{kind}_{tag}>-list", (1, 0, 0, 0)),
    "in brackets": (lambda kind, tag: f"<<{kind}_{tag}>>", (1, 0, 0, 0)),
    "cased": (lambda kind, tag: f"<{kind.title()}_{tag}>", (0, 1, 0, 0)),
    "bare": (lambda kind, tag: f"{kind}_{tag}", (0, 1, 0, 0)),
    "not closed": (lambda kind, tag: f"<{kind}_{tag}", (0, 1, 0, 0)),
    "not opened": (lambda kind, tag: f"{kind}_{tag}>", (0, 1, 0, 0)),
    "escaped": (lambda kind, tag: f"&lt;{kind}_{tag}&gt;", (0, 1, 0, 0)),
    "in Markdown": (lambda kind, tag: f"**{kind}_{tag}**", (0, 1, 0, 0)),
    "split": (lambda kind, tag: f"<{kind}_{tag[:2]} {tag[2:]}>", (0, 1, 0, 0)),
    "hyphenated": (lambda kind, tag: f"<{kind}_{tag[:2]}-{tag[2:]}>", (0, 1, 0, 0)),
    "over two lines": (lambda kind, tag: f"<{kind}_\n{tag}>", (0, 1, 0, 0)),
    "spaced": (lambda kind, tag: f"< {kind}_{tag} >", (0, 1, 0, 0)),
    "changed": (lambda kind, tag: f"<{kind}_{tag[:3]}x>", (0, 1, 0, 0)),
    "longer": (lambda kind, tag: f"<{kind}_{tag}s>", (0, 1, 0, 0)),
    "shorter": (lambda kind, tag: f"<{kind}_{tag[:3]}>", (0, 1, 0, 0)),
    "of another kind": (lambda kind, tag: f"<{kind}S_{tag}>", (0, 0, 1, 1)),
    "of another value": (lambda kind, tag: f"<{kind}_{tag[:2]}xx>", (0, 0, 1, 1)),
    "lost": (lambda kind, tag: "nothing", (0, 0, 1, 0)),
}
